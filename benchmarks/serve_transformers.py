"""Serve a catalogue model's shape with random weights behind an OpenAI-compatible address: a real engine to measure.

    python benchmarks/serve_transformers.py --model llama-3.2-1b --port 8000

Needs torch, transformers and aiohttp on a machine with a CUDA GPU. The engine is transformers' continuous batching
(paged KV cache, chunked prefill); the model's sizes are those of the catalogue, its weights are random bf16, so speed
is real and answers are noise. A word of the prompt is a token. ``/v1/models``, ``/v1/completions`` and
``/v1/chat/completions`` (streamed, with usage) are what a load test needs; ``/stop`` ends it.
"""

import argparse
import asyncio
import json
import time
import tomllib
import zlib
from pathlib import Path
from typing import Any

from aiohttp import web

CATALOGUE = Path(__file__).parents[1] / "src" / "tokonomics" / "catalog" / "data" / "models.toml"
MOST_WORDS = 30_000


def make_model(key: str) -> Any:
    """The model of that shape, with random weights on the GPU."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    entry = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))[key]["config"]
    config = LlamaConfig(**{name: value for name, value in entry.items() if name not in ("model_type", "torch_dtype")})
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.eval()


def make_manager(model: Any, batched_tokens: int, blocks: int | None, graphs: bool) -> Any:
    """The engine, started."""
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    limits: dict[str, Any] = {"max_batch_tokens": batched_tokens, "use_cuda_graph": graphs}
    if blocks:
        limits["num_blocks"] = blocks
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(max_new_tokens=1024, do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(**limits),
    )
    if hasattr(manager, "warmup"):
        manager.warmup()
    manager.start()
    return manager


class Server:
    """Requests in, tokens out as they come."""

    def __init__(self, key: str, manager: Any, vocab: int) -> None:
        self.key, self.manager, self.vocab = key, manager, vocab
        self.asked = 0
        self.stopped = asyncio.Event()

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.key, "object": "model"}]})

    async def stop(self, request: web.Request) -> web.Response:
        self.stopped.set()
        return web.json_response({"stopping": True})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        words = text.split()[:MOST_WORDS]
        tokens = [zlib.crc32(word.encode()) % (self.vocab - 10) + 5 for word in words] or [1]
        wanted = int(body.get("max_tokens") or body.get("max_completion_tokens") or 128)
        self.asked += 1
        name = f"request-{self.asked}"
        results: asyncio.Queue[Any] = asyncio.Queue()
        self.manager.register_result_handler(name, results.put_nowait)
        self.manager.add_request(tokens, request_id=name, max_new_tokens=wanted, streaming=True)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent, finished = 0, False
        while not finished:
            result = await results.get()
            if getattr(result, "error", None):
                await response.write(_event({"error": {"message": str(result.error)}}))
                return response
            made, finished = len(result.generated_tokens), result.is_finished()
            if made > sent:
                await response.write(_event(self._chunk("x" * (made - sent), None)))
                sent = made
        usage = {"prompt_tokens": len(tokens), "completion_tokens": sent, "total_tokens": len(tokens) + sent}
        await response.write(_event(self._chunk("", "length")) + _event({"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _chunk(self, text: str, reason: str | None) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"content": text}, "text": text, "finish_reason": reason}]}


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


async def serve(key: str, manager: Any, vocab: int, port: int) -> None:
    server = Server(key, manager, vocab)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/completions", server.answer)
    app.router.add_post("/v1/chat/completions", server.answer)
    app.router.add_post("/stop", server.stop)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(f"serving {key} at http://127.0.0.1:{port}", flush=True)
    await server.stopped.wait()
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.2-1b")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--batched-tokens", type=int, default=1024, help="tokens of one step")
    parser.add_argument("--blocks", type=int, default=None, help="of the KV cache; the engine's own choice without it")
    parser.add_argument("--graphs", action="store_true", help="CUDA graphs, captured when a shape is first met")
    given = parser.parse_args()
    began = time.perf_counter()
    model = make_model(given.model)
    manager = make_manager(model, given.batched_tokens, given.blocks, given.graphs)
    print(f"ready after {time.perf_counter() - began:.0f} s", flush=True)
    try:
        asyncio.run(serve(given.model, manager, model.config.vocab_size, given.port))
    finally:
        manager.stop(block=True, timeout=5)


if __name__ == "__main__":
    main()
