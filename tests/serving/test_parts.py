"""Parts of prompts that the cache keeps whole: what the same prompts begin with, against the blocks themselves."""

from collections import defaultdict

import numpy as np
import pytest
from tests.deployed import on
from tests.serving.test_sessions import talks
from tests.there import there

from tokonomics.serving import simulator
from tokonomics.serving.fleet_settings import FleetSettings, Router
from tokonomics.serving.simulator import Parts, requests_for, rules_for, simulate
from tokonomics.traffic.trace import Trace

BLOCK = 16


def parts_of(trace: Trace, share: float, monkeypatch: pytest.MonkeyPatch) -> Parts:
    monkeypatch.setattr(simulator, "_SMALL_SHARE", share)
    requests = requests_for(trace, rules_for(on(), trace))
    return requests.unit_ids, requests.unit_starts, requests.unit_ends


def test_a_part_is_what_the_same_prompts_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = talks(rate=1.0, requests=400)
    ids, starts, ends = parts_of(trace, 1.0, monkeypatch)
    prefix = there(trace.prefix)
    unit = prefix.block_tokens
    named_by = defaultdict(set)
    for request in range(len(trace)):
        for block in prefix.blocks_of(request).tolist():
            named_by[block].add(request)
    for request in range(len(trace)):
        blocks = prefix.blocks_of(request).tolist()
        own = slice(starts[request], starts[request + 1])
        prompt, reached = int(trace.input_tokens[request]), 0
        for end in ends[own].tolist():
            inside = blocks[reached // unit : -(-end // unit)]
            assert len({frozenset(named_by[block]) for block in inside}) == 1
            assert end <= prompt or reached >= prompt // unit * unit, "none goes from the prompt into the answer"
            reached = end
        assert reached == min(len(blocks) * unit, max(reached, prompt))
    assert len(ids) < len(prefix.ids) / 4


def test_the_same_part_has_the_same_name_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = talks(rate=1.0, requests=400)
    ids, starts, ends = parts_of(trace, 1.0, monkeypatch)
    prefix = there(trace.prefix)
    last_block: dict[int, int] = {}
    for request in range(len(trace)):
        blocks = prefix.blocks_of(request)
        for place in range(starts[request], starts[request + 1]):
            block = int(blocks[-(-int(ends[place]) // prefix.block_tokens) - 1])
            assert last_block.setdefault(int(ids[place]), block) == block
    assert len(set(last_block.values())) == len(last_block)


@pytest.mark.parametrize("router", [Router.round_robin, Router.prefix_aware])
def test_parts_find_what_blocks_find(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the token where nothing is evicted; to a hundredth where the cache is far too small."""
    trace, fleet = talks(rate=2.0), FleetSettings(replicas=3, router=router)
    for deployment, within in ((on(), 1e-9), (on(gpu="L4", weights="fp8"), 0.01)):
        found = []
        for share in (0.0, 1 / 1024):
            monkeypatch.setattr(simulator, "_SMALL_SHARE", share)
            there(trace.prefix).worked_out.clear()
            found.append(float(simulate(deployment, trace, fleet).served.cached_tokens.sum()))
        assert found[1] == pytest.approx(found[0], rel=within)
        assert found[0] > 0.2 * trace.input_tokens.sum()


def test_requests_in_another_order_have_the_same_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = talks(rate=1.0, requests=400)
    ids, starts, ends = parts_of(trace, 1.0, monkeypatch)
    order = np.random.default_rng(1).permutation(len(trace))
    for taken in (trace.take(order), trace.take(order[::-1]).take(np.arange(len(trace))[::-1])):
        other_ids, other_starts, other_ends = parts_of(taken, 1.0, monkeypatch)
        for place, request in enumerate(order):
            own, other = slice(*starts[request : request + 2]), slice(*other_starts[place : place + 2])
            assert other_ids[other].tolist() == ids[own].tolist()
            assert other_ends[other].tolist() == ends[own].tolist()
