"""Writes ``tests/deploy/schemas/dstack.json`` and ``compose.json``: what of their schemas the deploy files use.

    pip install dstack==0.22.5
    pip download --no-deps check-jsonschema==0.39.0
    python benchmarks/read_stack_schemas.py check_jsonschema-0.39.0-py3-none-any.whl 2026-11-17

dstack's is made from its own models; that of the Compose specification is kept in the wheel of check-jsonschema
(Apache-2.0). Fields that we do not write are left out, so that an object refuses them; prose and defaults too.

The other schemas of that folder are written by hand from what each names as its source: types in Go and values of
Helm charts, which no package has.
"""

import argparse
import json
import zipfile
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "tests" / "deploy" / "schemas"
COMPOSE = "check_jsonschema/builtin_schemas/vendor/compose-spec.json"
WRITTEN = {
    "ServiceConfiguration": "type name image env commands port model probes resources fleets replicas scaling",
    "FleetConfiguration": "type name nodes blocks resources spot_policy backends instance_types regions",
    "service": "image entrypoint command environment volumes network_mode ipc restart stop_grace_period healthcheck "
    "deploy devices group_add runtime profiles",
    "deployment": "resources",
    "ProbeConfig": "type url",
}
"""Fields of the largest objects that we write."""
PROSE = {"description", "title", "default", "examples", "deprecated", "$comment", "$id", "$schema", "discriminator"}


def reduced(node: Any, name: str = "") -> Any:
    """A schema without prose, and without fields of a named object that we do not write."""
    if isinstance(node, list):
        return [reduced(part) for part in node]
    if not isinstance(node, dict):
        return node
    fields = set(WRITTEN[name].split()) if name in WRITTEN else None
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            kept[key] = {field: reduced(part) for field, part in value.items() if fields is None or field in fields}
        elif key not in PROSE:
            kept[key] = reduced(value)
    return kept


def with_used(roots: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """The named schemas, and all that they refer to."""
    used: dict[str, Any] = {}
    left = list(roots.values())
    while left:
        for name in references(left.pop()):
            if name not in used:
                used[name] = reduced(known[name], name)
                left.append(used[name])
    return dict(sorted(used.items()))


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"].rsplit("/", 1)[1]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def write(name: str, source: str, kinds: dict[str, Any], known: dict[str, Any]) -> None:
    parts: dict[str, Any] = {"source": source, "kinds": kinds, "$defs": with_used(kinds, known)}
    (OUT / f"{name}.json").write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    from dstack._internal.core.models.configurations import DstackConfiguration  # type: ignore[import-not-found]
    from dstack.version import __version__  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("day", help="of the download")
    given = parser.parse_args()
    dstack = DstackConfiguration.model_json_schema()["$defs"]
    kinds = {kind: reduced(dstack[name], name) for kind, name in
             (("service", "ServiceConfiguration"), ("fleet", "FleetConfiguration"))}  # fmt: skip
    write(
        "dstack", f"dstack {__version__} (MPL-2.0), DstackConfiguration.model_json_schema(), {given.day}", kinds, dstack
    )
    with zipfile.ZipFile(given.wheel) as wheel:
        compose = json.loads(wheel.read(COMPOSE))
    known = compose["$defs"]
    top = {
        "type": "object",
        "properties": {key: reduced(compose["properties"][key]) for key in ("services", "volumes")},
    }
    source = (
        f"github.com/compose-spec/compose-spec schema/compose-spec.json (Apache-2.0) in {given.wheel.name}, {given.day}"
    )
    write("compose", source, {"compose": top | {"additionalProperties": False}}, known)


if __name__ == "__main__":
    main()
