"""Workers on a Ray cluster: one actor for each of its CPUs, asked one point at a time (extra ``[ray]``).

Points, retries, time limits and the store stay with the sweep on this machine; Ray finds the machines, starts the
workers there and says when one has died. Machines may come and go: actors follow the CPUs that the cluster has. Each
must have the same tokonomics, packages and prices, and find the files of the scenario under the same paths; the first
is checked before it is asked anything. Ray is imported here and nowhere else.
"""

import contextlib
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from tokonomics.errors import BadInput, shorten
from tokonomics.sweep.fingerprint import Ground, differences
from tokonomics.sweep.outcome import outcome_from
from tokonomics.sweep.workers import Done, Event, Gone, Ready, Worker

_LOOK_S = 2.0
"""How often the cluster is asked for its size."""
_CONNECT_S = 10.0


class ClusterWorker:
    """The actor: answers one point at a time in a process of its own."""

    def __init__(self, verb: str, memory_bytes: int | None) -> None:
        self._verb, self._memory_bytes = verb, memory_bytes

    def ready(self) -> tuple[Ground, str, int]:
        """Warmed up; what it stands on, and where it is."""
        from tokonomics.memory_budget import limit_memory
        from tokonomics.sweep.answering import warm_up
        from tokonomics.sweep.fingerprint import ground

        warm_up(self._verb)
        if self._memory_bytes is not None:
            limit_memory(self._memory_bytes)
        return ground(), socket.gethostname(), os.getpid()

    def answer(self, values: dict[str, Any]) -> dict[str, Any]:
        from tokonomics.sweep.answering import answered

        return answered(self._verb, values).plain()


class ClusterCrew:
    """Actors on the cluster at an address."""

    tries = 4
    """A machine that leaves takes its workers' points with it, which is no fault of theirs."""
    lost = 0

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
        self._verb, self._here, self._jobs, self._memory_bytes = verb, here, jobs, memory_bytes
        self._actors: dict[str, Any] = {}
        self._begun: dict[Any, str] = {}
        """What is under way, and whose it is."""
        self._starting: set[str] = set()
        self._made = 0
        self._cpus, self._looked = 0, float("-inf")
        self.nodes = 0

    def keep_up(self, wanted: int) -> None:
        if time.monotonic() - self._looked >= _LOOK_S:
            self._looked = time.monotonic()
            self._cpus = int(self._ray.cluster_resources().get("CPU", 0))
            self.nodes = sum(1 for node in self._ray.nodes() if node["Alive"])
        while len(self._actors) < min(self._cpus if self._jobs is None else self._jobs, wanted):
            self._made += 1
            name = f"worker {self._made}"
            actor = self._ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(ClusterWorker)
            self._actors[name] = actor.remote(self._verb, self._memory_bytes)
            self._starting.add(name)
            self._begun[self._actors[name].ready.remote()] = name

    @property
    def workers(self) -> int:
        return len(self._actors)

    def ask(self, worker: Worker, values: dict[str, Any]) -> None:
        name = str(worker)
        self._begun[self._actors[name].answer.remote(values)] = name

    def wait(self, timeout_s: float | None) -> list[Event]:
        if not self._begun:
            time.sleep(_LOOK_S)  # a cluster without a CPU: one may join
            return []
        timeout_s = _LOOK_S if timeout_s is None else min(timeout_s, _LOOK_S)
        found, _ = self._ray.wait(list(self._begun), num_returns=1, timeout=timeout_s)
        if found:
            found, _ = self._ray.wait(list(self._begun), num_returns=len(self._begun), timeout=0)
        return [self._told(reference) for reference in found]

    def dismiss(self, worker: Worker) -> None:
        name = str(worker)
        for reference in [reference for reference, whose in self._begun.items() if whose == name]:
            del self._begun[reference]
        self._starting.discard(name)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actors.pop(name))

    def close(self) -> None:
        self._ray.shutdown()
        self._to_stderr.__exit__(None, None, None)

    def _told(self, reference: Any) -> Event:
        name = self._begun.pop(reference)
        try:
            said = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self.dismiss(name)
            return Gone(name, shorten(str(error).strip().splitlines()[-1], 200) if str(error).strip() else "died")
        if name not in self._starting:
            return Done(name, outcome_from(said))
        self._starting.discard(name)
        there, host, _ = said
        if other := differences(self._here, there):
            raise BadInput(
                f"does not stand on the same ground: {'; '.join(other)}",
                where=f"--ray, machine {host}",
                fix="Install the same tokonomics and packages there, and share the price list and the profile.",
            )
        return Ready(name)


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes."""
    found = re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address)
    if found is None:
        return
    try:
        with socket.create_connection((found[1], int(found[2])), timeout=_CONNECT_S):
            return
    except OSError as error:
        raise BadInput(
            f"nothing answers there: {error.strerror or error}",
            where=f"--ray {shorten(address)}",
            fix="`ray start --head` begins a cluster and says its address, such as 10.0.0.1:6379.",
        ) from None


def _connected(address: str, environment: Mapping[str, str]) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as it will be; otherwise each start warns
    try:
        import ray
    except ImportError:
        raise BadInput("Ray is not installed", where="--ray", fix="In a checkout: pip install '.[ray]'") from None
    _check_reachable(address)
    try:
        ray.init(
            address=address,
            runtime_env={"env_vars": dict(environment)},
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise BadInput(
            f"cannot be reached: {shorten(str(error).strip(), 300)}",
            where=f"--ray {shorten(address)}",
            fix="`ray start --head` begins a cluster and says its address, such as 10.0.0.1:6379.",
        ) from None
    return ray
