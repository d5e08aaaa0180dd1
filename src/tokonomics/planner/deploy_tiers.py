"""Engine flags for the memories behind the GPUs' KV cache that a plan counted on: host memory, disks, a shared folder.

vLLM 0.32.0 keeps KV in host memory with ``--kv-offloading-size``, in GiB of one engine however many ranks it has
(config/cache.py, config/vllm.py); what lies behind host memory is a list of its offloading connector
(v1/kv_offload/tiering/spec.py). Each group of the attention is an engine, and so are its memories. SGLang 0.5.23 counts
host memory in whole GB of each rank (``--hicache-size``: mem_cache/pool_host/base.py), and has one store behind it
(mem_cache/hicache_storage.py). Both write KV through as it is computed, as the plan assumes.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from tokonomics.errors import BadInput, option
from tokonomics.money.cache_tiers import parse_tiers
from tokonomics.physics.deployment import Deployment
from tokonomics.units import BYTES_PER_GB, GIB

KV_FOLDER = "FILL-IN-kv-folder"
SHARED_KV_FOLDER = "FILL-IN-shared-kv-folder"


class Memories(NamedTuple):
    """Flags by name without dashes, and what the user has to fill in."""

    flags: Mapping[str, object]
    fill_in: tuple[str, ...] = ()


def tier_bytes(deployment: Deployment, tiers: str | None) -> dict[str, float]:
    """Bytes of each memory by name: of one replica, or of all together where it is shared."""
    return {price.tier.name: price.tier.size_bytes for price in parse_tiers(tiers, deployment)} if tiers else {}


def vllm_memories(deployment: Deployment, tiers: str | None) -> Memories:
    """Host memory by its own flag; with disks or a shared folder, the connector's configuration instead."""
    sizes = tier_bytes(deployment, tiers)
    host = sizes.get("dram", 0.0) / deployment.dp
    if not sizes:
        return Memories({})
    if not host:
        raise BadInput(
            "vLLM keeps KV on disks behind host memory only",
            field="tiers",
            fix=f"Such as {option('tiers', f'dram=100@0,{tiers}')}.",
        )
    if len(sizes) == 1:
        return Memories({"kv-offloading-size": f"{host / GIB:.1f}"})
    folders = {"ssd": KV_FOLDER, "remote": SHARED_KV_FOLDER}
    behind = [{"type": "fs", "root_dir": folders[name]} for name in sizes if name != "dram"]
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": int(host), "secondary_tiers": behind}
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    fill_in = tuple(
        f"{folders[name]}: a folder on {where} of {sizes[name] / BYTES_PER_GB:g} GB that vLLM does not clear by itself"
        for name, where in (("ssd", "a disk"), ("remote", "a file system that all replicas share"))
        if name in sizes
    )
    return Memories({"kv-transfer-config": json.dumps(config)}, fill_in)


def sglang_memories(deployment: Deployment, tiers: str | None) -> Memories:
    """Its hierarchical cache: of host memory each rank has its part, and one store may lie behind."""
    sizes = tier_bytes(deployment, tiers)
    if not sizes:
        return Memories({})
    behind = [name for name in sizes if name != "dram"]
    host_gb = int(sizes.get("dram", 0.0) / deployment.gpus // BYTES_PER_GB)
    if not host_gb or len(behind) > 1:
        what = "needs a GB of host memory for each GPU" if not host_gb else "has one store behind host memory, not two"
        raise BadInput(
            f"SGLang's hierarchical cache {what}",
            field="tiers",
            fix=f"Such as {option('tiers', f'dram={deployment.gpus}@0,ssd=1000@0')}.",
        )
    flags: dict[str, object] = {"enable-hierarchical-cache": True, "hicache-size": host_gb}
    if not behind:
        return Memories(flags)
    shared = behind == ["remote"]
    folder = SHARED_KV_FOLDER if shared else KV_FOLDER
    # Each rank clears its own part of the folder.
    extra = {"file_storage_path": folder, "max_size": int(sizes[behind[0]] / deployment.gpus)}
    flags |= {"hicache-storage-backend": "file", "hicache-storage-backend-extra-config": json.dumps(extra)}
    where = "a file system that all replicas share" if shared else "a disk"
    return Memories(flags, (f"{folder}: a folder on {where}, {sizes[behind[0]] / BYTES_PER_GB:g} GB",))
