"""Which flags do vLLM and SGLang accept? Reads their argument parsers in the wheels, without importing them.

vLLM names its engine flags in ``add_argument`` calls and takes its server flags from the fields of a configuration
class; SGLang takes all of its own from annotated fields. Writes the names, with the versions and the values that the
flags we use accept, to ``tests/deploy/engine_flags.json``, which the tests of the deploy files read.

    pip download --no-deps vllm==0.32.0 sglang==0.5.23
    python benchmarks/read_engine_flags.py vllm-*.whl sglang-*.whl
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

FIXTURE = Path(__file__).parents[1] / "tests" / "deploy" / "engine_flags.json"
VLLM_PARSERS = ("vllm/engine/arg_utils.py", "vllm/entrypoints/launchers/cli_args.py")
VLLM_QUANTIZATION = "vllm/model_executor/layers/quantization"
SGLANG_FIELDS = "sglang/srt/arg_groups/fields/"


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    wheels = {Path(each).name.split("-")[0]: Path(each) for each in sys.argv[1:]}
    found = {"vllm": read_vllm(wheels["vllm"]), "sglang": read_sglang(wheels["sglang"])}
    for engine, wheel in wheels.items():
        found[engine]["version"] = wheel.name.split("-")[1]
    FIXTURE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"wrote {FIXTURE.name}: " + ", ".join(f"{len(each['flags'])} flags of {key}" for key, each in found.items()))
    return 0


def read_vllm(wheel: Path) -> dict[str, Any]:
    flags: set[str] = set()
    with ZipFile(wheel) as archive:
        for name in VLLM_PARSERS:
            tree = ast.parse(archive.read(name))
            flags |= set(_arguments(tree))
            flags |= {_flag(field) for field, _ in _fields(tree) if field[0] != "_"} if "cli_args" in name else set()
        literals = {
            "--quantization": _literal(archive, f"{VLLM_QUANTIZATION}/__init__.py", "QuantizationMethods"),
            "--kv-cache-dtype": _literal(archive, "vllm/config/cache.py", "CacheDType"),
            "--dtype": _literal(archive, "vllm/config/model.py", "ModelDType"),
        }
    return {"flags": sorted(flags), "values": literals}


def read_sglang(wheel: Path) -> dict[str, Any]:
    flags: set[str] = set()
    values: dict[str, list[str]] = {}
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(SGLANG_FIELDS) and name.endswith(".py"):
                for field, annotation in _fields(ast.parse(archive.read(name))):
                    if _is_flag(annotation):
                        flags |= {_flag(field), *_listed(annotation, "aliases")}
                        values |= {_flag(field): each for each in [_listed(annotation, "choices")] if each}
        values["--quantization"] = _literal(archive, "sglang/srt/arg_groups/choices.py", "QUANTIZATION_CHOICES")
    wanted = ("--quantization", "--kv-cache-dtype", "--dtype")
    return {"flags": sorted(flags), "values": {each: values[each] for each in wanted}}


def _arguments(tree: ast.AST) -> Iterator[str]:
    """Every flag given to an ``add_argument`` call; a switch counts with its negation."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for arg in node.args:
                if (text := _string(arg)) and text.startswith("--"):
                    yield text
                    if text == "--enable-prefix-caching":  # A bool field: argparse.BooleanOptionalAction.
                        yield "--no-enable-prefix-caching"


def _fields(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Annotated fields of the classes in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    yield each.target.id, each.annotation


def _is_flag(annotation: ast.expr) -> bool:
    """``A[type, help or Arg(...)]`` without ``no_cli``."""
    if not (isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", None) == "A"):
        return False
    keywords = [keyword for node in ast.walk(annotation) if isinstance(node, ast.Call) for keyword in node.keywords]
    derived = any(
        isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Derived" for node in ast.walk(annotation)
    )
    return not derived and not any(keyword.arg in ("no_cli", "cli_name") for keyword in keywords)


def _listed(annotation: ast.expr, keyword: str) -> list[str]:
    """The strings of a list given to ``Arg`` under that keyword."""
    for node in ast.walk(annotation):
        for each in node.keywords if isinstance(node, ast.Call) else []:
            if each.arg == keyword and isinstance(each.value, ast.List):
                return [text for item in each.value.elts if (text := _string(item))]
    return []


def _literal(archive: ZipFile, name: str, variable: str) -> list[str]:
    """The strings in the value of a module's variable."""
    for node in ast.parse(archive.read(name)).body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", None) == variable for target in node.targets):
            return [text for each in ast.walk(node.value) if (text := _string(each))]
    raise SystemExit(f"{name} has no {variable}")


def _string(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


if __name__ == "__main__":
    sys.exit(main())
