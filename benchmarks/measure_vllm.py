"""A real vLLM on one GPU, without a network: every step, every request, under loads of vLLM's own benchmark.

    python benchmarks/measure_vllm.py OUT SESSION...      # on a machine with a GPU, vLLM and its benchmark

A session is one server (model, precision, flags) and its loads, named in ``SESSIONS``. Weights are random, the
tokenizer has one word a token, so that nothing is downloaded; speed does not depend on either. The log of steps is
appended to vLLM's scheduler (``patch_scheduler``): when each step was composed, launched by the host and done on the
GPU, and when each request reached the engine. ``OUT/SESSION.json.gz`` is written even when a load fails. With
``--bench 10,20`` our own load test at these rates and our meter run against the same server; ``reduce_vllm.py`` makes
the files of ``benchmarks/data`` of it.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,import-not-found"

import argparse
import asyncio
import contextlib
import gzip
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(os.environ.get("VL_ROOT", "~/vl")).expanduser()
PORT = 8123
URL = f"http://127.0.0.1:{PORT}"
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "max_position_embeddings": 131072, "vocab_size": 128256, "tie_word_embeddings": False,
    "bos_token_id": 0, "eos_token_id": 1, "head_dim": 128,
}  # fmt: skip
QWEN3 = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 40960,
    "vocab_size": 151936, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "head_dim": 128,
    "attention_bias": False,
}  # fmt: skip
DENSE = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
CONFIGS = {
    "llama-3.1-8b": LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                             "num_attention_heads": 32, "num_key_value_heads": 8},
    "qwen3-32b": QWEN3 | DENSE | {"hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
                                  "num_attention_heads": 64, "num_key_value_heads": 8},
    "qwen3-4b": QWEN3 | DENSE | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
                                 "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True},
    "qwen3-30b-a3b": QWEN3 | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
                              "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
                              "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
                              "mlp_only_layers": [], "num_hidden_layers": 48, "num_attention_heads": 32,
                              "num_key_value_heads": 4},
}  # fmt: skip
LONE = [{"inp": n, "out": 16, "n": 4, "users": 1} for n in (16, 64, 128, 256, 480, 544, 768, 1024, 2048, 4096, 8000)]
CLOSED = [{"inp": 1024, "out": 128, "n": n, "users": users} for users, n in ((1, 4), (16, 48), (64, 160))]
SHORT = [{"inp": 128, "out": 256, "n": 256, "users": 128}]
LONG = [{"inp": 4000, "out": 8, "n": 192, "users": 64}, {"inp": 1000, "out": 8, "n": 512, "users": 128}]
FRONT = [{"inp": 16, "out": 1, "n": n, "users": users} for users, n in ((1, 20), (16, 160), (128, 640))] + [
    {"inp": 1024, "out": 1, "n": 96, "users": 32}
]


def poisson(*rates, inp=1024, out=128, seconds=14, **more):
    return [{"inp": inp, "out": out, "n": int(r * seconds), "rate": r, "spread": 0.5, **more} for r in rates]


SESSIONS = {
    "moe": ("qwen3-30b-a3b", None, [], [*LONE, *CLOSED, *SHORT, *poisson(10.0, 20.0)]),
    "dense": ("llama-3.1-8b", None, [], [*LONE, *FRONT]),
    "fp8": ("llama-3.1-8b", "fp8", [], [*LONE, *CLOSED, *SHORT, *poisson(18.0, 30.0)]),
    "small-steps": ("llama-3.1-8b", None, ["--max-num-batched-tokens", "2048", "--enable-prefix-caching"],
                    [*LONE[5:], *CLOSED[1:], *poisson(18.0, 26.0), *poisson(24.0, inp=512, prefix=1024)]),
    "qwen3-32b": ("qwen3-32b", None, [], [*LONE[2:10:2], *CLOSED, *SHORT, *poisson(3.0, 6.0)]),
    "moe-fp8": ("qwen3-30b-a3b", "fp8 blocks", [], [*LONE, *CLOSED, *LONG]),
    "qwen3-4b": ("qwen3-4b", None, [], [*CLOSED, *SHORT, *poisson(20.0, 40.0), *LONE[2:10:2]]),
}  # fmt: skip

PATCH = """

import json as _json, os as _os, time as _time
if _os.environ.get("STEP_LOG"):
    _log = open(_os.environ["STEP_LOG"], "a", buffering=1 << 16)
    _schedule, _update, _add = Scheduler.schedule, Scheduler.update_from_output, Scheduler.add_request
    _state = {"out": None, "patched": False}
    def _watch_launches():
        from vllm.v1.executor.uniproc_executor import UniProcExecutor
        _sample = UniProcExecutor.sample_tokens
        def _logged_sample(self, *args, **kw):
            result = _sample(self, *args, **kw)
            if _state["out"] is not None: _state["out"]._launched = _time.perf_counter()
            return result
        UniProcExecutor.sample_tokens = _logged_sample
        _state["patched"] = True
    def _logged_schedule(self, *args, **kw):
        if not _state["patched"]: _watch_launches()
        begun = _time.perf_counter()
        out = _schedule(self, *args, **kw)
        prefill = decode = prompts = context = 0
        for rid, n in out.num_scheduled_tokens.items():
            r = self.requests[rid]
            done = r.num_computed_tokens
            context += done
            if done <= r.num_prompt_tokens and n > 1 or done < r.num_prompt_tokens: prefill += n; prompts += 1
            else: decode += 1
        queues = len(self.running), len(self.waiting)
        out._work = (begun, _time.perf_counter(), decode, prompts, prefill, context, *queues)
        _state["out"] = out
        return out
    def _logged_update(self, scheduler_output, *args, **kw):
        done = _time.perf_counter()
        out = _update(self, scheduler_output, *args, **kw)
        work = getattr(scheduler_output, "_work", None)
        if work and scheduler_output.total_num_scheduled_tokens:
            launched = getattr(scheduler_output, "_launched", None)
            _log.write(_json.dumps([*work, done, _time.perf_counter(), launched]) + "\\n"); _log.flush()
        return out
    def _logged_add(self, request, *args, **kw):
        now = _time.perf_counter()
        came = request.arrival_time - _time.time() + now
        _log.write(_json.dumps(["request", came, now, request.num_prompt_tokens]) + "\\n")
        return _add(self, request, *args, **kw)
    Scheduler.schedule, Scheduler.update_from_output = _logged_schedule, _logged_update
    Scheduler.add_request = _logged_add
"""
COLUMNS = ["begun", "scheduled", "decode", "prompts", "prefill_tokens", "context", "running", "waiting", "done",
           "updated", "launched"]  # fmt: skip


def patch_scheduler() -> None:
    path = ROOT / "vllm/v1/core/sched/scheduler.py"
    text = path.read_text()
    if "STEP_LOG" not in text:
        path.write_text(text + PATCH)


def write_model(name, quant):
    folder = ROOT / "models" / f"{name}{(quant or '').replace(' ', '-')}"
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[name] | {"torch_dtype": "bfloat16"}
    if quant:
        blocks = {"weight_block_size": [128, 128]} if "blocks" in quant else {}
        config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", **blocks}
    (folder / "config.json").write_text(json.dumps(config))
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(int(str(config["vocab_size"])))}, unk_token="t2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "t0", "eos_token": "t1", "unk_token": "t2",
            "clean_up_tokenization_spaces": False}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return folder


def serve(folder, flags, log):
    cache = [] if "--enable-prefix-caching" in flags else ["--no-enable-prefix-caching"]
    args = ["--load-format", "dummy", "--port", str(PORT), "--host", "127.0.0.1", "--max-model-len", "8192",
            "--gpu-memory-utilization", "0.9", "--served-model-name", "m", "--seed", "0", "--max-num-seqs", "256",
            *cache, *flags]  # fmt: skip
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder), *args]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def wait(process, limit=300):
    start = time.time()
    while time.time() - start < limit:
        if process.poll() is not None:
            raise RuntimeError(f"server ended with {process.returncode}")
        with contextlib.suppress(Exception):
            urllib.request.urlopen(f"{URL}/health", timeout=2)
            return time.time() - start
        time.sleep(0.5)
    raise RuntimeError("server did not come up")


def load(folder, inp, out, n, users=None, rate=None, spread=0.0, seed=0, prefix=0):
    from vllm.benchmarks.serve import add_cli_args, main_async
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    words = ["--backend", "openai", "--endpoint", "/v1/completions", "--base-url", URL, "--model", str(folder),
             "--served-model-name", "m", "--dataset-name", "random", "--random-input-len", str(inp),
             "--random-output-len", str(out), "--random-range-ratio", str(spread), "--random-prefix-len", str(prefix),
             "--num-prompts", str(n), "--seed", str(seed), "--ignore-eos", "--disable-tqdm",
             "--ready-check-timeout-sec", "0", "--temperature", "0", "--percentile-metrics", "ttft,tpot,itl,e2el",
             "--metric-percentiles", "50,90,95,99", "--request-rate", str(rate) if rate else "inf", "--save-result",
             "--save-detailed", "--result-dir", str(ROOT), "--result-filename", "one.json"]  # fmt: skip
    if users:
        words += ["--max-concurrency", str(users)]
    begun = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        asyncio.run(main_async(parser.parse_args(words)))
    found = json.loads((ROOT / "one.json").read_text())
    itls = found.pop("itls", None)
    kept = {k: v for k, v in found.items() if k not in ("generated_texts", "errors", "tokenizer_id", "model_id")}
    if itls:
        # (last − first token) of each request: with its lengths, TPOT.
        kept["spans"] = [round(sum(itl), 6) for itl in itls]
    kept["asked"] = {"input": inp, "output": out, "n": n, "users": users, "rate": rate, "spread": spread, "seed": seed,
                     "prefix": prefix}  # fmt: skip
    kept["window"] = [begun, time.perf_counter()]
    shown = (kept["output_throughput"], kept["median_ttft_ms"], kept["median_tpot_ms"])
    print("  load", kept["asked"], "out tok/s {:.0f} ttft {:.1f} tpot {:.2f} ms".format(*shown), flush=True)
    return kept


def own_tools(out, name, rates):
    """``tokonomics meter`` beside ``tokonomics bench`` on the same server, its own counters around both."""
    ours = [sys.executable, "-m", "tokonomics"]
    ledger = str(ROOT / "ledger.db")
    answer: dict[str, object] = {}
    before = counters()
    watch = [*ours, "meter", "watch", URL, "--usd-per-hour", "2.5", "--every", "2s", "--ledger", ledger]
    meter = subprocess.Popen(watch, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(5)
    save = f"{out}/{name}-bench.json"
    bench = [*ours, "bench", f"{URL}/v1/completions", "--rate", rates, "--input", "1000", "--output", "200",
             "--seconds", "25", "--requests", "2000", "--precision", "0.001", "--gpu", "H200",
             "--save", save]  # fmt: skip
    done = subprocess.run(bench, capture_output=True, text=True, timeout=300, check=False)
    print(done.stdout[-2500:], done.stderr[-1500:], flush=True)
    time.sleep(5)
    meter.send_signal(signal.SIGINT)
    with contextlib.suppress(Exception):
        print(meter.communicate(timeout=15)[1].decode()[-500:])
    answer["counters"] = [before, counters()]
    report = subprocess.run([*ours, "meter", "report", "--ledger", ledger, "--json"], capture_output=True, text=True,
                            check=False)  # fmt: skip
    answer["report"] = report.stdout or report.stderr
    pathlib.Path(f"{out}/{name}-meter.json").write_text(json.dumps(answer))


def counters():
    text = urllib.request.urlopen(f"{URL}/metrics", timeout=5).read().decode()
    return {line.split("{")[0]: float(line.split()[-1]) for line in text.splitlines()
            if line.startswith(("vllm:prompt_tokens_total", "vllm:generation_tokens_total"))}  # fmt: skip


def measure(out, name, bench, until):
    model, quant, flags, loads = SESSIONS[name]
    begun = time.time()
    folder = write_model(model, quant)
    log = ROOT / f"{name}-steps.jsonl"
    log.unlink(missing_ok=True)
    os.environ["STEP_LOG"] = str(log)
    said = ROOT / f"{name}.log"
    done, ready, tools = [], None, None
    with said.open("w") as file:
        process = serve(folder, flags, file)
        try:
            ready = wait(process)
            print(name, f"ready in {ready:.0f} s", flush=True)
            load(folder, 512, 64, 64, users=32, seed=99)
            if "num_experts" in CONFIGS[model]:
                load(folder, 1024, 32, 96, users=48, seed=98)
                load(folder, 1024, 32, 40, rate=8.0, spread=0.5, seed=97)
            if bench:
                own_tools(out, name, bench)
            for place, asked in enumerate(loads):
                if time.time() > until:
                    print("no time left for", loads[place:], flush=True)
                    break
                done.append(load(folder, **asked, seed=100 + place))
        except Exception as error:
            print("failed:", repr(error)[:500], flush=True)
        finally:
            with contextlib.suppress(Exception):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            text = said.read_text(errors="replace")
            lines = [json.loads(line) for line in log.read_text().splitlines() if line.strip()] if log.exists() else []
            answer = {
                "session": name, "model": model, "quant": quant, "flags": flags, "engine": "vllm 0.26.0", "gpu": "H200",
                "config": CONFIGS[model], "ready_s": ready, "loads": done, "tools": tools, "columns": COLUMNS,
                "steps": [line for line in lines if line[0] != "request"],
                "requests": [line[1:] for line in lines if line[0] == "request"],
                "said": [line[:300] for line in text.splitlines() if re.search("KV cache|took|graph", line)][-40:],
            }  # fmt: skip
            with gzip.open(f"{out}/{name}.json.gz", "wt") as target:
                json.dump(answer, target)
            if not done:
                print(text[-5000:], flush=True)
            time.sleep(2)
    print(name, f"done in {time.time() - begun:.0f} s, {len(answer['steps'])} steps", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("sessions", nargs="+", choices=SESSIONS)
    parser.add_argument("--bench", default="", help="rates for our own load test, before the first session's loads")
    parser.add_argument("--seconds", type=float, default=560)
    given = parser.parse_args()
    until = time.time() + given.seconds
    patch_scheduler()
    for place, name in enumerate(given.sessions):
        if time.time() < until - 150:
            measure(given.out, name, given.bench if place == 0 else "", until)


if __name__ == "__main__":
    main()
