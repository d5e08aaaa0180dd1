"""Docker Compose: the servers of each machine as containers on its own network, as the shell scripts start them.

Servers of a disaggregated fleet differ by machine: each machine has a profile, and so has the router. Fields: the
Compose specification (schema/compose-spec.json, 2026-10).
"""

from collections.abc import Sequence
from typing import Any

from tokonomics.planner.deploy_apart import (
    BOOTSTRAP,
    ROUTER_PORT,
    SIDE_CHANNEL,
    Server,
    addresses,
    router_command,
    router_fill_in,
    router_image,
    servers_on_machines,
)
from tokonomics.planner.deploy_job import FILL_IN, PORT, Role, copies_in_one_server, listen
from tokonomics.planner.deploy_kubernetes import NIXL_HOST, STOP_S
from tokonomics.planner.deploy_target import FleetSide, Written, engine_limits, refuse_spanning
from tokonomics.planner.deploy_text import Target, yaml_text
from tokonomics.units import plural

_WEIGHTS = "weights"
_MACHINE = "MACHINE_ADDRESS"


def write_compose(sides: Sequence[FleetSide]) -> Written:
    """The file, which every machine has."""
    refuse_spanning(Target.compose, sides, "and containers of one file are on one machine")
    if len(sides) > 1:
        return _apart(sides)
    (side,) = sides
    job = side.job
    text = f"docker compose -f {job.public_name}-compose.yaml up -d"
    each = f" on each of the {job.machines} machines" if job.machines > 1 else ""
    router = f"{f'the {job.router} router' if job.router else 'a load balancer'}: put one before all replicas"
    return Written(
        files={"compose.yaml": _compose(_together(side))},
        start=f"{text}{each}",
        carries=[
            f"{plural(job.replicas, 'replica')} on {plural(job.machines, 'machine')}, each on GPUs of its own",
            *map(engine_limits, sides),
        ],
        lacks=[
            *([router] if job.replicas > 1 else []),
            f"autoscaling ({job.replicas} to {job.most_replicas} replicas): start the file on more machines yourself",
        ],
        fill_in=_images(sides),
    )


def _apart(sides: Sequence[FleetSide]) -> Written:
    prefill, decode = (side.job for side in sides)
    machines = servers_on_machines(prefill, decode)
    alone = len(machines) == 1
    commands = {side.job.role: side for side in sides}
    services = {
        f"machine-{number}-{server.role}-{server.place}": _service(commands[server.role], server, alone)
        | {"profiles": [f"machine-{number}"]}
        for number, servers in enumerate(machines, 1)
        for server in servers
    }
    found = [(server, address.replace(f"{FILL_IN}-machine-1", "localhost") if alone else address)
             for server, address in addresses(machines)]  # fmt: skip
    program, *words = router_command(decode, found)
    services["router"] = {
        "image": router_image(decode),
        "entrypoint": [program],
        "command": words,
        "network_mode": "host",
        "restart": "unless-stopped",
        "profiles": ["router"],
    }
    # Compose wants the variable even for a profile that does not use it.
    file = f"{'' if alone else f'{_MACHINE}=… '}docker compose -f {decode.public_name}-compose.yaml"
    named = [] if alone else [f"{FILL_IN}-machine-1 …: addresses of the machines, for the router"]
    return Written(
        files={"compose.yaml": _compose(services)},
        start=f"on machine 1: {file} --profile machine-1 up -d; so on every machine with its own number; "
        f"then where clients reach it: {file} --profile router up -d, which listens on port {ROUTER_PORT}",
        carries=[
            f"{prefill.replicas} replicas for prompts and {decode.replicas} for answers on "
            f"{plural(len(machines), 'machine')}, each on GPUs of its own",
            *map(engine_limits, sides),
            f"the {decode.router} router, or what its router has nearest" if decode.router else "the router",
        ],
        lacks=["autoscaling: containers are as many as the file names"],
        fill_in=[*_images(sides), *router_fill_in(decode), *named],
    )


def _images(sides: Sequence[FleetSide]) -> list[str]:
    images = dict.fromkeys(side.command.image for side in sides)
    return [f"{image}: a container with the engine" for image in images if image.startswith(FILL_IN)]


def _compose(services: dict[str, Any]) -> str:
    return yaml_text({"services": services, "volumes": {_WEIGHTS: {}}})


def _together(side: FleetSide) -> dict[str, Any]:
    """The servers of one machine: copies behind one port, or a server for each replica."""
    job, gpus = side.job, side.job.deployment.gpus
    copies = copies_in_one_server(job)
    if copies is None:
        servers = [Server(Role.decode, gpus * place, gpus, place) for place in range(job.replicas_per_machine)]
        return {f"server-{server.place}": _service(side, server, alone=True) for server in servers}
    whole = Server(Role.decode, 0, gpus * job.replicas_per_machine, 0)
    return {"server": _service(side, whole, alone=True, more=copies)}


def _service(side: FleetSide, server: Server, alone: bool, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """One server on its GPUs and port; `alone`: no other machine asks it for KV."""
    job, command = side
    environment = {"HF_HOME": "/models", "HF_TOKEN": "${HF_TOKEN:-}"}
    if job.role and job.deployment.engine.key == "vllm":
        host = "localhost" if alone else f"${{{_MACHINE}:?address of this machine}}"
        environment |= {NIXL_HOST: host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_CHANNEL + server.place)}
    elif job.role is Role.prefill:
        more = (*more, "--disaggregation-bootstrap-port", str(BOOTSTRAP + server.place))
    devices, variables = _devices(job.deployment.gpu.vendor, server)
    health = f"http://localhost:{PORT + server.place}/health"
    return {
        "image": command.image,
        # The containers of these engines have python3; not all have python.
        "entrypoint": ["python3" if word == "python" else word for word in command.program],
        # Compose reads a dollar as the beginning of a variable.
        "command": [word.replace("$", "$$") for word in (*command.arguments, *more, *listen(PORT + server.place))],
        "environment": environment | variables,
        "volumes": [f"{_WEIGHTS}:/models"],
        "network_mode": "host",
        # Ranks exchange data through shared memory, of which a container has 64 MB by itself.
        "ipc": "host",
        "restart": "unless-stopped",
        "stop_grace_period": f"{job.answer_s + STOP_S}s",
        "healthcheck": {
            "test": ["CMD", "curl", "-fsS", health],
            "interval": "10s",
            "timeout": "5s",
            "retries": 6,
            "start_period": f"{job.start_s}s",
        },
        **devices,
    }


def _devices(vendor: str, server: Server) -> tuple[dict[str, Any], dict[str, str]]:
    """How a container is given its GPUs, and the variables that say which."""
    if vendor == "nvidia":
        reserved = {"driver": "nvidia", "device_ids": server.devices.split(","), "capabilities": ["gpu"]}
        return {"deploy": {"resources": {"reservations": {"devices": [reserved]}}}}, {}
    if vendor == "amd":
        return {"devices": ["/dev/kfd", "/dev/dri"], "group_add": ["video"]}, {"HIP_VISIBLE_DEVICES": server.devices}
    return {"runtime": "habana"}, {"HABANA_VISIBLE_DEVICES": server.devices}
