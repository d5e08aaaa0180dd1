"""Files for llm-d, KServe, Dynamo, the production stack, KEDA, dstack and Compose: valid by each project's own schema.

Schemas are in ``schemas``, each with its source: reduced to what is written, closed to other fields, and with
Kubernetes' own types from ``kubernetes_schema.json.gz``. A plan that a target cannot start is refused, and every target
that the refusal names starts it.
"""

import copy
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from tests.deploy.test_deploy_files import ACCEPTED, SCHEMA, job, machine, served
from tests.explore import EXPLORE

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import all_gpus, find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.offers import Terms, load_offers
from tokonomics.deploy.job import DeployJob, Target
from tokonomics.deploy.pods import machine_names
from tokonomics.deploy.targets import deploy_files, filled
from tokonomics.errors import BadInput, flag
from tokonomics.physics.deployment import why_not_run
from tokonomics.serving.fleet_settings import Router
from tokonomics.sizing.engine_flags import Role

SCHEMAS = {path.stem: json.loads(path.read_text("utf-8")) for path in (Path(__file__).parent / "schemas").iterdir()}
ENGINES = ("vllm", "sglang")
STACKS = [target for target in Target if target not in ("vllm", "sglang", "skypilot", "kubernetes")]
"""The tools that people deploy with."""
Jobs = tuple[DeployJob, ...]


def apart(engine: str, prompts: int = 6, **more: Any) -> Jobs:
    """Six replicas of one GPU and three of two, on two machines of eight."""
    given = {"offer": machine(), "machines": 2, "router": "least-outstanding"} | more
    prefill = job(served("llama-3.1-8b", engine=engine), role=Role.prefill, replicas=prompts, **given)
    return prefill, job(served("llama-3.1-8b", engine=engine, tp=2), role=Role.decode, replicas=3, **given)


BY_HOUR = (1, 1, 1, 1, 1, 1, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1)
PLANS: dict[str, Callable[[str], Jobs]] = {
    "single GPU": lambda engine: (job(served("llama-3.1-8b", engine=engine), replicas=1, offer=machine(gpus=1)),),
    "TP": lambda engine: (job(served(engine=engine, tp=4), replicas=1, offer=machine(gpus=4)),),
    "disaggregated": apart,
    "spare": lambda engine: (
        job(served(engine=engine, tp=4), replicas=3, machines=3, spare=1, offer=machine(), router="power-of-two"),
    ),
    "autoscaled": lambda engine: (
        job(
            served(engine=engine, tp=2, weights=Precision.fp8),
            replicas=7,
            offer=machine(),
            router="prefix-aware",
            requests_per_s=2.5,
            usd_per_hour=30.0,
        ),
    ),
    "one prefill replica": lambda engine: apart(engine, prompts=1),
    "disaggregated and spare": lambda engine: apart(engine, spare=1),
    "a zone may fail": lambda engine: (
        job(served(engine=engine, tp=2), replicas=20, machines=5, spare=2, over_zones=True, offer=machine()),
    ),
    "copies of experts": lambda engine: (
        job(served("qwen3-30b-a3b", engine=engine, tp=2), replicas=7, offer=machine()),
    ),
    "several machines": lambda engine: (
        job(served("deepseek-v3", "H200", engine, tp=1, dp=16, ep=16), replicas=2, offer=machine("H200")),
    ),
    "AMD": lambda engine: (job(served(engine=engine, tp=4, gpu="MI300X"), replicas=2, offer=machine("MI300X")),),
    "no offer": lambda engine: (job(served("llama-3.1-8b", engine=engine), replicas=2),),
    "spot": lambda engine: (job(served(engine=engine, tp=4), replicas=2, offer=machine(), terms=Terms.spot),),
    "by the hour": lambda engine: (
        job(served(engine=engine, tp=4), replicas=4, offer=machine(), by_hour=BY_HOUR, cold_start_s=190.0),
    ),
    "memories": lambda engine: (job(served(engine=engine, tp=4), replicas=2, offer=machine(), tiers="dram=100@0"),),
}
FIVE = ("single GPU", "TP", "disaggregated", "spare", "autoscaled")


def documents(target: Target, jobs: Jobs) -> dict[str, list[dict[str, Any]]]:
    """What the files of a plan say, by name."""
    files = deploy_files(target, *jobs)
    return {file.name.removeprefix(f"{jobs[-1].public_name}-"): list(yaml.safe_load_all(file.text)) for file in files}


def refusals(name: str, document: dict[str, Any]) -> list[str]:
    """Why a document is not one of its project's."""
    kind = document.get("kind", "")
    if kind in SCHEMA["kinds"]:
        return errors("kubernetes", kind, document)
    if kind == "ScaledObject":
        return errors("keda", kind, document)
    if kind == "PodMonitor":
        return errors("prometheus-operator", kind, document)
    if name.startswith("dstack"):
        return errors("dstack", document["type"], document)
    schema = name.removesuffix(".yaml")
    return errors(schema, kind or next(iter(SCHEMAS[schema]["kinds"])), document)


def errors(schema: str, kind: str, document: dict[str, Any]) -> list[str]:
    return [error.message for error in validator(schema, kind).iter_errors(document)]


@cache
def validator(name: str, kind: str) -> Any:
    schema = SCHEMAS.get(name, SCHEMA)
    return jsonschema.Draft202012Validator({**schema["kinds"][kind], "$defs": SCHEMA["$defs"] | schema["$defs"]})


CASES = list(product([*STACKS, Target.kubernetes], PLANS, ENGINES))
FIVE_CASES = list(product(STACKS, FIVE, ENGINES))


def written(target: Target, plan: str, engine: str) -> dict[str, list[dict[str, Any]]] | None:
    """The documents, or None where the target refuses the plan."""
    try:
        return documents(target, PLANS[plan](engine))
    except BadInput:
        return None


@pytest.mark.parametrize(("target", "plan", "engine"), CASES)
def test_every_file_is_valid_by_the_schema_of_its_project(target: Target, plan: str, engine: str) -> None:
    try:
        found = documents(target, PLANS[plan](engine))
    except BadInput as refused:
        named = re.findall(r"--deploy ([\w-]+)", refused.spelled(flag)[2] or "")
        assert named, "a refusal names targets that can"
        assert target not in named
        for other in map(Target, named):
            deploy_files(other, *PLANS[plan](engine))
        return
    for name, parts in found.items():
        for part in parts:
            assert refusals(name, part) == [], name
    picked = found.get("llm-d-router.yaml", [])
    for values in picked:
        epp = values["router"]["epp"]
        config = yaml.safe_load(epp["pluginsCustomConfig"][epp["pluginsConfigFile"]])
        assert errors("llm-d-router", "EndpointPickerConfig", config) == []


@pytest.mark.slow
def test_files_are_valid_for_every_gpu_and_provider_of_the_shipped_offers() -> None:
    vllm, bf16 = find_engine("vllm"), Precision.bf16
    sold = {(offer.gpu, offer.provider): offer for offer in load_offers()}
    named = {gpu.key for gpu in all_gpus() if gpu.vendor in machine_names()["vendors"]}
    places = [
        offer
        for offer in sold.values()
        if offer.gpu in named and not why_not_run(vllm, find_gpu(offer.gpu), bf16, bf16)
    ]
    assert len(places) > 80
    for offer in places[:: 1 if EXPLORE else 5]:
        made = job(served("llama-3.1-8b", gpu=offer.gpu), replicas=2, offer=offer)
        for name, parts in ((name, parts) for target in STACKS for name, parts in documents(target, (made,)).items()):
            assert [refusals(name, part) for part in parts] == [[]] * len(parts), (offer, name)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("bge-m3", {}),
        ("qwen3-30b-a3b", {"tp": 4, "ep": 4}),
        ("llama-3.3-70b", {"tp": 2, "pp": 2}),
        ("llama-3.1-8b", {"lora_rank": 16, "lora_adapters": 3}),
        ("deepseek-v3", {"tp": 4, "dp": 2, "ep": 8}),
    ],
)
def test_files_are_valid_for_every_kind_of_model_and_layout(model: str, layout: dict[str, Any]) -> None:
    made = job(served(model, "H200", **layout), replicas=2, offer=machine("H200"), router="prefix-aware")
    for target in STACKS:
        for name, parts in documents(target, (made,)).items():
            assert [refusals(name, part) for part in parts] == [[]] * len(parts), name


def test_the_five_plans_are_written_by_every_target_but_those_that_say_why() -> None:
    refused = {
        (target.value, plan, engine) for target, plan, engine in FIVE_CASES if written(target, plan, engine) is None
    }
    assert refused == {
        ("dstack", "disaggregated", "vllm"),
        ("dstack", "disaggregated", "sglang"),
        ("production-stack", "disaggregated", "vllm"),
        *(("production-stack", plan, "sglang") for plan in FIVE),
        *(("kserve", plan, "sglang") for plan in FIVE),
        # SGLang's router has to know every prefill pod by its address, and a Service has one.
        ("keda", "disaggregated", "sglang"),
    }


FREE = {
    "labels", "annotations", "matchLabels", "nodeSelector", "requests", "limits", "environment", "pluginsCustomConfig",
    "parameters", "services",
}  # fmt: skip
"""Fields whose keys are the user's own, or that a chart passes on unread."""


def objects_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of the objects within a document, but for those whose keys are free."""
    if isinstance(value, dict):
        free = path and (path[-1] in FREE or (path[-1] == "metadata" and "triggers" in path))
        if not free:
            yield path
        for key, part in value.items():
            # Of what a chart passes on, nothing is known; services are ours.
            if not free or path[-1] == "services":
                yield from objects_in(part, (*path, key))
    elif isinstance(value, list) and path[-1] not in FREE:
        for index, part in enumerate(value):
            yield from objects_in(part, (*path, index))


@pytest.mark.parametrize("target", list(STACKS))
def test_a_field_that_a_project_does_not_know_is_refused_at_every_level(target: Target) -> None:
    count = 0
    for name, parts in documents(target, PLANS["autoscaled"]("vllm")).items():
        for part in parts:
            for path in objects_in(part):
                changed = copy.deepcopy(part)
                inner = changed
                for key in path:
                    inner = inner[key]
                inner["replicass"] = 1
                assert refusals(name, changed), (name, path)
                count += 1
    assert count >= 3


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_every_schema_says_where_it_is_from_and_is_small(name: str) -> None:
    source = SCHEMAS[name]["source"]
    assert re.search(r"\b20\d\d-\d\d-\d\d$|20\d\d-\d\d-\d\d;", source)
    assert "Apache-2.0" in source or "MPL-2.0" in source
    sizes = [path.stat().st_size for path in (Path(__file__).parent / "schemas").iterdir()]
    assert sum(sizes) < 150_000


# --- what the files carry -------------------------------------------------------------------------------------------


def arguments(target: Target, found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """The engine's words, of each kind of replicas."""
    parts = [part for parts in found.values() for part in parts]
    pods = [part["spec"]["template"]["spec"] for part in parts if part.get("kind") == "Deployment"]
    match target:
        case Target.keda | Target.llm_d:
            return [pod["containers"][0]["args"] for pod in pods if pod["containers"][0]["name"] != "router"]
        case Target.kserve:
            (spec,) = [part["spec"] for part in parts]
            sides = [spec["prefill"], spec] if "prefill" in spec else [spec]
            given = [shlex.split(side["template"]["containers"][0]["env"][0]["value"]) for side in sides]
            tensor = [["--tensor-parallel-size", str(side["parallelism"]["tensor"])] for side in sides]
            # A preset for several machines makes the flag of the field.
            return [
                (own if "worker" in side else []) + words for side, own, words in zip(sides, tensor, given, strict=True)
            ]
        case Target.dynamo:
            (graph,) = [part for part in parts if part["kind"] == "DynamoGraphDeployment"]
            workers = graph["spec"]["components"][1:]
            return [worker["podTemplate"]["spec"]["containers"][0]["args"] for worker in workers]
        case Target.dstack:
            return [shlex.split(part["commands"][0]) for part in parts if part["type"] == "service"]
        case Target.compose:
            (services,) = [part["services"] for part in parts]
            return [service["command"] for name, service in services.items() if name != "router"]
        case _:
            (model,) = parts[0]["servingEngineSpec"]["modelSpec"]
            config = model["vllmConfig"]
            fields = {"tensor-parallel-size": "tensorParallelSize", "max-num-seqs": "maxNumSeqs"}
            own = [word for name, field in fields.items() for word in (f"--{name}", str(config[field]))]
            return [[*own, *config["extraArgs"]]]


LIMITS = {"vllm": ("--tensor-parallel-size", "--max-num-seqs"), "sglang": ("--tp-size", "--max-running-requests")}
OF_DYNAMO = {"--model", "--disaggregation-mode"}
"""Its own, beside the engine's."""


@pytest.mark.parametrize(("target", "plan", "engine"), FIVE_CASES)
def test_parallel_sizes_and_batch_limits_are_those_of_the_plan(target: Target, plan: str, engine: str) -> None:
    found = written(target, plan, engine)
    if found is None:
        return
    jobs, sides = PLANS[plan](engine), arguments(target, found)
    split, limit = LIMITS[engine]
    wanted = {(str(job.deployment.tp), str(job.limits.max_sequences)) for job in jobs}
    assert {(words[words.index(split) + 1], words[words.index(limit) + 1]) for words in sides} == wanted
    for words in sides:
        assert {word for word in words if word.startswith("--")} - OF_DYNAMO <= set(ACCEPTED[engine]["flags"])


def bands(target: Target, found: dict[str, list[dict[str, Any]]]) -> list[tuple[int, int]]:
    """Least and most replicas, of each kind."""
    parts = [part for parts in found.values() for part in parts]
    match target:
        case Target.keda | Target.dynamo:
            scaled = [part["spec"] for part in parts if part["kind"] == "ScaledObject"]
            return [(spec["minReplicaCount"], spec["maxReplicaCount"]) for spec in scaled]
        case Target.llm_d:
            scaled = [part["spec"] for part in parts if part.get("kind") == "HorizontalPodAutoscaler"]
            return [(spec["minReplicas"], spec["maxReplicas"]) for spec in scaled]
        case Target.kserve:
            spec = parts[0]["spec"]
            sides = [spec["prefill"], spec] if "prefill" in spec else [spec]
            return [(side["scaling"]["minReplicas"], side["scaling"]["maxReplicas"]) for side in sides]
        case Target.dstack:
            (service,) = [part for part in parts if part["type"] == "service"]
            least, _, most = str(service["replicas"]).partition("..")
            return [(int(least), int(most or least))]
        case _:
            keda = parts[0]["servingEngineSpec"]["modelSpec"][0]["keda"]
            return [(keda["minReplicaCount"], keda["maxReplicaCount"])]


@pytest.mark.parametrize("target", [target for target in STACKS if target is not Target.compose])
def test_the_band_is_from_the_planned_replicas_to_twice_as_many(target: Target) -> None:
    assert bands(target, documents(target, PLANS["autoscaled"]("vllm"))) == [(7, 14)]
    both = written(target, "disaggregated", "vllm")
    if both is not None:
        assert bands(target, both) == [(6, 12), (3, 6)]


def test_dstack_adds_a_replica_for_what_one_holds_and_keeps_their_number_where_that_is_not_known() -> None:
    (service,) = documents(Target.dstack, PLANS["autoscaled"]("vllm"))["dstack.yaml"]
    assert service["scaling"]["metric"] == "rps"
    assert service["scaling"]["target"] == 2.5
    (plain,) = documents(Target.dstack, PLANS["spare"]("vllm"))["dstack.yaml"]
    assert plain["replicas"] == 3
    assert "scaling" not in plain


def test_a_dstack_fleet_rents_the_planned_machines() -> None:
    (fleet,) = documents(Target.dstack, PLANS["autoscaled"]("vllm"))["dstack-fleet.yaml"]
    # Seven replicas of two GPUs, four on a machine of eight: two machines, and four for fourteen.
    assert fleet["nodes"] == {"min": 2, "target": 2, "max": 4}
    assert fleet["blocks"] == "auto"
    assert fleet["backends"] == ["aws"]
    assert fleet["instance_types"] == ["p5.48xlarge"]
    assert fleet["regions"] == ["us-east-1"]
    assert fleet["resources"]["gpu"] == {"name": "H100", "count": 8}
    (spot,) = documents(Target.dstack, PLANS["spot"]("vllm"))["dstack-fleet.yaml"]
    assert (spot["spot_policy"], fleet["spot_policy"]) == ("spot", "on-demand")


@pytest.mark.parametrize(("provider", "named"), [("runpod", ["runpod"]), ("yotta", None)])
def test_a_dstack_fleet_names_nothing_that_dstack_calls_otherwise(provider: str, named: list[str] | None) -> None:
    jobs = (job(served("llama-3.1-8b"), replicas=2, offer=machine("L40S", 1, provider, "1x_L40S_SECURE")),)
    (fleet,) = documents(Target.dstack, jobs)["dstack-fleet.yaml"]
    assert fleet.get("backends") == named
    assert not {"instance_types", "regions"} & fleet.keys()


def test_keda_scales_on_the_engines_queue_and_holds_the_plan_without_prometheus() -> None:
    for engine, metric in (("vllm", "vllm:num_requests_waiting"), ("sglang", "sglang:num_queue_reqs")):
        parts = documents(Target.keda, PLANS["autoscaled"](engine))["keda.yaml"]
        kinds = [part["kind"] for part in parts]
        assert kinds.count("ScaledObject") == 1
        assert "HorizontalPodAutoscaler" not in kinds, "two autoscalers would turn one Deployment"
        scaled, deployment = (
            next(part for part in parts if part["kind"] == kind) for kind in ("ScaledObject", "Deployment")
        )
        (trigger,) = scaled["spec"]["triggers"]
        name = deployment["metadata"]["name"]
        assert scaled["spec"]["scaleTargetRef"]["name"] == name
        assert scaled["spec"]["fallback"]["replicas"] == 7
        found = re.fullmatch(r'sum\(([\w:]+)\{pod=~"(.+)"\}\)', trigger["metadata"]["query"])
        assert found is not None
        assert found[1] == metric
        assert re.fullmatch(found[2], f"{name}-6d4cf56db6-x7k2p")
        assert not re.fullmatch(found[2], f"{name}-instruct-6d4cf56db6-x7k2p")
        assert trigger["metadata"]["threshold"] == "5"


# --- routers --------------------------------------------------------------------------------------------------------


def least_at(triggers: list[dict[str, Any]], least: int, moment: int, of_week: bool = False) -> int:
    """The minimum that KEDA holds at a minute of a day, or of a week from Monday on: of its triggers, the largest."""
    length = 1440 * (7 if of_week else 1)

    def minute(cron: str) -> int:
        minutes, hours, _, _, day = cron.split()
        return int(minutes) + 60 * int(hours) + (1440 * ((int(day) - 1) % 7) if of_week else 0)

    on = [
        int(trigger["desiredReplicas"])
        for trigger in triggers
        if (moment - minute(trigger["start"])) % length < (minute(trigger["end"]) - minute(trigger["start"])) % length
    ]
    return max([least, *on])


@pytest.mark.parametrize("by_hour", [BY_HOUR, (3, *[1] * 22, 2), (*BY_HOUR * 5, *[1] * 40, 2, *[1] * 7)])
@pytest.mark.parametrize("target", [Target.keda, Target.dynamo])
def test_the_minimum_of_every_hour_is_what_the_plan_sized_from_a_cold_start_before(
    target: Target, by_hour: tuple[int, ...]
) -> None:
    """190 s are four minutes of cron. More never stay than an hour or the next needs."""
    (plan,) = PLANS["by the hour"]("vllm")
    made = documents(target, (plan.model_copy(update={"by_hour": by_hour}),))
    scaled = next(part for parts in made.values() for part in parts if part["kind"] == "ScaledObject")["spec"]
    crons = [trigger["metadata"] for trigger in scaled["triggers"] if trigger["type"] == "cron"]
    assert scaled["minReplicaCount"] == min(by_hour)
    assert scaled["fallback"]["replicas"] == plan.replicas
    of_week = len(by_hour) > 24
    for hour, needed in enumerate(by_hour):
        following = by_hour[(hour + 1) % len(by_hour)]
        for minute in range(60):
            held = least_at(crons, min(by_hour), hour * 60 + minute, of_week)
            assert held == (needed if minute < 56 else max(needed, following)), (hour, minute)


@pytest.mark.parametrize("cold_start_s", [3540.0, 3600.0, 4200.0, 90_000.0])
def test_a_cold_start_longer_than_the_quiet_hours_keeps_the_busy_ones_whole(cold_start_s: float) -> None:
    """KEDA refuses a start that is also the end, and would take one after the day's end for the end of those hours."""
    (plan,) = PLANS["by the hour"]("vllm")
    by_hour = (1, *[2] * 23)
    made = documents(Target.keda, (plan.model_copy(update={"by_hour": by_hour, "cold_start_s": cold_start_s}),))
    scaled = next(part for parts in made.values() for part in parts if part["kind"] == "ScaledObject")["spec"]
    (cron,) = [trigger["metadata"] for trigger in scaled["triggers"] if trigger["type"] == "cron"]
    assert (cron["start"], cron["end"]) == ("1 0 * * *", "0 0 * * *")


def test_an_autoscaler_with_one_minimum_keeps_the_planned_replicas() -> None:
    (plan,) = PLANS["by the hour"]("vllm")
    found = documents(Target.kubernetes, (plan,))["kubernetes.yaml"]
    (scaler,) = [part["spec"] for part in found if part["kind"] == "HorizontalPodAutoscaler"]
    assert scaler["minReplicas"] == plan.replicas


def picker(router: str | None, jobs: Jobs) -> dict[str, list[str]]:
    """Plugins of each profile."""
    (service,) = filled(Target.kserve, *(one.model_copy(update={"router": router}) for one in jobs))["files"][".yaml"]
    config = service["spec"]["router"]["scheduler"]["config"]["inline"]
    declared = {plugin["type"] for plugin in config["plugins"]}
    profiles = {
        profile["name"]: [plugin["pluginRef"] for plugin in profile["plugins"]]
        for profile in config["schedulingProfiles"]
    }
    assert {name for names in profiles.values() for name in names} <= declared
    return profiles


def test_the_endpoint_picker_scores_by_the_planned_router() -> None:
    one = PLANS["autoscaled"]("vllm")
    assert picker("least-outstanding", one) == {"default": ["active-request-scorer", "max-score-picker"]}
    assert picker("prefix-aware", one)["default"][0] == "prefix-cache-scorer"
    assert picker(None, one) == picker("round-robin", one) == {"default": ["random-picker"]}
    two = picker("prefix-aware", apart("vllm"))
    assert list(two) == ["prefill", "decode"]
    assert two["prefill"][:2] == ["prefill-filter", "prefix-cache-scorer"]
    assert "prefix-cache-scorer" not in two["decode"], "prompts are computed on the other side"


@pytest.mark.parametrize("router", list(Router))
def test_every_router_is_carried_or_the_file_says_that_it_is_not(router: Router) -> None:
    for target in STACKS:
        made = job(replicas=3, offer=machine(), router=router.value)
        for file in deploy_files(target, made):
            lines = [line for line in file.text.splitlines() if line.startswith(("# Carries", "# CANNOT CARRY"))]
            assert any(f"{router.value} rout" in line for line in lines), (target, lines)


def test_dynamos_frontend_routes_as_planned() -> None:
    modes = {"round-robin": "round-robin", "least-outstanding": "least-loaded", "power-of-two": "power-of-two",
             "prefix-aware": "kv"}  # fmt: skip
    for router, mode in modes.items():
        parts = documents(Target.dynamo, (job(router=router),))["dynamo.yaml"]
        (graph,) = [part for part in parts if part["kind"] == "DynamoGraphDeployment"]
        (container,) = graph["spec"]["components"][0]["podTemplate"]["spec"]["containers"]
        assert ("--router-mode", mode) in pairwise(container["args"])


# --- particulars of targets -----------------------------------------------------------------------------------------


def test_llm_ds_pool_selects_every_pod_and_the_sidecar_stands_before_those_that_answer() -> None:
    found = documents(Target.llm_d, apart("vllm"))
    (values,) = found["llm-d-router.yaml"]
    servers = values["router"]["modelServers"]
    pods = {
        part["metadata"]["name"]: part["spec"]["template"]
        for part in found["llm-d.yaml"]
        if part["kind"] == "Deployment"
    }
    assert len(pods) == 2
    for name, pod in pods.items():
        assert servers["matchLabels"].items() <= pod["metadata"]["labels"].items()
        role = pod["metadata"]["labels"]["llm-d.ai/role"]
        assert name.endswith(role)
        ports = [port["containerPort"] for part in ("initContainers", "containers") for container in
                 pod["spec"].get(part, []) for port in container["ports"]]  # fmt: skip
        assert ports == ([8000, 8200] if role == "decode" else [8000])
        assert servers["targetPorts"] == [{"number": 8000}]
    assert [part["kind"] for part in found["llm-d.yaml"]].count("PersistentVolumeClaim") == 1


def test_kserve_and_dynamo_start_replicas_on_several_machines() -> None:
    jobs = PLANS["several machines"]("vllm")
    (service,) = documents(Target.kserve, jobs)["kserve.yaml"]
    assert service["spec"]["parallelism"] == {"tensor": 1, "data": 16, "dataLocal": 8, "expert": True}
    for pod in (service["spec"]["template"], service["spec"]["worker"]):
        # What the preset makes of these fields is not said twice, and nothing else is lost.
        said = shlex.split(pod["containers"][0]["env"][0]["value"])
        assert not {"--tensor-parallel-size", "--data-parallel-size", "--enable-expert-parallel"} & set(said)
        flags = [word for word in said if word.startswith("--")]
        assert said[0] == flags[0] == "--all2all-backend"
        assert said[1] == "deepep_low_latency"
        assert "--max-num-seqs" in flags
        assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
    parts = documents(Target.dynamo, jobs)["dynamo.yaml"]
    (graph,) = [part for part in parts if part["kind"] == "DynamoGraphDeployment"]
    (worker,) = graph["spec"]["components"][1:]
    assert worker["multinode"] == {"nodeCount": 2}
    assert worker["replicas"] == 2
    assert worker["podTemplate"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}


def test_dynamos_older_sglang_is_told_of_attention_groups_in_its_own_words() -> None:
    # Flags of sglang 0.5.21, which Dynamo 1.6.1 requires, lack `--attn-dp-size` (read in its wheel).
    parts = documents(Target.dynamo, PLANS["several machines"]("sglang"))["dynamo.yaml"]
    (words,) = arguments(Target.dynamo, {"": parts})
    assert ("--dp-size", "16") in pairwise(words)
    assert "--enable-dp-attention" in words
    assert "--attn-dp-size" not in words


@pytest.mark.parametrize("target", [Target.kserve, Target.dynamo])
def test_pods_of_an_operator_are_spread_by_a_label_of_our_own(target: Target) -> None:
    parts = next(iter(documents(target, PLANS["autoscaled"]("vllm")).values()))
    spec = next(part["spec"] for part in parts if part["kind"] in ("LLMInferenceService", "DynamoGraphDeployment"))
    if target is Target.kserve:
        labels, pod = spec["labels"], spec["template"]
    else:
        template = spec["components"][1]["podTemplate"]
        labels, pod = template["metadata"]["labels"], template["spec"]
    assert not any(key.startswith("app.kubernetes.io/") for key in labels), "the operator selects pods by those"
    selectors = [rule["labelSelector"]["matchLabels"] for rule in pod["topologySpreadConstraints"]]
    assert selectors == [labels] * len(selectors)


def test_kserve_is_told_what_a_replica_costs() -> None:
    (service,) = documents(Target.kserve, PLANS["autoscaled"]("vllm"))["kserve.yaml"]
    # Two machines of 30 $/h for seven replicas.
    assert float(service["spec"]["scaling"]["wva"]["variantCost"]) == pytest.approx(2 * 30 / 7, abs=1e-4)


def test_dynamos_scalers_turn_the_adapters_of_its_workers() -> None:
    parts = documents(Target.dynamo, apart("sglang"))["dynamo.yaml"]
    (graph,) = [part for part in parts if part["kind"] == "DynamoGraphDeployment"]
    adapters = {
        f"{graph['metadata']['name']}-{component['name']}"
        for component in graph["spec"]["components"]
        if "scalingAdapter" in component
    }
    refs = {part["spec"]["scaleTargetRef"]["name"] for part in parts if part["kind"] == "ScaledObject"}
    assert refs == adapters
    assert [component["type"] for component in graph["spec"]["components"]] == ["frontend", "prefill", "decode"]


@pytest.mark.parametrize("engine", ENGINES)
def test_no_two_containers_of_a_machine_share_a_gpu_or_a_port(engine: str) -> None:
    (composed,) = documents(Target.compose, apart(engine))["compose.yaml"]
    machines: dict[str, list[dict[str, Any]]] = {}
    for name, service in composed["services"].items():
        if name != "router":
            machines.setdefault(service["profiles"][0], []).append(service)
    assert len(machines) == 2
    for services in machines.values():
        reserved = [service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for service in services]
        gpus = [gpu for ids in reserved for gpu in ids]
        assert len(gpus) == len(set(gpus))
        assert all(0 <= int(gpu) < 8 for gpu in gpus)
        ports = [service["command"][-1] for service in services]
        assert len(ports) == len(set(ports))
    # 6 × 1 + 3 × 2 GPUs.
    assert sum(len(services) for services in machines.values()) == 9
    words = composed["services"]["router"]["command"]
    assert (words.count("--prefill"), words.count("--decode")) == (6, 3)


def test_copies_of_a_dense_model_are_one_container_and_those_of_experts_several() -> None:
    (dense,) = documents(Target.compose, (job(replicas=4, offer=machine()),))["compose.yaml"]
    (service,) = dense["services"].values()
    assert ("--data-parallel-size", "4") in pairwise(service["command"])
    (mixture,) = documents(Target.compose, PLANS["copies of experts"]("vllm"))["compose.yaml"]
    assert len(mixture["services"]) == 4


def test_compose_does_not_read_a_dollar_as_a_variable() -> None:
    own = served("llama-3.1-8b")
    odd = own.model.model_copy(update={"aliases": ("a/b",)})
    made = job(own.model_copy(update={"model": odd}), replicas=1)
    (composed,) = documents(Target.compose, (made,))["compose.yaml"]
    assert not any(re.search(r"(?<!\$)\$(?!\$)", word) for word in composed["services"]["server"]["command"])


@pytest.mark.parametrize("target", list(STACKS))
def test_every_file_says_what_has_to_be_filled_in(target: Target) -> None:
    for file in deploy_files(target, *PLANS["autoscaled"]("vllm")):
        body = "".join(line for line in file.text.splitlines() if not line.startswith("# "))
        for word in set(re.findall(r"FILL-IN[\w./-]*", body)):
            assert any(word.strip("/") in text for text in file.fill_in), word


@pytest.mark.parametrize("target", [target for target in STACKS if target not in (Target.keda, Target.dynamo)])
def test_files_are_those_that_were_read_over(target: Target) -> None:
    """The shortest of each target."""
    plan = "disaggregated" if target in (Target.llm_d, Target.compose) else "autoscaled"
    for file in deploy_files(target, *PLANS[plan]("vllm")):
        name = re.sub("^llm-llama-3-[13]-[78]0?b-", "", file.name)
        if name == "llm-d.yaml":
            continue  # Deployments, as in kubernetes.yaml.
        path = Path(__file__).parent / "files" / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(file.text, encoding="utf-8")
        assert file.text == path.read_text(encoding="utf-8")


def test_files_of_a_plan_that_was_not_simulated_say_so() -> None:
    (made,) = PLANS["TP"]("vllm")
    for target, simulated in product(set(Target) - {Target.sglang}, (True, False)):
        for file in deploy_files(target, made.model_copy(update={"simulated": simulated})):
            assert ("NOT SIMULATED" in file.text[:600]) is not simulated
