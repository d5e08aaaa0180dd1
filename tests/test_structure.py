"""How the code is built: one class for a name, functions that can be read at a sitting."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from tests.sources import SOURCE, nodes

DECLARATIONS = {"sweep", "web"}
"""Commands whose parameters are their options."""
MOST_LINES, MOST_PARAMETERS = 80, 12


@cache
def defined() -> list[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every class and function, with its file."""
    return [
        (path.relative_to(SOURCE).as_posix(), node)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, node in defined():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield path, node


def test_a_class_name_exists_once() -> None:
    homes = defaultdict(list)
    for path, node in defined():
        if isinstance(node, ast.ClassDef):
            homes[node.name].append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_a_function_is_read_at_a_sitting() -> None:
    lengths = {f"{path}:{node.name}": (node.end_lineno or 0) - node.lineno + 1 for path, node in functions()}
    long = {name: lines for name, lines in lengths.items() if lines > MOST_LINES}
    assert {name for name in long if name.rpartition(":")[2] not in DECLARATIONS} == set()


def test_a_function_takes_few_arguments() -> None:
    counts = {
        f"{path}:{node.name}": len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
        for path, node in functions()
        if node.name not in DECLARATIONS
    }
    assert {name: count for name, count in counts.items() if count > MOST_PARAMETERS} == {}
