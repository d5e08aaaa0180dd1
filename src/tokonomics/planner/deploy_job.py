"""What a deploy file is made from: one planned deployment, how often it runs, its limits, and the plan that made it.

Nothing is computed here that the plan has not decided; the record only checks that the parts belong together and says
where the weights come from. A value that the plan cannot know is a placeholder which the file names for filling in.
"""

import math
import re
from collections.abc import Iterable
from typing import Self

import yaml
from pydantic import PositiveInt, model_validator

from tokonomics.catalog.engines import Defaults
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.catalog.precision import Precision
from tokonomics.errors import BadInput, shorten
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import max_sequences
from tokonomics.types import Noun

PORT = 8000
FILL_IN = "FILL-IN"
"""What every placeholder begins with, so that a search finds them all."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_NOT_STRINGS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
"""What YAML 1.1 or 1.2 readers take for a boolean or nothing."""
_LOAD_BYTES_PER_S = 100e6
"""A slow download of the weights (0.8 Gbit/s). A probe that waits longer than needed costs nothing; one that gives up
early restarts the download."""
_START_S = 300
"""Compiling and capturing graphs before the first answer: the document's five minutes of a cold start."""


class DeployJob(Noun):
    """A deployment to be started ``replicas`` times."""

    deployment: Deployment
    replicas: PositiveInt
    max_context: PositiveInt
    """Tokens of the longest request, prompt and answer."""
    limits: Defaults | None = None
    """Batch and memory limits; the engine's own on this GPU if not given."""
    prefix_cache: bool = True
    offer: Offer | None = None
    terms: Terms = Terms.on_demand
    repository: str | None = None
    """Where the weights are: a Hugging Face repository or a path; the catalogue's own if not given. Taken to be in the
    checkpoint's precision where the engine converts that to the planned one, otherwise in the planned one."""
    max_replicas: PositiveInt | None = None
    """How far an autoscaler may go; twice the plan if not given."""
    router: str | None = None
    """How the plan spreads requests over replicas."""
    provenance: str
    """Which plan made it, in words; any number of lines."""

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        model, limits = self.deployment.model, self.batch_limits
        if self.max_context > model.max_context:
            raise BadInput(
                f"requests of {self.max_context:,} tokens exceed the {model.max_context:,} of {model.name}",
                where="max_context",
            )
        if limits.max_batched_tokens < limits.max_sequences:
            # vLLM refuses to start so (config/scheduler.py, verify_max_model_len); elsewhere a step could not hold all.
            raise BadInput(
                f"a step of {limits.max_batched_tokens:,} tokens cannot hold {limits.max_sequences:,} sequences",
                where="limits",
                fix="Allow fewer sequences or more tokens a step.",
            )
        if self.offer and self.offer.gpu != self.deployment.gpu.key:
            raise BadInput(f"the offer has {self.offer.gpu}, the deployment needs {self.deployment.gpu.key}")
        if self.deployment.tp > self.gpus_per_node or self.deployment.pp % self.nodes_per_replica:
            raise BadInput(
                f"{self.deployment} cannot be shared out evenly over machines of {self.gpus_per_node} GPUs",
                fix="Choose a larger machine, or a number of pipeline stages that divides.",
            )
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise BadInput(f"at most {self.max_replicas} replicas, but the plan has {self.replicas}")
        if self.repository is not None and not (self.repository.strip() and self.repository.isprintable()):
            raise BadInput(f"'{shorten(self.repository)}' is not a repository or a path", where="repository")
        if self.repository is not None and self.repository.startswith("-"):
            raise BadInput(f"'{shorten(self.repository)}' would be read as a flag", where="repository")
        return self

    @property
    def batch_limits(self) -> Defaults:
        return self.limits or self.deployment.limits

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a machine of the offer; with none, as many as one replica can use in a machine."""
        if self.offer:
            return self.offer.gpus
        return self.deployment.tp * min(self.deployment.pp, self.deployment.gpu.gpus_per_node // self.deployment.tp)

    @property
    def nodes_per_replica(self) -> int:
        """Whole pipeline stages on each machine, as tensor parallelism does not leave one."""
        return math.ceil(self.deployment.pp / (self.gpus_per_node // self.deployment.tp))

    @property
    def nodes(self) -> int:
        """Machines to pay for, packed with as many replicas as fit."""
        if self.nodes_per_replica > 1:
            return self.replicas * self.nodes_per_replica
        return math.ceil(self.replicas / (self.gpus_per_node // self.deployment.gpus))

    @property
    def replicas_per_node(self) -> int:
        """At least 1; the last machine may run one more than the plan asked for, on GPUs that are paid for anyway."""
        return max(1, math.ceil(self.replicas / self.nodes))

    @property
    def start_s(self) -> int:
        """How long a first start may take before it counts as failed, in whole minutes."""
        model = self.deployment.model
        return 60 * math.ceil((_START_S + model.weight_bytes(model.checkpoint) / _LOAD_BYTES_PER_S) / 60)

    @property
    def service_name(self) -> str:
        """A name that Kubernetes accepts for a service (RFC 1035: a letter, then letters, digits and dashes)."""
        return f"llm-{slug(self.deployment.model.key)}"


class Weights(Noun):
    """Where an engine finds the weights, and whether it converts them as it loads them."""

    repository: str
    convert_to: Precision | None = None
    fill_in: str | None = None
    """What the user has to put right, in words; None when the repository is known."""


def weights_for(job: DeployJob, converted_on_load: Iterable[Precision]) -> Weights:
    """The checkpoint to serve: as published, converted on load where the engine can, or one that the user names."""
    model, wanted = job.deployment.model, job.deployment.weights
    published = catalogue_repository(model)
    unquantised = model.served is Precision.bf16
    as_published = wanted is model.served or (unquantised and wanted is Precision.fp32)
    # What is already quantised stays as it is: engines convert 16- and 32-bit checkpoints only.
    convert = wanted if unquantised and wanted in converted_on_load else None
    if job.repository is not None:
        return Weights(repository=job.repository, convert_to=convert)
    if published is not None and (as_published or convert):
        return Weights(repository=published, convert_to=convert)
    kind = model.checkpoint if as_published or convert else wanted
    holder = f"{FILL_IN}/{slug(model.key)}-{kind}"
    why = f"the catalogue knows no repository of {model.name}"
    if published is not None:
        why = (
            f"{published} is in {model.checkpoint}, of which {job.deployment.engine.name} makes no {wanted} on loading"
        )
    fill_in = f"{holder}: {why}; name a repository or a path with {kind} weights{_kinds(kind)}"
    return Weights(repository=holder, convert_to=convert, fill_in=fill_in)


def catalogue_repository(model: ModelSpec) -> str | None:
    """The Hugging Face repository among a model's names; the catalogue lists it last."""
    return next((alias for alias in reversed(model.aliases) if _REPOSITORY.fullmatch(alias)), None)


def slug(text: str) -> str:
    """Lower-case letters, digits and single dashes, at most 40 of them."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:40].strip("-") or "model"


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Block style, lists indented, nothing named and pointed at."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Lines as a literal block; quoted unless every reader of YAML 1.1 or 1.2 takes it for a string."""
        plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_STRINGS
        style = "|" if text.endswith("\n") and text[0].isalnum() else None if plain else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def yaml_text(value: object) -> str:
    """The value as YAML in block style."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=math.inf))


def comment(text: str) -> str:
    """Text as ``#`` lines; what could end a line early in a shell or in YAML is shown instead of obeyed."""
    lines = text.strip().splitlines() or [""]
    return "".join(f"# {''.join(map(_shown, line))}".rstrip() + "\n" for line in lines)


def _shown(character: str) -> str:
    return character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"


def _kinds(wanted: Precision) -> str:
    return " (AWQ or GPTQ)" if wanted is Precision.int4 else ""


_KEPT_BACK = 0.1
"""Of the context that fits by our memory model. A choice: a start that fails costs more than a shorter context."""


def longest_context(deployment: Deployment) -> int:
    """The model's own context, or the longest of which one sequence fits."""
    longest = deployment.model.max_context
    if max_sequences(deployment, longest) >= 1:
        return longest
    fits, too_long = 1, longest
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        fits, too_long = (middle, too_long) if max_sequences(deployment, middle) >= 1 else (fits, middle)
    # Engines refuse to start with a context that does not fit, and our memory model is not theirs to the byte.
    return max(1, math.floor(fits * (1 - _KEPT_BACK)))
