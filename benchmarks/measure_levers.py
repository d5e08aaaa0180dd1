"""A real vLLM on one GPU, without a network: the loads of the lever grid, several servers, one loaded at a time.

    python benchmarks/measure_levers.py OUT JOBS.json GROUP [SECONDS]      # on a machine with a GPU and vLLM

``JOBS.json`` is written by ``bench_levers.py ask``. All servers of a group are started together; then each load is
played on its server while the others idle, and its rows are appended to ``OUT/GROUP.jsonl`` at once, so that a run that
is cut short keeps what it has. Weights are random and the tokenizer has one word a token. A load is sessions: in each,
a request is sent a pause after the answer before it; a closed loop is one session for each user. Requests name their
prompt as segments, (seed, tokens), so that equal segments are equal tokens; in a conversation a prompt begins with the
one before and its answer. Drafts are accepted at random at the rate that a file says, which vLLM's synthetic rejection
sampler is made to read, so that one server measures every rate. Adapters are one file of zeros under many names.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,import-not-found,type-arg"

import asyncio
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(os.environ.get("VL_ROOT", "~/vl")).expanduser()
FIRST_PORT = 8200
ACCEPTANCE = ROOT / "acceptance"
SAMPLERS = {
    "vllm/v1/sample/rejection_sampler.py": "        assert metadata.max_spec_len <= MAX_SPEC_LEN\n",
    "vllm/v1/worker/gpu/spec_decode/rejection_sampler.py": (
        "        draft_sampled = input_batch.input_ids[input_batch.logits_indices]\n"
    ),
}
"""Of vLLM's two runners (it takes the newer one for most models), and a line of each before which the rate is read."""
PATCH = """        if self.synthetic_conditional_rates is not None:
            import os as _os
            _at = _os.stat("{file}").st_mtime_ns
            if _at != getattr(self, "_read_at", None):
                self._read_at = _at
                self.synthetic_conditional_rates.fill_(float(open("{file}").read()))
"""
SERVED = ("--max-num-seqs", "1024"), ("--max-num-batched-tokens", "8192"), ("--max-model-len", "24576")
KEPT = ("vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_total", "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total",
        "vllm:external_prefix_cache_hits_total", "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:num_preemptions_total")  # fmt: skip
PRECOMPUTED: dict[tuple[int, int], list[int]] = {}


def patch_sampler():
    ACCEPTANCE.write_text("0.7")
    for name, line in SAMPLERS.items():
        path = ROOT / name
        text = path.read_text()
        if "_read_at" not in text:
            assert text.count(line) == 1
            path.write_text(text.replace(line, PATCH.replace("{file}", str(ACCEPTANCE)) + line))


def write_model(name, config, spoken=()):
    """Write a model's configuration and a tokenizer with a word for each token; some words are those of a client."""
    folder = ROOT / "models" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [f"t{i}" for i in range(config["vocab_size"])]
    words[1000 : 1000 + len(spoken)] = spoken
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="t2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "t0", "eos_token": "t1", "unk_token": "t2",
        "clean_up_tokenization_spaces": False}))  # fmt: skip
    return folder


def write_adapter(config, rank):
    """Write an adapter of zeros on every product of every layer."""
    import torch
    from safetensors.torch import save_file

    folder = ROOT / "adapters" / f"r{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden, kv), "self_attn.v_proj": (hidden, kv),
              "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (hidden, inner), "mlp.up_proj": (hidden, inner),
              "mlp.down_proj": (inner, hidden)}  # fmt: skip
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (fed, made) in shapes.items():
            to = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{to}.lora_A.weight"] = torch.zeros(rank, fed, dtype=torch.bfloat16)
            tensors[f"{to}.lora_B.weight"] = torch.zeros(made, rank, dtype=torch.bfloat16)
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    modules = [name.rsplit(".", 1)[1] for name in shapes]
    (folder / "adapter_config.json").write_text(json.dumps({
        "r": rank, "lora_alpha": rank, "target_modules": modules, "peft_type": "LORA", "bias": "none",
        "task_type": "CAUSAL_LM"}))  # fmt: skip
    return folder


def adapter_flags(rank: int, count: int, folder: object) -> list[str]:
    """Return vLLM's flags that load one adapter under many names."""
    named = [f"a{place}={folder}" for place in range(count)]
    return ["--enable-lora", "--max-loras", str(count), "--max-cpu-loras", str(count), "--max-lora-rank", str(rank),
            "--lora-modules", *named]  # fmt: skip


def with_limits(flags: list[str]) -> list[str]:
    """Return flags with the limits that every server has unless its own say otherwise."""
    return [*flags, *(word for pair in SERVED if pair[0] not in flags for word in pair)]


def start(server, port):
    folder = write_model(server["name"], server["config"], server.get("spoken", ()))
    flags = [word.replace("{root}", str(ROOT)) for word in server["flags"]]
    if draft := server.get("draft"):
        flags = [word.replace("{draft}", str(write_model(server["name"] + "-draft", draft))) for word in flags]
    if adapters := server.get("adapters"):
        flags += adapter_flags(**adapters, folder=write_adapter(server["config"], adapters["rank"]))
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder), "--load-format", "dummy",
               "--port", str(port), "--host", "127.0.0.1", "--served-model-name", "m", "--seed", "0",
               *with_limits(flags)]  # fmt: skip
    env = {"VLLM_USE_DEEP_GEMM": "0", "VLLM_SERVER_DEV_MODE": "1"} | server.get("env", {})
    with (ROOT / f"{server['name']}.log").open("w") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=os.environ | env
        )


def wait(processes, limit_s):
    """Wait until every server answers, has ended or the time is over; return those that answer, with their seconds."""
    began, ready = time.time(), {}
    while time.time() - began < limit_s:
        for name, (process, port) in processes.items():
            if name not in ready and process.poll() is None:
                with contextlib.suppress(Exception):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                    ready[name] = time.time() - began
        if all(name in ready or process.poll() is not None for name, (process, _) in processes.items()):
            break
        time.sleep(1)
    return ready


def segment(seed, count, words):
    key = (seed, count)
    if key not in PRECOMPUTED:
        PRECOMPUTED[key] = random.Random(seed).choices(range(1000, words), k=count)
    return PRECOMPUTED[key]


def body(prompt, turn, carries):
    adapter, priority = turn.get("adapter"), turn.get("priority")
    made = {"model": "m" if adapter is None else f"a{adapter}", "prompt": prompt, "max_tokens": turn["out"],
            "min_tokens": turn["out"], "ignore_eos": True, "temperature": 0, "stream": True}  # fmt: skip
    if priority is not None:
        made["priority"] = priority
    if carries:
        made["return_token_ids"] = True
    return json.dumps(made | {"stream_options": {"include_usage": True}}).encode()


async def ask(session, port, data, row, begun):
    row["at"] = time.perf_counter() - begun
    times: list[float] = []
    answer: list[int] = []
    usage = None
    async with session.post(f"http://127.0.0.1:{port}/v1/completions", data=data,
                            headers={"Content-Type": "application/json"}) as reply:  # fmt: skip
        if reply.status != 200:
            row["error"] = (await reply.text())[:200]
            return answer
        async for line in reply.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if event.get("choices") and (event["choices"][0].get("text") or event["choices"][0].get("token_ids")):
                times.append(time.perf_counter() - begun)
                answer += event["choices"][0].get("token_ids") or []
    row["out"] = (usage or {}).get("completion_tokens")
    if times:
        row["first"], row["last"] = times[0], times[-1]
    return answer


async def one_session(http, port, sessions, place, rows, words, begun):
    said: list[int] = []
    given = sessions[place]
    for number, turn in enumerate(given["turns"]):
        new = [token for seed, count in turn["new"] for token in segment(seed, count, words)]
        prompt = said + new if given.get("carries") else new
        row = {"session": place, "turn": number, "in": len(prompt), "warm": turn.get("warm", 0)}
        rows.append(row)
        data = body(prompt, turn, given.get("carries"))
        wait_s = given["at"] - (time.perf_counter() - begun) if number == 0 else turn.get("pause", 0.0)
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        answer = await ask(http, port, data, row, begun)
        said = prompt + (answer[: turn["out"]] or [2] * turn["out"])


async def play(load, port, words, beside=None):
    import aiohttp

    both = [(load["sessions"], port)] + ([beside] if beside else [])
    for sessions, _ in both:  # what is drawn takes no time of the run
        for given in sessions:
            for turn in given["turns"]:
                for seed, count in turn["new"]:
                    segment(seed, count, words)
    found: list[list[dict]] = [[] for _ in both]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as http:
        begun = time.perf_counter()
        await asyncio.gather(*[
            one_session(http, to, sessions, place, rows, words, begun)
            for (sessions, to), rows in zip(both, found, strict=True) for place in range(len(sessions))
        ], return_exceptions=True)  # fmt: skip
    PRECOMPUTED.clear()
    return found


def counters(port):
    found: dict[str, float] = {}
    with contextlib.suppress(Exception):
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
        for line in page.splitlines():
            name = line.split("{")[0].split(" ")[0]
            if name in KEPT or ("offload" in name and "bucket" not in name and not line.startswith("#")):
                labels = re.findall(r'(transfer_type|type|direction)="([^"]*)"', line)
                name = "|".join([name, *(value for _, value in labels)])
                found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
    return found


def post(port, path):
    began = time.perf_counter()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method="POST")
    urllib.request.urlopen(request, timeout=120).read()
    return time.perf_counter() - began


def sleep_and_wake(load, port, words):
    rows = []
    for _ in range(load["times"]):
        asleep = post(port, f"/sleep?level={load['level']}")
        time.sleep(0.5)
        awake = post(port, "/wake_up")
        found = asyncio.run(play({"sessions": load["sessions"]}, port, words))[0]
        rows.append({"sleep_s": asleep, "wake_s": awake, "answered": sum("last" in row for row in found)})
    return rows


def columns(rows):
    """Return rows as lists: session, turn, warm, prompt, answer, sent, first token, last token, in seconds."""
    shown = []
    for row in rows:
        times = [None if row.get(name) is None else round(row[name], 4) for name in ("at", "first", "last")]
        shown.append([row["session"], row["turn"], row["warm"], row["in"], row.get("out"), *times])
    return shown


def main():
    out, jobs, group = pathlib.Path(sys.argv[1]), json.loads(pathlib.Path(sys.argv[2]).read_text()), sys.argv[3]
    limit_s = float(sys.argv[4]) if len(sys.argv) > 4 else 560.0
    began = time.time()
    job = jobs[group]
    patch_sampler()
    processes = {}
    for place, server in enumerate(job["servers"]):
        processes[server["name"]] = start(server, FIRST_PORT + place), FIRST_PORT + place
    words = {server["name"]: min(server["config"]["vocab_size"], 100_000) for server in job["servers"]}
    ready = wait(processes, min(330.0, limit_s - 60))
    print("ready", {name: round(took) for name, took in ready.items()}, flush=True)
    facts = []
    for name in processes:
        text = (ROOT / f"{name}.log").read_text(errors="replace")
        said = [
            line[-220:]
            for line in text.splitlines()
            if re.search(r"KV cache size|graph capturing|took|Asynchronous|attention backend|offload", line, re.I)
        ]
        facts.append({"server": name, "ready_s": ready.get(name), "said": said[-30:]})
        if name not in ready:
            (out / f"{name}.failed.txt").write_text(text[-6000:])
            print(name, "did not come up:", text[-1500:], flush=True)
    sink = (out / f"{group}.jsonl").open("a")
    sink.write(json.dumps({"servers": facts}) + "\n")
    for load in job["loads"]:
        if load["server"] not in ready or load.get("beside", load["server"]) not in ready:
            continue
        if time.time() - began + load.get("need_s", 4) > limit_s:
            print("no time for", load["name"], flush=True)
            continue
        port, known = processes[load["server"]][1], words[load["server"]]
        if "acceptance" in load:
            ACCEPTANCE.write_text(str(load["acceptance"]))
        row = {"name": load["name"], "server": load["server"], "began_s": round(time.time() - began, 1)}
        try:
            if load.get("level"):
                row["slept"] = sleep_and_wake(load, port, known)
            else:
                before = counters(port)
                beside = (load["beside_sessions"], processes[load["beside"]][1]) if "beside" in load else None
                found = asyncio.run(play(load, port, known, beside))
                after = counters(port)
                row["rows"] = columns(found[0])
                if beside:
                    row["beside_rows"] = columns(found[1])
                row["counters"] = {name: after[name] - before.get(name, 0.0) for name in after}
                errors = [each["error"] for rows in found for each in rows if "error" in each]
                row |= {"errors": errors[:3]} if errors else {}
                done = [each for each in found[0] if "last" in each and not each["warm"]]
                if done:
                    wall = max(each["last"] for each in done) - min(each["at"] for each in done)
                    print(f"{row['began_s']:6.1f} {load['name']}: {len(done)} in {wall:.2f} s {errors[:1]}", flush=True)
        except Exception as error:
            row["failed"] = repr(error)[:300]
            print(load["name"], "failed", repr(error)[:300], flush=True)
        if not load.get("drop"):
            sink.write(json.dumps(row) + "\n")
            sink.flush()
    for name, (process, _) in processes.items():
        text = (ROOT / f"{name}.log").read_text(errors="replace")
        compiled = [line[-160:] for line in text.splitlines() if "JIT compilation" in line]
        sink.write(json.dumps({"server": name, "compiled_while_serving": compiled[-12:]}) + "\n")
        with contextlib.suppress(Exception):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    sink.close()
    print("done after", round(time.time() - began), "s", flush=True)


if __name__ == "__main__":
    main()
