"""Check what ``tune`` is asked: the server, the traffic, the setup as started, and the flags to choose from."""

from tokonomics.addresses import split_address, target
from tokonomics.catalog.engines import find_engine
from tokonomics.errors import BadInput, option
from tokonomics.operate.flag_sets import (
    Axes,
    FlagSet,
    llama_cpp_axes,
    parse_axes,
    usual_axes,
    values_in,
    values_now,
    with_values,
    words_of,
)
from tokonomics.operate.start_command import engine_in, template
from tokonomics.operate.trial import requests_for, server_facts
from tokonomics.questions.deployment import deployment_of, targets_of, trace_for
from tokonomics.questions.inputs import Layout, Objectives, Traffic
from tokonomics.questions.request import Listener
from tokonomics.questions.requests.run import TuneRequest
from tokonomics.questions.serving import check_servable
from tokonomics.questions.traffic import traffic_of
from tokonomics.sizing.engine_flags import repository_of
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.trace import Trace


class AskedFlags:
    """A checked request: the server, the traffic, the setup as started, and the sets to choose from."""

    def __init__(self, request: TuneRequest, listener: Listener) -> None:
        self.request = request
        address = request.target if split_address(request.target or "") else None
        self.model_name = request.model or (None if address else request.target)
        if address and request.start:
            fix = "Leave out the address, or the command."
            raise BadInput("a start command is for a server that we start", fix=fix)
        if not (address or request.start or request.dry_run):
            what = f"Give the command that starts it (vllm serve … {{flags}}), its address, or {option('dry_run')}."
            raise BadInput("no server is given to try flags on", fix=what)
        if split_address(request.start or ""):
            raise BadInput("the start command is an address", fix="Give the address first: tokonomics tune http://….")
        self.words = template(request.start) if request.start else []
        # Only a command that names the checkpoint can be given another.
        self.converts = bool(address) or (bool(request.start) and "{model}" not in (request.start or ""))
        self.address = target(address) if address else None
        told = server_facts(self.address).get("engine") if self.address and not request.engine else None
        self.engine = find_engine(request.engine).key if request.engine else told or engine_in(self.words)
        self.slos = waited_targets(request)
        self.requests = request.requests or requests_for(self.slos)
        self.trace = self._traffic(listener)
        self.setup = self._setup(listener)

    def _traffic(self, listener: Listener) -> Trace:
        given = {name: getattr(self.request, name) for name in Traffic.model_fields if name != "start"}
        return traffic_of(Traffic.checked(given), listener)

    def _setup(self, listener: Listener) -> Setup | None:
        """Return what the start command runs, as the simulator takes it; None if the GPU is not told."""
        request = self.request
        if request.gpu is None:
            if self.model_name is None and self.engine != "llama.cpp" and not request.try_:
                fix = f"Give {option('model')} and {option('gpu')}, or {option('try_', 'max-num-seqs=64/128')}."
                raise BadInput("neither a model with its GPU nor flags to try are given", fix=fix)
            return None
        named = request.model_copy(update={"engine": request.engine or self.engine})
        setup = replica_of(named, self.model_name, request.gpu, self.trace, self.slos)
        read = values_in(self.words, self.engine)
        if read:
            listener.note(f"read from the command: {FlagSet(values=read).text}; the rest as this verb's options say")
        return with_values(setup, read | values_now(with_values(setup, read), _LIMITS))

    def words_of(self, flags: FlagSet) -> list[str]:
        """Return a flag set as words of the command."""
        return words_of(self.setup, self.engine, flags, self.converts)

    def checkpoint_of(self, flags: FlagSet) -> str:
        """Return what stands for {model} in the command: the checkpoint with the set's weights."""
        if self.setup is None:
            return self.model_name or ""
        return repository_of(with_values(self.setup, flags.values).deployment)

    def axes(self) -> Axes:
        if self.request.try_:
            return parse_axes(self.request.try_, self.engine, simulated=self.setup is not None)
        if self.setup is not None:
            return usual_axes(self.setup, self.request.gpus, names_it=not self.converts)
        if self.engine == "llama.cpp":
            return llama_cpp_axes()
        fix = f"Name them: {option('try_', 'max-num-seqs=64/128')}; or give {option('gpu')}, to simulate."
        raise BadInput("no flags to try are known without a simulation", fix=fix)


_LIMITS = ("max_sequences", "max_batched_tokens")


def replica_of(layout: Layout, model: str | None, gpu: str, trace: Trace, slos: tuple[Slo, ...]) -> Setup:
    """Return one replica under this traffic as the simulator takes it, with the engine's own limits named."""
    deployment = deployment_of(layout, model, gpu)
    trace = trace_for(deployment.model, trace)
    check_servable(trace, deployment)
    setup = Setup(deployment, load_of_requests(trace), slos=slos)
    if setup.load.trace.rate <= 0:
        raise BadInput("all requests arrive at once: there is no rate to raise", where=trace.source)
    return with_values(setup, values_now(setup, _LIMITS))


def waited_targets(request: Objectives) -> tuple[Slo, ...]:
    """Return the latency targets, of which one is on the wait for an answer: a replay measures no job."""
    slos = targets_of(request)
    if any(slo.latency is Latency.job for slo in slos):
        raise BadInput("a target for jobs is not measured by a replay", field="slo", fix="Use ttft, tpot or e2e.")
    if not any(slo.latency in (Latency.ttft, Latency.e2e) for slo in slos):
        fix = f"Such as {option('slo', 'ttft_p99=1,tpot_p99=50ms')}."
        raise BadInput(
            "needs a target of ttft or e2e: with tpot alone, requests may wait for ever", field="slo", fix=fix
        )
    return slos
