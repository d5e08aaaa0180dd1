"""Starts a Ray cluster of several nodes on this machine and does what it is told, one command a line.

``python cluster_of_nodes.py 2`` prints the address when the nodes are up. ``kill PID`` kills a worker, ``remove``
takes a node without the head away with all its processes, ``end`` ends the cluster. Everything
stays on the loopback, and nothing is reported to anybody.
"""

import os
import signal
import socket
import sys
from typing import Any

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # elsewhere it is what keeps Ray on the loopback
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_raylet_start_wait_time_s": "120",
}

_AGENTS = ("runtime_env_agent", "metrics_agent", "metrics_export", "dashboard_agent_listen")
STORE_BYTES = 100_000_000
TRIES = 3
"""A busy machine starts a node more slowly than Ray waits."""


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def node_settings() -> dict[str, Any]:
    """Of one CPU. Ports are given: for each that is not, a node waits for an agent to find one, and gives up soon."""
    return {
        "num_cpus": 1,
        "object_store_memory": STORE_BYTES,
        "node_ip_address": "127.0.0.1",
        **{f"{name}_port": free_port() for name in _AGENTS},
        "include_log_monitor": False,
        "no_monitor": True,
    }


def started(nodes: int) -> Any:
    from ray.cluster_utils import Cluster

    for attempt in range(1, TRIES + 1):
        cluster = None
        try:
            cluster = Cluster(initialize_head=True, head_node_args={**node_settings(), "include_dashboard": False})
            for _ in range(nodes - 1):
                cluster.add_node(**node_settings())
            return cluster
        except Exception:
            if attempt == TRIES:
                raise
            if cluster is not None:
                cluster.shutdown()
    raise AssertionError


def main() -> None:
    cluster = started(int(sys.argv[1]))
    print(cluster.address, flush=True)  # noqa: T201
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "end":
            break
        if command == "kill":
            os.kill(int(rest[0]), signal.SIGKILL)
            print("killed", flush=True)  # noqa: T201
        elif command == "remove":
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            print("removed", flush=True)  # noqa: T201
    cluster.shutdown()


if __name__ == "__main__":
    main()
