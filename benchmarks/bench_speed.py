"""How fast step times come, next to a peer's (plans: ``bench_plan.py``).

python benchmarks/bench_speed.py
"""

import time

import numpy as np

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import deploy
from tokonomics.physics.steptime import decode_step

AICONFIGURATOR_S = 0.22e-3
"""One query of aiconfigurator 0.12.0 on a machine of this kind (2 cores, aarch64), 2026."""


def main() -> None:
    deployment = deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm"))
    batch = np.tile(np.arange(1, 257), 4096)
    context = np.repeat(np.arange(1, 4097), 256)
    started = time.perf_counter()
    decode_step(deployment, batch, context)
    took = time.perf_counter() - started
    each = took / len(batch)
    print(f"step times: {1 / each / 1e6:.1f} million a second, one core, arrays of {len(batch):,}")
    longer = AICONFIGURATOR_S / each
    print(f"aiconfigurator 0.12.0 takes {AICONFIGURATOR_S * 1e3:.2f} ms a query: {longer:,.0f} times as long")


if __name__ == "__main__":
    main()
