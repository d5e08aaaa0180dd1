"""Deploy files: flags that the engines accept, text that a shell and a YAML reader take as meant, the plan's own fleet.

Flags are held against the names read from the engines' wheels (``engine_flags.json``). The YAML is compared with files
that were validated once (docs/deploy.md); where PyYAML, SkyPilot and kubernetes-validate are installed, it is again.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import date
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.catalog.offers import Offer, Terms, load_offers
from tokonomics.catalog.precision import Precision
from tokonomics.errors import BadInput
from tokonomics.physics.deployment import Deployment, deploy, why_not_run
from tokonomics.planner.deploy_files import CLOUDS, Target, comment, deploy_file, provenance, yaml_text
from tokonomics.planner.deploy_job import DeployJob, catalogue_repository, engine_command, listen, shell_line
from tokonomics.planner.load import load_of_shape
from tokonomics.planner.plan import Question, plan

HERE = Path(__file__).parent
ACCEPTED = json.loads((HERE / "engine_flags.json").read_text(encoding="utf-8"))
TODAY = date(2026, 11, 15)


def machine(gpu: str = "H100-SXM", gpus: int = 8, provider: str = "aws", instance: str = "p5.48xlarge") -> Offer:
    return Offer(
        provider=provider,
        region="us-east-1",
        instance=instance,
        gpu=gpu,
        gpus=gpus,
        usd_per_hour=30.0,
        spot_usd_per_hour=12.0,
        date=date(2026, 10, 1),
        source="test",
    )


def served(model: str = "llama-3.3-70b", gpu: str = "H100-SXM", engine: str = "vllm", **more: Any) -> Deployment:
    return deploy(find_model(model), find_gpu(gpu), find_engine(engine), **more)


def job(deployment: Deployment | None = None, **more: Any) -> DeployJob:
    deployment = deployment or served(tp=2, weights=Precision.fp8)
    fields = {"replicas": 3, "max_context": 4096, "limits": deployment.limits, "provenance": "a test"} | more
    return DeployJob(deployment=deployment, **fields)


def every_command() -> Iterator[tuple[str, list[str]]]:
    """Commands over engines, GPUs, precisions, parallelism and LoRA."""
    layouts: list[dict[str, Any]] = [
        {"tp": 1},
        {"tp": 4, "pp": 2},
        {"tp": 2, "ep": 2},
        {"tp": 2, "lora_rank": 24, "lora_adapters": 3},
    ]
    models = [find_model(each) for each in ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b")]
    engines = [find_engine(each) for each in ("vllm", "sglang")]
    gpus = [find_gpu(each) for each in ("T4", "H100", "MI300X")]
    for engine, gpu, weights, kv in product(engines, gpus, Precision, (Precision.bf16, Precision.fp8)):
        if why_not_run(engine, gpu, weights, kv) is None:
            for model, layout in product(models, layouts):
                if model.is_moe or "ep" not in layout:
                    one = Deployment(model=model, gpu=gpu, engine=engine, weights=weights, kv=kv, **layout)
                    yield engine.key, list(engine_command(job(one)).arguments)


def run_in_shell(script: str, **variables: str) -> list[list[str]]:
    """The words that each server is started with when a shell runs the script; nothing else is started."""
    fake = "shown() { printf 'GPUS=%s\\n' \"${CUDA_VISIBLE_DEVICES:-}\"; printf '%s\\n' \"$@\" ''; }\n"
    script = fake + script.replace("vllm serve", "shown").replace("python -m sglang.launch_server", "shown")
    # One after the other, so that their lines do not mix.
    script = script.replace(" &\n", "\n")
    done = subprocess.run(
        ["sh", "-euc", script], capture_output=True, text=True, check=True, env=os.environ | variables
    )
    return [each.splitlines() for each in done.stdout.strip().split("\n\n")]


# --- engines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_flags_were_read_in_the_version_of_the_catalogue(engine: str) -> None:
    assert ACCEPTED[engine]["version"] == find_engine(engine).version


def test_every_flag_and_every_listed_value_is_accepted_by_the_engine() -> None:
    count = 0
    for engine, words in every_command():
        accepted = ACCEPTED[engine]
        assert {each for each in words if each.startswith("--")} <= set(accepted["flags"])
        for flag, value in pairwise(words):
            if flag in accepted["values"]:
                assert value in accepted["values"][flag]
        count += 1
    assert count > 300


def test_a_16_bit_checkpoint_becomes_fp8_on_loading_under_each_engines_own_name() -> None:
    # vLLM's `fp8` is only for checkpoints that are FP8 already; it refuses others (0.32.0, quantization/fp8.py).
    for engine, name in (("vllm", "fp8_per_tensor"), ("sglang", "fp8")):
        words = engine_command(job(served(engine=engine, tp=2, weights=Precision.fp8))).arguments
        assert ("--quantization", name) in pairwise(words)
        assert "meta-llama/Llama-3.3-70B-Instruct" in words


@pytest.mark.parametrize("model", ["deepseek-v3", "gpt-oss-120b"])
def test_a_quantised_checkpoint_is_served_as_it_is(model: str) -> None:
    command = engine_command(job(served(model, tp=8)))
    assert "--quantization" not in command.arguments
    assert command.fill_in == ()


def test_weights_that_no_engine_makes_on_loading_have_to_be_named_by_the_user() -> None:
    for target in (Target.vllm, Target.skypilot, Target.kubernetes):
        file = deploy_file(target, job(served(weights=Precision.int4)))
        assert "FILL-IN/llama-3-3-70b-int4" in file.text
        assert "AWQ or GPTQ" in file.fill_in[0]
        assert f"# FILL IN {file.fill_in[0]}\n" in file.text


def test_every_model_of_the_catalogue_has_a_repository_and_one_from_a_file_is_asked_for() -> None:
    assert all(catalogue_repository(each) for each in all_models())
    own = find_model("llama-3.1-8b").model_copy(update={"aliases": (), "key": "my model; rm -rf /"})
    file = deploy_file(Target.vllm, job(deploy(own, find_gpu("L4"), find_engine("vllm"))))
    assert "vllm serve FILL-IN/my-model-rm-rf-bf16 " in file.text
    assert len(file.fill_in) == 1


def test_dtype_follows_the_checkpoint_and_the_hardware() -> None:
    def dtype(**more: Any) -> str:
        words = engine_command(job(served("llama-3.1-8b", **more))).arguments
        return words[words.index("--dtype") + 1]

    assert dtype() == "auto"
    assert dtype(gpu="T4", tp=2) == "half"
    assert dtype(weights=Precision.fp32) == "float32"


def test_limits_are_those_of_the_plan() -> None:
    limits = find_engine("vllm").defaults_on(find_gpu("H100"))
    given = limits.model_copy(update={"max_sequences": 48, "memory_fraction": 0.85})
    pairs = list(pairwise(engine_command(job(limits=given)).arguments))
    assert ("--max-num-seqs", "48") in pairs
    assert ("--gpu-memory-utilization", "0.85") in pairs
    assert ("--max-model-len", "4096") in pairs


@pytest.mark.parametrize("name", ["/models/my model", "a'b/$(touch x)", "x`y`", 'say "hi" && exit', "ünï/ço;de"])
def test_no_name_is_obeyed_by_the_shell(name: str) -> None:
    heading = comment("made by `$(false)`\n'; exit 1")
    assert run_in_shell(heading + shell_line(("vllm", "serve", name, *listen()))) == [
        ["GPUS=", name, "--host", "0.0.0.0", "--port", "8000"]
    ]


@given(st.text())
def test_no_provenance_leaves_its_comment(text: str) -> None:
    written = comment(text)
    # Line ends of YAML 1.1 besides those of Python: none is left either.
    assert all(line.startswith("#") for line in written.splitlines())
    assert not set(written) & set("\0\x85\u2028\u2029\x1b")


# --- fleets ---------------------------------------------------------------------------------------------------------


def test_the_files_rent_the_machines_that_the_plan_paid_for() -> None:
    offers = [each for each in load_offers() if each.gpu in ("H100-SXM", "L4") and each.provider in ("aws", "nebius")]
    model, engine = find_model("llama-3.1-8b"), find_engine("vllm")
    load = load_of_shape(60, "const:1000", "const:300")
    result = plan(Question(model, load, offers, [engine], TODAY, kv=(Precision.bf16,), simulate=False))
    by_name = {(each.provider, each.region, each.instance): each for each in offers}
    assert len(result.ranked) > 50
    for row in result.ranked:
        deployment = Deployment(
            model=model, gpu=find_gpu(row.gpu), engine=engine, tp=row.tp, pp=row.pp, weights=row.weights, kv=row.kv
        )
        offer = by_name[row.provider, row.region, row.instance]
        made = job(deployment, replicas=row.replicas, offer=offer, max_context=1300)
        assert made.nodes == row.instances
        assert row.replicas <= made.nodes * made.replicas_per_node <= row.gpus_paid // row.gpus_per_replica


def test_copies_of_a_dense_model_share_a_port() -> None:
    text = deploy_file(Target.skypilot, job(replicas=7, offer=machine())).text
    assert "  --data-parallel-size 4 \\\n" in text
    assert "\n  replicas: 2\n" in text


def test_copies_of_a_model_with_experts_run_on_gpus_and_ports_of_their_own() -> None:
    # vLLM would share the experts out over all the copies: another deployment than the one that was planned.
    text = deploy_file(Target.skypilot, job(served("qwen3-30b-a3b", tp=2), replicas=7, offer=machine())).text
    servers = run_in_shell(script_of(text))
    assert [each[0] for each in servers] == ["GPUS=0,1", "GPUS=2,3", "GPUS=4,5", "GPUS=6,7"]
    assert [each[-1] for each in servers] == ["8000", "8001", "8002", "8003"]
    assert "\nnum_nodes: 2\n" in text
    assert "service:" not in text


def test_a_replica_over_two_machines_joins_them_and_only_the_first_answers() -> None:
    text = deploy_file(Target.skypilot, job(served("deepseek-v3", tp=8, pp=2), replicas=2, offer=machine())).text
    assert "\nnum_nodes: 2\n" in text
    addresses = "10.0.0.1\n10.0.0.2"
    first, second = (
        run_in_shell(script_of(text), SKYPILOT_NODE_RANK=rank, SKYPILOT_NODE_IPS=addresses)[0] for rank in "01"
    )
    for rank, words in enumerate((first, second)):
        assert {("--nnodes", "2"), ("--node-rank", str(rank)), ("--master-addr", "10.0.0.1")} <= set(pairwise(words))
    assert [each for each in second if each not in first] == ["1", "--headless"]
    assert {"--nnodes", "--node-rank", "--master-addr", "--headless"} <= set(ACCEPTED["vllm"]["flags"])


def test_sglang_joins_machines_by_its_own_flags() -> None:
    made = job(served("deepseek-v3", engine="sglang", tp=8, pp=2), replicas=1, offer=machine())
    words = run_in_shell(
        script_of(deploy_file(Target.skypilot, made).text), SKYPILOT_NODE_RANK="1", SKYPILOT_NODE_IPS="a"
    )
    assert ("--dist-init-addr", "a:5000") in pairwise(words[0])
    assert {each for each in words[0] if each.startswith("--")} <= set(ACCEPTED["sglang"]["flags"])


def test_spot_machines_are_asked_for_as_such() -> None:
    spot = job(offer=machine(), terms=Terms.spot)
    assert "  use_spot: true\n" in deploy_file(Target.skypilot, spot).text
    assert "eks.amazonaws.com/capacityType: SPOT\n" in deploy_file(Target.kubernetes, spot).text
    assert "  use_spot: false\n" in deploy_file(Target.skypilot, job(offer=machine())).text
    assert "capacityType" not in deploy_file(Target.kubernetes, job(offer=machine())).text


def test_the_start_up_probe_outlasts_a_slow_download() -> None:
    for model in ("llama-3.1-8b", "deepseek-v3"):
        made = job(served(model, tp=8), offer=machine())
        text = deploy_file(Target.kubernetes, made).text
        probe = text.split("startupProbe:")[1]
        allowed_s = 10 * int(probe.split("failureThreshold: ")[1].split()[0])
        spec = find_model(model)
        assert allowed_s >= 300 + spec.weight_bytes(spec.checkpoint) / 100e6
        # The API server refuses a longer window than an hour.
        assert int(text.split("stabilizationWindowSeconds: ")[1]) <= 3600


@pytest.mark.parametrize("target", [Target.vllm, Target.skypilot, Target.kubernetes])
def test_each_file_says_which_plan_made_it(target: Target) -> None:
    offer = machine()
    text = deploy_file(target, job(offer=offer, provenance=provenance("tokonomics plan x --rate 2", TODAY, offer))).text
    assert (
        "# Made by `tokonomics plan x --rate 2` on 2026-11-15; aws p5.48xlarge, us-east-1: price of 2026-10-01.\n"
        in text
    )
    assert "Weights below the checkpoint's bf16: check quality" in text


def test_what_cannot_be_written_says_why() -> None:
    with pytest.raises(BadInput, match="the plan is for vLLM"):
        deploy_file(Target.sglang, job())
    with pytest.raises(BadInput, match="no deploy file can be written for TensorRT-LLM"):
        deploy_file(Target.kubernetes, job(served(engine="tensorrt-llm", tp=4)))
    with pytest.raises(BadInput, match="not over 2 groups"):
        deploy_file(Target.vllm, job(served("qwen3-30b-a3b", tp=4, ep=2)))
    with pytest.raises(BadInput, match="spans 2 machines"):
        deploy_file(Target.kubernetes, job(served("deepseek-v3", tp=8, pp=2), offer=machine()))


# --- YAML -----------------------------------------------------------------------------------------------------------

EXAMPLES: dict[str, tuple[Target, Callable[[], DeployJob]]] = {
    "vllm.sh": (Target.vllm, lambda: job(replicas=1, offer=machine(gpus=2))),
    "sglang.sh": (Target.sglang, lambda: job(served("qwen3-30b-a3b", engine="sglang", tp=2, ep=2, kv=Precision.fp8))),
    "skypilot.yaml": (Target.skypilot, lambda: job(replicas=7, offer=machine(), terms=Terms.spot)),
    "skypilot-ports.yaml": (Target.skypilot, lambda: job(served("qwen3-30b-a3b", tp=2), replicas=7, offer=machine())),
    "skypilot-nodes.yaml": (Target.skypilot, lambda: job(served("deepseek-v3", tp=8, pp=2), offer=machine())),
    "kubernetes.yaml": (Target.kubernetes, lambda: job(offer=machine(), terms=Terms.spot)),
    "kubernetes-sglang.yaml": (Target.kubernetes, lambda: job(served(engine="sglang", tp=4, gpu="MI300X"))),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_files_are_those_that_were_validated(name: str) -> None:
    target, make = EXAMPLES[name]
    text = deploy_file(target, make()).text
    path = HERE / "deploy" / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "word", ["no", "On", "NULL", "y", "true", "1e3", "0x10", "~", "", "-", "a: b", "# x", "12:30:45"]
)
def test_words_that_yaml_reads_as_something_else_are_quoted(word: str) -> None:
    assert yaml_text({"key": word}) == f'key: "{word}"\n'


def test_yaml_is_block_style() -> None:
    value = {"a": [{"b": 1, "c": ["d", True]}, []], "e": {}, "f": "x\n  y\n"}
    expected = "a:\n  - b: 1\n    c:\n      - d\n      - true\n  - []\ne: {}\nf: |\n  x\n    y\n"
    assert yaml_text(value) == expected


KEYS = st.text(max_size=40)
"""YAML reads a key without its own mark only up to 1,024 characters; ours are names of fields."""


@given(
    st.recursive(st.text() | st.integers() | st.booleans(), lambda part: st.lists(part) | st.dictionaries(KEYS, part))
)
def test_what_is_written_is_what_a_yaml_reader_reads(value: Any) -> None:
    assert yaml.safe_load(yaml_text(value)) == value


@pytest.mark.parametrize("name", [each for each in EXAMPLES if each.startswith("kubernetes")])
def test_kubernetes_accepts_its_objects(name: str) -> None:
    checker = pytest.importorskip("kubernetes_validate")
    objects = list(yaml.safe_load_all((HERE / "deploy" / name).read_text(encoding="utf-8")))
    assert [each["kind"] for each in objects] == ["Deployment", "Service", "HorizontalPodAutoscaler"]
    for each in objects:
        checker.validate(each, checker.latest_version(), strict=True)


@pytest.mark.parametrize("name", [each for each in EXAMPLES if each.startswith("skypilot")])
def test_skypilot_accepts_its_tasks(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schemas = pytest.importorskip("sky.utils.schemas")
    task = yaml.safe_load((HERE / "deploy" / name).read_text(encoding="utf-8"))
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())
    if "service" in task:
        jsonschema.validate(task["service"], schemas.get_service_schema())
    for cloud in CLOUDS:
        jsonschema.validate({"infra": cloud}, schemas.get_resources_schema())


def script_of(task: str) -> str:
    """The ``run`` part of a task, which comes last."""
    return "".join(f"{line[2:]}\n" for line in task.split("\nrun: |\n")[1].splitlines())
