"""Workers on a Ray cluster: one actor for each of its CPUs, asked one point at a time (extra ``[ray]``).

Points, retries, time limits and the store stay with the sweep on this machine; Ray finds the machines, starts the
workers there and says when one has died. Machines may come and go: actors follow the CPUs that the cluster has. Each
must have the same tokonomics, packages and prices, and find the files of the scenario under the same paths; each is
checked before it is asked anything. Ray is imported here and nowhere else.
"""

import contextlib
import json
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from tokonomics.errors import BadInput, shorten
from tokonomics.memory_budget import limit_memory
from tokonomics.sweep.crew import LOOK_S, Crew, begin
from tokonomics.sweep.points import Ground, differences, ground
from tokonomics.workers import Replied, Spent, WorkerDied

_CONNECT_S = 10.0


class ClusterActor:
    """On a machine of the cluster: answers one point at a time in a process of its own."""

    def __init__(self, verb: str, memory_bytes: int | None) -> None:
        self._verb, self._memory_bytes = verb, memory_bytes

    def ready(self) -> tuple[Ground, str, int]:
        """Warmed up; what it stands on, and where it is."""
        self._answer = begin(self._verb)
        if self._memory_bytes is not None:
            limit_memory(self._memory_bytes)
        return ground(), socket.gethostname(), os.getpid()

    def answer(self, values: dict[str, Any]) -> tuple[bytes, bool]:
        """The outcome as JSON, and whether it is the last one."""
        try:
            return json.dumps(self._answer(values)).encode(), False
        except Spent as spent:
            return json.dumps(spent.args[0]).encode(), True


class ClusterWorker:
    """An actor as the pool sees it from here."""

    def __init__(self, ray: Any, here: Ground, verb: str, memory_bytes: int | None) -> None:
        self._ray, self._here = ray, here
        actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(ClusterActor)
        self._actor = actor.remote(verb, memory_bytes)
        self._reference = self._actor.ready.remote()
        self.pid: int | None = None

    def alive(self) -> bool:
        return True  # as far as is known: one that is not costs its point a try

    def ask(self, request: dict[str, Any]) -> None:
        self._reference = self._actor.answer.remote(request)

    def hear(self, timeout_s: float | None) -> Replied | None:
        try:
            if not self._ray.wait([self._reference], timeout=timeout_s)[0]:
                return None
            said = self._ray.get(self._reference)
        except self._ray.exceptions.RayError as error:
            why = str(error).strip().splitlines() or ["died"]
            raise WorkerDied(shorten(why[-1], 200)) from None
        if self.pid is not None:
            return Replied(*said)
        there, host, self.pid = said
        if other := differences(self._here, there):
            raise BadInput(
                f"does not stand on the same ground: {'; '.join(other)}",
                where=f"--ray, machine {host}",
                fix="Install the same tokonomics and packages there, and share the price list and the profile.",
            )
        return Replied(b"")

    def kill(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)

    end = kill


class ClusterCrew(Crew):
    """Actors on the cluster at an address."""

    tries = 4  # a machine that leaves takes its workers' points with it, which is no fault of theirs

    def __init__(
        self,
        address: str,
        verb: str,
        here: Ground,
        *,
        jobs: int | None,
        memory_bytes: int | None,
        environment: Mapping[str, str],
    ) -> None:
        self._to_stderr = contextlib.redirect_stdout(sys.stderr)
        self._to_stderr.__enter__()  # Ray prints what its machines complain of: not into the answer
        try:
            self._ray = _connected(address, environment)
        except BaseException:
            self._to_stderr.__exit__(None, None, None)
            raise
        super().__init__(lambda: ClusterWorker(self._ray, here, verb, memory_bytes), jobs)
        self._cpus, self._looked, self.nodes = 0, float("-inf"), 0

    def room(self) -> int:
        if time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            self._cpus = int(self._ray.cluster_resources().get("CPU", 0))
            self.nodes = sum(1 for node in self._ray.nodes() if node["Alive"])
        return self._cpus if self._jobs is None else self._jobs

    def close(self) -> None:
        super().close()
        self._ray.shutdown()
        self._to_stderr.__exit__(None, None, None)


def _connected(address: str, environment: Mapping[str, str]) -> Any:
    """Ray, connected to the cluster; a socket is tried before, as Ray itself tries for minutes."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as it will be; otherwise each start warns
    try:
        import ray
    except ImportError:
        raise BadInput("Ray is not installed", where="--ray", fix="In a checkout: pip install '.[ray]'") from None
    try:
        if found := re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address):
            socket.create_connection((found[1], int(found[2])), timeout=_CONNECT_S).close()
        own = {"env_vars": dict(environment)}
        ray.init(address=address, runtime_env=own, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        raise BadInput(
            f"cannot be reached: {shorten(str(error).strip(), 300)}",
            where=f"--ray {shorten(address)}",
            fix="`ray start --head` begins a cluster and says its address, such as 10.0.0.1:6379.",
        ) from None
    return ray
