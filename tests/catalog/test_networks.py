"""What sellers state of the network between their machines, and where each figure was read."""

import csv
from datetime import date
from importlib.resources import files

from tokonomics.catalog.offers import Offer, stated_gbit

DATA = files("tokonomics.catalog").joinpath("data")


def rows() -> list[dict[str, str]]:
    return list(csv.DictReader(DATA.joinpath("networks.csv").read_text(encoding="utf-8").splitlines()))


def test_every_figure_was_read_on_a_page_or_says_that_it_was_not() -> None:
    for row in rows():
        if row["address"]:
            assert row["address"].startswith("https://")
            assert date.fromisoformat(row["read"]) <= date(2026, 11, 17)
        else:
            assert not row["read"]
            assert "not verified" in row["source"]


def test_a_machine_of_eight_h100_has_400_gigabit_for_each() -> None:
    assert stated_gbit("AWS", "p5.48xlarge") == 3200
    sold = {"provider": "aws", "region": "us-east-1", "instance": "p5.48xlarge", "gpu": "H100-SXM", "gpus": 8}
    offer = Offer.model_validate({**sold, "usd_per_hour": 55.0, "date": date(2026, 8, 22), "source": "test"})
    assert offer.network_bytes_per_s == 400e9 / 8


def test_the_readme_of_the_data_names_every_file() -> None:
    said = DATA.joinpath("README.md").read_text(encoding="utf-8")
    for file in DATA.iterdir():
        assert f"`{file.name}`" in said or file.name == "README.md"
