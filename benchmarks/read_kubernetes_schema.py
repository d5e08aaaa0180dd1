"""Writes ``tests/deploy/kubernetes_schema.json.gz``: strict JSON schemas of the Kubernetes kinds that deploy files use.

    pip download --no-deps kubernetes-validate
    python benchmarks/read_kubernetes_schema.py kubernetes_validate-1.37.0-py3-none-any.whl 1.37.0 2026-11-16

Taken from the wheel of kubernetes-validate (Apache-2.0), in which every object refuses fields that it does not know;
without descriptions, and without what those kinds do not refer to.
"""

import argparse
import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

KINDS = {
    "PersistentVolumeClaim": "persistentvolumeclaim-v1",
    "Deployment": "deployment-apps-v1",
    "Service": "service-v1",
    "PodDisruptionBudget": "poddisruptionbudget-policy-v1",
    "HorizontalPodAutoscaler": "horizontalpodautoscaler-autoscaling-v2",
    "NetworkPolicy": "networkpolicy-networking-v1",
}
OUT = Path(__file__).parents[1] / "tests" / "deploy" / "kubernetes_schema.json.gz"


def reduced(node: Any, known: dict[str, Any], used: dict[str, Any]) -> Any:
    """A schema without its prose; what it refers to is put into ``used``, reduced as well."""
    if isinstance(node, list):
        return [reduced(part, known, used) for part in node]
    if not isinstance(node, dict):
        return node
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            kept[key] = {name: reduced(field, known, used) for name, field in value.items()}
        elif key == "$ref":
            name = value.rsplit("/", 1)[1]
            if name not in used:
                used[name] = None  # It may refer to itself.
                used[name] = reduced(known[name], known, used)
            kept[key] = f"#/$defs/{name}"
        elif key not in ("description", "$schema", "$id") and not key.startswith("x-kubernetes"):
            kept[key] = reduced(value, known, used)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("version", help="of Kubernetes")
    parser.add_argument("day", help="of the download")
    given = parser.parse_args()
    with zipfile.ZipFile(given.wheel) as wheel:
        folder = f"kubernetes_validate/kubernetes-json-schema/v{given.version}-local-strict"
        known = json.loads(wheel.read(f"{folder}/_definitions.json"))["$defs"]
        used: dict[str, Any] = {}
        kinds = {
            kind: reduced(json.loads(wheel.read(f"{folder}/{name}.json")), known, used) for kind, name in KINDS.items()
        }
    source = f"{given.wheel.name} (Apache-2.0), strict schemas of Kubernetes {given.version}, taken {given.day}"
    parts: dict[str, Any] = {"source": source, "kinds": kinds, "$defs": dict(sorted(used.items()))}
    # A line for each definition, so that a newer version can be compared (zdiff).
    lines = (
        f"{json.dumps(name)}: "
        + (json.dumps(part) if isinstance(part, str) else "{\n" + ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in part.items()) + "\n }")
        for name, part in parts.items()
    )  # fmt: skip
    OUT.write_bytes(gzip.compress(("{\n " + ",\n ".join(lines) + "\n}\n").encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
