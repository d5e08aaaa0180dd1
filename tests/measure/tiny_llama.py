"""A real llama.cpp server on loopback: a tiny Llama with random weights, its own tokenizer, and real ``/metrics``.

The model is made here (two layers if nobody asks for more, one token a byte), so nothing is downloaded; its answers
mean nothing, but it batches, caches prompts, streams, counts tokens and stops as any llama.cpp server does. It runs in
the process of a test (``llama_server``) or as a command of its own (``tests.operate.llama_server``).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

LAYERS, WIDTH, CONTEXT = 2, 64, 8192
HEAD = 16  # values of a head
BYTES = 256
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(BYTES))]


def write_model(path: Path, layers: int = LAYERS, width: int = WIDTH) -> None:
    """About the smallest file that llama.cpp takes for a Llama, or a larger one of the same kind."""
    import gguf

    heads, feed = width // HEAD, 2 * width
    chance = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    told = {
        "name": "tiny", "context_length": CONTEXT, "embedding_length": width, "block_count": layers,
        "feed_forward_length": feed, "head_count": heads, "head_count_kv": heads, "layer_norm_rms_eps": 1e-5,
        "rope_dimension_count": HEAD, "vocab_size": len(TOKENS), "tokenizer_model": "llama",
        "token_list": TOKENS, "token_scores": [0.0] * len(TOKENS), "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    for name, value in told.items():
        getattr(writer, f"add_{name}")(value)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * BYTES])
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")

    def random(*shape: int) -> np.ndarray:
        return (chance.standard_normal(shape) * 0.05).astype(np.float32)

    writer.add_tensor("token_embd.weight", random(len(TOKENS), width))
    writer.add_tensor("output_norm.weight", np.ones(width, dtype=np.float32))
    writer.add_tensor("output.weight", random(len(TOKENS), width))
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, dtype=np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", random(width, width))
        for name, shape in (("ffn_gate", (feed, width)), ("ffn_up", (feed, width)), ("ffn_down", (width, feed))):
            writer.add_tensor(f"blk.{layer}.{name}.weight", random(*shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def server_settings(model: Path, port: int = 0) -> Any:
    """What any llama.cpp server of ours is started with; a port of 0 is one that is free."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.endpoint_metrics = True
    params.hostnames, params.port = ["127.0.0.1"], port
    params.model_alias = {"tiny"}
    params.warmup = False
    return params


@contextmanager
def llama_server(folder: Path, slots: int = 4) -> Iterator[str]:
    """The address of a server that ends with the block."""
    import xllamacpp

    model = folder / "tiny.gguf"
    if not model.exists():
        write_model(model)
    params = server_settings(model)
    params.n_parallel = slots
    params.n_ctx = CONTEXT
    params.n_predict = 512
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity = -1
    server = xllamacpp.Server(params)
    try:
        yield server.listening_address
    finally:
        del server


def counters(address: str) -> dict[str, float]:
    """What the server says it did, by metric."""
    with urlopen(f"{address}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    pairs = (line.split() for line in lines if line and not line.startswith("#"))
    return {name.removeprefix("llamacpp:"): float(value) for name, value in pairs}
