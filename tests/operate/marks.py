"""Fingerprints of builds whose step times are known: those of the step model, with chance drawn from a seed."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tokonomics.operate.fingerprint import PROBES, SHORT, Fingerprint, Probe, ProbeKind, ProbeTimes
from tokonomics.physics.steptime import StepModel

ROUNDS = 8
CHUNK = 8192


def time_of(steps: StepModel, probe: Probe, cached: bool = True) -> float:
    """What a probe takes on an engine with these steps."""
    engine = steps.engine
    assert engine is not None
    tokens, users = probe.prompt_tokens, probe.users
    request_s = engine.request_seconds(tokens)
    if probe.kind is ProbeKind.decode:
        return float(steps.decode(users, tokens + 16))
    if probe.kind is ProbeKind.beside:
        return request_s + float(0.5 * steps.decode(users, 64) + steps.step(tokens, 0, users, 64))
    if probe.kind is ProbeKind.burst:
        return request_s + float(steps.step(users * tokens, 0, 0, 0, users))
    past = tokens - SHORT if probe.kind is ProbeKind.again and cached else 0
    return request_s + sum(
        float(steps.prefill(min(CHUNK, tokens - begin), begin)) for begin in range(past, tokens, CHUNK)
    )


def fingerprint(
    time_s: Callable[[Probe], float],
    seed: int = 0,
    *,
    noise: float = 0.01,
    alike: float = 0.0,
    probes: Sequence[Probe] = PROBES,
    **told: Any,
) -> Fingerprint:
    """A fingerprint whose rounds scatter by ``noise``, and whose probes are off by ``alike`` for this server's life."""
    chance = np.random.default_rng(seed)
    times = []
    for probe in probes:
        usual_s = time_s(probe) * float(np.exp(alike * chance.standard_normal()))
        rounds = usual_s * np.exp(noise * chance.standard_normal(ROUNDS))
        times.append(ProbeTimes(probe=probe, tokens=probe.prompt_tokens, seconds=tuple(np.round(rounds, 6).tolist())))
    given: dict[str, Any] = {
        "made": datetime(2026, 11, 19, tzinfo=UTC),
        "server": "http://127.0.0.1:8000/v1/chat/completions",
        "model": "llama-3.1-8b",
        "took_s": 120.0,
        "engine": {"engine": "vllm", "version": "0.26.0"},
        "machine": {"system": "Linux", "machine": "x86_64"},
    }
    return Fingerprint(**given | told, probes=tuple(times))
