"""A tool's export that is a table, in batches: asked once for rows that are alike in what says whose they are.

Fields of a request are columns of their own; whether a row is a request, and whose, is what ``Export.unfold`` says of
the other columns. Millions of rows have few different ones of these.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tokonomics.traffic import sources
from tokonomics.traffic.attribution import Attribution
from tokonomics.traffic.exports import BULKY, Export, Tabled, Unfolding, tenant_in
from tokonomics.traffic.formats import REQUIRED, LogLayout

if TYPE_CHECKING:
    import polars as pl

    from tokonomics.traffic.recognise import Beside

_LEFT = "\x03"  # before the reason why a row is no request
_NO_TOKENS = ("0", "")


def fields_of(tabled: Tabled, columns: Collection[str], layout: LogLayout) -> LogLayout | None:
    """Where a table has the fields of a request; None where one is missing or stands in several columns."""
    there = {field: [name for name in names if name in columns] for field, names in tabled.fields.items()}
    if not all(there[field] for field in REQUIRED) or any(len(names) > 1 for names in there.values()):
        return None
    return replace(layout, tenant=(), **{field: tuple((name,) for name in names) for field, names in there.items()})  # type: ignore[arg-type]


def table_batches(
    export: Export, raw: "Beside", columns: Mapping[str, bool], layout: LogLayout, unfolding: Unfolding
) -> "Iterator[pl.DataFrame]":
    """The requests of the table, whose fields ``layout`` tells; what is left out is counted."""
    import polars as pl

    tabled, by = export.tabled, unfolding.attribution
    assert tabled is not None
    telling = telling_columns(tabled, columns, by)
    nested = {} if by else {name: keys for name, keys in tabled.within.items() if name in telling}
    asked = [name for name in telling if name not in nested] + [
        f"{name}.{key}" for name in nested for key in nested[name]
    ]
    prompt = tabled.fields["input"][0]

    @lru_cache(sources.REMEMBERED)
    def said(*cells: Any) -> str | None:
        item = dict(zip((*asked, prompt), cells, strict=True))
        item |= {name: {key: item[f"{name}.{key}"] for key in keys} for name, keys in nested.items()}
        found = Unfolding(by)
        rows = list(export.unfold(item, found))
        return tenant_in(rows[0]) if rows else f"{_LEFT}{next(iter(found.left_out))}"

    unfolding.restart()
    if by:
        by.meet(columns)
    tokens = pl.col("input").cast(pl.String)
    none_or_some = pl.when(tokens.is_null() | tokens.is_in(_NO_TOKENS)).then(tokens).otherwise(pl.lit("1"))
    inside = [
        pl.col(f"{sources.BESIDE}{name}").str.json_path_match(f"$.{key}").alias(f"{sources.BESIDE}{name}.{key}")
        for name, keys in nested.items()
        for key in keys
    ]
    for batch in raw(layout, telling):
        marked = batch.with_columns(none_or_some.alias(f"{sources.BESIDE}{prompt}"), *inside)
        tenant = sources.by_distinct(marked, [*asked, prompt], said).alias("tenant")
        kept = sources.without_beside(batch).with_columns(tenant)
        left = tenant.str.starts_with(_LEFT).fill_null(value=False)
        for why, number in tenant.filter(left).to_frame().group_by("tenant", maintain_order=True).len().iter_rows():
            unfolding.left_out[why.removeprefix(_LEFT)] += number
        yield kept.filter(~left)


def telling_columns(tabled: Tabled, columns: Collection[str], by: Attribution | None) -> list[str]:
    """Those that say whether a row is a request, and whose."""
    return [name for name in columns if name not in BULKY and (name in tabled.telling or (by and by.tells(name)))]
