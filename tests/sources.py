"""The package's own files, each read and taken apart once."""

import ast
from functools import cache
from pathlib import Path

import tokonomics

SOURCE = Path(str(tokonomics.__file__)).parent


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parsed(path)))
