"""Every choice that the search for replicas makes, each a named value with its reason; no verb has one of its own.

A fleet holds when every SLO is met and it keeps up with what arrives (``serving.capacity``). Which fleets are tried, in
which order, and with how much to spare is decided here, so that two verbs that size the same set-up agree.
"""

from tokonomics.serving.fleet_settings import Router
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import Latency

WORK_IN_HAND = 1.03
"""Where no SLO bounds the wait, replicas must finish this many times what arrives: the simulator takes what is 3 %
behind for keeping up (``serving.capacity``), and 3 % of a month is a day."""
PATIENCE = 3
"""Numbers of replicas that miss before lone requests are simulated: these take as long as a number that holds, and the
closed form has refused most set-ups that are slow even for them. Our choice."""
MANY_TIMES = 4
"""Times as many replicas as a smaller fleet, after which it shows whether more of them help: each replica then has a
quarter of the load, and a wait for others falls by more than that. Our choice."""
LONE_REQUESTS = 200_000
"""Requests served one by one to tell what no fleet betters: all of nearly any log. Of more, an even part of so many:
the share beyond a p99 is then known to 2 % of itself."""
GATHERING = (Router.prefix_aware, Router.session_affine)
"""Routers that send what shares its beginning to one replica, and so load replicas unevenly."""
SMALLER_FLEETS = (0.5, 2 / 3, 0.75)
"""Of the fewest replicas found behind a router that gathers what prompts share: fewer replicas hold fewer copies of it,
so a smaller fleet may hold where a larger one does not."""
CLEARLY_LATE = 2.0
"""Times as many late requests as an SLO allows: more than chance makes of it in a simulation that ended early. Our
choice."""
LIMITS_TRIED = 12
"""Batch limits tried for an SLO on whole answers or jobs, where neither end is known to be too low or too high: all
where no more are ever reached, otherwise enough to halve the octaves between 1 and 1,024 down to neighbours. Our
choice."""
LIMITS_ALIKE = 1.1
"""Limits that lie no further apart serve alike: chance moves the share of late answers by more. Our choice."""
BEGINNING = 1 / 8
"""Of traffic that is the same all the time: where eight in a hundred are late there, one in a hundred of all is,
whatever follows."""
OTHER_HOURS = 0.97
"""Of the highest rate that held, since that was one draw of 20,000 requests. Llama 3.1 8B on RTX PRO 6000, L40S and
H100, 900 tokens in, 99 out, ttft_p99 of 1 s, eight other hours each: at that rate 10 of 24 broke it (2.8 s at worst),
at 97 % of it none (0.86 s). The busiest hour is counted on as a plan does: for no less than it was sized for."""
SCALING_TARGETS = (0.8, 0.6, 0.4)
"""Of the requests outstanding at a replica of the fixed fleet in its fullest hundredth of the time: when one more is
called for. From greedy to careful; a cold start needs room for what arrives meanwhile."""
SCALING_GROWTH = 2
"""Times the fixed fleet that an autoscaler may reach: a backlog that a cold start left calls for more."""


def pace(setup: Setup) -> float:
    """How many times the load must be finished: more than once where no SLO bounds the wait."""
    owed = (*setup.slos, *(slo for one in setup.load.trace.classes for slo in one.slos))
    return 1.0 if any(slo.latency is not Latency.tpot for slo in owed) else WORK_IN_HAND


def routers(setup: Setup, replicas: int) -> tuple[Router, ...]:
    """The routers to try, in order: the one asked for; otherwise whichever needs the fewest replicas.

    Where prompts share their beginnings, following them comes first. Taking turns keeps prompts apart, while the least
    loaded replica gets whole bursts of them; requests of very unequal length, and replicas that serve one at a time,
    want the opposite.
    """
    if setup.router is not None:
        return (setup.router,)
    if replicas == 1:
        return (Router.round_robin,)
    shared = (Router.prefix_aware,) if setup.load.trace.prefix is not None and setup.prefix_cache else ()
    both = Router.round_robin, Router.least_outstanding
    return (*shared, *(both[::-1] if setup.max_sequences == 1 else both))
