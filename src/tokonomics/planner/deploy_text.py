"""A deploy file as text: the tools that there are files for, comments that nothing obeys, YAML for every reader."""

import math
import re
from enum import StrEnum

import yaml

from tokonomics.planner.deploy_job import DeployJob
from tokonomics.types import Noun


class Target(StrEnum):
    """What a deploy file is for."""

    vllm = "vllm"
    sglang = "sglang"
    skypilot = "skypilot"
    kubernetes = "kubernetes"
    keda = "keda"
    llm_d = "llm-d"
    kserve = "kserve"
    dynamo = "dynamo"
    production_stack = "production-stack"
    dstack = "dstack"
    compose = "compose"


class DeployFile(Noun):
    """A file to save, and what in it the plan could not know."""

    name: str
    text: str
    fill_in: tuple[str, ...]


def described(job: DeployJob) -> list[str]:
    """What to know of the weights."""
    lines, model = [], job.deployment.model
    if job.deployment.weights.is_below(model.served):
        lines.append(f"Weights below the checkpoint's {model.checkpoint}: check quality on your own task.")
    if model.is_encoder:
        return lines
    return [*lines, "Chat clients need a chat template: name the instruction-tuned checkpoint if this is a base model."]


def comment(text: str) -> str:
    """Text as ``#`` lines; what could end a line early in a shell or in YAML is shown instead of obeyed."""
    shown = ("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
             for line in text.strip().splitlines() or [""])  # fmt: skip
    return "".join(f"# {line}".rstrip() + "\n" for line in shown)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Block style, lists indented, nothing named and pointed at."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Lines as a literal block; quoted unless every reader of YAML 1.1 or 1.2 takes it for a string."""
        not_strings = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
        plain = re.fullmatch("[A-Za-z][A-Za-z0-9_./-]*", text) and text.lower() not in not_strings
        style = "|" if text.endswith("\n") and text[0].isalnum() else None if plain else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def yaml_text(value: object) -> str:
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=math.inf))
