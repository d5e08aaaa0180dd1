"""How the code is built: one class for a name, functions that can be read at a sitting."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import tokonomics

SOURCE = Path(str(tokonomics.__file__)).parent
DECLARATIONS = {"sweep", "web"}
"""Commands whose parameters are their options."""
MOST_LINES, MOST_PARAMETERS = 80, 12


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE), ast.parse(path.read_text(encoding="utf-8"))


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def test_a_class_name_exists_once() -> None:
    homes = defaultdict(list)
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path))
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
