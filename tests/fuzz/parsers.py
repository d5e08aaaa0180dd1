"""Every parser of the program that reads what somebody else wrote, as a function of a file, with valid files to spoil.

Text that comes as a flag or over a wire is put into a file all the same, so that one harness takes them all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import asked, measured


@dataclass(frozen=True)
class Parser:
    """How a kind of input is read, and valid ones."""

    name: str
    file: str
    """What the input is called on disk: some readers go by the ending."""
    read: Callable[[Path], object]
    seeds: Callable[[], list[bytes]]
    names_file: bool = True
    """Whether a refusal must name the file: what is typed or sent has none."""
    slow: bool = False
    """A case takes a tenth of a second: a tenth of the cases."""


PARSERS = {
    parser.name: parser
    for parser in (
        Parser("config-json", "config.json", asked.read_config, asked.configs),
        Parser("catalogue-toml", "catalog.toml", asked.read_catalogue, lambda: [asked.CATALOGUE], names_file=False),
        Parser("scenario-toml", "scenario.toml", asked.read_scenario, lambda: asked.SCENARIOS, names_file=False),
        Parser("offers-csv", "offers.csv", asked.read_offers, lambda: [asked.OFFERS]),
        Parser("skypilot-csv", "vms.csv", asked.read_skypilot, lambda: [asked.VMS], names_file=False),
        Parser("litellm-json", "prices.json", asked.read_litellm, lambda: [asked.LITELLM]),
        Parser("profile-json", "profile.json", measured.read_profile, measured.profiles),
        Parser("probe-timings", "timings.json", measured.read_timings, measured.probe_timings, slow=True),
        Parser("trace-csv", "log.csv", asked.read_trace, asked.csv_logs),
        Parser("trace-json", "log.jsonl", asked.read_trace, asked.json_logs),
        Parser("trace-parquet", "log.parquet", asked.read_trace, asked.parquet_logs),
        Parser("trace-exports", "log", asked.read_trace, asked.exported_logs),
        Parser("trace-labels", "log", asked.read_attributed, asked.labelled_logs),
        Parser("trace-columns", "columns.txt", asked.read_columns, lambda: asked.COLUMNS, names_file=False),
        Parser("servegen-tables", "arrivals.csv", asked.read_servegen, lambda: [asked.SERVEGEN], names_file=False),
        Parser(
            "servegen-folder", "chunks", asked.read_servegen_folder, lambda: [asked.SERVEGEN_FOLDER], names_file=False
        ),
        Parser("prompts", "prompts", asked.read_prompts, asked.prompt_files),
        Parser("flags", "flag.txt", asked.read_flag, asked.flags, names_file=False),
        Parser("results", "result.json", measured.read_result, measured.results),
        Parser("measurements", "results.csv", measured.read_measurements, measured.tables_of_results),
        Parser("engine-log", "engine.json", measured.read_engine_log, measured.engine_logs),
        Parser("plan-json", "plan.json", measured.read_plan, lambda: [measured.PLAN]),
        Parser("metrics-page", "metrics", measured.read_metrics, measured.pages, names_file=False),
        Parser("dcgm-page", "dcgm", measured.read_dcgm, lambda: [measured.DCGM], names_file=False),
        Parser("prometheus-answer", "answer", measured.read_prometheus, lambda: [measured.MATRIX], names_file=False),
        Parser("answer-stream", "stream", measured.read_stream, lambda: [measured.STREAM], names_file=False),
        Parser("error-body", "error", measured.read_refusal, lambda: measured.REFUSALS, names_file=False),
        Parser("ledger", "meter.db", measured.read_ledger, measured.ledgers),
        Parser("ledger-loads", "meter.db", measured.read_ledger_loads, measured.ledgers),
    )
}
