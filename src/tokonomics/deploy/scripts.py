"""Write shell commands that start servers: one replica over machines, several on one machine, or disaggregated.

A disaggregated fleet has prefill servers, decode servers, and a router in front. The router sends a request to a
prefill server, then to a decode server, which fetches the KV from the first by itself.

Flags: vLLM 0.32.0 (docs/features/nixl_connector_usage.md), vllm-router 0.1 (its README, "prefill/decode
disaggregation"), SGLang 0.5.23 (docs/advanced_features/pd_disaggregation.md and router.md).
"""

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tokonomics.deploy.job import PORT, DeployJob
from tokonomics.sizing.engine_flags import FILL_IN, Role

SIDE_CHANNEL = 5600  # first port on which vLLM servers hand over KV (its own default)
BOOTSTRAP = 8998  # first port on which SGLang prefill servers announce their KV (its own default)
_ROUTER_PORT = 30_000  # for clients (the default of both routers)
_DATA_PARALLEL_PORT = 13345
"""Port on the first machine of a vLLM replica for the others, from its documentation's example. Any free port would
do."""
_POLICIES = {"least-outstanding": "power_of_two", "power-of-two": "power_of_two", "prefix-aware": "cache_aware"}
"""Both routers' name of a policy, or the nearest that they have; otherwise they take turns."""


class Shell(str):
    """Part of a command that a shell expands, so it is not quoted."""


def shell_line(words: Sequence[str], indent: str = "  ") -> str:
    """Write a command over several lines, one flag with its value on each, with quotes where a shell needs them."""
    lines: list[str] = []
    for word in words:
        written = word if isinstance(word, Shell) else shlex.quote(word)
        if lines and not word.startswith("--"):
            lines[-1] += f" {written}"
        else:
            lines.append(written)
    return f" \\\n{indent}".join(lines)


def listen(port: int | Shell = PORT) -> tuple[str, ...]:
    """Return the flags to listen on every interface, so that others reach the server; both engines share them."""
    return "--host", "0.0.0.0", "--port", port if isinstance(port, Shell) else str(port)


def _visible_gpus(job: DeployJob) -> str:
    return f"{'HIP' if job.deployment.gpu.vendor == 'amd' else 'CUDA'}_VISIBLE_DEVICES"


# --- replicas that do both ------------------------------------------------------------------------------------------


def one_server(job: DeployJob, rank: Shell, head: Shell) -> str:
    """Start all replicas of a machine behind one port, or one replica over machines from its rank and the first one."""
    command = job.command
    words = (*command.program, *command.arguments, *(job.copies or ()), *_over_nodes(job, rank, head), *listen())
    return shell_line((*words, *_unless_first(job, rank)))


def a_server_per_port(job: DeployJob) -> str:
    """Start servers side by side on a machine, each on its own GPUs; if one ends, the rest keep running."""
    gpus, command = job.deployment.gpus, job.command
    mine = f'{_visible_gpus(job)}="$(seq -s, $((i * {gpus})) $((i * {gpus} + {gpus - 1})))"'
    words = (Shell(mine), *command.program, *command.arguments, *listen(Shell(f"$(({PORT} + i))")))
    servers = " ".join(map(str, range(job.replicas_per_machine)))
    return f"for i in {servers}; do\n  {shell_line(words, '    ')} &\ndone\nwait"


def script_together(job: DeployJob) -> str:
    """Write the script that starts every replica of a machine, or a replica's part on it."""
    if job.spans:
        given = ': "${1:?number of this machine among those of its replica, from 0}" "${2:?address of the first}"\n'
        return given + one_server(job, Shell('"$1"'), Shell('"$2"')) + "\n"
    return (a_server_per_port(job) if job.copies is None else one_server(job, Shell(), Shell())) + "\n"


def _over_nodes(job: DeployJob, rank: Shell, head: Shell) -> tuple[str, ...]:
    """Return the flags that join the machines of one replica; only the rank differs between machines.

    vLLM joins whole attention groups by data parallelism, and parts of one by ranks (vllm 0.32.0, "Data Parallel
    Deployment", and engine/arg_utils.py).
    """
    if not job.spans:
        return ()
    common = ("--nnodes", str(job.machines_per_replica), "--node-rank", rank)
    if job.deployment.engine.key != "vllm":
        return *common, "--dist-init-addr", Shell(f"{head}:5000")
    if not job.groups_per_machine:
        return *common, "--master-addr", head
    groups = ("--data-parallel-size-local", str(job.groups_per_machine))
    return *groups, "--data-parallel-address", head, "--data-parallel-rpc-port", str(_DATA_PARALLEL_PORT)


def _unless_first(job: DeployJob, rank: Shell) -> tuple[str, ...]:
    """Return vLLM's flags for all but the first machine of a replica: these only compute, and answer no requests."""
    if not job.spans or job.deployment.engine.key != "vllm":
        return ()
    words = "--headless"
    if job.groups_per_machine:
        number = rank.strip('"')
        words += f" --data-parallel-start-rank $(({number} * {job.groups_per_machine}))"
    return (Shell(f"$([ {rank} = 0 ] || echo {words})"),)


# --- disaggregated --------------------------------------------------------------------------------------------------


class Server(NamedTuple):
    """One replica on a machine."""

    role: Role | None
    first_gpu: int
    gpus: int
    place: int  # its number among the servers of its machine

    @property
    def port(self) -> int:
        return PORT + self.place

    @property
    def devices(self) -> str:
        return ",".join(map(str, range(self.first_gpu, self.first_gpu + self.gpus)))


def servers_on_machines(prefill: DeployJob, decode: DeployJob) -> list[list[Server]]:
    """Assign servers to machines as the plan counted them.

    Larger replicas come first, each where there is room; with spare machines, each side is spread evenly over its own.
    """
    if decode.spare:
        return [machine for job in (prefill, decode) for machine in _evenly(job)]
    machines: list[list[Server]] = [[] for _ in range(decode.machines)]
    for job in sorted((prefill, decode), key=lambda job: -job.deployment.gpus):
        gpus = job.deployment.gpus
        for _ in range(job.replicas):
            taken = [sum(server.gpus for server in machine) for machine in machines]
            place = next(place for place, used in enumerate(taken) if used + gpus <= job.gpus_per_machine)
            machines[place].append(Server(job.role, taken[place], gpus, len(machines[place])))
    return machines


def _evenly(job: DeployJob) -> list[list[Server]]:
    gpus = job.deployment.gpus
    counts = [len(range(machine, job.replicas, job.machines)) for machine in range(job.machines)]
    return [[Server(job.role, gpus * place, gpus, place) for place in range(count)] for count in counts]


def addresses(machines: Sequence[Sequence[Server]]) -> Iterator[tuple[Server, str]]:
    """Yield every server with its address; the user fills in those of the machines."""
    for number, servers in enumerate(machines, 1):
        for server in servers:
            yield server, f"http://{FILL_IN}-machine-{number}:{server.port}"


def router_command(job: DeployJob, servers: Sequence[tuple[Server, str]]) -> tuple[str, ...]:
    """Return the router's command, with every server by address and role."""
    is_vllm = job.deployment.engine.key == "vllm"
    start = ("vllm-router", "--vllm-pd-disaggregation") if is_vllm else (
        "python", "-m", "sglang_router.launch_router", "--pd-disaggregation",
    )  # fmt: skip
    words: list[str] = [*start, "--policy", _POLICIES.get(job.router or "", "round_robin")]
    for server, address in sorted(servers, key=lambda entry: entry[0].role is Role.decode):
        words += [f"--{server.role}", address]
        if server.role is Role.prefill and not is_vllm:
            words.append(str(BOOTSTRAP + server.place))
    return (*words, *listen(_ROUTER_PORT))


def script_apart(prefill: DeployJob, decode: DeployJob) -> str:
    """Write a script with a function for each side, the servers of each machine by its number, and the router."""
    machines = servers_on_machines(prefill, decode)
    starts = [[f"{server.role} {server.devices} {server.place}" for server in servers] for servers in machines]
    cases = [f"  {number}) {'; '.join(servers)} ;;" for number, servers in enumerate(starts, 1)]
    router = shell_line(router_command(decode, list(addresses(machines))), "    ")
    usage = f'  *) echo "Which machine: 1 to {len(machines)}, or router?" >&2; exit 2 ;;'
    body = ['case "${1:-}" in', *cases, f"  router) {router} ;;", usage, "esac", "wait"]
    return "\n".join([_function(prefill), _function(decode), *body]) + "\n"


def _function(job: DeployJob) -> str:
    """Write the shell function that starts one server, given its GPUs and its place on the machine."""
    before, own = [Shell(f'{_visible_gpus(job)}="$1"')], list[str]()
    if job.deployment.engine.key == "vllm":
        before += [
            Shell('VLLM_NIXL_SIDE_CHANNEL_HOST="$(hostname -i)"'),
            Shell(f'VLLM_NIXL_SIDE_CHANNEL_PORT="$(({SIDE_CHANNEL} + $2))"'),
        ]
    elif job.role is Role.prefill:
        own = ["--disaggregation-bootstrap-port", Shell(f'"$(({BOOTSTRAP} + $2))"')]
    command = job.command
    words = (*before, *command.program, *command.arguments, *own, *listen(Shell(f'"$(({PORT} + $2))"')))
    return f"{job.role}() {{\n  {shell_line(words, '    ')} &\n}}"
