"""Define every choice that the search for replicas makes, each a named value with its reason; no verb has its own.

A fleet holds if every SLO is met and it keeps up with the arrivals (``serving.capacity``). Which fleets are tried, in
which order, and with how much margin is decided here, so that two verbs that size the same setup agree.
"""

import math

from tokonomics.serving.fleet_settings import Router
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import Latency

WORK_IN_HAND = 1.03
"""If no SLO bounds the wait, replicas must finish this many times the arrivals: the simulator accepts a fleet that is 3
% behind as keeping up (``serving.capacity``), and 3 % of a month is a day."""
PATIENCE = 3
"""Numbers of replicas that may miss before lone requests are simulated: that takes as long as a number that holds, and
the closed form has already refused most setups that are slow even for lone requests. Our choice."""
MANY_TIMES = 4
"""Factor between a smaller and a larger fleet that shows whether more replicas help: each then has a quarter of the
load, and the wait for other requests falls by more than that. Our choice."""
LONE_REQUESTS = 200_000
"""Requests served one by one to find what no fleet improves on: all of nearly any log. Of a longer log, an even sample
of this size: the share beyond a p99 is then known to 2 % of itself."""
GATHERING = (Router.prefix_aware, Router.session_affine)
"""Routers that send prompts with the same beginning to one replica, and so load replicas unevenly."""
SCATTERED = 0.2
"""Share of all prompt tokens that a router computes beyond what one that gathers shared prompts does. From this on, if
it also has more late requests, only its first batch limit is tried, and no router after it. Of 362 fleets of Llama 3.1
8B that missed their SLOs behind the prefix-aware router (agents; conversations of five turns; three system prompts of
2,000 tokens), none held behind another; of 75 of Qwen3 32B on Mooncake's conversations, where it finds a tenth more, 11
did (2026-11-18). Of 200 system prompts, which each load one replica, it finds a quarter more and holds less: others
then have fewer late requests, and all are tried."""
SMALLER_FLEETS = (0.5, 2 / 3, 0.75)
"""Fractions of the fewest replicas found behind a router that gathers shared prompts: fewer replicas hold fewer copies
of them, so a smaller fleet may hold although a larger one does not."""
_CLEARLY_LATE_OF = 256
"""Late requests allowed, of which twice as many are more than chance causes: sixteen times the root of their count, as
late requests come in rushes. Our choice."""
LIMITS_TRIED = 12
"""Batch limits tried for an SLO on whole answers or jobs, if neither end is known to be too low or too high: all if no
more are ever reached, otherwise enough to halve the octaves between 1 and 1,024 down to neighbours. Our choice."""
LIMITS_ALIKE = 1.1
"""Limits within this factor serve alike: chance changes the share of late answers by more. Our choice."""
BEGINNING = 1 / 8
"""The part of stationary traffic that is simulated first: if eight in a hundred are late there, one in a hundred of all
is, whatever else comes."""
BUSIEST = 1 / 5, 1 / 2
"""The parts of traffic whose rate changes that are simulated first: its busiest stretch, and a longer one if the first
does not decide. A fleet that is too small for a day at three times its lowest rate is late there. Our choice."""
IN_TURN_LATE, SURELY_LATE, HARDLY_LATE, ENOUGH_LATE = 1.05, 1.15, 0.5, 1.2
"""Late requests in such a stretch alone, as a multiple of those that an SLO allows of all. Above the first, the whole
is late too if requests go to replicas in turn: those meet the same neighbours in both. Other routers choose by what
happened before: above the second. In a day of 86,474 requests of Qwen3 32B on three GPUs, counts above 100 were at most
1.012 and 1.06 times those of the same requests in the whole. Below the third, only the whole can tell; the trial ends
at the fourth, just above the second. Our choices."""
COUNTED_LATE = 100
"""The fewest late requests that an SLO allows for a stretch alone to decide: smaller counts were not compared."""
OTHER_HOURS = 0.97
"""Share of the highest rate that held, since that was one draw of 20,000 requests. Llama 3.1 8B on RTX PRO 6000, L40S
and H100, 900 tokens in, 99 out, ttft_p99 of 1 s, eight other hours each: at that rate 10 of 24 broke it (2.8 s at
worst), at 97 % of it none (0.86 s). For the busiest hour, as in a plan, at least the rate that it was sized for is
assumed."""
SCALING_TARGETS = (0.8, 0.6, 0.4)
"""When to add a replica, as a share of the requests outstanding per replica of the fixed fleet in its fullest 1 % of
the time. From greedy to careful; a cold start needs room for what arrives meanwhile."""
SCALING_GROWTH = 2
"""How many times the fixed fleet an autoscaler may reach: a backlog after a cold start needs more."""


def clearly_late(allowed: float) -> float:
    """Return the ratio of late to allowed requests from which a miss is no chance: chance grows with the root."""
    return 1 + math.sqrt(_CLEARLY_LATE_OF / max(1.0, allowed))


def pace(setup: Setup) -> float:
    """Return how many times the load must be held: with its headroom, and with work in hand if no SLO bounds the wait.

    Latencies and the bill are those of the load itself.
    """
    work = 1.0 if any(slo.latency is not Latency.tpot for slo in setup.targets) else WORK_IN_HAND
    return work * (1 + setup.load.headroom)


def routers(setup: Setup, replicas: int) -> tuple[Router, ...]:
    """Return the routers to try, in order: the one asked for, or every one that may need the fewest replicas.

    If prompts share their beginnings, prefix-aware routing comes first. Round robin keeps prompts apart, while the
    least loaded replica gets whole bursts of them; requests of very unequal length, and replicas that serve one at a
    time, need the opposite.
    """
    if setup.router is not None:
        return (setup.router,)
    if replicas == 1:
        return (Router.round_robin,)
    shared = (Router.prefix_aware,) if setup.load.trace.prefix is not None and setup.prefix_cache else ()
    both = Router.round_robin, Router.least_outstanding
    return (*shared, *(both[::-1] if setup.max_sequences == 1 else both))
