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
    noise: float | Callable[[Probe], float] = 0.01,
    alike: float = 0.0,
    drift: float = 0.0,
    rounds: int = ROUNDS,
    probes: Sequence[Probe] = PROBES,
    **told: Any,
) -> Fingerprint:
    """A fingerprint whose rounds scatter by ``noise``, and whose probes are off by ``alike`` for this server's life.

    All its requests drift together by ``drift`` of their noise.
    """
    chance = np.random.default_rng(seed)
    drifted = drift * float(np.random.default_rng([seed, 1]).standard_normal())
    times = []
    for probe in probes:
        own = noise(probe) if callable(noise) else noise
        usual_s = time_s(probe) * float(np.exp(alike * chance.standard_normal()))
        usual_s *= float(np.exp(own * drifted)) if probe.kind is not ProbeKind.decode else 1.0
        values = usual_s * np.exp(own * chance.standard_normal(rounds))
        times.append(ProbeTimes(probe=probe, tokens=probe.prompt_tokens, seconds=tuple(np.round(values, 6).tolist())))
    given: dict[str, Any] = {
        "made": datetime(2026, 11, 19, tzinfo=UTC),
        "server": "http://127.0.0.1:8000/v1/chat/completions",
        "model": "llama-3.1-8b",
        "took_s": 120.0,
        "engine": {"engine": "vllm", "version": "0.26.0"},
        "machine": {"system": "Linux", "machine": "x86_64"},
    }
    return Fingerprint(**given | told, probes=tuple(times))
