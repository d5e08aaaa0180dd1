"""docs/prices.md: the price file that it shows is read as it stands, and its columns exist."""

import re
from datetime import date
from pathlib import Path

from tokonomics.catalog.offers import Offer, parse_offers

PAGE = (Path(__file__).parents[2] / "docs" / "prices.md").read_text(encoding="utf-8")


def test_the_file_that_is_shown_is_read_as_it_stands() -> None:
    example = PAGE.split("<!-- price file -->\n```csv\n")[1].split("```")[0]
    ours, aws = parse_offers(example, "mine.csv")
    assert (ours.provider, ours.instance, ours.gpu, ours.gpus, ours.price()) == ("ours", "rack-7", "H100-SXM", 8, 18.4)
    assert (aws.region, aws.vcpus, aws.memory_gb, aws.date) == ("eu-central-1", 192, 2048, date(2026, 11, 1))


def test_five_columns_are_enough() -> None:
    columns = re.findall(r"^\| `([a-z_]+)` \|", PAGE, re.MULTILINE)[:5]
    row = {"provider": "ours", "instance": "rack-7", "gpu": "H100-SXM", "gpus": "8", "usd_per_hour": "18.40"}
    (offer,) = parse_offers(f"{','.join(columns)}\n{','.join(row[column] for column in columns)}\n", "mine.csv")
    assert offer.region == "unspecified"


def test_every_column_that_is_explained_exists() -> None:
    table = PAGE.split("| column | meaning |")[1].split("\n\n")[0]
    cells = (line.split(" | ")[0] for line in table.splitlines()[2:])
    explained = {name for cell in cells for name in re.findall(r"`([a-z0-9_]+)`", cell)}
    assert len(explained) >= 12
    assert explained <= set(Offer.model_fields)
