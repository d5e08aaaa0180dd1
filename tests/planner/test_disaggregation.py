"""Disaggregated layouts in a plan: the ratio that trying each would give, machines that pack, what else stays."""

import math
import re
import subprocess
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import yaml
from tests.deploy.test_deploy_files import ACCEPTED, deploy_file, job, machine, served
from tests.deploy.test_deploy_stacks import refusals
from tests.explore import some
from tests.planner.small_catalogue import OFFERS, asked, offer
from tests.there import there

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.offers import Offer
from tokonomics.deploy.job import Target
from tokonomics.errors import BadInput
from tokonomics.planner.disaggregation import disaggregated, kv_transfer_s, splits_of
from tokonomics.planner.firmness import bill_range, safe_fleet, slo_rooms
from tokonomics.planner.plan import Question, Study, study
from tokonomics.planner.plan_answer import Catch, Limits
from tokonomics.planner.prospects import prospects
from tokonomics.planner.search import Sought
from tokonomics.planner.vary import headroom, ratios
from tokonomics.questions.plan import deploy_files_of
from tokonomics.sizing.attempt import Sized
from tokonomics.sizing.disaggregation import Pair, cheapest_split, pair_of
from tokonomics.sizing.engine_flags import Role
from tokonomics.sizing.hosts import Hosts, PrefillPool
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import Load, load_of_shape
from tokonomics.sizing.screen import Screened, screen
from tokonomics.sizing.spare import Spare, machines_for_both
from tokonomics.traffic.slo import parse_slos

PROMPTS = load_of_shape(60, "const:4000", "const:200")
"""Long prompts and short answers: every prompt stalls the tokens of the others."""
STRICT = parse_slos("ttft_p99=0.4,tpot_p99=0.0145")
EIGHT = OFFERS[4:]
"""H100 in machines of eight."""
FP8 = (Precision.fp8,)


def question(load: Load = PROMPTS, offers: tuple[Offer, ...] = EIGHT, **more: object) -> Question:
    return asked(load=load, offers=offers, weights=FP8, simulate=True, slos=STRICT, **more)  # type: ignore[arg-type]


@cache
def found(apart: bool) -> Study:
    return study(question(disaggregate=apart))


def pair_on(sought: Sought, gpus: tuple[int, int], asked_for: Question) -> Pair:
    """Layouts of so many GPUs for prompts and for answers."""
    hosts = prospects(asked_for, sought.load)
    prefill, decode = (next(one for one in hosts if one.deployment.gpus == count) for count in gpus)
    both = replace(decode, prefill=PrefillPool(prefill.deployment, 1))
    pair = pair_of(sought.setup(both), both)
    assert isinstance(pair, Pair)
    return pair


# --- machines -------------------------------------------------------------------------------------------------------


def packed(machine: int, large: int, many: int, small: int, more: int) -> int:
    """The fewest machines, by trying how many large ones each holds."""

    @cache
    def fewest(many: int, more: int) -> int:
        if many <= 0 and more <= 0:
            return 0
        ways = range(min(many, machine // large) + 1)
        return 1 + min(
            fewest(many - here, max(0, more - (machine - here * large) // small)) for here in ways if here or more > 0
        )

    return fewest(many, more)


@pytest.mark.parametrize(("large", "small"), [(8, 8), (8, 4), (8, 1), (4, 4), (4, 2), (4, 1), (2, 1), (1, 1)])
def test_two_kinds_of_replicas_take_the_fewest_machines(large: int, small: int) -> None:
    for many, more in product(range(1, 7), range(1, 12)):
        expected = packed(8, large, many, small, more)
        assert machines_for_both(8, (large, many), (small, more)) == expected
        assert machines_for_both(8, (small, more), (large, many)) == expected


def test_both_sides_stand_in_one_machine_or_on_networked_ones() -> None:
    hosts = prospects(question(offers=OFFERS[3:]), PROMPTS)
    one = next(each for each in hosts if each.deployment.gpus == 1)
    apart = replace(one, prefill=PrefillPool(one.deployment, 3))
    single, eight = (machine.offer for machine in sorted(one.machines, key=lambda machine: machine.offer.gpus))
    assert (apart.machines_on(eight, 8), apart.machines_on(eight, 9)) == (1, 2)
    assert math.isinf(apart.machines_on(single, 4)), "machines of one GPU have no fast network"
    assert (apart.link(8), apart.link(9)) == ("nvlink", "ib400")
    # With a spare machine each side has its own, and one more.
    spare = replace(apart, spare=Spare(machines=1))
    assert spare.machines_on(eight, 8) == 2 + 2
    assert spare.link(8) == "ib400"
    assert math.isinf(replace(apart, machines=apart.machines, max_gpus=8).usd_per_hour(9))


def test_gpus_without_a_network_stay_in_one_machine() -> None:
    cards = (offer("L40S", 8, 8.0),)
    hosts = prospects(question(offers=cards), PROMPTS)
    one = next(each for each in hosts if each.deployment.gpus == 1)
    apart = replace(one, prefill=PrefillPool(one.deployment, 4))
    assert (apart.machines_on(cards[0], 8), apart.link(8)) == (1, "pcie")
    # Several of them are taken only with a network, so that is what KV is sent over.
    assert apart.link(9) == "ib400"
    assert math.isinf(apart.machines_on(cards[0], 9))


# --- the ratio ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "slos"),
    some(
        [((1, 1), "ttft_p99=2,tpot_p99=0.012"), ((1, 2), "ttft_p99=0.6"), ((1, 1), "e2e_p99=4"), ((2, 1), "e2e_p99=4")],
        keep=2,
    ),
)
def test_the_ratio_is_that_of_trying_every_split(gpus: tuple[int, int], slos: str) -> None:
    varied = load_of_shape(12, "lognormal:mean=4000,p99=12000", "const:200")
    few = replace(varied, trace=varied.trace.take(np.arange(3000)))
    sought = Sought(few, parse_slos(slos))
    pair = pair_on(sought, gpus, question())
    most = [2 * least + 4 for least in pair.least]
    ways = {
        (first, second): pair.usd_per_hour(first, second)
        for first in range(1, most[0] + 1)
        for second in range(1, most[1] + 1)
        if sought.on(pair.split(first, second), first + second).holds
    }
    sized = cheapest_split(pair, sought.attempts)
    if not ways:
        assert isinstance(sized, NotServed)
        return
    assert isinstance(sized, Sized)
    assert sized.holds
    assert ways[sized.prefill_replicas, sized.replicas - sized.prefill_replicas] == min(ways.values())
    assert isinstance(cheapest_split(pair, sought.attempts, min(ways.values())), NotServed), "nothing is cheaper"


@pytest.mark.slow
def test_no_split_below_the_closed_form_holds() -> None:
    sought = Sought(PROMPTS, STRICT)
    for gpus in ((1, 1), (1, 2)):
        pair = pair_on(sought, gpus, question())
        first, second = pair.least
        for fewer in ((first - 1, 2 * second + 4), (2 * first + 4, second - 1)):
            assert min(fewer) == 0 or not sought.on(pair.split(*fewer), sum(fewer)).holds


@pytest.mark.slow
def test_no_layout_of_the_pairs_is_beaten_by_one_that_was_left_out() -> None:
    few = replace(PROMPTS, trace=PROMPTS.trace.take(np.arange(2000)))
    sought = Sought(few, STRICT)
    hosts = prospects(question(), few)
    best = disaggregated(sought, hosts, math.inf)[-1]
    both = [replace(decode, prefill=PrefillPool(prefill.deployment, 1)) for prefill, decode in product(hosts, hosts)]
    pairs = [pair for one in both if isinstance(pair := pair_of(sought.setup(one), one), Pair)]
    bills = [
        pair.usd_per_hour(sized.prefill_replicas, sized.replicas - sized.prefill_replicas)
        for pair in pairs
        if isinstance(sized := cheapest_split(pair, sought.attempts), Sized)
    ]
    assert best.usd_per_hour == min(bills)


# --- in a plan ------------------------------------------------------------------------------------------------------


def test_it_wins_where_prompts_stall_tokens_and_says_so() -> None:
    together, apart = there(found(False).plan.best), there(found(True).plan.best)
    assert together.prefill is None
    assert apart.usd_per_month < together.usd_per_month
    assert "tpot" in (there(apart.prefill).together_breaks or "")
    assert apart.gpus_used <= apart.gpus_paid
    assert math.fsum(line.usd for line in apart.bill.lines) == pytest.approx(apart.usd_per_month)
    used = sum(line.quantity for line in apart.bill.lines if line.name != "unused GPUs")
    assert used == pytest.approx(apart.gpus_used * 730)


def test_every_other_row_is_as_it_was() -> None:
    def both(made: Study) -> list[tuple[object, ...]]:
        return [(row.gpu, row.tp, row.replicas, row.usd_per_month) for row in made.plan.ranked if row.prefill is None]

    assert both(found(True)) == both(found(False))


def test_unasked_it_is_set_aside_and_only_where_it_is_cheaper() -> None:
    made = study(question(catches={Catch.disaggregated: {"disaggregate": True}}))
    assert made.plan.best == found(False).plan.best
    (aside,) = made.plan.set_aside
    assert aside.catch is Catch.disaggregated
    assert aside.candidate == found(True).plan.best
    # Short prompts and a loose target: apart, a GPU of each side would idle.
    light = load_of_shape(2, "const:200", "const:200")
    loose = replace(question(light, catches={Catch.disaggregated: {"disaggregate": True}}), slos=parse_slos("ttft=1"))
    assert study(loose).plan.set_aside == ()


@pytest.mark.slow
def test_of_the_same_gpus_the_planned_split_holds_most_and_one_to_one_less() -> None:
    made = found(True)
    assert made.apart is not None
    points = ratios(made)
    planned = next(point for point in points if point.is_planned)
    hosts = made.apart.sized.screened.hosts
    assert [point.prefill_replicas for point in points if point.prefill_replicas] == [
        first for first, _ in splits_of(hosts, made.apart.sized.replicas)
    ]
    assert planned.requests_per_s >= PROMPTS.workload.rate * 0.97
    assert planned.requests_per_s == max(point.requests_per_s for point in points)
    alike = [point for point in points if point.prefill_replicas == point.decode_replicas]
    assert all(point.requests_per_s < planned.requests_per_s for point in alike)
    for point in points:
        gpus = point.prefill_replicas * hosts.prefill.deployment.gpus if hosts.prefill else 0
        assert gpus + point.decode_replicas * hosts.deployment.gpus <= hosts.gpus_of(made.apart.sized.replicas)
        if point.usd_per_mtok is not None:
            per_hour = point.requests_per_s * 4200 * 3600 / 1e6
            assert point.usd_per_mtok * per_hour == pytest.approx(hosts.usd_per_hour(made.apart.sized.replicas))


@pytest.mark.parametrize(
    ("of_prompts", "of_answers", "gpus", "alike"),
    [(1, 1, 32, 16), (2, 2, 48, 12), (1, 2, 48, 16), (1, 2, 32, None), (2, 2, 6, None)],
)
def test_one_to_one_is_among_the_splits_where_it_takes_every_gpu(
    of_prompts: int, of_answers: int, gpus: int, alike: int | None
) -> None:
    asked_for = question()
    hosts = prospects(asked_for, PROMPTS)
    prompts, answers = (
        next(one for one in hosts if one.deployment.gpus == count) for count in (of_prompts, of_answers)
    )
    placed = replace(answers, prefill=PrefillPool(prompts.deployment, 1))
    replicas = 1 + (gpus - of_prompts) // of_answers
    if placed.gpus_of(replicas) != gpus:
        placed = replace(answers, prefill=PrefillPool(prompts.deployment, 2))
        replicas = 2 + (gpus - 2 * of_prompts) // of_answers
    assert placed.gpus_of(replicas) == gpus
    even = [first for first, second in splits_of(placed, replicas) if first == second]
    assert even == ([] if alike is None else [alike])


def test_the_kv_of_a_prompt_takes_its_bytes_over_the_link() -> None:
    hosts = prospects(question(), PROMPTS)
    one = next(each for each in hosts if each.deployment.gpus == 1)
    apart = replace(one, prefill=PrefillPool(one.deployment, 1))
    # Llama 3.1 8B: 32 layers of 8 KV heads, keys and values of 128 in 16 bits. H100 SXM datasheet: 450 GB/s one way.
    assert kv_transfer_s(apart, 2, PROMPTS) == pytest.approx(4000 * 32 * 8 * 2 * 128 * 2 / 450e9)


@pytest.mark.slow
def test_where_replicas_do_both_no_split_is_called_the_planned_one_and_the_cheapest_holds_its_load() -> None:
    made = study(question(catches={Catch.disaggregated: {"disaggregate": True}}))
    assert there(made.plan.best).prefill is None
    points = ratios(made)
    assert not any(point.is_planned for point in points if point.prefill_replicas)
    (cheapest,) = (point for point in points if point.is_cheapest)
    assert cheapest.requests_per_s >= PROMPTS.workload.rate * 0.97
    assert all((point.kv_transfer_s is None) == (point.prefill_replicas == 0) for point in points)


@pytest.mark.slow
def test_its_room_and_its_bill_at_other_speeds_are_its_own() -> None:
    made = found(True)
    assert made.plan.best is not None
    room = there(headroom(made))
    assert room.rate >= PROMPTS.workload.rate
    bills = bill_range(made, made.plan.best)
    assert there(bills.fast.usd_per_month) <= made.plan.best.usd_per_month * (1 + 1e-9)
    assert bills.slow.usd_per_month is None or bills.slow.usd_per_month >= made.plan.best.usd_per_month * (1 - 1e-9)


@pytest.mark.slow
def test_a_split_on_more_replicas_can_be_the_safe_fleet() -> None:
    """With no other candidate beside it, the safe fleet is the pick's own two layouts at the slow end."""
    made = replace(found(True), hosts=())
    best = there(made.plan.best)
    assert best.prefill is not None
    bills = bill_range(made, best)
    safe = there(safe_fleet(made, bills))
    assert safe.is_pick
    assert safe.candidate.usd_per_month == pytest.approx(there(bills.slow.usd_per_month))
    assert safe.candidate.prefill_replicas > 0
    met = {room.slo: room.room >= 0 for room in slo_rooms(made, bills)}
    assert met == {str(slo): True for slo in made.question.slos}


@pytest.mark.slow
def test_it_keeps_within_the_gpus_allowed() -> None:
    for most in (8, 16):
        made = study(question(disaggregate=True, limits=Limits(max_gpus=most)))
        assert all(row.gpus_paid <= most for row in made.plan.ranked)


@pytest.mark.slow
def test_a_slice_of_the_traffic_is_served_by_a_slice_of_each_side() -> None:
    """A quarter of the requests on a quarter of the replicas: what holds there holds for all of them."""
    whole = load_of_shape(40, "const:2000", "const:100")
    sought = Sought(whole, STRICT)
    pair = pair_on(sought, (1, 1), question())
    sized = cheapest_split(pair, sought.attempts)
    assert isinstance(sized, Sized)
    first = 4 * sized.prefill_replicas
    second = 4 * sized.replicas - first
    rng = np.random.default_rng(0)
    some = whole.trace.take(np.sort(rng.permutation(len(whole.trace))[: len(whole.trace) // 4]))
    slice_of = replace(whole.at(160), trace=some.faster(40 / some.rate), share=0.25, is_stationary=False)
    assert Sought(slice_of, STRICT).on(pair.split(first, second), first + second).holds


def test_a_screened_pair_is_told_apart_from_every_other() -> None:
    sought = Sought(PROMPTS, STRICT)
    pair = pair_on(sought, (1, 1), question())
    together = screen(pair.decode.deployment, pair.decode, PROMPTS, STRICT)
    assert isinstance(together, Screened)
    names = {pair.split(1, 2).name, pair.split(2, 1).name, together.name}
    assert len(names) == 3
    assert isinstance(pair.hosts(1), Hosts)


# --- deploy files ---------------------------------------------------------------------------------------------------


@cache
def picked(engine: str) -> Study:
    load = PROMPTS if engine == "vllm" else PROMPTS.at(45)
    return study(replace(question(load, disaggregate=True), engines=(find_engine(engine),)))


def text_of(made: Study, target: Target) -> str:
    (file,) = deploy_files_of(made, [target], "a test")
    return file.text


def servers_in(text: str) -> list[list[list[str]]]:
    """By machine, what a script starts there: role, GPUs and place of each server."""
    machines = [line.partition(")")[2] for line in text.splitlines() if re.match(r"  \d+\) ", line)]
    return [[server.split() for server in machine.strip(" ;").split(";")] for machine in machines]


@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_script_starts_every_server_of_both_sides_once(engine: str, spare: int) -> None:
    deployments = served("llama-3.1-8b", engine=engine), served("llama-3.1-8b", engine=engine, tp=2)
    given = {"offer": machine(), "spare": spare, "machines": 2}
    # Without spare machines, 6 + 3 × 2 GPUs share two machines of eight; with them, each side has two.
    prefill = job(deployments[0], role=Role.prefill, replicas=6, **given)
    decode = job(deployments[1], role=Role.decode, replicas=3, **given)
    text = deploy_file(Target(engine), prefill, decode).text
    machines = servers_in(text)
    assert len(machines) == (4 if spare else 2)
    for servers in machines:
        devices = [gpu for _, gpus, _ in servers for gpu in gpus.split(",")]
        assert len(devices) == len(set(devices)), "no GPU has two servers"
        assert all(0 <= int(gpu) < 8 for gpu in devices)
        assert [int(place) for _, _, place in servers] == list(range(len(servers)))
    roles = [server[0] for servers in machines for server in servers]
    assert (roles.count("prefill"), roles.count("decode")) == (6, 3)
    assert (text.count("--prefill http"), text.count("--decode http")) == (6, 3)
    if spare:
        assert all(len({role for role, _, _ in servers}) == 1 for servers in machines), "each side has its own"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_each_side_is_started_with_flags_of_its_engine(engine: str) -> None:
    text = text_of(picked(engine), Target(engine)).split("case ")[0]
    flags = {word for word in text.split() if word.startswith("--")}
    assert flags <= set(ACCEPTED[engine]["flags"])
    sides = {"vllm": ('"kv_role": "kv_producer"', '"kv_role": "kv_consumer"'),
             "sglang": ("--disaggregation-mode prefill", "--disaggregation-mode decode")}  # fmt: skip
    assert [text.count(side) for side in sides[engine]] == [1, 1]
    subprocess.run(["sh", "-n"], input=text_of(picked(engine), Target(engine)), text=True, check=True)


def test_kubernetes_has_both_sides_one_volume_and_a_router() -> None:
    made = picked("vllm")
    objects = list(yaml.safe_load_all(text_of(made, Target.kubernetes)))
    named = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    assert len(named) == len(objects)
    name = "llm-llama-3-1-8b"
    for suffix in ("", "-prefill", "-decode"):
        assert {("Deployment", f"{name}{suffix}"), ("Service", f"{name}{suffix}")} <= set(named)
    assert [kind for kind, _ in named].count("PersistentVolumeClaim") == 1
    assert [refusals("", each) for each in objects] == [[]] * len(objects)
    (container,) = named["Deployment", name]["spec"]["template"]["spec"]["containers"]
    for side in ("prefill", "decode"):
        assert f"http://{name}-{side}:8000" in container["args"]
        claims = named["Deployment", f"{name}-{side}"]["spec"]["template"]["spec"]["volumes"]
        assert claims[0]["persistentVolumeClaim"]["claimName"] == f"{name}-weights"


def test_the_tools_that_people_deploy_with_start_both_sides() -> None:
    made = picked("vllm")
    files = deploy_files_of(made, [Target.llm_d, Target.kserve, Target.dynamo, Target.compose], "a test")
    best = there(made.plan.best)
    assert [file.name.removeprefix("llm-llama-3-1-8b-") for file in files] == [
        "llm-d.yaml", "llm-d-router.yaml", "kserve.yaml", "dynamo.yaml", "compose.yaml",
    ]  # fmt: skip
    service = yaml.safe_load(files[2].text)["spec"]
    assert service["scaling"]["minReplicas"] == best.replicas
    assert service["prefill"]["scaling"]["minReplicas"] == there(best.prefill).replicas
    with pytest.raises(BadInput, match="the plan is disaggregated"):
        deploy_files_of(made, [Target.dstack], "a test")


def test_what_no_file_can_start_says_why() -> None:
    with pytest.raises(BadInput, match="no one task starts"):
        text_of(picked("vllm"), Target.skypilot)
    with pytest.raises(BadInput, match="the plan is for vLLM"):
        text_of(picked("vllm"), Target.sglang)
