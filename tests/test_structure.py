"""How the code is built: one class for a name, functions that can be read at a sitting."""

import ast
import importlib
import inspect
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from tests.sources import SOURCE, nodes

DECLARATIONS = {"sweep", "web"}
"""Commands whose parameters are their options."""
MOST_LINES, MOST_PARAMETERS = 80, 12
COMPUTING = {"deploy", "measure", "money", "physics", "planner", "serving", "sizing", "traffic"}
"""Layers of which views take nouns and constants, and no function."""
IN_WORDS = {
    "tokonomics.catalog.offer_choice.usual_host_gib", "tokonomics.catalog.checkpoints.recovery_text",
    "tokonomics.catalog.places.seller_of", "tokonomics.catalog.gpus.gpu_text", "tokonomics.catalog.gpus.find_gpu",
    "tokonomics.questions.scenario_text.command_line", "tokonomics.questions.scenario_text.command_words",
    "tokonomics.questions.request.parameters_of", "tokonomics.questions.results.layout_text",
    "tokonomics.questions.results.replicas_text", "tokonomics.questions.results.split_text",
}  # fmt: skip
"""Functions of the other layers that views may call: they put a noun or a command in words."""


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


def imported_by_views() -> Iterator[tuple[str, str, str]]:
    """File, module and name of all that views import from the package, wherever in the file."""
    for path in sorted((SOURCE / "report").rglob("*.py")):
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tokonomics."):
                for alias in node.names:
                    yield path.relative_to(SOURCE).as_posix(), node.module or "", alias.name


def test_views_import_nouns_and_no_function_that_computes() -> None:
    """Whatever is shown stands in the result, for ``--json``, Python and MCP too."""
    found = {
        (path, f"{module}.{name}")
        for path, module, name in imported_by_views()
        if module.split(".")[1] in COMPUTING | {"catalog", "questions"}
        and inspect.isroutine(getattr(importlib.import_module(module), name))
    }
    assert {(path, name) for path, name in found if name.split(".")[1] in COMPUTING} == set()
    assert {name for _, name in found} == IN_WORDS


def test_views_import_no_module_of_ours_whole() -> None:
    """As its functions would come with it."""
    whole = [
        (path.name, alias.name)
        for path in sorted((SOURCE / "report").rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.startswith("tokonomics")
    ]
    assert whole == []


def test_a_small_question_loads_little_of_the_package() -> None:
    """``predict`` asks of one deployment: no planner's search, no simulator, no market."""
    ask = "import sys, tokonomics.questions.predict; print(*(n for n in sys.modules if n.startswith('tokonomics')))"
    loaded = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True).stdout.split()
    assert "tokonomics.questions.predict" in loaded
    assert len(loaded) <= 90
    assert not {"tokonomics.planner.plan", "tokonomics.serving.simulator", "tokonomics.questions.load"} & set(loaded)
