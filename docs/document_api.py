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
from tokonomics.api.ask import arguments, verb_of
from tokonomics.api.result import Result
from tokonomics.cli.argument_names import in_python
from tokonomics.types import Noun

GUIDE = Path(__file__).with_name("python.md")
WIDTH = 150
QUESTIONS = {
    "What to rent, what to change, host or call": ("plan", "fleet", "levers", "breakeven"),
    "What a deployment does with traffic": ("simulate", "capacity", "trace", "read_trace"),
    "Does it fit, how long is a step": ("fit", "predict", "curve"),
    "What exists": ("models", "gpus", "offers"),
}
HEAD = """# Python reference

`import tokonomics as tk` gives these names, and loads what one needs when it is first used. Arguments are the flags of
the verb of the same name ([commands](commands.md)), figures are those of its `--json`. How to begin:
[the Python guide](python.md). This page is made from signatures, docstrings and the verbs' help; the examples were run.
"""
KINDS = {
    "Requests": "a request log, a shipped sample's name, what `read_trace` gives, a frame (polars, pandas), or columns by name",
    "Prices": "a CSV file, a frame (polars, pandas), or columns by name",
    "Slo": 'promises as text, `"ttft_p99=0.5,tpot_p99=50ms"`, or `{"ttft_p99": 0.5, "tpot_p99": "50ms"}`',
    "Words": "one name, several with commas, or a list",
    "Discount": '`"aws=0.2"` or `{"aws": 0.2}`',
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
            parts += ["", *_function(getattr(tk, name))]
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
    for name, each in vars(Result).items():
        if isinstance(each, property) and not name.startswith(("_", "model_")):
            yield name, each
        elif inspect.isfunction(each) and not name.startswith(("_", "model_")):
            yield f"{name}{_call(each)}", each


def _call(function: Callable[..., object]) -> str:
    given = list(inspect.signature(function).parameters.values())[1:]
    return f"({', '.join(each.name for each in given)})"


def _first(documented: object) -> str:
    return _plain(" ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split()))


def _plain(text: str) -> str:
    """Of docstrings, in Markdown."""
    return text.replace("``", "`")


def _function(function: Callable[..., object]) -> list[str]:
    tree = _tree(function)
    assert isinstance(tree, ast.FunctionDef)
    said = inspect.getdoc(function) or ""
    written = said.split("\n>>>")[0].strip()
    about = _plain(written)
    returned = str(ast.unparse(tree.returns)).strip("'") if tree.returns else ""
    lines = [f"## {function.__name__}", "", f"`tk.{function.__name__}(…) -> {returned}`", "", about, ""]
    examples = textwrap.dedent(said[len(written) :].split("\nArguments:")[0]).strip()
    lines += ["```python", _run(examples, {}).rstrip("\n"), "```", ""]
    lines += [
        f"On the command line: `tokonomics {verb_of(function)}`.",
        "",
        "| argument | type | default | |",
        "|---|---|---|---|",
    ]
    types = {each.arg: each.annotation for each in (*tree.args.args, *tree.args.kwonlyargs)}
    for name, argument in arguments(function).items():
        default = inspect.signature(function).parameters[name].default
        shown = (
            "required"
            if default is inspect.Parameter.empty
            else in_python(argument.default_text or "") or _shown(default)
        )
        annotation = types[name]
        kind = "" if annotation is None else ast.unparse(annotation).removesuffix(" | None").replace("|", "\\|")
        lines.append(f"| `{name}` | `{kind}` | {shown} | {_cell(argument.help)} |")
    kind_of_result = inspect.get_annotations(function, eval_str=False).get("return")
    if isinstance(kind_of_result, type) and issubclass(kind_of_result, Result):
        lines += ["", f"`{returned}`: {_first(kind_of_result)}", "", *_table(kind_of_result)]
    return lines


def _table(noun: type[Noun]) -> list[str]:
    rows = [f"| `{name}` | `{kind}` | {_cell(meaning)} |" for name, kind, meaning in _figures(noun)]
    return ["| figure | type | |", "|---|---|---|", *rows]


def _nouns() -> dict[str, type[Noun]]:
    """Every noun that a result holds, at any depth."""
    found: dict[str, type[Noun]] = {}
    names = [name for names in QUESTIONS.values() for name in names]
    queue: list[Any] = [inspect.get_annotations(getattr(tk, name)).get("return") for name in names]
    while queue:
        each = queue.pop()
        queue += get_args(each)
        if isinstance(each, type) and issubclass(each, Noun) and each.__name__ not in found:
            if not issubclass(each, Result):
                found[each.__name__] = each
            queue += [field.annotation for field in each.model_fields.values()]
    return found


def _shown(default: object) -> str:
    return "" if default is None else f"`{default!r}`"


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def _figures(kind: type[Noun]) -> Iterator[tuple[str, str, str]]:
    """The fields of a result with their types and what is written below them, those of the noun it extends first."""
    written: dict[str, tuple[str, str]] = {}
    for each in reversed(kind.__mro__):
        if not each.__module__.startswith("tokonomics"):
            continue
        body = _tree(each).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                meaning = str(after.value.value) if is_text else ""
                written[node.target.id] = ast.unparse(node.annotation).replace("|", "\\|"), meaning
    for name in kind.model_fields:
        yield name, *written[name]


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
