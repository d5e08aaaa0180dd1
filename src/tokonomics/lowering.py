"""Translate Python functions to LLVM code with Numba: the slow part of a compilation, the same on every machine.

Numba would optimise each function alone, then again inside each of its callers, and turn all of them into instructions.
Here they are only translated. All then go into one module, which is optimised once, and in which a function receives
only what it reads. The code depends neither on this machine nor on Python: an entry takes its arguments from one row of
eight bytes each (``machine_code.Entry``).
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core import codegen, cpu
from numba.extending import typeof_impl

_OPTIMISATION = 3


Function = Callable[..., object]
_typeof: Any = numba.typeof


def lower(
    entries: Mapping[str, tuple[Function, tuple[object, ...]]], marks: type, may_call: Collection[str]
) -> tuple[dict[str, str], bytes]:
    """Return the layout of each entry's arguments, and the LLVM code of all entries and of what they call.

    Entries are functions with the arguments to compile them for. They call only objects of the class ``marks``, which
    hold the ``function``, and the C functions that they ``may_call``.
    """
    typeof_impl.register(marks)(lambda called, _: numba.types.Dispatcher(_dispatcher(called.function)))
    whole, layouts = llvm.parse_assembly(""), dict[str, str]()
    linked: set[int] = set()
    with _translates_only():
        for name, (function, arguments) in entries.items():
            kinds = tuple(_typeof(argument) for argument in arguments)
            dispatcher = _dispatcher(function)
            dispatcher.compile(kinds)
            made = dispatcher.overloads[kinds]
            _link(whole, made.library, linked)
            native = whole.get_function(made.fndesc.mangled_name)
            whole.link_in(llvm.parse_assembly(_wrapper(name, native)))
            layouts[name] = ";".join(" ".join(_layout(argument)) for argument in arguments)
    _optimise(whole, set(layouts))
    foreign = {function.name for function in whole.functions if function.is_declaration} - set(may_call)
    foreign = {name for name in foreign if not name.startswith("llvm.")}
    if foreign:
        raise RuntimeError(f"compiled code calls what it may not: {', '.join(sorted(foreign))}")
    for number, function in enumerate(whole.functions):
        if not function.is_declaration and function.name not in layouts:
            function.name = f"inner{number}"  # Numba's own names contain all types
    return layouts, whole.as_bitcode()


@cache
def _dispatcher(function: Function) -> Any:
    """Return Numba's dispatcher of a function, without the parts that read Python objects or raise Python errors."""
    options: dict[str, Any] = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(error_model="numpy", **options)(function)


@contextmanager
def _translates_only() -> Iterator[None]:
    """Keep Numba from optimising and from generating instructions inside the block."""

    def keep_layout(library: Any, module: Any) -> None:
        module.data_layout = library._codegen._data_layout

    def end(library: Any) -> None:
        library._finalized = True

    patches = [
        (codegen.CPUCodeLibrary, "_optimize_functions", keep_layout),
        (codegen.CPUCodeLibrary, "finalize", end),
        (cpu.CPUContext, "get_executable", lambda *_: [].append),  # a builtin of its own, never called
    ]
    before = [getattr(owner, name) for owner, name, _ in patches]
    try:
        for owner, name, patch in patches:
            setattr(owner, name, patch)
        yield
    finally:
        for (owner, name, _), own in zip(patches, before, strict=True):
            setattr(owner, name, own)


def _link(whole: Any, library: Any, linked: set[int]) -> None:
    """Add a function's code and that of all functions it calls, each once."""
    if id(library) in linked:
        return
    linked.add(id(library))
    for called in library._linking_libraries:
        _link(whole, called, linked)
    whole.link_in(library._final_module, preserve=True)


def _wrapper(name: str, native: Any) -> str:
    """Write a function that reads a native function's arguments from a row and puts the result first in the row."""
    kinds = [str(argument.type) for argument in native.arguments]
    lines, passed = [], ["ptr %row", "ptr %raised"]
    for place, kind in enumerate(kinds[2:], 1):
        lines.append(f"  %at{place} = getelementptr i64, ptr %row, i64 {place}")
        lines.append(f"  %is{place} = load {kind}, ptr %at{place}")
        passed.append(f"{kind} %is{place}")
    return "\n".join(
        [
            f'declare i32 @"{native.name}"({", ".join(kinds)})',
            f"define i32 @{name}(ptr %row) {{",
            "  %raised = alloca ptr",
            *lines,
            f'  %status = call i32 @"{native.name}"({", ".join(passed)})',
            "  ret i32 %status",
            "}",
        ]
    )


def _layout(argument: Any) -> Iterator[str]:
    """Yield an argument's layout in the notation of ``machine_code.Code.layouts``."""
    if isinstance(argument, np.ndarray):
        yield f"{argument.ndim}{argument.dtype.kind}{argument.itemsize}"
    elif isinstance(argument, tuple):
        for field in argument:
            yield from _layout(field)
    else:
        yield "d" if isinstance(argument, float) else "q"


def _optimise(module: Any, exported: set[str]) -> None:
    """Optimise for any processor; the loops here are too short to gain from vectors."""
    for function in module.functions:
        if not function.is_declaration and function.name not in exported:
            function.linkage = "internal"
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"
    llvm.initialize_native_target()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=_OPTIMISATION)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    tuning = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISATION)
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
