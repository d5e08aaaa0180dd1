"""How fast KV travels from a GPU that computed a prompt to one that answers: links by name, at their line rate.

A rate is that of one GPU in one direction. ``nvlink`` and ``pcie`` are the GPU's own, from the catalogue; the others
are a network port for each GPU, as machines of eight are built.
"""

from tokonomics.catalog.gpus import Gpu
from tokonomics.errors import BadInput, did_you_mean, option, shorten
from tokonomics.units import BYTES_PER_GB

PORTS = {"ib800": 100e9, "ib400": 50e9, "ib200": 25e9, "roce400": 50e9, "ethernet100": 12.5e9}
"""Bytes a second of one port, in one direction."""
SOURCES = {
    "ib800": "NVIDIA DGX B300 datasheet, 2025: eight ConnectX-8 of 800 Gbit/s, one for each GPU",
    "ib400": "NVIDIA DGX H100 datasheet, 2023: eight ConnectX-7 of 400 Gbit/s, one for each GPU",
    "ib200": "NVIDIA DGX A100 datasheet, 2020: eight ConnectX-6 of 200 Gbit/s, one for each GPU",
    "roce400": "Gangidi et al., RDMA over Ethernet for distributed AI training at Meta scale, SIGCOMM 2024",
    "ethernet100": "IEEE 802.3ba: 100 Gbit/s",
}
"""Where each rate is from."""
OWN = ("nvlink", "pcie")
"""Links inside a machine, as fast as the GPU's."""
LINK_NAMES = (*OWN, *PORTS)
_SLOWEST_GB, _FASTEST_GB = 1e-3, 1e6


def link_speed(text: str, *gpus: Gpu) -> float:
    """Bytes a second of a link between such GPUs: its name, or GB/s as a number."""
    name = text.strip().lower()
    if name in PORTS:
        return PORTS[name]
    if name in OWN:
        speeds = [gpu.pcie_bytes_per_s if name == "pcie" else gpu.fast_link_bytes_per_s for gpu in gpus]
        if missing := [gpu.key for gpu, speed in zip(gpus, speeds, strict=True) if speed is None]:
            fix = f"Use {option('link', 'pcie')}, or a network such as {option('link', 'ib400')}."
            raise BadInput(f"{missing[0]} has no NVLink or link like it", field="link", fix=fix)
        return min(speed for speed in speeds if speed is not None)
    try:
        gigabytes = float(name)
    except ValueError:
        guess = did_you_mean(name, LINK_NAMES, 1) or ""
        fix = f"Give GB/s, or one of {', '.join(LINK_NAMES)}. {guess}".rstrip()
        raise BadInput(f"'{shorten(text)}' is no link", field="link", fix=fix) from None
    if not _SLOWEST_GB <= gigabytes <= _FASTEST_GB:
        raise BadInput(f"must be from 0.001 to a million GB/s, got {gigabytes:g}", field="link")
    return gigabytes * BYTES_PER_GB


def network_of(gpu: Gpu) -> str:
    """The link of each GPU to other machines, where they have a network: a port's name, or else its GB/s."""
    return _port(gpu.network_bytes_per_s) or f"{gpu.network_bytes_per_s / BYTES_PER_GB:g}"


def network_text(gpu: Gpu) -> str:
    """The network that machines of such GPUs are taken to have, and where that is from."""
    name = _port(gpu.network_bytes_per_s)
    source = SOURCES[name] if name else "as the GPU's entry in the catalogue says"
    return f"{gpu.network_bytes_per_s * 8 / 1e9:g} Gbit/s a GPU, assumed: {source}"


def _port(bytes_per_s: float) -> str | None:
    return next((name for name, rate in PORTS.items() if rate == bytes_per_s), None)
