"""Draft what a proposal changes in a repository: the scenario and the deploy files, before and after.

A scenario of its own holds all that was metered: the rate of each hour, lengths as lognormals with the metered mean and
p99, what prompts share, and the set-up. Of a request that came from a scenario file, that file is changed instead: only
the keys that the proposal moves, every other line stays.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokonomics.deploy.job import DeployFile, DeployJob, Target, longest_context
from tokonomics.errors import BadInput, TokonomicsError, did_you_mean, option, shorten
from tokonomics.levers.lever_list import API, OFFERS
from tokonomics.operate.expect import profile_of
from tokonomics.operate.pull_request import committed, root_of
from tokonomics.physics.calibration import Profile
from tokonomics.questions.metered import TOGETHER, MeteredRun, Proposal, is_metered
from tokonomics.questions.request import Listener
from tokonomics.questions.requests.traffic import LeversRequest
from tokonomics.sizing.bill import Bill, Bills
from tokonomics.sizing.engine_flags import slug
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import Load
from tokonomics.sizing.setup import Setup
from tokonomics.types import today
from tokonomics.units import percent, plural, usd

_OPENS = ("pr", "patch")
_LONGEST_TITLE = 72


_ELSEWHERE = (OFFERS, "hardware", "commit", "spot", TOGETHER)
"""Proposals whose machines are those of other sellers."""


@dataclass(frozen=True)
class DraftedChange:
    """What a proposal would change, for the door that writes it."""

    name: str  # of the branch and the patch
    title: str
    summary: str
    root: Path
    before: str  # the scenario of today, and the proposed one, as metered: for ``plan --against``
    after: str
    files: Mapping[str, str]  # from the root of the checkout
    profile: Profile | None  # what the twin has learned, for both plans


def check_open(request: LeversRequest, listener: Listener) -> None:
    """Refuse what cannot be opened before anything is simulated."""
    if request.open_ is None:
        for name in ("take", "deploy", "deploy_to"):
            if getattr(request, name) is not None:
                raise BadInput(f"is for {option('open_', 'pr')}", field=name)
        return
    if request.open_ not in _OPENS:
        fix = did_you_mean(request.open_, _OPENS, 1) or f"Give {' or '.join(_OPENS)}."
        raise BadInput(f"'{shorten(request.open_)}' is neither pr nor patch", field="open_", fix=fix)
    if not is_metered(request):
        raise BadInput("is for what was metered", field="open_", fix=f"Add {option('start', 'ledger')}.")
    _targets(request, None)
    _refuse_outside(root_of(Path.cwd()), request, _scenario_file(listener))


def _refuse_outside(root: Path, request: LeversRequest, file: Path | None) -> None:
    """Refuse a scenario or a folder that is outside the checkout in which a branch is made."""
    if file is not None and not file.resolve().is_relative_to(root.resolve()):
        raise BadInput("is outside the checkout of this folder", where=shorten(str(file), 200), field="open_")
    folder = Path(request.deploy_to or ".")
    if folder.is_absolute() or ".." in folder.parts:
        raise BadInput(
            "must be a folder of the checkout", field="deploy_to", fix=f"Such as {option('deploy_to', 'k8s')}."
        )


def taken(request: LeversRequest, proposals: tuple[Proposal, ...]) -> Proposal:
    """Return the proposal that was asked for, by its name or what it moves; by default the first of the fleet's own."""
    if request.take is None:
        found = next((one for one in proposals if one.knob != API), None)
        if found is None:
            raise BadInput("there is no change of this fleet to propose", field="open_")
        return found
    wanted = request.take.strip().lower()
    known = [name for one in proposals for name in (one.knob, one.name)]
    for one in proposals:
        if wanted in (one.knob, one.name.lower()):
            if one.knob == API:
                fix = "Give your clients its address; docs/levers.md says what to check first."
                raise BadInput("calling an API changes no file of this fleet", field="take", fix=fix)
            return one
    fix = did_you_mean(request.take, known, 1) or f"Proposed are: {', '.join(one.knob for one in proposals) or 'none'}."
    raise BadInput(f"'{shorten(request.take)}' is not proposed", field="take", fix=fix)


def drafted(
    request: LeversRequest, run: MeteredRun, today_s: Setup, setup: Setup, proposal: Proposal, bills: Bills,
    listener: Listener,
) -> DraftedChange:  # fmt: skip
    """Return what a proposal changes; ``today_s`` is the set-up of today."""
    command = listener.typed or f"tokonomics levers {request.model} --gpu {request.gpu} --from {request.start}"
    root, name = root_of(Path.cwd()), f"{slug(proposal.knob)}-{today()}"
    bill = bills.bill_of(setup)
    assert isinstance(bill, Bill)
    traffic = _traffic(run, today_s.load)
    before = _scenario(request, traffic, today_s, replicas=run.servers.servers)
    after = _scenario(request, traffic, setup, replicas=bill.all_replicas)
    if proposal.knob in _ELSEWHERE and not isinstance(served := bills.served(setup), NotServed):
        after["provider"] = sorted({offer.provider for offer in served[1].offers})
    file = _scenario_file(listener)
    said = f"# {proposal.name}: proposed on {today()} by `{command}`.\n"
    if file is None:
        path = f"{slug(today_s.deployment.model.key)}.toml"
        text = said + _toml(after)
    else:
        path = file.resolve().relative_to(root.resolve()).as_posix()
        moved = {key: value for key, value in after.items() if before.get(key) != value}
        gone = [key for key in before if key not in after]
        text = changed_text(committed(root, file) or file.read_text(encoding="utf-8"), moved, gone, path)
    folder = request.deploy_to or "deploy"
    files = {path: text}
    for target in _targets(request, setup):
        files |= {
            f"{folder}/{one.name}": one.text for one in _deploy_files(setup, bill, bills, target, command, listener)
        }
    return DraftedChange(
        name=name, title=_title(proposal, today_s), summary=_summary(proposal, run), root=root,
        before=_toml(_planned(before)), after=_toml(_planned(after)), files=files,
        profile=profile_of(today_s, run.factors) if run.factors else None,
    )  # fmt: skip


def _planned(scenario: Mapping[str, object]) -> dict[str, object]:
    """Return a scenario without what a plan searches for itself."""
    return {key: value for key, value in scenario.items() if key not in ("replicas", "tp", "pp", "ep", "dp")}


def _title(proposal: Proposal, now: Setup) -> str:
    title = f"Serve {now.deployment.model.key} for {percent(proposal.saved_share)} less: {proposal.name}"
    return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1].rstrip()}…"


def _summary(proposal: Proposal, run: MeteredRun) -> str:
    """Return the first paragraph of the request: the saving, how sure it is, and what it is compared with."""
    error = (
        f"the twin's own error is {percent(proposal.error_share)} of the bill"
        if proposal.error_share is not None
        else "no twin has scored these servers, so the error is not known"
    )
    saved = f"{usd(proposal.saved_usd_per_month)} a month, {percent(proposal.saved_share)} of the metered bill"
    becomes = f"{plural(proposal.replicas, 'replica')} of {proposal.becomes}"
    return (
        f"**{proposal.name}** saves {saved} of {run.servers.model}; {error}. "
        f"It becomes {becomes}. Effort: {proposal.effort}. Risk: {proposal.risk}.\n\n"
        "Nothing is applied by itself: deploy the files when you have checked them. Below, both set-ups as planned "
        "for the metered traffic, at list prices."
    )


def _traffic(run: MeteredRun, load: Load) -> dict[str, object]:
    """Return what was metered as keys of a scenario."""
    servers, workload = run.servers, load.workload
    shared = round(servers.traffic.hit_share * workload.input_tokens)
    arrivals = {"arrivals": servers.arrivals} if servers.arrivals else {"rate": float(f"{workload.rate:.4g}")}
    return {
        **arrivals,
        "input": _lognormal(workload.input_tokens - shared, (workload.input_p99 or 0.0) - shared),
        "output": _lognormal(workload.output_tokens, workload.output_p99 or 0.0),
        **({"system_prompts": f"1,tokens={shared}"} if shared >= 1 else {}),
    }


_MOST_P99 = 14.97
"""A lognormal's p99 over its mean is at most e^(z²/2), z = 2.326 (``traffic.lengths``)."""


def _lognormal(mean: float, p99: float) -> str:
    mean = max(1.0, mean)
    if p99 <= mean * 1.01:
        return f"const:{round(mean)}"
    return f"lognormal:mean={mean:.0f},p99={min(p99, _MOST_P99 * round(mean) * 0.99):.0f}"


def _scenario(request: LeversRequest, traffic: Mapping[str, object], setup: Setup, replicas: int) -> dict[str, object]:
    """Return a set-up as keys of a scenario, which plan, simulate and levers read."""
    at = setup.deployment
    terms = [*(["reserved"] if setup.commit else []), *(["spot"] if setup.spot else [])]
    said: dict[str, Any] = {
        "model": request.model,
        "gpu": at.gpu.key,
        **{name: getattr(at, name) for name in ("tp", "pp", "ep", "dp") if getattr(at, name) > 1},
        "weights": str(at.weights),
        "kv": str(at.kv),
        "engine": at.engine.key,
        "replicas": replicas,
        "max_sequences": setup.max_sequences,
        "no_prefix_cache": not setup.prefix_cache or None,
        "router": setup.router.value if setup.router else None,
        "tiers": setup.tiers if isinstance(setup.tiers, str) else None,
        "draft": at.speculation.name.partition(":")[0] if at.speculation else None,
        "disaggregate": setup.disaggregated or None,
        "terms": ["on_demand", *terms] if terms else None,
        "slo": request.slo,
        **{name: getattr(request, name) for name in ("headroom", "spare", "provider", "region", "sellers", "exclude")},
        **traffic,
    }
    return {key: list(value) if isinstance(value, tuple) else value for key, value in said.items() if value is not None}


_OWN_TABLES = {"replicas": "simulate", "terms": "plan", "disaggregate": "plan"}
"""The verbs of keys that are not shared."""


def _toml(values: Mapping[str, object]) -> str:
    """Write keys as TOML; JSON writes strings, numbers, booleans and lists of them alike."""
    from tokonomics.questions.scenario import shared_keys

    at_the_top = set(shared_keys())
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items() if key in at_the_top]
    for table in dict.fromkeys(name for key, name in _OWN_TABLES.items() if name and key not in at_the_top):
        own = [key for key in values if _OWN_TABLES.get(key) == table and key not in at_the_top]
        if own:
            lines += ["", f"[{table}]", *(f"{key} = {json.dumps(values[key], ensure_ascii=False)}" for key in own)]
    return "\n".join(lines) + "\n"


def _scenario_file(listener: Listener) -> Path | None:
    """Return the scenario file of the command as typed, if there is one."""
    words = shlex.split(listener.typed) if listener.typed else []
    return next((Path(word) for word in words[1:] if word.lower().endswith(".toml") and Path(word).is_file()), None)


def changed_text(text: str, moved: Mapping[str, object], gone: list[str], where: str) -> str:
    """Return a scenario file with some keys changed and all other lines as they were."""
    from tokonomics.questions.scenario import shared_keys

    lines, at_the_top = text.splitlines(), set(shared_keys())

    def is_of(line: str, key: str) -> bool:
        return bool(re.match(rf"\s*{key.replace('_', '[-_]')}\s*=", line))

    for key in gone:
        lines = [line for line in lines if not is_of(line, key)]
    end = next((place for place, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    while end and not lines[end - 1].strip():
        end -= 1
    for key, value in moved.items():
        written = f"{key} = {json.dumps(value, ensure_ascii=False)}"
        places = [place for place, line in enumerate(lines) if is_of(line, key)]
        for place in places:
            lines[place] = written
        if not places and key in at_the_top:
            lines.insert(end, written)
            end += 1
    made = "\n".join(lines) + "\n"
    try:
        tomllib.loads(made)
    except tomllib.TOMLDecodeError:
        fix = "Write each key on one line, or leave the file out of the command for a scenario of its own."
        raise BadInput(f"its keys {', '.join(moved)} cannot be changed line by line", where=where, fix=fix) from None
    return made


def _targets(request: LeversRequest, setup: Setup | None) -> list[Target]:
    """Return the tools that deploy files are written for; by default the engine's own start script."""
    from tokonomics.questions.plan import deploy_targets_of

    if request.deploy is not None:
        return deploy_targets_of(request.deploy, None)
    if setup is None:
        return []
    if setup.autoscale:
        return [Target.keda]
    return [Target(setup.deployment.engine.key)] if setup.deployment.engine.key in set(Target) else [Target.compose]


def _deploy_files(
    setup: Setup, bill: Bill, bills: Bills, target: Target, command: str, listener: Listener
) -> list[DeployFile]:
    """Return the files that start a set-up; none, with a note, where the target cannot."""
    from tokonomics.deploy.targets import deploy_files, provenance

    served = bills.served(setup)
    if isinstance(served, NotServed) or setup.disaggregated:
        listener.note(
            f"no {target} files: tokonomics plan {option('disaggregate')} {option('deploy', target)} writes them"
        )
        return []
    (offer, *_), at = served[1].offers, setup.deployment
    hosts, _ = setup.hosts()
    machines = hosts.machines_on(offer, bill.all_replicas) if hosts.machines else bill.all_replicas
    job = DeployJob(
        deployment=at,
        replicas=bill.all_replicas,
        machines=max(1, round(machines)),
        spare=setup.spare.lost_of(max(1, round(machines))),
        over_zones=setup.spare.zone,
        e2e_s=served[0].outcome.e2e_s,
        max_context=longest_context(at),
        limits=at.limits.model_copy(update={"max_sequences": bill.max_sequences}),
        offer=None if offer.provider == "yours" else offer,
        router=bill.router.value,
        provenance=provenance(command, today(), None if offer.provider == "yours" else offer),
        tiers=bill.tiers,
        prefix_cache=setup.prefix_cache,
    )
    try:
        return list(deploy_files(target, job))
    except TokonomicsError as error:
        listener.note(f"no {target} files: {error.what}")
        return []
