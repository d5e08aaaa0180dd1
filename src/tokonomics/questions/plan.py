"""What are the cheapest ways to serve a model under latency targets?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.errors import BadInput, nearest, option, shorten
from tokonomics.questions.command import command_of
from tokonomics.questions.inputs import ANY_ROUTER, Profiled, Quick, Reserve, SeveralModels
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.load import PlanInputs, cases_of, questions_of
from tokonomics.questions.request import Kind, Switch, Text, Texts, Whole, declared
from tokonomics.questions.serving import say_if_compiling, say_left_out
from tokonomics.questions.verbs import find_verb

if TYPE_CHECKING:
    from tokonomics.planner.deploy_files import DeployFile, Target
    from tokonomics.planner.plan import Question, Study
    from tokonomics.questions.results import PlanCases, PlanModels, PlanResult


class PlanRequest(SeveralModels, PlanInputs, Reserve, Quick, Profiled):
    """
    Examples:
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=50ms
      tokonomics plan llama-3.3-70b --trace azure-conv --slo ttft_p99=1,tpot_p99=80ms --min-weights fp8 --spare 1
      tokonomics plan llama-3.1-8b qwen3-8b gemma-2-9b --tokens-per-month 2B --input 500 --output 200
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --provider aws,gcp --why --explain
      tokonomics plan qwen3-30b-a3b --rate 10:20:40 --input 500 --output 200 --provider aws --discount aws=0.2
      tokonomics plan chat.toml --rate 10 --deploy vllm,kubernetes --deploy-to out
    """

    gpus: Text | None = declared(None, "The most GPUs to pay for; or GPU names, as --gpu.", example=8)
    router: Text | None = declared(
        None, ANY_ROUTER, without="whichever needs fewest replicas", example="least-outstanding"
    )
    top: Whole | None = declared(None, "Rows to show.", low=1, without="10; all with --json", example=10)
    why: Switch = declared(False, "Show why the other candidates were rejected.")
    explain: Switch = declared(False, "Show which traffic would flip the choice, and what moves the bill; slower.")
    deploy: Texts | None = declared(
        None, "The files that start the pick: vllm, sglang, skypilot, kubernetes.", example=["vllm"]
    )
    deploy_to: Text | None = declared(
        None, "A folder to save them in.", without="they are printed", kind=Kind.FILE, writes=True, example="out"
    )


def plan(request: PlanRequest, listener: Listener = SILENT) -> "PlanResult | PlanModels | PlanCases":
    """Every candidate sized by simulation, cheapest first; how firm the pick is; every refusal."""
    targets = _deploy_targets(request)
    cases = cases_of(request)
    several = len(cases) > 1 or len(request.model) > 1
    if len(cases) > 1 and len(request.model) > 1:
        raise BadInput("a range is for one model", field="rate, input, output")
    for name in ("deploy", "explain", "why"):
        if several and getattr(request, name):
            raise BadInput("is for one model at one demand", field=name)
    asked = [questions_in(case) for case in cases.values()]
    studies = [study for questions in asked for study in studied(questions, listener)]
    command = listener.typed or command_of(find_verb("plan"), request)
    files = deploy_files_of(studies[0], targets, command) if targets else []
    if request.deploy_to:
        save_files(files, Path(request.deploy_to), listener)
    if len(cases) > 1:
        return _cases(studies, list(cases))
    return _models(studies) if len(studies) > 1 else _one(request, studies[0], files, listener)


def questions_in(request: PlanRequest) -> "list[Question]":
    """The planner's question for each model."""
    return questions_of(
        request,
        request.model,
        gpus=request.gpus,
        router=request.router,
        quick=request.quick,
        max_utilization=request.max_utilization,
        spare=request.spare,
    )


def studied(questions: "Sequence[Question]", listener: Listener) -> "list[Study]":
    """A plan for each question."""
    from tokonomics.planner.plan import study

    if any(question.simulate for question in questions):
        say_if_compiling(listener)
    for question in questions:
        context = question.model.max_context
        load = question.load.within(context) if question.load.is_log else question.load
        say_left_out(load, context, listener)
    listener.doing("planning")
    return [study(question, lambda what: listener.doing(f"simulating {what}")) for question in questions]


def _one(request: PlanRequest, study: "Study", files: "Sequence[DeployFile]", listener: Listener) -> "PlanResult":
    """One model at one demand: its plan, how firm it is, and why not the others."""
    from tokonomics.planner.flips import flips
    from tokonomics.planner.what_if import bill_range, headroom, sensitivity
    from tokonomics.questions.results import PlanResult, blame_of

    plan, best = study.plan, study.plan.best
    found = dict(plan) | {"ranked": plan.ranked[: request.top], "study": study}
    if request.deploy:
        found |= {"deploy": tuple(files)}
    if best is None:
        return PlanResult(**found, blame=blame_of(study))

    def say(what: str) -> None:
        listener.doing(f"simulating {what}")

    say("how much the traffic may grow")
    room, bills = headroom(study), bill_range(study, best)
    flipped = flips(study, None if request.explain else (), say)
    moved = None
    if request.explain:
        say("what moves the bill")
        moved = sensitivity(study)
    return PlanResult(**found, headroom=room, bill_range=bills, flips=flipped, sensitivity=moved)


def _models(studies: "Sequence[Study]") -> "PlanModels":
    """Several models on the same traffic: the pick of each."""
    from tokonomics.questions.results import PlanModels

    picks = [study.plan.best for study in studies if study.plan.best]
    return PlanModels(models=tuple(sorted(picks, key=lambda row: row.usd_per_month)), studies=tuple(studies))


def _cases(studies: "Sequence[Study]", cases: Sequence[str]) -> "PlanCases":
    """Low, middle and high demand: the bill of each, and the least regretful choice."""
    from tokonomics.planner.regret import least_regret
    from tokonomics.questions.results import PlanCases, blame_of

    found = least_regret(list(studies))
    if found is None:
        lost = next(study for study in studies if study.plan.best is None)
        return PlanCases(regret=None, blame=blame_of(lost), studies=tuple(studies))
    bills = dict(zip(cases, found.best_usd_per_month, strict=True))
    return PlanCases(cases=bills, regret=found, studies=tuple(studies))


def _deploy_targets(request: PlanRequest) -> "list[Target]":
    """The tools that files are wanted for."""
    from tokonomics.planner.deploy_files import Target
    from tokonomics.planner.parsing import listed

    if request.deploy is None and request.deploy_to is not None:
        fix = f"Give {option('deploy', 'vllm')} as well."
        raise BadInput(f"is where {option('deploy')} saves its files", field="deploy_to", fix=fix)
    names = listed(request.deploy, "deploy") or []
    for name in names:
        if name not in set(Target):
            guess = nearest(name, [target.value for target in Target], 1)
            hint = f" Did you mean {guess[0]}?" if guess else ""
            fix = f"Valid: {', '.join(Target)}.{hint}"
            raise BadInput(f"no files are made for '{shorten(name)}'", field="deploy", fix=fix)
    return [Target(name) for name in names]


def deploy_files_of(study: "Study", targets: "Sequence[Target]", command: str) -> "list[DeployFile]":
    """The files of the plan's cheapest candidate; ``command`` made the plan."""
    from tokonomics.clock import today
    from tokonomics.planner.deploy_files import deploy_file, provenance
    from tokonomics.planner.deploy_job import DeployJob, longest_context

    best = study.plan.best
    if best is None:
        return []
    ranked = study.ranked_as(best)
    deployment, offer = ranked.sized.deployment, ranked.machine.offer
    job = DeployJob(
        deployment=deployment,
        replicas=best.replicas,
        max_context=longest_context(deployment),
        limits=deployment.limits.model_copy(update={"max_sequences": best.max_sequences}),
        offer=offer,
        terms=best.terms,
        router=best.router.value,
        provenance=provenance(command, today(), offer),
    )
    return [deploy_file(target, job) for target in targets]


def save_files(files: "Sequence[DeployFile]", folder: Path, listener: Listener) -> None:
    """Write the files, and say where."""
    from tokonomics.files import make_folder, write_text

    where = option("deploy_to", shorten(str(folder), 200))
    make_folder(folder, where)
    for file in files:
        write_text(folder / file.name, file.text, where)
        listener.note(f"{folder / file.name} saved")
