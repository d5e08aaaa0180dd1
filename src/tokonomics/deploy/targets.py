"""Write the files that start a planned fleet with a tool: a heading and the filled manifest (``data/NAME.yaml``).

The heading says which plan made the file, what runs, which planned quantities the file contains and which it cannot,
and what the user still has to fill in. A target that cannot start a plan refuses it and names targets that can.
docs/deploy.md says what the files were validated with.
"""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from tokonomics.catalog.offers import UNSPECIFIED, Offer, Terms
from tokonomics.deploy.job import PORT, DeployFile, DeployJob, Target
from tokonomics.deploy.manifest import comment, fill, manifest, yaml_text
from tokonomics.deploy.pods import STOP_S, gpu_name, is_arm, machine_names, pod_values
from tokonomics.deploy.scripts import (
    BOOTSTRAP,
    SIDE_CHANNEL,
    Server,
    Shell,
    a_server_per_port,
    addresses,
    listen,
    one_server,
    router_command,
    script_apart,
    script_together,
    servers_on_machines,
    shell_line,
)
from tokonomics.errors import BadInput, option
from tokonomics.serving.fleet_settings import Router
from tokonomics.sizing.engine_flags import FILL_IN, Role
from tokonomics.units import BYTES_PER_GB, plural, requests_a_second

Values = dict[str, Any]  # values for a manifest, by the names in it
Jobs = Sequence[DeployJob]  # a fleet: one job, or one for prefill and one for decode


def deploy_files(target: Target, *jobs: DeployJob) -> list[DeployFile]:
    """Return the files that start a fleet with that tool, from one job or from a prefill and a decode job."""
    serving, said = jobs[-1], filled(target, *jobs)
    fill_in = list(dict.fromkeys([*(text for job in jobs for text in job.command.fill_in), *said["fill_in"]]))
    heading = [
        serving.provenance,
        *(_what_runs(serving) if len(jobs) == 1 else _what_runs_apart(*jobs)),
        *([f"Start: {said['start']}."] if said["start"] else []),
        *dict.fromkeys(said["notes"]),
        *(f"Carries {text}." for text in said["carries"]),
        *(f"CANNOT CARRY {text}." for text in said["lacks"]),
        *(f"FILL IN {text}" for text in fill_in),
    ]
    head = ("#!/bin/sh\n" if target in _SCRIPTS else "") + "".join(map(comment, heading))
    return [
        DeployFile(
            name=f"{serving.public_name}-{target.value}{ending}",
            text=head + (body if isinstance(body, str) else "---\n".join(map(yaml_text, body))),
            fill_in=tuple(fill_in),
        )
        for ending, body in said["files"].items()
    ]


_SCRIPTS = (Target.vllm, Target.sglang)


def filled(target: Target, *jobs: DeployJob) -> Values:
    """Fill the target's manifest with a plan: files as objects before they are text, and the content of the heading."""
    engine, gpu = jobs[-1].deployment.engine, jobs[-1].deployment.gpu
    if gpu.vendor not in machine_names()["vendors"]:
        raise BadInput(
            f"no deploy file can be written for {gpu.key}: what clusters call it is not known here",
            field="deploy",
            fix=f"Start {engine.name} as the documentation of its {gpu.name} backend says, with the planned layout.",
        )
    if target is Target.skypilot and len(jobs) > 1:
        why = "a disaggregated fleet is two kinds of servers and a router, which no one task starts"
        raise _refusal(target, why, f"Use {_targets(engine.key, 'kubernetes')}.")
    if target in _SCRIPTS and engine.key != target:
        why = f"the plan is for {engine.name}, whose speed and memory differ"
        raise _refusal(target, why, f"Plan with {option('engine', target)}.")
    for job in jobs:
        _ = job.command  # refuses engines and layouts that have no command
    parts = manifest("script" if target in _SCRIPTS else target.value)
    _refuse(target, jobs, parts.get("refuses", {}))
    said = ("start", "notes", "carries", "lacks", "fill_in", "files")
    written: Values = fill({key: parts.get(key, []) for key in said}, _values(target, jobs, parts))
    return written


def _values(target: Target, jobs: Jobs, parts: Mapping[str, Any]) -> Values:
    """Return the names that a manifest may use: of the fleet, of its first side, and of each side."""
    job, apart = jobs[-1], len(jobs) > 1
    values: Values = {
        "parts": parts,
        "job": job,
        "name": job.public_name,
        "engine": job.deployment.engine,
        "apart": apart,
        "networked": job.machines > 1 and (apart or job.spans),
        "image_fill_in": job.command.image if job.command.image.startswith(FILL_IN) else None,
        "routing": parts.get("routers", {}).get(job.router),
        "beside": apart or target is Target.llm_d,
        "pool_labels": None,
        "sidecars": None,
        **_FLEET_VALUES[target](jobs),
    }
    sides: list[Values] = []
    for side in jobs:
        own = _SIDE_VALUES[target](side) if target in _SIDE_VALUES else {"pod": pod_values(side)}
        told: Values = {"side": side, "hourly": _hourly(side), **own}
        for name, template in parts.get("each_side", {}).items():
            told[name] = fill(template, values | told)
        sides.append(told)
    values |= {"sides": sides, "serving": sides[-1], **sides[0]}
    if target is Target.compose:
        values["services"] = _compose_services(jobs, values)
    return values


def _hourly(job: DeployJob) -> list[Values] | None:
    """Return KEDA's triggers for the hours that need more replicas than the quietest; its largest trigger counts."""
    return [
        {
            "type": "cron",
            "metadata": {
                "timezone": "Etc/UTC",
                "start": more.start,
                "end": more.end,
                "desiredReplicas": str(more.replicas),
            },
        }
        for more in job.hours_with_more
    ] or None


# --- headings -------------------------------------------------------------------------------------------------------


def provenance(command: str, made_on: date, offer: Offer | None) -> str:
    """Say which plan made a file: the command line, the day, and how old its price is."""
    price = f"; {offer.provider} {offer.instance}, {offer.region}: price of {offer.date}" if offer else ""
    return f"Made by `{' '.join(command.split())}` on {made_on}{price}."


def _what_runs(job: DeployJob) -> Iterator[str]:
    deployment = job.deployment
    engine = deployment.engine
    if not job.simulated:
        yield "NOT SIMULATED: whether these replicas meet a target is not checked. Simulate the plan first."
    kv = "" if deployment.model.is_encoder else f"KV {deployment.kv}, "
    yield f"{job.replicas:,} × ({deployment}), {kv}{engine.name} {engine.version}."
    yield job.redundancy
    yield from _about_weights(job)


def _what_runs_apart(prefill: DeployJob, decode: DeployJob) -> Iterator[str]:
    machines = prefill.machines + decode.machines if decode.spare else decode.machines
    sides = ", ".join(f"{job.replicas} × ({job.deployment}) for {job.does}" for job in (prefill, decode))
    loss = "none is spare: with one down, targets may be missed"
    if decode.spare:
        loss = f"each side has its own, of which {decode.spare} may fail"
    yield f"Disaggregated prefill/decode: {sides}. {plural(machines, 'machine')}: {loss}."
    yield from _about_weights(decode)
    yield (
        "KV is sent from GPU to GPU by NIXL (pip install nixl, where the container lacks it): over NVLink inside a "
        "machine, between machines over a port of InfiniBand or RoCE for each GPU, which the plan assumed."
    )


def _about_weights(job: DeployJob) -> Iterator[str]:
    model = job.deployment.model
    if job.deployment.weights.is_below(model.served):
        yield f"Weights below the checkpoint's {model.checkpoint}: check quality on your own task."
    if is_arm(job):
        yield f"Machines with {job.deployment.gpu.key} have Arm CPUs here: containers and wheels have to be of arm64."
    if not model.is_encoder:
        yield "Chat clients need a chat template: name the instruction-tuned checkpoint if this is a base model."


# --- refusals -------------------------------------------------------------------------------------------------------


def _refuse(target: Target, jobs: Jobs, whys: Mapping[str, str]) -> None:
    """Refuse what the target's manifest says that it cannot start, and name targets that can start this fleet."""
    job, apart = jobs[0], len(jobs) > 1
    engine = job.deployment.engine
    is_vllm = engine.key == "vllm"
    spanning = next((side for side in jobs if side.spans), None)
    if "engines" in whys and not is_vllm:
        able = _targets("llm-d", "dynamo", "compose", *([] if apart else ["kubernetes", "keda"]))
        able = _spanning_targets(job) if spanning else able
        raise _refusal(target, f"the plan is for {engine.name}: {whys['engines']}", f"Use {able}.")
    if "apart" in whys and apart:
        able = _targets(engine.key, "llm-d", "dynamo", "compose", *(["kserve"] if is_vllm else []),
                        *(["kubernetes", "keda"] if is_vllm or job.replicas == 1 else []))  # fmt: skip
        raise _refusal(target, f"the plan is disaggregated: {whys['apart']}", f"Use {able}.")
    if "spanning" in whys and spanning:
        why = f"a replica spans {spanning.machines_per_replica} machines, {whys['spanning']}"
        raise _refusal(target, why, f"Use {_spanning_targets(spanning)}, or plan with a larger machine.")


def _refusal(target: str, why: str, fix: str) -> BadInput:
    return BadInput(why, where=option("deploy", target), fix=fix)


def _spanning_targets(job: DeployJob) -> str:
    """Name the targets that can start a replica on several machines, as a door spells them."""
    engine = job.deployment.engine.key
    return _targets("dynamo", *(["kserve"] if engine == "vllm" else []), *([] if job.role else ["skypilot", engine]))


def _targets(*names: str) -> str:
    return " or ".join(option("deploy", name) for name in names)


# --- scripts and SkyPilot -------------------------------------------------------------------------------------------


def _script(jobs: Jobs) -> Values:
    job, apart = jobs[-1], len(jobs) > 1
    machines = len(servers_on_machines(*jobs)) if apart else job.machines
    copies, gpus = job.replicas_per_machine, job.deployment.gpus
    return {
        "file": f"{job.public_name}-{job.deployment.engine.key}.sh",
        "script": script_apart(*jobs) if apart else script_together(job),
        "numbers": "1" if machines == 1 else f"1 … {machines}",
        "spans": job.machines_per_replica if job.spans else None,
        "last": job.machines_per_replica - 1,
        "each": machines if machines > 1 and not job.spans else None,
        "copies": copies if copies > 1 else None,
        "own_gpus": "a GPU" if gpus == 1 else f"{gpus} GPUs",
        "ports": "one port" if job.copies is not None else f"ports {PORT} to {PORT + copies - 1}",
        "before_all": (f"a {job.router} router" if job.router else "a load balancer") if job.replicas > 1 else None,
    }


_DEFAULT_DISK_GB = 256
"""SkyPilot's default disk; more is requested only if the weights, and as much again for the system, need it."""


def _skypilot(jobs: Jobs) -> Values:
    """Return the machines to rent, and how the engine is started on them."""
    (job,) = jobs
    offer, model, known = job.offer, job.deployment.model, machine_names()["skypilot"]
    rented = offer if offer and offer.provider in known["clouds"] else None
    last, one_port = PORT + job.replicas_per_machine - 1, job.copies is not None
    gpu = gpu_name("skypilot", job) or job.deployment.gpu.key
    twice_gb = 2 * model.weight_bytes(model.checkpoint) / BYTES_PER_GB
    rank, head = Shell('"$SKYPILOT_NODE_RANK"'), Shell('"$(echo "$SKYPILOT_NODE_IPS" | head -n1)"')
    named = rented and rented.region != UNSPECIFIED and "/" not in rented.region
    return {
        "one_port": one_port,
        "ports_text": f"{PORT} to {last}",
        "machines": "the machine" if job.machines == 1 else f"all {job.machines} machines",
        "elsewhere": offer.provider if offer and not rented else None,
        "reserved": offer and job.terms is Terms.reserved,
        "infra": rented and (f"{rented.provider}/{rented.region}" if named else rented.provider),
        "instance": rented and rented.instance,
        "accelerators": f"{gpu}:{job.gpus_per_machine}"
        if rented is None or rented.provider in known["named_by_gpu"]
        else None,
        "spot": job.terms is Terms.spot,
        "ports": PORT if one_port else f"{PORT}-{last}",
        "disk_gb": 100 * -(-int(twice_gb) // 100) if twice_gb > _DEFAULT_DISK_GB else None,
        "nodes": job.machines_per_replica if one_port else job.machines,
        "groups": job.machines // job.machines_per_replica,
        "run": one_server(job, rank, head) if one_port else a_server_per_port(job),
    }


# --- Kubernetes, KEDA, llm-d, KServe --------------------------------------------------------------------------------


def _kubernetes(jobs: Jobs) -> Values:
    if len(jobs) == 1:
        return {"clients": "", "counts": jobs[0].replicas}
    counts = ", ".join(f"{job.replicas} for {job.does}" for job in jobs)
    return {"clients": f". Clients ask the service {jobs[1].public_name}", "counts": counts, **_router(jobs)}


def _router(jobs: Jobs) -> Values:
    """Return the router in front of the services of both sides."""
    if len(jobs) == 1:
        return {}
    prefill, decode = jobs
    engine = decode.deployment.engine
    if engine.key != "vllm" and prefill.replicas > 1:
        why = f"{engine.name}'s router has to know every prefill pod by its address"
        fix = f"Use {option('deploy', engine.key)}, or plan with {option('engine', 'vllm')}."
        raise _refusal("kubernetes", why, fix)
    services = [(Server(job.role, 0, 0, 0), f"http://{job.service_name}:{PORT}") for job in jobs]
    program, *arguments = router_command(decode, services)
    return {"router": {"program": ["python3" if program == "python" else program], "arguments": arguments}}


def _picker(jobs: Jobs) -> Values:
    """Return how llm-d's endpoint picker, which KServe uses too, scores replicas; at random if it has no equivalent."""
    router = jobs[-1].router
    return {
        "connector": {"vllm": "nixlv2", "sglang": "sglang"}[jobs[-1].deployment.engine.key],
        "counts": ", ".join(f"replicas: {job.replicas} for {job.does}" for job in jobs),
        "by_prefix": router == Router.prefix_aware,
        "by_load": router in (Router.least_outstanding, Router.power_of_two, Router.prefix_aware),
        "of_two": router == Router.power_of_two,
        "by_turns": router in (None, Router.round_robin),
    }


def _llm_d_side(job: DeployJob) -> Values:
    # Port of a decode server when the sidecar uses its own (guides/pd-disaggregation/modelserver).
    return {"pod": pod_values(job, port=8200 if job.answers else PORT)}


def _kserve_side(job: DeployJob) -> Values:
    deployment, usd = job.deployment, job.usd_per_hour
    stages, groups = (ranks if ranks > 1 else None for ranks in (deployment.pp, deployment.dp))
    # The presets turn the fields of `parallelism` into flags (config-llm-worker-data-parallel and
    # config-llm-worker-pipeline-parallel): none covers both, or layers alone that are split over machines.
    said: set[str] = set()
    if job.spans and bool(groups) != bool(stages):
        said = {"tensor", "data"} if groups else {"tensor", "pipeline"}
    kept: list[str] = []
    words = iter(job.command.arguments[1:])
    for word in words:
        if word in {f"--{kind}-parallel-size" for kind in said}:
            next(words)  # its size
        elif word != "--enable-expert-parallel" or "data" not in said:
            kept.append(word)
    return {
        "pod": pod_values(job, operated=True),
        "other_image": None if deployment.gpu.vendor == "nvidia" else job.command.image,
        "more_flags": shlex.join(kept),
        "usd_per_hour": None if usd is None else f"{usd * job.machines / job.replicas:.4f}",
        "stages": stages,
        "groups": groups,
        "local_groups": job.groups_per_machine or None if job.spans else None,
        "experts": True if deployment.ep > 1 else None,
    }


# --- Dynamo and the production stack --------------------------------------------------------------------------------


def _dynamo(jobs: Jobs) -> Values:
    deployment = jobs[-1].deployment
    engine, vendor = deployment.engine.key, deployment.gpu.vendor
    own, published = f"{FILL_IN}/dynamo-{engine}-{vendor}", f"nvcr.io/nvidia/ai-dynamo/{engine}-runtime"
    return {
        "image": f"{published if vendor == 'nvidia' else own}:1.6.1",
        "own_image": vendor != "nvidia",
        "brought": {"vllm": "0.31.0", "sglang": "0.5.21"}[engine],
    }


def _dynamo_side(job: DeployJob) -> Values:
    """Return the engine's flags, which Dynamo takes unchanged; vLLM's model and role need two more."""
    words = [*job.command.arguments]
    if job.deployment.engine.key == "vllm":
        words = ["--model", *words, *(["--disaggregation-mode", job.role.value] if job.role else [])]
    elif "--attn-dp-size" in words:
        # SGLang 0.5.21's spelling.
        words[words.index("--attn-dp-size")] = "--dp-size"
        words.append("--enable-dp-attention")
    return {"pod": pod_values(job, operated=True), "part": job.role.value if job.role else "worker", "words": words}


_CHART_FIELDS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "--tensor-parallel-size": ("tensorParallelSize", int),
    "--max-num-seqs": ("maxNumSeqs", int),
    "--max-model-len": ("maxModelLen", int),
    "--gpu-memory-utilization": ("gpuMemoryUtilization", float),
    "--dtype": ("dtype", str),
    "--runner": ("runner", str),
}
"""vLLM's flags that have a field in the production stack's chart; the chart would otherwise pass them twice."""


def _production_stack(jobs: Jobs) -> Values:
    (job,) = jobs
    image, _, tag = job.command.image.partition(":")
    caching = "--enable-prefix-caching"
    config: Values = {"enablePrefixCaching": caching in job.command.arguments}
    extra: list[str] = []
    words = iter(word for word in job.command.arguments[1:] if word != caching)
    for word in words:
        if word in _CHART_FIELDS:
            name, kind = _CHART_FIELDS[word]
            config[name] = kind(next(words))
        else:
            extra.append(word)
    cpu = str(pod_values(job)["requests"].get("cpu", "1"))
    return {
        "model_name": job.public_name.removeprefix("llm-"),
        "image_name": image,
        "image_tag": tag,
        "cores": max(1, math.floor(int(cpu.removesuffix("m")) / (1000 if cpu.endswith("m") else 1))),
        "vllm_config": {**config, "extraArgs": extra},
    }


# --- dstack and Compose ---------------------------------------------------------------------------------------------


def _dstack(jobs: Jobs) -> Values:
    (job,) = jobs
    offer, model, known, command = job.offer, job.deployment.model, machine_names()["dstack"], job.command
    backend = known["backends"].get(offer.provider) if offer else None
    own_names = offer if offer and offer.provider in known["own_names"] else None
    # What dstack cannot name of the offer.
    lost = [*([] if backend else ["seller"]), *([] if own_names else ["instance", "region"])]
    told = [what for what in ("GPUs", "seller", "instance", "region", "spot or on demand") if what not in lost]
    pace = job.requests_per_s
    weights_gb = math.ceil(2 * model.weight_bytes(model.checkpoint) / BYTES_PER_GB)
    return {
        "scales": pace is not None,
        "pace": pace and requests_a_second(f"{pace:.3g}"),
        "per_replica": pace and float(f"{pace:.4g}"),
        "replicas": plural(job.replicas, "replica"),
        "machines": plural(job.machines, "machine"),
        "most_machines": max(job.machines, math.ceil(job.most_replicas / job.places_per_machine)),
        "told": ", ".join(told),
        "lost": ", ".join(lost) or None,
        "by_turns": job.router == Router.round_robin,
        "shared": job.places_per_machine > 1,
        "gpu": {"memory": None, **known["gpus"].get(job.deployment.gpu.key, {"name": job.deployment.gpu.key})},
        "spot": job.terms is Terms.spot,
        "backends": [backend] if backend else None,
        "instances": [own_names.instance] if own_names else None,
        "regions": [own_names.region] if own_names and own_names.region != UNSPECIFIED else None,
        "line": shell_line((*command.program, *command.arguments, *listen())),
        "disk_gb": max(100, weights_gb),
    }


def _compose(jobs: Jobs) -> Values:
    job, apart = jobs[-1], len(jobs) > 1
    machines = len(servers_on_machines(*jobs)) if apart else job.machines
    planned = f"the {job.router} router" if job.router else None
    return {
        "replicas": f"{jobs[0].replicas} replicas for prompts and {job.replicas} for answers"
        if apart
        else plural(job.replicas, "replica"),
        "machines": plural(machines, "machine"),
        "address": "MACHINE_ADDRESS=… " if machines > 1 else "",
        "far": apart and machines > 1,
        "on_each": f" on each of the {machines} machines" if machines > 1 else "",
        "router_text": (f"{planned}, or what its router has nearest" if planned else "the router") if apart else None,
        "before_all": (planned or "a load balancer") if job.replicas > 1 else None,
        "own_key": _takes_a_key(job),
    }


def _takes_a_key(job: DeployJob) -> bool:
    """Tell whether the server reads the key that clients send from its environment, and no router hides it."""
    return job.deployment.engine.key == "vllm" and job.role is None


def _compose_services(jobs: Jobs, values: Values) -> Values:
    """Return the containers of every machine, and the router of a disaggregated fleet."""
    if len(jobs) == 1:
        (job,) = jobs
        gpus, copies = job.deployment.gpus, job.replicas_per_machine
        if job.copies is not None:
            return {"server": _compose_server(job, Server(None, 0, gpus * copies, 0), values, more=job.copies)}
        servers = [Server(None, gpus * place, gpus, place) for place in range(copies)]
        return {f"server-{server.place}": _compose_server(job, server, values) for server in servers}
    machines, by_role = servers_on_machines(*jobs), {job.role: job for job in jobs}
    services = {
        f"machine-{number}-{server.role}-{server.place}": _compose_server(by_role[server.role], server, values, number)
        for number, servers in enumerate(machines, 1)
        for server in servers
    }
    found = list(addresses(machines))
    if not values["far"]:
        found = [(server, address.replace(f"{FILL_IN}-machine-1", "localhost")) for server, address in found]
    program, *words = router_command(jobs[-1], found)
    router = values | {"router": {"name": program, "words": words}}
    return services | {"router": fill(values["parts"]["router_container"], router)}


def _compose_server(
    job: DeployJob, server: Server, values: Values, machine: int | None = None, more: tuple[str, ...] = ()
) -> Values:
    """Return one server on its GPUs and port, with the profile of its machine if servers differ by machine."""
    asked = bool(job.role) and job.deployment.engine.key == "vllm"
    host = "${MACHINE_ADDRESS:?address of this machine}" if values["far"] else "localhost"
    if job.role is Role.prefill and not asked:
        more = (*more, "--disaggregation-bootstrap-port", str(BOOTSTRAP + server.place))
    told = {
        "side": job,
        "server": server,
        # Compose reads a dollar sign as the start of a variable.
        "words": [word.replace("$", "$$") for word in (*job.command.arguments, *more, *listen(server.port))],
        "own_key": _takes_a_key(job),
        "kv_host": host if asked else None,
        "kv_port": str(SIDE_CHANNEL + server.place) if asked else None,
        "stop_s": job.answer_s + STOP_S,
        "gpus": server.devices.split(","),
        "profiles": [f"machine-{machine}"] if machine else None,
        **{vendor: job.deployment.gpu.vendor == vendor for vendor in ("nvidia", "amd", "intel")},
    }
    service: Values = fill(values["parts"]["server"], values | told)
    return service


_FLEET_VALUES: Mapping[Target, Callable[[Jobs], Values]] = {
    Target.vllm: _script,
    Target.sglang: _script,
    Target.skypilot: _skypilot,
    Target.kubernetes: _kubernetes,
    Target.keda: _router,
    Target.llm_d: _picker,
    Target.kserve: _picker,
    Target.dynamo: _dynamo,
    Target.production_stack: _production_stack,
    Target.dstack: _dstack,
    Target.compose: _compose,
}
_SIDE_VALUES: Mapping[Target, Callable[[DeployJob], Values]] = {
    Target.llm_d: _llm_d_side,
    Target.kserve: _kserve_side,
    Target.dynamo: _dynamo_side,
}
