"""What does a benchmark that was already run cost, and how far was our prediction off?"""

from typing import TYPE_CHECKING

from tokonomics.questions.inputs import Profiled
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.measured import Rented, check_names, paths_of, priced
from tokonomics.questions.request import Kind, Placement, Text, Texts, declared

if TYPE_CHECKING:
    from tokonomics.questions.measured_results import PricedRunResult


class ImportResultsRequest(Rented, Profiled):
    """
    Reads vLLM bench serve, SGLang bench_serving, guidellm, aiperf and genai-perf, InferenceX, llm-d Benchmark Report
    and tokonomics bench; told apart by what is in them. Tools that write a file for each load: give all of them.

    Examples:
      tokonomics import vllm-*.json --gpu H100 --gpus 2
      tokonomics import benchmarks.json --gpu L40S --model llama-3.1-8b --usd-per-hour 0.86
      tokonomics import agg_h200_tp8.json --slo tpot_p99=50ms --chart load.png
    """

    files: Texts = declared(
        ..., "Result files of one run.", place=Placement.FIRST, kind=Kind.FILE, metavar="FILE…", example=["run.json"]
    )
    model: Text | None = declared(
        None,
        "Model, where the file does not name one we know.",
        without="as the file says",
        kind=Kind.MODEL,
        example="llama-3.1-8b",
    )


def import_results(request: ImportResultsRequest, listener: Listener = SILENT) -> "PricedRunResult":
    """Result files of other load generators, in dollars and against our prediction."""
    from tokonomics.catalog.load_models import find_model
    from tokonomics.measure.importers.recognise import read_runs
    from tokonomics.measure.priced_run import as_model

    if request.model is not None:
        find_model(request.model)
    check_names(request)
    run = read_runs(paths_of(request.files))
    return priced(run if request.model is None else as_model(run, request.model), request)
