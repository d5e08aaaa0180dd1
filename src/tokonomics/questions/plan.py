"""Answer what the cheapest ways to serve a model under latency targets are: ``plan``, ``compare`` and ``diff``.

``--measured`` draws the user's load tests over the frontier: their prices and latencies beside the predicted ones.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokonomics.catalog.checkpoints import checkpoint_for, how_to_make, recovery_of
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.places import grid_named
from tokonomics.deploy.job import DeployFile, DeployJob, Target, longest_context
from tokonomics.errors import BadInput, UnknownName, did_you_mean, option, shorten
from tokonomics.files import make_folder, write_text
from tokonomics.measure.benchmark_run import BenchmarkRun
from tokonomics.measure.priced_run import GivenMachine, PricedRun, as_model, machine_of, price_run, rental_of
from tokonomics.money.attribution import FleetSale, SellTerms, fleet_sale, sell_terms
from tokonomics.money.breakeven import upkeep
from tokonomics.money.trace_bills import ApiCost
from tokonomics.planner.apis import ApiBeside, share_of_api
from tokonomics.planner.by_hour import ReplicasByHour
from tokonomics.planner.class_report import report_of_pick
from tokonomics.planner.compare import compare as side_by_side
from tokonomics.planner.compare import diff as plan_diff
from tokonomics.planner.compare import parse_quality
from tokonomics.planner.firmness import bill_range, energy_of, flips, least_regret, safe_fleet, slo_rooms
from tokonomics.planner.frontier import frontier_of
from tokonomics.planner.infeasible import left_out
from tokonomics.planner.parsing import discounts_from, gpu_filter, listed, regions_from
from tokonomics.planner.plan import Question, Study, study
from tokonomics.planner.plan_answer import Candidate, Plan
from tokonomics.planner.vary import headroom, ratios, sensitivity
from tokonomics.planner.why import why_pick
from tokonomics.questions.api_beside import api_of_study, hosts_beside, latencies_of
from tokonomics.questions.by_hour import fleet_command, hours_of, swing_of
from tokonomics.questions.catalogue import every_offer, extras_of
from tokonomics.questions.load import blamed, cases_of, load_of, questions_of, say_not_tried
from tokonomics.questions.request import SILENT, Listener, parameters_of
from tokonomics.questions.requests.buy import CompareRequest, DiffRequest, PlanRequest
from tokonomics.questions.results import (
    CompareResult,
    OneNoun,
    PickHost,
    PlanCases,
    PlanModels,
    PlanResult,
)
from tokonomics.questions.scenario import read_request
from tokonomics.questions.scenario_text import command_of
from tokonomics.questions.serving import say_if_compiling, say_left_out
from tokonomics.questions.verbs import find_verb
from tokonomics.serving.class_outcome import FirstAnswer, in_the_mean
from tokonomics.sizing.engine_flags import Role
from tokonomics.sizing.load import Load
from tokonomics.sizing.spare import machines_for
from tokonomics.traffic.sessions import log_pace
from tokonomics.traffic.workload import parse_thinking
from tokonomics.types import copied, today

if TYPE_CHECKING:
    from tokonomics.questions.can_run import CanRunResult


def plan(request: PlanRequest, listener: Listener = SILENT) -> "PlanResult | PlanModels | PlanCases | CanRunResult":
    """Size every candidate by simulation, cheapest first, with the firmness of the pick and every refusal."""
    if request.own:
        from tokonomics.questions.can_run import on_own_machine

        listener.note(f"{option('own')} is now a verb: tokonomics can-run")
        return on_own_machine(request, listener)
    if request.beside:
        from tokonomics.questions.serving import plan_beside

        return plan_beside(request, listener)
    targets, terms = deploy_targets_of(request.deploy, request.deploy_to), sell_terms(request.sell, request.margin)
    extras, grid = extras_of(request), grid_named(request.grid) if request.grid is not None else None
    cases = cases_of(request)
    several = len(cases) > 1 or len(request.model) > 1
    if len(cases) > 1 and len(request.model) > 1:
        raise BadInput("a range is for one model", field="rate, input, output")
    if len(cases) > 1 and request.disaggregate:
        raise BadInput("is for one demand", field="disaggregate")
    if request.disaggregate and request.quick:
        fix = f"Leave out {option('quick')} or {option('disaggregate')}."
        raise BadInput("has to be simulated", field="disaggregate", fix=fix)
    if request.classes and request.quick:
        fix = f"Leave out {option('quick')}: who waits for whom takes a simulation."
        raise BadInput("have to be simulated", field="classes", fix=fix)
    if len(cases) > 1 and terms:
        raise BadInput("is for one demand", field="sell" if request.sell else "margin")
    for name in ("deploy", "explain", "why", "engineers", "overhead", "grid", "quote"):
        if several and getattr(request, name):
            raise BadInput("is for one model at one demand", field=name)
    asked = [questions_in(case, listener) for case in cases.values()]
    for question in asked[0] if len(asked) > 1 or len(asked[0]) > 1 else ():  # a single answer names them itself
        say_not_tried(question, listener)
    studies = [study for questions in asked for study in studied(questions, listener)]
    command = listener.typed or command_of(find_verb("plan"), request)
    hours = None if several else hours_of(request, studies[0])
    files = deploy_files_of(studies[0], targets, command, hours) if targets else []
    if request.deploy_to:
        save_files(files, Path(request.deploy_to), listener)
    if request.quote:
        save_files(_quote_packet(request, studies[0]), Path(request.quote), listener, "quote")
    if len(cases) > 1:
        return _cases(request, studies, list(cases))
    if len(studies) > 1:
        return _models(request, studies, terms)
    best = studies[0].plan.best
    swing = swing_of(request, studies[0].question.load)
    beside = {
        "swing": swing,
        "by_hour": hours,
        "fleet_command": fleet_command(request, swing) if hours else None,
        "energy": energy_of(studies[0], best, grid) if best else None,
        "upkeep": upkeep(extras, best.usd_per_month, studies[0].plan.workload.tokens_per_month) if best else None,
    }
    return _one(request, studies[0], files, listener).model_copy(update=beside)


def questions_in(request: PlanRequest, listener: Listener = SILENT) -> list[Question]:
    return questions_of(request, request.quick, listener)


def studied(questions: Sequence[Question], listener: Listener) -> list[Study]:
    if any(question.simulate for question in questions):
        say_if_compiling(listener)
    for question in questions:
        context = question.model.max_context
        say_left_out(question.load.within(context), context, listener)
    listener.doing("planning")
    return [study(question, listener.simulating) for question in questions]


def _one(request: PlanRequest, study: Study, files: Sequence[DeployFile], listener: Listener) -> PlanResult:
    """Plan one model at one demand: its plan, how firm it is, and why not the others."""
    plan, best = study.plan, study.plan.best
    found = dict(plan) | {"ranked": plan.ranked[: request.top], "study": study, "measured": ()}
    latencies = latencies_of(request)
    usd = best.usd_per_month if best else None
    apis, api = hosts_beside(request, study.question, request.model[0], usd, latencies)
    found |= {"apis": apis, "api": api, "latencies": latencies}
    if request.measured:
        found |= {"measured": measured_beside(request, plan, listener)}
    if request.deploy:
        found |= {"deploy": tuple(files)}
    terms = sell_terms(request.sell, request.margin)
    if terms and best:
        found |= {"sale": _sold(best, study, terms)}
    if best is None:
        return PlanResult(**found, blame=tuple(blamed(request, study)))
    listener.simulating("how much the traffic may grow")
    room, bills = headroom(study), bill_range(study, best)
    # Changes of the traffic only try candidates in which every replica does both.
    flipped = flips(study, None if request.explain and best.prefill is None else (), listener.simulating)
    moved = None
    if request.explain:
        listener.simulating("what moves the bill")
        moved = sensitivity(study)
    return PlanResult(
        **found,
        **_beside_the_pick(request, study, best),
        headroom=room,
        bill_range=bills,
        safe=safe_fleet(study, bills, listener.simulating),
        slo_rooms=slo_rooms(study, bills),
        flips=flipped,
        sensitivity=moved,
        why=why_pick(study),
        ratios=ratios(study, listener.simulating) if request.explain else (),
        **_quality(study.question.model, best),
        thinking=_thinking(request, study, best),
        classes=report_of_pick(study, listener.simulating),
    )


def _beside_the_pick(request: PlanRequest, study: Study, best: Candidate) -> dict[str, Any]:
    """Return the alternatives for this traffic: other fleets, APIs, machines; and what was requested but not found."""
    plan, load, sized = study.plan, study.question.load, study.ranked_as(best).sized
    gpus, _ = gpu_filter(request.gpu, request.gpus)
    return {
        "frontier": frontier_of(study),
        "hosts": tuple(
            PickHost(**copied(ranked.row, *PickHost.model_fields)) for ranked in study.ranked if ranked.sized is sized
        ),
        "rival": plan.runner_up(),
        "at_checkpoint": plan.best_at_checkpoint(),
        "left_out": left_out(study.question, request.provider, request.region, gpus, every_offer(request)),
        "discounts": discounts_from(request.discount),
        "log_pace": log_pace(load.trace) if load.is_log else None,
    }


def _thinking(request: PlanRequest, study: Study, best: Candidate) -> FirstAnswer | None:
    """Return when the pick's answers begin and what their tokens cost, if the model thinks before them."""
    question = study.question
    thinking = parse_thinking(request.thinking, question.model.reasons)
    if thinking is None:
        return None
    trace = question.load.trace
    return in_the_mean(trace, thinking, best.ttft_s.mean, best.tpot_s.mean, best.usd_per_mtok.output)


def _quality(model: ModelSpec, best: Candidate) -> dict[str, Any]:
    """Return the share of the model's quality that the pick keeps, and the checkpoint to load."""
    split = best.tp, best.tp * best.dp // best.ep
    known = checkpoint_for(model, best.weights, *split)
    return {
        "recovery": recovery_of(model, best.weights, "weights", *split)
        if best.weights.is_below(model.served)
        else None,
        "kv_recovery": recovery_of(model, best.kv, "kv") if best.kv.is_below(model.kv_served) else None,
        "checkpoint": known,
        "how_to_make": None if known else how_to_make(model, best.weights, best.engine),
    }


def _models(request: PlanRequest, studies: Sequence[Study], terms: SellTerms | None) -> PlanModels:
    """Compare several models on the same traffic: the pick of each, the cheapest API of each, and what it earns."""
    picks = [(study.plan.best, study) for study in studies if study.plan.best]
    picks.sort(key=lambda pick: pick[0].usd_per_month)
    sold = {"sales": tuple(_sold(best, study, terms) for best, study in picks)} if terms else {}
    names, latencies = listed(request.model, "model") or (), latencies_of(request)
    apis = {
        study.plan.model: api
        for study, name in zip(studies, names, strict=True)
        if (api := api_of_study(request, study, name, latencies))
    }
    swing = swing_of(request, studies[0].question.load)
    return PlanModels(models=tuple(best for best, _ in picks), swing=swing, apis=apis, studies=tuple(studies), **sold)


def _sold(best: Candidate, study: Study, terms: SellTerms) -> FleetSale:
    """Return the sales of a month of a pick, at the planned traffic."""
    load, prices = study.plan.workload, best.usd_per_mtok
    price = terms.price_over(prices.input, prices.output, prices.cached)
    lengths, cached = (load.input_tokens, load.output_tokens), best.cached_share * load.input_tokens
    return fleet_sale(best.model, price, best.usd_per_month, load.rate, lengths, best.load_share, cached)


def _cases(request: PlanRequest, studies: Sequence[Study], cases: Sequence[str]) -> PlanCases:
    """Compare low, middle and high demand: the bill of each, its cheapest API, and the choice with the least regret."""
    found, latencies = least_regret(list(studies)), latencies_of(request)
    beside = (api_of_study(request, study, request.model[0], latencies) for study in studies)
    apis = {case: api for case, api in zip(cases, beside, strict=True) if api}
    swings = tuple(swing_of(request, study.question.load) for study in studies)
    if found is None:
        lost = next(study for study in studies if study.plan.best is None)
        return PlanCases(
            regret=None, apis=apis, swings=swings, blame=tuple(blamed(request, lost)), studies=tuple(studies)
        )
    bills = dict(zip(cases, found.best_usd_per_month, strict=True))
    return PlanCases(cases=bills, regret=found, apis=apis, swings=swings, studies=tuple(studies))


def deploy_targets_of(wanted: Sequence[str] | None, deploy_to: str | None) -> list[Target]:
    """Return the tools for which files are wanted."""
    if wanted is None and deploy_to is not None:
        fix = f"Give {option('deploy', 'vllm')} as well."
        raise BadInput(f"is where {option('deploy')} saves its files", field="deploy_to", fix=fix)
    names = listed(wanted, "deploy") or []
    for name in names:
        if name not in set(Target):
            fix = f"Valid: {', '.join(Target)}. {did_you_mean(name, Target, 1) or ''}".rstrip()
            raise BadInput(f"no files are made for '{shorten(name)}'", field="deploy", fix=fix)
    return [Target(name) for name in names]


def deploy_files_of(
    study: Study, targets: Sequence[Target], command: str, hours: ReplicasByHour | None = None
) -> list[DeployFile]:
    """Return the files of the plan's cheapest candidate; ``command`` is the command that made the plan.

    An autoscaler gets the replicas that each of the hours needs as its minimum, where the hours are those of a clock.
    """
    from tokonomics.deploy.targets import deploy_files, provenance

    best = study.plan.best
    if best is None:
        return []
    ranked = study.ranked_as(best)
    deployment, offer, spare = ranked.sized.deployment, ranked.machine.offer, study.question.limits.spare
    job = DeployJob(
        deployment=deployment,
        replicas=best.replicas,
        machines=best.instances,
        spare=spare.lost_of(best.instances),
        over_zones=spare.zone,
        e2e_s=best.e2e_s,
        max_context=longest_context(deployment),
        limits=deployment.limits.model_copy(update={"max_sequences": best.max_sequences}),
        offer=offer,
        terms=best.terms,
        router=best.router.value,
        provenance=provenance(command, today(), offer),
        simulated=best.simulated,
        tiers=best.tiers,
        requests_per_s=best.capacity_requests_per_s or None,
        usd_per_hour=best.instance_usd_per_hour or None,
        by_hour=hours.replicas if hours and hours.is_daily else (),
        cold_start_s=hours.cold_start_s if hours else 0.0,
    )
    pool = ranked.sized.screened.hosts.prefill
    if pool is None or best.prefill is None:
        return [file for target in targets for file in deploy_files(target, job)]
    # Both sides accept requests of the same length.
    context = min(longest_context(side) for side in (deployment, pool.deployment))
    decode = job.model_copy(update={"role": Role.decode, "max_context": context})
    other = {"role": Role.prefill, "deployment": pool.deployment, "replicas": best.prefill.replicas}
    prefill = decode.model_copy(update=other | {"limits": pool.deployment.limits})
    if spare:
        # Each side has machines of its own.
        for_prompts = machines_for(pool.deployment, offer, pool.replicas, spare)
        counts = for_prompts, best.instances - for_prompts
        prefill, decode = (
            side.model_copy(update={"machines": count, "spare": spare.lost_of(count)})
            for side, count in zip((prefill, decode), counts, strict=True)
        )
    return [file for target in targets for file in deploy_files(target, prefill, decode)]


def _quote_packet(request: PlanRequest, study: Study) -> list[DeployFile]:
    """Return the files that ask vendors to quote on the plan's traffic."""
    from tokonomics.measure.quotes import packet

    question = study.question
    if question.load.trace.service is not None:
        raise BadInput("is for one class of requests", field="quote")
    regions = regions_from(request.region, every_offer(request)) or ()
    return packet(question.model, study.plan.best, question.load, question.slos, regions)


def save_files(files: Sequence[DeployFile], folder: Path, listener: Listener, field: str = "deploy_to") -> None:
    """Write the files, and say where."""
    where = option(field, shorten(str(folder), 200))
    make_folder(folder, where)
    for file in files:
        write_text(folder / file.name, file.text, where)
        listener.note(f"{folder / file.name} saved")


def measured_beside(request: PlanRequest, plan: Plan, listener: Listener = SILENT) -> tuple[PricedRun, ...]:
    """Return each file's run of the planned model, at the cheapest rent of its machine.

    A file that names no GPU was measured on the requested one; if none or several are requested, on the pick's.
    """
    from tokonomics.measure.importers.recognise import read_runs

    read = ((shorten(Path(name).name), read_runs([Path(name)])) for name in request.measured or ())
    runs = [(name, run) for name, run in read if run.api is None]  # APIs stand beside the pick, by their latency
    for name, run in runs:
        _check_model(run, name, plan.model, listener)
    return tuple(_priced(run, name, request, plan, listener) for name, run in runs)


def _check_model(run: BenchmarkRun, where: str, planned: str, listener: Listener) -> None:
    """Refuse a test of another model; if the file's name for it is unknown, say which model is assumed."""
    named = "names no model"
    if run.model is not None:
        named = f"names its model {shorten(run.model)}, which is not in the catalogue"
        with suppress(UnknownName):
            if find_model(run.model).key == planned:
                return
            what = f"measured {shorten(run.model)}, the plan is of {planned}"
            raise BadInput(what, where=where, field="measured", fix="Give a test of the planned model.")
    listener.note(f"{where} {named}: taken as a test of {planned}")


def _priced(run: BenchmarkRun, where: str, request: PlanRequest, plan: Plan, listener: Listener) -> PricedRun:
    asked = listed(request.gpu, "gpu") or ()
    picked = plan.best.gpu if plan.best else None
    gpu = run.stated.gpu or (asked[0] if len(asked) == 1 else picked)
    if gpu and not run.stated.gpu:
        listener.note(f"{where} names no GPU: taken as measured on {gpu}")
    own = as_model(run, plan.model)
    machine = machine_of(own.stated, GivenMachine(gpu=gpu))
    return price_run(own, machine, rental_of(machine, plan.model) if machine else None)


# --- several models on several GPUs side by side, and what changes between two scenarios ------------------------------


DIFF_FORMATS = ("github", "gitlab", "json")


def diff(request: DiffRequest, listener: Listener = SILENT) -> OneNoun:
    """Return the inputs that differ, the pick of each side, and what the change saves."""
    if request.format is not None and request.format not in DIFF_FORMATS:
        raise UnknownName("format", request.format, DIFF_FORMATS, fix=f"Formats: {', '.join(DIFF_FORMATS)}.")
    paths = (Path(request.model), Path(request.against))
    when = (" before", " after") if paths[0].name == paths[1].name else ("", "")
    sides, apis = [], list[ApiBeside | None]()
    for path, then in zip(paths, when, strict=True):
        asked = read_request(path, PlanRequest, "plan")
        if len(cases_of(asked)) > 1 or len(asked.model) > 1:
            raise BadInput("is compared with one model and without ranges", where=str(path))
        (study,) = studied(questions_in(asked, listener), listener)
        sides.append((f"{path.name}{then}", _words(asked), study.plan))
        apis.append(api_of_study(asked, study, asked.model[0], latencies_of(asked)))
    return OneNoun(noun=plan_diff(*sides, apis=(apis[0], apis[1])))


_NOT_COMPARED = {"top", "why", "explain", "deploy", "deploy_to", "quote", "profile"}


def _words(request: PlanRequest) -> dict[str, object]:
    """Return the scenario's values for the planner, by key."""
    return {
        parameter.key: getattr(request, name)
        for name, parameter in parameters_of(PlanRequest).items()
        if name not in _NOT_COMPARED
    }


def compare(request: CompareRequest, listener: Listener = SILENT) -> CompareResult:
    """Return the dollars per million tokens of every pair, side by side."""
    if len(cases_of(request)) > 1:
        raise BadInput("a range is for plan", field="rate, input, output")
    questions = questions_of(request, not request.simulate, listener)
    scores = parse_quality(request.quality or (), [question.model.key for question in questions])
    if request.simulate:
        say_if_compiling(listener)
    for question in questions:
        say_not_tried(question, listener)
    listener.doing("comparing")
    latencies, share = latencies_of(request), _cached_share(request, questions[0].load)
    found = side_by_side(questions, scores, listener.doing)
    picks = sorted((cell.pick for cell in found.cells if cell.pick), key=lambda pick: pick.usd_per_mtok.blended)
    apis: dict[str, tuple[ApiCost, ...]] = {}
    beside: dict[str, ApiBeside] = {}
    for question, asked in zip(questions, listed(request.model, "model") or (), strict=True):
        key = question.model.key
        usd = min((pick.usd_per_month for pick in picks if pick.model == key), default=None)
        bills, api = hosts_beside(request, question, asked, usd, latencies, share)
        if bills:
            apis[key] = tuple(bill for place, bill in enumerate(bills) if place < _HOSTS or bill.name in latencies)
        if api:
            beside[key] = api
    best = picks[0] if picks else None
    return CompareResult(**dict(found), apis=apis, api_beside=beside, latencies=latencies, best=best)


_HOSTS = 2  # number of the cheapest hosts to show beside a model's hardware; `breakeven` shows all


def _cached_share(request: CompareRequest, load: Load) -> float:
    """Return the share of a log's prompts that hosts read from their caches, at its own pace, which decides that."""
    paceless = request.model_copy(update={"rate": None, "tokens_per_month": None})
    return share_of_api(load if request.trace is None or request == paceless else load_of(paceless), None)
