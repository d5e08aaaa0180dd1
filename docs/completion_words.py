"""What can be typed, from the verbs and the catalogue: python docs/completion_words.py writes it, as does make outputs.

Tab and the list of verbs read it (``src/tokonomics/cli/words.json``) in place of building every verb.
"""

import csv
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.text import Text
from typer.main import get_command

from tokonomics.catalog.precision import KV_PRECISIONS, WEIGHT_PRECISIONS
from tokonomics.cli.main import application
from tokonomics.questions.scenario import SWEPT_UNASKED, swept_keys
from tokonomics.questions.verbs import BUY, KNOWN, RUN, TRAFFIC, scenario_verbs
from tokonomics.traffic.samples import SAMPLES, TRACES

PACKAGE = Path(__file__).parents[1] / "src" / "tokonomics"
WORDS = PACKAGE / "cli" / "words.json"
DATA = PACKAGE / "catalog" / "data"


def words() -> str:
    """The whole file, with a line for every option."""
    app = application()
    whole = {
        **_command(get_command(app)),
        "summary": app.info.help,
        "epilog": app.info.epilog,
        "groups": [BUY, TRAFFIC, RUN, KNOWN],
        "swept_unasked": SWEPT_UNASKED,
        "values": _values(),
    }
    return json.dumps(whole, ensure_ascii=False).replace('{"name": ', '\n{"name": ') + "\n"


def _command(command: Any) -> dict[str, Any]:
    """What stands after a verb; of one with others below it, those too."""
    from typer._click.core import Context

    taken = command.get_params(Context(command, info_name=command.name, help_option_names=["--help", "-h"]))
    found: dict[str, Any] = {
        "arguments": [
            {"name": each.name, "several": each.nargs == -1} for each in taken if each.param_type_name == "argument"
        ],
        "options": [
            {
                "name": each.name,
                "flags": [*sorted(each.opts, key=len, reverse=True), *each.secondary_opts],  # those of help are a set
                "takes": not each.is_flag,
                "several": bool(each.multiple),
                "help": _plain(each.help or ""),
            }
            for each in taken
            if each.param_type_name == "option" and not each.hidden
        ],
    }
    if hasattr(command, "commands"):
        found["commands"] = {name: _listed(name, below) for name, below in command.commands.items()}
    if command.name == "meter":
        found["otherwise"] = "watch"
    return found


def _listed(name: str, command: Any) -> dict[str, Any]:
    """A verb below another, as a list of verbs shows it."""
    panel = getattr(command, "rich_help_panel", None)
    found = {"group": panel if isinstance(panel, str) else "", "summary": _plain(_first(command.help or ""))}
    found |= {"brief": _plain(command.get_short_help_str()), **_command(command)}
    return found | ({"swept": swept_keys(name)} if name in scenario_verbs() else {})


def _first(help: str) -> str:
    """The first paragraph."""
    return " ".join(help.partition("\n\n")[0].split())


def _plain(text: str) -> str:
    """Without the marks of Rich."""
    return " ".join(Text.from_markup(text).plain.split())


def _values() -> dict[str, list[tuple[str, str]]]:
    """The names that parameters take, each with what it is."""
    tables = (DATA / f"{name}.toml" for name in ("models", "gpus", "engines"))
    models, gpus, engines = (tomllib.loads(table.read_text("utf-8")) for table in tables)
    with (DATA / "offers.csv").open(encoding="utf-8", newline="") as file:
        offers = list(csv.DictReader(file))
    return {
        "models": [(key, row["name"]) for key, row in models.items()],
        "families": _named(row["family"] for row in models.values() if "family" in row),
        "gpus": [(key, f"{row['memory_gb']} GB, {row['architecture']}") for key, row in gpus["gpus"].items()],
        "architectures": _named(row["architecture"] for row in gpus["gpus"].values()),
        "engines": [(key, f"{row['name']} {row['version']}") for key, row in engines["engines"].items()],
        "providers": _named(row["provider"] for row in offers),
        "regions": _named(region for row in offers for region in row["region"].split("|")),
        "terms": [("on_demand", "by the hour"), ("spot", "may be interrupted"), ("reserved", "for a year or three")],
        "weights": [(precision.value, f"{precision.bits} bits") for precision in WEIGHT_PRECISIONS],
        "kv": [(precision.value, f"{precision.bits} bits") for precision in KV_PRECISIONS],
        "traces": [(name, "shipped sample") for name in TRACES],
        "lengths": [(f"sample:{name}", "lengths of a shipped sample") for name in SAMPLES],
        "verbs": [(name, "") for name in scenario_verbs()],
    }


def _named(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, "") for name in sorted(set(names))]


if __name__ == "__main__":
    WORDS.write_text(words(), encoding="utf-8")
