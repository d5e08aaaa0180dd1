"""The licences of what tokonomics needs to run, as the installed packages state them: ``make licences`` prints them.

Apache-2.0 code may depend on permissively licensed code and on MPL-2.0 code used unchanged; nothing else is expected.
"""

import re
from importlib import metadata
from pathlib import Path

LOCK = Path(__file__).parents[2] / "requirements" / "run.lock"
COMPATIBLE = re.compile(
    r"\b(apache|mit|bsd|isc|psf|python software foundation|mpl|mozilla public|unlicense|0bsd|hpnd)", re.I
)


def locked() -> dict[str, str]:
    """Names and versions in the lock of what a user installs."""
    return dict(re.findall(r"^([A-Za-z0-9_.\-]+)==([^\s;\\]+)", LOCK.read_text(encoding="utf-8"), re.M))


def licence(name: str) -> str:
    """What the package says of itself: the expression, else the classifiers, else the first line of its licence."""
    about = metadata.metadata(name)
    if "License-Expression" in about:
        return about["License-Expression"]
    named = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    if named:
        return ", ".join(named)
    texts = about.get_all("License", ["unknown"])
    return texts[0].strip().partition("\n")[0]


def installed() -> dict[str, str]:
    """Every locked package that this platform needs, with its licence."""
    found = {}
    for name in locked():
        try:
            found[name] = licence(name)
        except metadata.PackageNotFoundError:  # for another platform, such as colorama for Windows
            continue
    return found


if __name__ == "__main__":
    for name, terms in installed().items():
        print(f"{name:28} {locked()[name]:14} {terms}{'' if COMPATIBLE.search(terms) else '   <- look at this one'}")  # noqa: T201
