"""Addresses of servers as people write them: checked in one way, and shown without what may be secret."""

from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

from tokonomics.errors import BadInput, shorten


def split_address(text: str) -> SplitResult | None:
    """The parts of an address over HTTP; None where it is none."""
    try:
        parts = urlsplit(text.strip())
        usable = parts.port != 0
    except ValueError:
        return None
    return parts if usable and parts.scheme in ("http", "https") and parts.hostname else None


def host_of(parts: SplitResult) -> str:
    """The host as it stands in an address: one of IPv6 in brackets."""
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def shown_address(text: str) -> str:
    """The address without user, password and query."""
    try:
        parts = urlsplit(text.strip())
        host = f"{host_of(parts)}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return "the address"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


class BenchTarget(NamedTuple):
    """An endpoint of an OpenAI-compatible server."""

    url: str
    models_url: str
    chat: bool  # chat completions; otherwise plain completions

    @property
    def shown(self) -> str:
        return shown_address(self.url)


def target(url: str) -> BenchTarget:
    """The endpoint meant by ``http://host:8000``, ``…/v1`` or a whole path."""
    parts = split_address(url)
    if parts is None:
        said = f"'{shorten(shown_address(url))}' is not the address of a server"
        raise BadInput(said, fix="Write for example http://localhost:8000.")
    path = parts.path.rstrip("/")
    if path.endswith("/completions"):
        base = path.removesuffix("/completions").removesuffix("/chat")
        chat = path.endswith("/chat/completions")
    else:
        base = path if path.rsplit("/", 1)[-1].startswith("v") else f"{path}/v1"
        path, chat = f"{base}/chat/completions", True
    url, models_url = (urlunsplit((parts.scheme, parts.netloc, at, parts.query, "")) for at in (path, f"{base}/models"))
    return BenchTarget(url, models_url, chat)
