"""Do the links of the README and the guide lead somewhere: to a file that is there, and to a heading in it?

Reads Markdown as people write it here: links ``[text](path#anchor)`` outside code, headings of one line. Anchors are made
the way code hosts make them; the site is told to do the same (``slugify`` in mkdocs.yml).
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
_CODE = re.compile(r"(^```.*?^```|^~~~.*?^~~~|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *#*$", re.MULTILINE)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change the prose, and leave code as it is."""
    return "".join(part if place % 2 else change(part) for place, part in enumerate(_CODE.split(text)))


def anchors(text: str) -> set[str]:
    """What a link can point at in a page: its headings in lower case, spaces as hyphens, most signs left out."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found: dict[str, int] = {}
    made = set()
    for heading in _HEADING.finditer(prose):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["text"]).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        made.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return made


def broken_links(page: Path) -> Iterator[str]:
    """What is wrong with each link of a page that leads nowhere; addresses of other hosts are not looked at."""
    prose = "".join(_CODE.split(page.read_text(encoding="utf-8"))[::2])
    for link in _LINK.finditer(prose):
        path, _, anchor = link["target"].partition("#")
        if ":" in path:
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists():
            yield f"{page.relative_to(ROOT)} links to {link['target']}: no such file"
        elif anchor and anchor not in anchors(there.read_text(encoding="utf-8")):
            yield f"{page.relative_to(ROOT)} links to {link['target']}: no such heading"
