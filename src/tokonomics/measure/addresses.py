"""Addresses of servers as people write them: checked in one way, and shown without what may be secret."""

from urllib.parse import SplitResult, urlsplit, urlunsplit


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
    """Without user, password and query."""
    try:
        parts = urlsplit(text.strip())
        host = f"{host_of(parts)}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return "the address"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
