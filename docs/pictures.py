"""Pictures of the guide in few bytes: no labels that a picture inside a page cannot say, and no more than 256 colours.

A PNG is read and written here by its own definition (https://www.w3.org/TR/png-3/): nothing else needs a library for it.
"""

import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

UNSAID = re.compile(r' (?:aria-[a-z]+|role)="[^"]*"')
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def slim(path: Path) -> None:
    """Write the picture again, smaller and alike."""
    if path.suffix == ".svg":
        path.write_text(UNSAID.sub("", path.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        path.write_bytes(in_few_colours(path.read_bytes()))


def in_few_colours(png: bytes) -> bytes:
    """Return an opaque picture of 8 bits a channel in its 256 most frequent colours, each other as the nearest of them."""
    pixels = _pixels(png)
    height, width, _ = pixels.shape
    packed = pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]
    colours, of_pixel, counts = np.unique(packed, return_inverse=True, return_counts=True)
    red_green_blue = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1)
    palette = red_green_blue[np.argsort(-counts, kind="stable")[:256]]
    nearest = np.array([((palette - colour) ** 2).sum(axis=1).argmin() for colour in red_green_blue], dtype=np.uint8)
    lines = np.pad(nearest[of_pixel].reshape(height, width), ((0, 0), (1, 0)))  # each begins with its filter: none
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": palette.astype(np.uint8).tobytes(),
        b"IDAT": zlib.compress(lines.tobytes(), 9),
        b"IEND": b"",
    }
    return SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks.items()
    )


def _pixels(png: bytes) -> Any:
    """Return height × width × channels of a picture that is not interlaced, its filters undone."""
    place, packed, head = len(SIGNATURE), b"", b""
    while place < len(png):
        length, kind = struct.unpack(">I4s", png[place : place + 8])
        body = png[place + 8 : place + 8 + length]
        head, packed = body if kind == b"IHDR" else head, packed + (body if kind == b"IDAT" else b"")
        place += 12 + length
    width, height, depth, colour_type, *_ = struct.unpack(">IIBBBBB", head)
    assert (depth, colour_type) in ((8, 2), (8, 6)), "red, green and blue, with or without alpha"
    step = 3 if colour_type == 2 else 4
    raw, size = zlib.decompress(packed), width * step
    above, rows = bytearray(size), []
    for start in range(0, len(raw), size + 1):
        row = bytearray(raw[start + 1 : start + 1 + size])
        if raw[start]:
            _unfilter(row, above, step, raw[start])
        rows.append(row)
        above = row
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(height, width, step).astype(np.int64)


def _unfilter(row: bytearray, above: bytearray, step: int, kind: int) -> None:
    """Add to each byte what its filter had predicted from those to the left, above, and above to the left."""
    for place, upper in enumerate(above):
        left, corner = (row[place - step], above[place - step]) if place >= step else (0, 0)
        if kind == 4:  # Paeth: whichever of the three is nearest to left + upper - corner
            guess = min((left, upper, corner), key=lambda near: abs(left + upper - corner - near))
        else:
            guess = (left, upper, (left + upper) // 2)[kind - 1]
        row[place] = (row[place] + guess) % 256
