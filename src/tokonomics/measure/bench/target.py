"""Where requests go: the address of a server as people write it, and the endpoint that is meant."""

from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from tokonomics.errors import BadInput, shorten


class Target(NamedTuple):
    """An endpoint of an OpenAI-compatible server."""

    url: str
    models_url: str
    chat: bool
    """Chat completions; otherwise plain completions."""

    @property
    def shown(self) -> str:
        """Without what may be secret: user, password, query."""
        return _bare(self.url)


def target(url: str) -> Target:
    """``http://host:8000``, ``…/v1`` or a whole endpoint."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise BadInput(f"'{shorten(_bare(url))}' is no address of a server", fix="Write such as http://localhost:8000.")
    path = parts.path.rstrip("/")
    if path.endswith("/completions"):
        base = path.removesuffix("/completions").removesuffix("/chat")
        chat = path.endswith("/chat/completions")
    else:
        base = path if path.endswith("/v1") or path.rsplit("/", 1)[-1].startswith("v") else f"{path}/v1"
        path, chat = f"{base}/chat/completions", True
    made = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    return Target(made, urlunsplit((parts.scheme, parts.netloc, f"{base}/models", parts.query, "")), chat)


def _bare(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return "the address"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
