"""Load machine code of functions that are compiled together: made from LLVM code once per machine, then kept on disk.

Most of a compiler's time goes into turning Python into LLVM code (``lowering``, by Numba). That code is the same on
every 64-bit machine, so the wheel ships it beside its sources (``make code``), and a new user's first run only turns it
into instructions for the processor at hand. It is made anew if the sources have changed, or if a newer LLVM than the
one at hand wrote it: LLVM reads what older versions wrote, and may fail in any way on what newer ones did.

Instructions are kept in a folder named after the sources and the version of LLVM: a changed line anywhere means a fresh
start, copies of the same sources share their code, and a read-only installation can keep its code too. A truncated or
damaged file would crash the process, so each file ends with a checksum and is made anew if that does not match. If the
disk is full, code is made and not kept.
"""

import ctypes
import hashlib
import json
import os
import shutil
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from tokonomics.errors import BadInput
from tokonomics.files import whole

_KEPT_S = 30 * 86_400
_CRC_BYTES = 4
_SUFFIX = ".code"

Function = TypeVar("Function", bound=Callable[..., object])


class Code(NamedTuple):
    """LLVM code or instructions, with the layout of what each function is given."""

    layouts: Mapping[str, str]
    """By function, one layout per argument, separated by semicolons: ``q`` for an integer, ``d`` for a float,
    ``1f8`` for an array (its dimensions, then NumPy's kind and bytes of an item); a named tuple has several."""
    body: bytes
    llvm: int  # the version of LLVM that wrote it

    def pack(self) -> bytes:
        """Return the content of a code file."""
        told = {"llvm": self.llvm, "layouts": self.layouts}
        data = json.dumps(told).encode() + b"\n" + zlib.compress(self.body, 9)
        return data + zlib.crc32(data).to_bytes(_CRC_BYTES, "big")


def read_code(file: Path) -> Code | None:
    """Read a code file; return None if there is no file or its checksum does not match."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    data, crc = content[:-_CRC_BYTES], content[-_CRC_BYTES:]
    if not data or zlib.crc32(data).to_bytes(_CRC_BYTES, "big") != crc:
        return None
    header, _, body = data.partition(b"\n")
    return Code(body=zlib.decompress(body), **json.loads(header))


class Compiled:
    """A function that compiled functions call."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self.__doc__, self.__name__ = function.__doc__, function.__name__


class Entry(Compiled):
    """A function that Python calls too. Its arguments are in one row of eight bytes each, after the result."""

    def __init__(self, function: Callable[..., object], unit: "Unit") -> None:
        super().__init__(function)
        self.unit = unit

    @cached_property
    def _loaded(self) -> "_Loaded":
        return self.unit.load(self.function.__name__)

    def __call__(self, *arguments: object) -> Any:
        loaded = self._loaded
        if len(arguments) != len(loaded.layouts):
            raise TypeError(f"{self.function.__name__} takes {len(loaded.layouts)} arguments")
        row = bytearray(b"".join((_NO_RESULT, *map(_packed, arguments, loaded.layouts))))
        if loaded.call(ctypes.addressof(ctypes.c_char.from_buffer(row))):
            raise RuntimeError(f"{self.function.__name__} failed")
        return loaded.result(row)


class Passed:
    """A named tuple that is often passed to compiled code, so how it is passed is worked out once."""

    def __getstate__(self) -> None:
        """Keep nothing in a copy: its arrays are at other addresses."""


_NO_RESULT = bytes(8)
_NUMBERS = {kind: struct.Struct(kind).pack for kind in "qd"}


def _packed(argument: Any, layout: str) -> bytes:
    """Pack an argument into places of eight bytes, as Numba passes it: an array is its size, address and shape."""
    if number := _NUMBERS.get(layout):
        return number(argument)
    if isinstance(argument, Passed):
        kept = vars(argument).get("packed")
        if kept is None:
            kept = vars(argument)["packed"] = _pack(argument, layout)
        return cast(bytes, kept)
    return _pack(argument, layout)


def _pack(argument: Any, layout: str) -> bytes:
    parts = []
    for part, kind in zip(_parts(argument), layout.split(), strict=True):
        if not isinstance(part, np.ndarray):
            parts.append(_NUMBERS[kind](part))
            continue
        given = f"{part.ndim}{part.dtype.kind}{part.itemsize}"
        if given != kind or not part.flags.c_contiguous:
            raise TypeError(f"an array of {given} or with gaps where {kind} was compiled for")
        values = (0, 0, part.size, part.itemsize, part.ctypes.data, *part.shape, *part.strides)
        parts.append(struct.pack(f"{len(values)}q", *values))
    return b"".join(parts)


def _parts(argument: Any) -> Iterator[Any]:
    """Yield the numbers and arrays of a named tuple, or the argument itself."""
    if isinstance(argument, tuple):
        for field in argument:
            yield from _parts(field)
    else:
        yield argument


class _Loaded(NamedTuple):
    call: Callable[[int], int]
    layouts: list[str]  # one for each argument
    result: Callable[[bytearray], object]


_RESULTS: dict[type | None, Callable[[bytearray], object]] = {
    bool: lambda row: row[0] != 0,
    int: lambda row: int.from_bytes(row[:8], sys.byteorder, signed=True),
    float: lambda row: struct.unpack_from("d", row)[0],
    None: lambda row: None,
}


class Unit:
    """Functions that are compiled together; ``examples`` holds arguments for each one that Python calls."""

    def __init__(self, name: str, sources: Sequence[Path], examples: Callable[[], Mapping[str, tuple[object, ...]]]):
        self.name, self.sources, self.examples = name, sources, examples
        self.entries: dict[str, Entry] = {}
        self._one_at_a_time = RLock()

    def entry(self, function: Function) -> Function:
        """Mark a function that Python calls; the first call compiles the unit, or loads the code of an earlier run."""
        self.entries[function.__name__] = Entry(function, self)
        return cast(Function, self.entries[function.__name__])

    def compiled(self, function: Function) -> Function:
        """Mark a function that only compiled functions call."""
        return cast(Function, Compiled(function))

    @cached_property
    def digest(self) -> str:
        """Return a hash of all sources and of the modules that make and read code; other code is not trusted."""
        text = hashlib.sha256()
        for source in (*self.sources, Path(__file__).with_name("lowering.py"), Path(__file__)):
            text.update(source.read_bytes())
        return text.hexdigest()[:16]

    @property
    def shipped(self) -> Path:
        """Return the file in which the LLVM code of these sources is shipped."""
        return self.sources[0].with_name(f"{self.name}-{self.digest}.llvm")

    @cached_property
    def folder(self) -> Path | None:
        """Return the folder that keeps the code of today's sources; None if nothing can be written."""
        import llvmlite

        home = os.environ.get("XDG_CACHE_HOME")
        try:
            parent = (Path(home) if home else Path.home() / ".cache") / "tokonomics"
            folder = parent / f"{self.name}-{self.digest}-{llvmlite.__version__}"
            if folder.exists():
                os.utime(folder)  # marks it as in use
            else:
                folder.mkdir(parents=True, exist_ok=True)
                _forget_others(folder, self.name)
        except (OSError, RuntimeError):  # no home folder, or not writable
            return None
        return folder if os.access(folder, os.W_OK) else None

    @property
    def must_compile(self) -> bool:
        """Tell whether today's sources are not yet compiled for this processor: the first run then takes a while."""
        return self.folder is None or read_code(self.folder / _file_name()) is None

    @property
    def must_translate(self) -> bool:
        """Tell whether there is no usable shipped LLVM code either: the first run then takes much longer."""
        shipped = read_code(self.shipped)
        return shipped is None or shipped.llvm > _llvm()

    def load(self, name: str) -> _Loaded:
        """Return a function of the machine code, callable from Python."""
        # If two threads made the first call at once, each would make an engine, and one engine would be destroyed
        # together with the code that was loaded from it.
        with self._one_at_a_time:
            layouts = self._instructions.layouts[name].split(";")
            address = self._engine.get_function_address(name)
        returns = self.entries[name].function.__annotations__["return"]
        return _Loaded(ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(address), layouts, _RESULTS[returns])

    @cached_property
    def _instructions(self) -> Code:
        file = self.folder / _file_name() if self.folder else None
        kept = read_code(file) if file else None
        if kept is not None:
            return kept
        made = _compiled(read_code(self.shipped)) or _compiled(self.lowered())
        assert made is not None
        if file:
            with suppress(BadInput), whole(file, "code") as unfinished:  # a full disk: the next run compiles again
                unfinished.write_bytes(made.pack())
        return made

    def lowered(self) -> Code:
        """Make the LLVM code of today's sources anew, for shipping."""
        from tokonomics.lowering import lower

        examples = self.examples()
        entries = {name: (entry.function, examples[name]) for name, entry in self.entries.items()}
        return Code(*lower(entries, Compiled, LIBC), llvm=_llvm())

    @cached_property
    def _engine(self) -> Any:
        import llvmlite.binding as llvm

        machine = _machine()
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        for symbol, address in _libc().items():
            llvm.add_symbol(symbol, address)
        engine.add_object_file(llvm.ObjectFileRef.from_data(self._instructions.body))
        engine.finalize_object()
        return engine


def _file_name() -> str:
    """Return the name of the code file for this processor."""
    machine = _machine()
    kind = hashlib.sha256(f"{machine.triple} {_features()}".encode()).hexdigest()[:16]
    return f"{kind}{_SUFFIX}"


def _features() -> str:
    import llvmlite.binding as llvm

    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def _machine() -> Any:
    """Return LLVM's target machine for this processor."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if target.name.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )


LIBC = ("exp", "log2", "memcpy", "memmove", "memset")  # functions of C that compiled code may call


def _libc() -> dict[str, int]:
    library = ctypes.CDLL("ucrtbase" if os.name == "nt" else None)
    return {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in LIBC}


def _llvm() -> int:
    """Return the version of the LLVM at hand."""
    import llvmlite.binding as llvm

    return int(llvm.llvm_version_info[0])


def _compiled(lowered: Code | None) -> Code | None:
    """Turn LLVM code into instructions; return None if there is none, or this LLVM cannot read it."""
    import llvmlite.binding as llvm

    if lowered is None or lowered.llvm > _llvm():
        return None
    machine = _machine()
    try:
        module = llvm.parse_bitcode(lowered.body)
    except RuntimeError:
        return None
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    return Code(lowered.layouts, machine.emit_object(module), lowered.llvm)


def _forget_others(folder: Path, name: str) -> None:
    """Remove code of other sources that nobody has run for a month."""
    for other in folder.parent.glob(f"{name}-*"):
        with suppress(FileNotFoundError):  # another process was quicker
            if time.time() - other.stat().st_mtime > _KEPT_S:
                shutil.rmtree(other, ignore_errors=True)
