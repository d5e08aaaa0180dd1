"""``tokonomics trace``: what a request log is like, or make one up."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tokonomics.cli.answer import Answer, ChartFile, HtmlFile, check_files, give
from tokonomics.cli.groups import Traffic, flat
from tokonomics.cli.output import Json


@flat
def trace(
    *,
    file: Annotated[
        str | None,
        typer.Argument(
            help="A log (CSV, JSON lines, parquet; .gz, .zst), a sample such as azure-conv, or ServeGen's clients."
        ),
    ] = None,
    traffic: Traffic,
    machine_tokens_per_second: Annotated[
        float | None, typer.Option(help="What one machine serves, prompt and answer tokens: prices its idle time.")
    ] = None,
    machine_usd_per_hour: Annotated[float | None, typer.Option(help="What that machine costs.")] = None,
    chart: ChartFile = None,
    html: HtmlFile = None,
    save: Annotated[Path | None, typer.Option(help="Save the requests as .parquet, which this verb reads.")] = None,
    json: Json = False,
) -> None:
    """What a request log is like: rates, bursts, lengths, shared prefixes, idle hours. Or make one up.

    \b
    Examples:
      tokonomics trace azure-conv
      tokonomics trace requests.jsonl.gz --chart traffic.svg
      tokonomics trace log.csv --columns arrival=time,input=prompt,output=answer --from 10m --to 40m
      tokonomics trace azure-conv --machine-tokens-per-second 20000 --machine-usd-per-hour 3
      tokonomics trace --arrivals gamma:2,cv=3 --requests 10000 --input sample:sharegpt --save demo.parquet
      tokonomics trace chat.toml
    """
    from tokonomics.cli.traffic_flags import open_log, rows_read, traffic_from
    from tokonomics.traffic.save import check_save_path, save_trace
    from tokonomics.traffic.summary import summarize

    check_files(chart, html)
    if save:
        check_save_path(save)
    summed_up = partial(summarize, tokens_per_second=machine_tokens_per_second, usd_per_hour=machine_usd_per_hour)
    as_it_is = traffic == Traffic(columns=traffic.columns, strict=traffic.strict, seed=traffic.seed) and not save
    if file is not None and as_it_is and (opened := open_log(file, traffic.columns, traffic.strict)):
        with rows_read(file) as on_rows:
            # Batch by batch: the log need not fit in memory.
            made = summed_up(opened, on_rows=on_rows)
    else:
        requests_made = traffic_from(file, traffic)
        made = summed_up(requests_made)
        if save:
            save_trace(requests_made, save)
            typer.echo(f"{len(requests_made):,} requests saved to {save}", err=True)
    from tokonomics.report.trace_view import trace_view
    from tokonomics.report.traffic_charts import traffic_chart

    charts = {"What arrives": lambda: traffic_chart(made)}
    give(Answer(made, lambda: trace_view(made), f"Traffic: {made.source}", charts), json=json, chart=chart, html=html)
