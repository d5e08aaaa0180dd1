"""Which files beyond docs/ are pages of the site, and links that work both on a code host and in it.

The repository's own pages (README, CONTRIBUTING, the READMEs of data) stay where a reader of the code looks for them.
mkdocs calls these functions: the first puts copies into the site, the second points every link at the copy. A link to a
file that the site does not have is left alone, and fails a strict build.
"""

import posixpath
import re
from typing import Any

from links import ROOT, outside_code
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "NOTICE": "notice.md",
    "benchmarks/data/README.md": "data/measurements.md",
    "src/tokonomics/catalog/data/README.md": "data/catalogue.md",
    "src/tokonomics/catalog/data/engines.toml": "data/engines.toml",
    "src/tokonomics/traffic/data/README.md": "data/traffic-samples.md",
    "tests/measure/results/README.md": "data/result-samples.md",
}
"""Path in the repository, and its place in the site."""
_LINK = re.compile(r"\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that live outside docs/."""
    for source, place in OUTSIDE.items():
        if (ROOT / source).exists():
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, place, content=f"# Notice\n\n{text}" if source == "NOTICE" else text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Point links at the place that their target has in the site."""
    place = page.file.src_uri
    source = next((path for path, put in OUTSIDE.items() if put == place), f"docs/{place}")

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["target"]))
        there = OUTSIDE.get(target) or target.removeprefix("docs/")
        if there == target:
            return link[0]
        return f"]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{link['anchor'] or ''})"

    return outside_code(markdown, lambda text: _LINK.sub(moved, text))
