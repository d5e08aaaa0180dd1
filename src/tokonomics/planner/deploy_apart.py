"""The files that start a disaggregated pick: servers that compute prompts, servers that answer, and the router before.

A shell script starts, on each machine by its number, the servers that stand there, every one on GPUs and a port of its
own; and the router. Kubernetes has the objects of either side and a router before their services. The router sends a
request to a prefill server, then to a decode server, which fetches the KV from the first by itself.

Flags: vLLM 0.32.0 (docs/features/nixl_connector_usage.md), vllm-router 0.1 (its README, "prefill/decode
disaggregation"), SGLang 0.5.23 (docs/advanced_features/pd_disaggregation.md and router.md).
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tokonomics.errors import BadInput, option
from tokonomics.planner.deploy_job import FILL_IN, PORT, DeployJob, EngineCommand, Role, Shell, engine_command, listen
from tokonomics.planner.deploy_job import shell_line as line
from tokonomics.planner.deploy_kubernetes import (
    NIXL_HOST,
    RDMA,
    kubernetes_fill_in,
    kubernetes_notes,
    kubernetes_objects,
)
from tokonomics.planner.deploy_text import DeployFile, Target, comment, described, yaml_text
from tokonomics.units import plural

SIDE_CHANNEL = 5600
"""First port on which a vLLM server is asked for its KV (its own default)."""
BOOTSTRAP = 8998
"""First port on which a SGLang prefill server tells the others where its KV is (its own default)."""
ROUTER_PORT = 30_000
"""Where clients ask (the default of both routers)."""


_POLICIES = {"least-outstanding": "power_of_two", "power-of-two": "power_of_two", "prefix-aware": "cache_aware"}
"""What both routers call it, or the nearest that they have; otherwise they take turns."""


class Server(NamedTuple):
    """One replica on a machine."""

    role: Role
    first_gpu: int
    gpus: int
    place: int
    """Among the servers of its machine."""

    @property
    def port(self) -> int:
        return PORT + self.place

    @property
    def devices(self) -> str:
        return ",".join(map(str, range(self.first_gpu, self.first_gpu + self.gpus)))


def servers_on_machines(prefill: DeployJob, decode: DeployJob) -> list[list[Server]]:
    """The servers of each machine, as the plan counted them.

    Larger replicas first, each where there is room; with spare machines each side evenly over machines of its own.
    """
    if decode.spare:
        return [machine for job in (prefill, decode) for machine in _evenly(job)]
    machines: list[list[Server]] = [[] for _ in range(decode.machines)]
    for job in sorted((prefill, decode), key=lambda job: -job.deployment.gpus):
        gpus = job.deployment.gpus
        for _ in range(job.replicas):
            taken = [sum(server.gpus for server in machine) for machine in machines]
            place = next(place for place, used in enumerate(taken) if used + gpus <= job.gpus_per_machine)
            machines[place].append(Server(_role(job), taken[place], gpus, len(machines[place])))
    return machines


def _evenly(job: DeployJob) -> list[list[Server]]:
    gpus, role = job.deployment.gpus, _role(job)
    counts = [len(range(machine, job.replicas, job.machines)) for machine in range(job.machines)]
    return [[Server(role, gpus * place, gpus, place) for place in range(count)] for count in counts]


def _role(job: DeployJob) -> Role:
    assert job.role is not None
    return job.role


def deploy_file_apart(target: Target, prefill: DeployJob, decode: DeployJob) -> DeployFile:
    """The file that starts both sides of a disaggregated fleet, and its router."""
    engine = decode.deployment.engine
    if target is Target.skypilot:
        raise BadInput(
            "a disaggregated fleet is two kinds of servers and a router, which no one task starts",
            where=option("deploy", target),
            fix=f"Use {option('deploy', engine.key)} or {option('deploy', 'kubernetes')}.",
        )
    if target is not Target.kubernetes and engine.key != target:
        raise BadInput(
            f"the plan is for {engine.name}, whose speed and memory differ",
            where=option("deploy", target),
            fix=f"Plan with {option('engine', target)}.",
        )
    commands = engine_command(prefill), engine_command(decode)
    fill_in = list(dict.fromkeys(text for command in commands for text in command.fill_in))
    if target is Target.kubernetes:
        body, notes, ending = _objects(prefill, decode, *commands), _kubernetes_notes(prefill, decode, commands), "yaml"
        fill_in += [*kubernetes_fill_in(decode, commands[1]), *router_fill_in(decode)]
    else:
        machines = servers_on_machines(prefill, decode)
        body, notes, ending = (
            _script(prefill, decode, machines, *commands),
            _script_notes(decode, machines, target),
            "sh",
        )
        fill_in.append(f"{FILL_IN}-machine-1 …: addresses of the machines, for the router")
    heading = [decode.provenance, *what_runs_apart(prefill, decode), *notes, *(f"FILL IN {text}" for text in fill_in)]
    return DeployFile(
        name=f"{decode.public_name}-{target.value}.{ending}",
        text=("#!/bin/sh\n" if ending == "sh" else "") + "".join(map(comment, heading)) + body,
        fill_in=tuple(fill_in),
    )


def what_runs_apart(prefill: DeployJob, decode: DeployJob) -> list[str]:
    machines = prefill.machines + decode.machines if decode.spare else decode.machines
    sides = [
        f"{job.replicas} × ({job.deployment}) for {does}" for job, does in ((prefill, "prompts"), (decode, "answers"))
    ]
    loss = "none is spare: with one down, targets may be missed"
    if decode.spare:
        loss = f"each side has its own, of which {decode.spare} may fail"
    return [
        f"Disaggregated prefill/decode: {', '.join(sides)}. {plural(machines, 'machine')}: {loss}.",
        *described(decode),
        "KV is sent from GPU to GPU by NIXL (pip install nixl, where the container lacks it): over NVLink inside a "
        "machine, between machines over a port of InfiniBand or RoCE for each GPU, which the plan assumed.",
    ]


# --- a script -------------------------------------------------------------------------------------------------------


def _script_notes(decode: DeployJob, machines: Sequence[Sequence[Server]], target: Target) -> list[str]:
    name = f"{decode.public_name}-{target.value}.sh"
    router = {"vllm": "vllm-router", "sglang": "sglang-router"}[target.value]
    numbers = "1" if len(machines) == 1 else f"1 … {len(machines)}"
    return [
        f"Run on each machine with its number: sh {name} {numbers}. Then, where clients reach it: sh {name} router "
        f"(pip install {router}); it listens on port {ROUTER_PORT}.",
    ]


def _script(
    prefill: DeployJob,
    decode: DeployJob,
    machines: Sequence[Sequence[Server]],
    *commands: EngineCommand,
) -> str:
    """A function for each side, and which of them run on which machine."""
    functions = [_function(job, command) for job, command in zip((prefill, decode), commands, strict=True)]
    cases = [f"  {number}) {'; '.join(map(_start, servers))} ;;" for number, servers in enumerate(machines, 1)]
    router = line(router_command(decode, list(addresses(machines))), "    ")
    usage = f'  *) echo "Which machine: 1 to {len(machines)}, or router?" >&2; exit 2 ;;'
    body = ['case "${1:-}" in', *cases, f"  router) {router} ;;", usage, "esac", "wait"]
    return "\n".join([*functions, *body]) + "\n"


def _start(server: Server) -> str:
    return f"{server.role} {server.devices} {server.place}"


def _function(job: DeployJob, command: EngineCommand) -> str:
    """Starts one server, given its GPUs and its place on the machine."""
    amd = job.deployment.gpu.vendor == "amd"
    before = [Shell(f'{"HIP" if amd else "CUDA"}_VISIBLE_DEVICES="$1"')]
    own: tuple[str, ...] = ()
    if job.deployment.engine.key == "vllm":
        before += [
            Shell(f'{NIXL_HOST}="$(hostname -i)"'),
            Shell(f'VLLM_NIXLSIDE_CHANNEL_PORT="$(({SIDE_CHANNEL} + $2))"'),
        ]
    elif job.role is Role.prefill:
        own = ("--disaggregation-bootstrap-port", Shell(f'"$(({BOOTSTRAP} + $2))"'))
    words = (*before, *command.program, *command.arguments, *own, *listen(Shell(f'"$(({PORT} + $2))"')))
    return f"{job.role}() {{\n  {line(words, '    ')} &\n}}"


def addresses(machines: Sequence[Sequence[Server]]) -> Iterator[tuple[Server, str]]:
    for number, servers in enumerate(machines, 1):
        for server in servers:
            yield server, f"http://{FILL_IN}-machine-{number}:{server.port}"


def router_command(job: DeployJob, servers: Sequence[tuple[Server, str]]) -> tuple[str, ...]:
    """The router's command: every server by its address and role."""
    is_vllm = job.deployment.engine.key == "vllm"
    start = ("vllm-router", "--vllm-pd-disaggregation") if is_vllm else (
        "python", "-m", "sglang_router.launch_router", "--pd-disaggregation",
    )  # fmt: skip
    words: list[str] = [*start, "--policy", _POLICIES.get(job.router or "", "round_robin")]
    for server, address in sorted(servers, key=lambda entry: entry[0].role is Role.decode):
        words += [f"--{server.role}", address]
        if server.role is Role.prefill and not is_vllm:
            words.append(str(BOOTSTRAP + server.place))
    return (*words, *listen(ROUTER_PORT))


# --- Kubernetes -----------------------------------------------------------------------------------------------------


def router_image(job: DeployJob) -> str:
    return f"{FILL_IN}/{job.deployment.engine.key}-router"


def router_fill_in(job: DeployJob) -> list[str]:
    return [f"{router_image(job)}: a container with the router"]


def _kubernetes_notes(prefill: DeployJob, decode: DeployJob, commands: Sequence[EngineCommand]) -> list[str]:
    both = [kubernetes_notes(job, command) for job, command in zip((prefill, decode), commands, strict=True)]
    start = (
        f"Start: kubectl apply -f {decode.public_name}-kubernetes.yaml. Clients ask the service {decode.public_name}."
    )
    own = ("Start:", "The plan is")
    said = dict.fromkeys(note for notes in both for note in notes if not note.startswith(own))
    plan = f"The plan is minReplicas ({prefill.replicas} for prompts, {decode.replicas} for answers); more cost more."
    return [start, plan, *said, *([RDMA] if decode.machines > 1 else [])]


def _objects(prefill: DeployJob, decode: DeployJob, *commands: EngineCommand) -> str:
    """Both sides, which share the volume of weights, and the router."""
    first, second = (kubernetes_objects(job, command) for job, command in zip((prefill, decode), commands, strict=True))
    shared = [made for made in second if made["kind"] != "PersistentVolumeClaim"]
    return "---\n".join(map(yaml_text, [*first, *shared, *router_objects(prefill, decode)]))


def router_objects(prefill: DeployJob, decode: DeployJob) -> list[dict[str, Any]]:
    """The router before the services of both sides: a server's answer says which one holds its KV."""
    if decode.deployment.engine.key != "vllm" and prefill.replicas > 1:
        raise BadInput(
            f"{decode.deployment.engine.name}'s router has to know every prefill pod by its address",
            where=option("deploy", "kubernetes"),
            fix=f"Use {option('deploy', decode.deployment.engine.key)}, or plan with {option('engine', 'vllm')}.",
        )
    labels = {"app.kubernetes.io/name": decode.public_name}
    services = [
        (Server(Role(str(job.role)), 0, 0, 0), f"http://{job.service_name}:{PORT}") for job in (prefill, decode)
    ]
    program, *arguments = router_command(decode, services)
    container = {
        "name": "router",
        "image": router_image(decode),
        "command": ["python3" if program == "python" else program],
        "args": arguments,
        "ports": [{"name": "http", "containerPort": ROUTER_PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5, "failureThreshold": 2},
    }
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    metadata = {"name": decode.public_name, "labels": labels}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
        },
    ]
