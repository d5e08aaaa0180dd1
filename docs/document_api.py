"""The Python reference, from signatures, docstrings and the verbs' own help; and the outputs of the Python guide.

An example is run when the page is made, and what it gives is printed below it.
"""

import ast
import contextlib
import doctest
import inspect
import io
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import tokonomics as tk
from tokonomics.errors import by_name
from tokonomics.library import Function, annotation, function
from tokonomics.questions import breakeven, can_run, fleet, predict, results
from tokonomics.questions.request import Parameter
from tokonomics.questions.result import Result
from tokonomics.types import Noun

GUIDE = Path(__file__).with_name("python.md")
WIDTH = 150
QUESTIONS = {
    "What to rent, what to change, host or call": ("plan", "fleet", "levers", "breakeven"),
    "What a deployment does with traffic": ("simulate", "capacity", "trace", "read_trace"),
    "Does it fit, how long is a step": ("can_run", "fit", "predict", "curve"),
    "What exists": ("models", "gpus", "offers"),
}
WAYS = ("command", "headline", "to_frame", "frames", "chart", "charts", "to_json")
HEAD = """# Python reference

`import tokonomics as tk` gives these names, and loads what one needs when it is first used. Arguments are the flags of
the verb of the same name ([commands](commands.md)), figures are those of its `--json`. How to begin:
[the Python guide](python.md). This page is made from signatures, docstrings and the verbs' help; the examples were run.
"""
KINDS = {
    "Requests": "a request log, a shipped sample's name, what `read_trace` gives, a frame (polars, pandas), or columns by name",
    "Prices": "a CSV file, a frame (polars, pandas), or columns by name",
    "Words": "what one would type after the flag, as text or as a number; several with commas, or as a list; names with "
    'values as a dict too: `"ttft_p99=0.5,tpot_p99=50ms"` or `{"ttft_p99": 0.5, "tpot_p99": "50ms"}`',
}


def api_page() -> str:
    """docs/api.md."""
    parts = [HEAD]
    for question, names in QUESTIONS.items():
        parts += [f"- {question}: {', '.join(f'[`{name}`](#{name})' for name in names)}"]
    parts += [
        "",
        "Errors are `tk.TokonomicsError`: what is wrong, where, what to do about it.",
        "",
        "In the tables:",
        "",
    ]
    parts += [f"- `{name}`: {meaning}" for name, meaning in KINDS.items()]
    parts += [
        "",
        "## Results",
        "",
        "Every result is a frozen pydantic model of the figures below its function, and has:",
        "",
    ]
    parts += [f"- `{name}`: {_first(each)}" for name, each in _ways()]
    for names in QUESTIONS.values():
        for name in names:
            parts += ["", *_function(function(name))]
    parts += ["", "## What results are made of", "", "Nouns inside the results above, by name."]
    for name, noun in sorted(_nouns().items()):
        parts += [
            "",
            f"### {name}",
            "",
            _first(noun) if "__doc__" in vars(noun) and noun.__doc__ else "",
            "",
            *_table(noun),
        ]
    return "\n".join(parts) + "\n"


def python_page() -> str:
    """docs/python.md with the output of its examples; they share their names, as in a notebook."""
    names: dict[str, Any] = {}
    return re.sub(
        r"(?<=```python\n)>>>.*?(?=```)",
        lambda block: _run(block[0], names),
        GUIDE.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )


def _ways() -> Iterator[tuple[str, Any]]:
    """What a reader does with a result: its doors' own are left out."""
    for name in WAYS:
        way = vars(Result)[name]
        yield name if isinstance(way, property) else f"{name}{_call(way)}", way


def _call(function: Callable[..., object]) -> str:
    given = list(inspect.signature(function).parameters.values())[1:]
    return f"({', '.join(each.name for each in given)})"


def _first(documented: object) -> str:
    return _plain(" ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split()))


def _plain(text: str) -> str:
    """Of docstrings, in Markdown."""
    return text.replace("``", "`")


def _function(asked: Function) -> list[str]:
    said = inspect.getdoc(asked) or ""
    about = said.split("\n>>>")[0].strip()
    lines = [f"## {asked.__name__}", "", f"`tk.{asked.__name__}(…) -> {asked.returns}`", "", _plain(about), ""]
    examples = said[len(about) :].split("\nArguments:")[0].strip()
    lines += ["```python", _run(examples, {}).rstrip("\n"), "```", ""]
    lines += [f"On the command line: `tokonomics {' '.join(asked.verb.words)}`.", ""]
    lines += ["| argument | type | default | |", "|---|---|---|---|", *map(_argument, asked.arguments.values())]
    found = _result(asked)
    if found:
        lines += ["", f"`{asked.returns}`: {_first(found)}", "", *_table(found)]
    return lines


def _argument(argument: Parameter) -> str:
    kind = annotation(argument).removesuffix(" | None").replace("|", "\\|")
    default = "required" if argument.required else by_name(argument.default_text or "") or _shown(argument.default)
    return f"| `{argument.name}` | `{kind}` | {default} | {_cell(by_name(argument.help))} |"


def _result(asked: Function) -> type[Result] | None:
    """What it gives, where that is a noun of ours."""
    homes = (results, fleet, breakeven, can_run, predict)
    found = next((vars(home)[asked.returns] for home in homes if asked.returns in vars(home)), None)
    return found if isinstance(found, type) and issubclass(found, Result) else None


def _table(noun: type[Noun]) -> list[str]:
    rows = [f"| `{name}` | `{kind}` | {_cell(meaning)} |" for name, kind, meaning in _figures(noun)]
    return ["| figure | type | |", "|---|---|---|", *rows]


def _nouns() -> dict[str, type[Noun]]:
    """Every noun that a result holds, at any depth."""
    found: dict[str, type[Noun]] = {}
    queue: list[Any] = [_result(function(name)) for names in QUESTIONS.values() for name in names]
    while queue:
        each = queue.pop()
        queue += get_args(each)
        if isinstance(each, type) and issubclass(each, Noun) and each.__name__ not in found:
            if not issubclass(each, Result):
                found[each.__name__] = each
            queue += [field.annotation for field in each.model_fields.values() if not field.exclude]
    return found


def _shown(default: object) -> str:
    return "" if default is None else f"`{default!r}`"


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def _figures(kind: type[Noun]) -> Iterator[tuple[str, str, str]]:
    """The fields of a result, their types and what is written behind or below them; of the noun it extends first."""
    written: dict[str, tuple[str, str]] = {}
    for each in reversed(kind.__mro__):
        if not each.__module__.startswith("tokonomics"):
            continue
        body, lines = _tree(each).body, textwrap.dedent(inspect.getsource(each)).splitlines()
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                comment = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")[2]
                meaning = str(after.value.value) if is_text else _sentence(comment)
                annotation = ast.unparse(node.annotation).replace("Marked", "str").replace("|", "\\|")
                written[node.target.id] = annotation, meaning
    for name, field in kind.model_fields.items():
        if not field.exclude:
            yield name, *written[name]


def _sentence(comment: str) -> str:
    return f"{comment[0].upper()}{comment[1:].removesuffix('.')}." if comment else ""


def _tree(thing: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _run(block: str, names: dict[str, Any]) -> str:
    """The examples of a block, each with what it gives now."""
    import polars as pl

    names.setdefault("tk", tk)
    made = []
    with pl.Config(tbl_width_chars=WIDTH, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, tbl_cols=12):
        for example in doctest.DocTestParser().get_examples(block):
            lines = example.source.rstrip("\n").split("\n")
            made += [f">>> {lines[0]}", *(f"... {line}" for line in lines[1:])]
            shown = io.StringIO()
            with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()):
                try:
                    exec(compile(example.source, "<example>", "single"), names)
                except tk.TokonomicsError as error:
                    print(f"{type(error).__name__}: {error}")
            printed = shown.getvalue().replace(str(Path.home()), "~")  # messages name the user's own folders
            made += [line.rstrip() for line in printed.rstrip().splitlines()]
    return "\n".join(made) + "\n"
