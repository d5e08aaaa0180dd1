"""Where requests go: the address of a server as people write it, and the endpoint that is meant."""

from typing import NamedTuple
from urllib.parse import urlunsplit

from tokonomics.errors import BadInput, shorten
from tokonomics.measure.addresses import shown_address, split_address


class BenchTarget(NamedTuple):
    """An endpoint of an OpenAI-compatible server."""

    url: str
    models_url: str
    chat: bool
    """Chat completions; otherwise plain completions."""

    @property
    def shown(self) -> str:
        """Without what may be secret: user, password, query."""
        return shown_address(self.url)


def target(url: str) -> BenchTarget:
    """``http://host:8000``, ``…/v1`` or a whole endpoint."""
    parts = split_address(url)
    if parts is None:
        raise BadInput(
            f"'{shorten(shown_address(url))}' is no address of a server", fix="Write such as http://localhost:8000."
        )
    path = parts.path.rstrip("/")
    if path.endswith("/completions"):
        base = path.removesuffix("/completions").removesuffix("/chat")
        chat = path.endswith("/chat/completions")
    else:
        base = path if path.endswith("/v1") or path.rsplit("/", 1)[-1].startswith("v") else f"{path}/v1"
        path, chat = f"{base}/chat/completions", True
    made = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    return BenchTarget(made, urlunsplit((parts.scheme, parts.netloc, f"{base}/models", parts.query, "")), chat)
