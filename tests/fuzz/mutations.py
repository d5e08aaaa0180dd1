"""Spoils a valid file the way people, tools and attackers do: one to three edits of its structure, text or bytes.

The random source is given, so that hypothesis (which shrinks what it finds) and atheris (which keeps what reaches new
code) make the same kinds of edit.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator, MutableSequence
from random import Random
from typing import Any

RAW = {
    "@@nan@@": "NaN", "@@inf@@": "Infinity", "@@overflow@@": "1e999", "@@digits@@": "9" * 5000,
    "@@long@@": "1" + "0" * 400, "@@deep list@@": "[" * 20_000 + "]" * 20_000,
    "@@deep object@@": '{"a":' * 20_000 + "1" + "}" * 20_000, "@@lone surrogate@@": '"\\ud800"',
}  # fmt: skip
"""JSON that ``json.dumps`` does not write, by what stands for it until the text is made."""
VALUES: tuple[Any, ...] = (
    *RAW, None, True, False, "", "x", " ", "nan", "inf", "-1", "1e400", "²", "\u0000", "\u202e", "a" * 5000,
    "é" * 200, "٣", 0, -1, 1, 2, 3, 0.5, -0.0, 1e-320, 1e300, -1e300, 2**31, 2**53, 2**63, 2**64, 10**18,
    -(2**63), [], {}, [[]], [None], [1, 2, 3], {"": ""}, {"a": None}, ["a", 1, None],
)  # fmt: skip
TOKENS = (
    "", " ", "\n", "\r\n", "\t", "\x00", "\ufeff", "\ufffd", ",", ",,", ";", "|", '"', "'", '""', "{", "}", "[",
    "]", "[[", "=", "==", ":", "::", "#", "\\", "/", "../", "%", "@", "-", "--", "+", ".", "..", "e", "x", "0",
    "-0", "1", "-1", "00", "1.5", "1e5", "1e-400", "1e400", "1e999", "nan", "NaN", "inf", "-inf", "Infinity",
    "true", "null", "None", "²", "٣", "१", "9" * 30, "9" * 5000, "a" * 3000, "0x10", "1_000", "1,000",
    "2026-13-45", "1979-05-27T07:32:00Z", "0000-00-00", "9999-12-31", "\ud7ff", "\U0001f4a9", "data:", "[DONE]",
    "inf:nan", "low:mid:high", "1:2:3", "upload:x", "sample:", "trace:", "p99", "p100", "ms", "h", "d",
)  # fmt: skip


def spoilt(seed: bytes, chance: Random) -> bytes:
    """The seed with one to three edits; now and then something that is no file of the kind at all."""
    kind = chance.randrange(20)
    if kind == 0:
        return bytes(chance.getrandbits(8) for _ in range(chance.randrange(40)))
    if kind == 1:
        return _encoded(seed, chance)
    made = seed
    for _ in range(chance.choice([1, 1, 2, 3])):
        edits: list[Callable[[bytes, Random], bytes]] = [_tokens, _tokens, _lines, _bytes]
        if made.lstrip()[:1] in (b"{", b"["):
            edits += [_json] * 8
        made = chance.choice(edits)(made, chance)
    return made


def _json(seed: bytes, chance: Random) -> bytes:
    """A value of a document exchanged, taken away, doubled or renamed; of JSON lines, of one line."""
    lines = seed.splitlines()
    try:
        whole = [json.loads(seed)]
    except (ValueError, RecursionError):
        try:
            whole = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return _tokens(seed, chance)
    root = [chance.choice(whole)] if len(whole) > 1 else whole
    places = list(_places(root))
    holder, key = places[chance.randrange(len(places))]
    match chance.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder[key:key] = [holder[key]] * chance.randrange(1, 50)
        case 1:
            holder[f"{key}_"] = holder.pop(key)
        case 2 if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = chance.choice(_near(holder[key]))
        case _:
            holder[key] = chance.choice(VALUES)
    try:
        text = "\n".join(json.dumps(each) for each in (whole if len(whole) > 1 else root))
    except (ValueError, RecursionError):
        return seed
    for token, raw in RAW.items():
        text = text.replace(json.dumps(token), raw)
    return text.encode()


def _near(number: float) -> list[Any]:
    """Numbers that a slip of the hand makes of one; half of them still make sense."""
    if abs(number) > 1e290:  # spoilt before, beyond what can be reckoned with
        return [0]
    return [number * 2, number // 2, number + 1, number * 8, -number, number * 1e9, str(number), number + 0.5, 0]


def _places(value: Any, most: int = 2000) -> Iterator[tuple[Any, Any]]:
    """Where a document has values: the holder of each, and its key or index there."""
    queue: MutableSequence[Any] = [value]
    for holder in queue:
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            if isinstance(holder[key], dict | list) and len(queue) < most:
                queue.append(holder[key])


def _tokens(seed: bytes, chance: Random) -> bytes:
    """A word, number or sign exchanged, taken away or doubled."""
    words = re.findall(rb"[\w.+-]+|\s+|[^\w\s]", seed)
    if not words:
        return chance.choice(TOKENS).encode("utf-8", "surrogatepass")
    at = chance.randrange(len(words))
    new = chance.choice(TOKENS).encode("utf-8", "surrogatepass")
    match chance.randrange(5):
        case 0:
            words[at] = b""
        case 1:
            words[at] *= chance.choice([2, 3, 50])
        case 2:
            words[at] = words[chance.randrange(len(words))]
        case 3:
            words.insert(at, new)
        case _:
            words[at] = new
    return b"".join(words)


def _lines(seed: bytes, chance: Random) -> bytes:
    lines = seed.split(b"\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines[at:at] = [lines[other]] * chance.randrange(1, 30)
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
    return b"\n".join(lines)


def _bytes(seed: bytes, chance: Random) -> bytes:
    at = chance.randrange(len(seed) + 1)
    match chance.randrange(4):
        case 0:
            return seed[:at]
        case 1:
            return seed[:at] + bytes([chance.getrandbits(8)]) + seed[at + 1 :]
        case 2:
            return seed[:at] + chance.choice([b"\x00", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\r"]) + seed[at:]
        case _:
            return seed[:at] + seed[at + chance.randrange(1, 20) :]


def _encoded(seed: bytes, chance: Random) -> bytes:
    """The same in another encoding or packing, whole or cut."""
    packed = gzip.compress(seed, mtime=0)
    ways = [
        seed.decode("utf-8", "replace").encode("utf-16"),
        seed.decode("utf-8", "replace").encode("latin-1", "replace"),
        b"\xef\xbb\xbf" + seed,
        packed,
        packed[: chance.randrange(len(packed) + 1)],
        b"PK\x03\x04" + seed,
        b"PAR1" + seed,
        b"\x28\xb5\x2f\xfd" + seed,
        b"",
    ]
    return chance.choice(ways)
