"""Put LLVM code of today's sources beside them, where it is that of others: what a user's first run begins with.

python docs/ship_code.py   (`make code`; `make demo`, `make test` and `make dist` do it too)
"""

from tokonomics.machine_code import Unit
from tokonomics.serving import loop
from tokonomics.serving.compiled import SIMULATOR
from tokonomics.traffic.prefix_reuse import REUSE

UNITS: tuple[Unit, ...] = (SIMULATOR, REUSE)
assert loop.serve_until in SIMULATOR.entries.values()


def main() -> None:
    for unit in UNITS:
        if not unit.shipped.exists():
            print(f"Translating {unit.name}, once for these sources: a quarter of a minute …", flush=True)
            made = unit.lowered().pack()
            for other in unit.shipped.parent.glob(f"{unit.name}-*.llvm"):
                other.unlink()
            unit.shipped.write_bytes(made)


if __name__ == "__main__":
    main()
