"""Deploy files: flags that the engines accept, text that a shell and a YAML reader take as meant, the plan's own fleet.

Flags are held against the names read from the engines' wheels (``engine_flags.json``). Kubernetes objects are held
against the strict schemas of its API (``kubernetes_schema.json.gz``), in which an unknown field is an error.
SkyPilot's tasks are compared with files that were validated once (docs/deploy.md); again where SkyPilot is installed.
"""

import gzip
import json
import math
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.catalog.read_configs import small

from tokonomics.catalog.checkpoints import checkpoint_for
from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.catalog.offers import UNSPECIFIED, Offer, Terms, load_offers
from tokonomics.deploy.job import DeployFile, DeployJob, Target
from tokonomics.deploy.manifest import comment, yaml_text
from tokonomics.deploy.pods import machine_names
from tokonomics.deploy.scripts import listen, shell_line
from tokonomics.deploy.targets import deploy_files, filled
from tokonomics.errors import BadInput
from tokonomics.physics.deployment import Deployment, deploy, why_not_run
from tokonomics.planner.plan import Question, plan
from tokonomics.sizing.engine_flags import catalogue_repository
from tokonomics.sizing.hosts import host_gib
from tokonomics.sizing.load import load_of_shape
from tokonomics.sizing.spare import Spare, machines_for, replicas_on
from tokonomics.traffic.workload import Spread

HERE = Path(__file__).parent
ACCEPTED = json.loads((HERE / "engine_flags.json").read_text(encoding="utf-8"))
SCHEMA = json.loads(gzip.decompress((HERE / "kubernetes_schema.json.gz").read_bytes()))
TODAY = date(2026, 11, 15)


def machine(gpu: str = "H100-SXM", gpus: int = 8, provider: str = "aws", instance: str = "p5.48xlarge") -> Offer:
    return Offer(
        provider=provider, region="us-east-1", instance=instance, gpu=gpu, gpus=gpus, vcpus=24.0 * gpus,
        memory_gb=256.0 * gpus, usd_per_hour=30.0, spot_usd_per_hour=12.0, date=date(2026, 10, 1),
        source="test",
    )  # fmt: skip


def served(model: str = "llama-3.3-70b", gpu: str = "H100-SXM", engine: str = "vllm", **more: Any) -> Deployment:
    return deploy(find_model(model), find_gpu(gpu), find_engine(engine), **more)


def job(deployment: Deployment | None = None, **more: Any) -> DeployJob:
    deployment = deployment or served(tp=2, weights=Precision.fp8)
    given: dict[str, Any] = {"max_context": 4096, "limits": deployment.limits, "provenance": "a test"}
    fields = {"replicas": 3} | given | more
    gpus = fields["offer"].gpus if fields.get("offer") else deployment.gpus
    packed = math.ceil(fields["replicas"] / max(1, gpus // deployment.gpus)) * math.ceil(deployment.gpus / gpus)
    return DeployJob(deployment=deployment, **{"machines": packed, "e2e_s": latency(12.3)} | fields)


def latency(p99: float | None, mean: float = 4.0) -> Spread:
    return Spread(p50=None, p90=None, p95=None, p99=p99, mean=mean)


def deploy_file(target: Target, *jobs: DeployJob) -> DeployFile:
    (file,) = deploy_files(target, *jobs)
    return file


def objects(made: DeployJob) -> dict[str, Any]:
    """The Kubernetes objects of a file, by their kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(deploy_file(Target.kubernetes, made).text)}


def pod_of(made: DeployJob) -> dict[str, Any]:
    return dict(objects(made)["Deployment"]["spec"]["template"]["spec"])


def unwritten(made: DeployJob) -> dict[str, Any]:
    """The same objects before they are text, for tests that look at hundreds of them."""
    return {each["kind"]: each for each in filled(Target.kubernetes, made)["files"][".yaml"]}


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
                    yield engine.key, list(job(one).command.arguments)


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
        words = job(served("seed-oss-36b", engine=engine, tp=2, weights=Precision.fp8)).command.arguments
        assert ("--quantization", name) in pairwise(words)
        assert "ByteDance-Seed/Seed-OSS-36B-Instruct" in words


def test_a_listed_fp8_checkpoint_is_served_without_converting_and_its_blocks_are_not_cut() -> None:
    for engine in ("vllm", "sglang"):
        words = job(served("qwen3-32b", engine=engine, tp=2, weights=Precision.fp8)).command.arguments
        assert "Qwen/Qwen3-32B-FP8" in words
        assert "--quantization" not in words
        # 768 columns of an expert over four GPUs are 192 each, and its blocks are 128 wide.
        apart = job(served("qwen3-30b-a3b", engine=engine, tp=4, weights=Precision.fp8)).command.arguments
        assert "RedHatAI/Qwen3-30B-A3B-FP8-dynamic" in apart
        whole = job(served("qwen3-30b-a3b", engine=engine, tp=4, ep=4, weights=Precision.fp8)).command.arguments
        assert "Qwen/Qwen3-30B-A3B-FP8" in whole


def test_a_quantised_checkpoint_of_its_maker_or_of_others_is_served_as_it_is() -> None:
    """The one whose score the plan shows."""
    commands = [job(served(model, tp=8)).command for model in ("deepseek-v3", "gpt-oss-120b")]
    for engine, weights in product(("vllm", "sglang"), (Precision.fp8, Precision.int4)):
        commands.append(job(served(engine=engine, tp=2, weights=weights)).command)
        listed = checkpoint_for(find_model("llama-3.3-70b"), weights)
        assert listed is not None
        assert listed.repository in commands[-1].arguments
    for command in commands:
        assert "--quantization" not in command.arguments
        assert command.fill_in == ()


def test_weights_that_no_engine_makes_on_loading_have_to_be_named_by_the_user() -> None:
    for target in (Target.vllm, Target.skypilot, Target.kubernetes):
        file = deploy_file(target, job(served("seed-oss-36b", weights=Precision.int4)))
        assert "FILL-IN/seed-oss-36b-int4" in file.text
        assert "AWQ or GPTQ" in file.fill_in[0]
        assert f"# FILL IN {file.fill_in[0]}\n" in file.text


def test_every_model_of_the_catalogue_has_a_repository_and_one_from_a_file_is_asked_for() -> None:
    assert all(catalogue_repository(each) for each in all_models())
    own = find_model("llama-3.1-8b").model_copy(update={"aliases": (), "key": "my model; rm -rf /"})
    file = deploy_file(Target.vllm, job(deploy(own, find_gpu("L4"), find_engine("vllm"))))
    assert "vllm serve FILL-IN/my-model-rm-rf-bf16 " in file.text
    assert len(file.fill_in) == 1


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("Foo-7B/config.json", "FILL-IN/foo-7b-bf16"),
        ("Foo-7B-BF16/config.json", "FILL-IN/foo-7b-bf16"),
        ("configs/Foo-7B.json", "FILL-IN/foo-7b-bf16"),
        ("models--acme--Foo-7B/snapshots/0a1b2c/config.json", "acme/Foo-7B"),  # the cache of huggingface_hub
    ],
)
def test_a_model_from_a_file_is_named_after_it(place: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    kept = tmp_path / "blobs" / "f00d"  # there, files are links to others
    kept.parent.mkdir()
    kept.write_text(json.dumps(small(2, model_type="llama")), encoding="utf-8")
    path.symlink_to(kept)
    file = deploy_file(Target.vllm, job(deploy(find_model(str(path)), find_gpu("L4"), find_engine("vllm"))))
    assert f"vllm serve {named} " in file.text
    assert len(file.fill_in) == named.startswith("FILL-IN")
    assert str(tmp_path) not in file.text


def test_dtype_follows_the_checkpoint_and_the_hardware() -> None:
    def dtype(**more: Any) -> str:
        words = job(served("llama-3.1-8b", **more)).command.arguments
        return words[words.index("--dtype") + 1]

    assert dtype() == "auto"
    assert dtype(gpu="T4", tp=2) == "half"
    assert dtype(weights=Precision.fp32) == "float32"


def test_limits_are_those_of_the_plan() -> None:
    limits = find_engine("vllm").defaults_on(find_gpu("H100"))
    given = limits.model_copy(update={"max_sequences": 48, "memory_fraction": 0.85})
    pairs = list(pairwise(job(limits=given).command.arguments))
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
        made = job(deployment, replicas=row.replicas, machines=row.instances, offer=offer, max_context=1300)
        assert row.replicas <= made.machines * made.replicas_per_machine <= row.gpus_paid // row.gpus_per_replica
        assert made.replicas_per_machine <= made.places_per_machine


@pytest.mark.parametrize("target", [Target.vllm, Target.skypilot])
def test_every_replica_of_a_machine_is_started_there(target: Target) -> None:
    dense = deploy_file(target, job(replicas=2, machines=1, offer=machine(gpus=4))).text
    (server,) = run_in_shell(script_of(dense))
    assert ("--data-parallel-size", "2") in pairwise(server)
    mixture = deploy_file(target, job(served("qwen3-30b-a3b"), replicas=3, machines=1, offer=machine(gpus=4))).text
    assert [(each[0], each[-1]) for each in run_in_shell(script_of(mixture))] == [
        ("GPUS=0", "8000"),
        ("GPUS=1", "8001"),
        ("GPUS=2", "8002"),
    ]


def test_machines_of_one_replica_are_in_one_zone() -> None:
    made = job(served("deepseek-v3", tp=8, pp=2), replicas=3, spare=2, over_zones=True, offer=machine())
    assert made.machines_in_zones == [2, 2, 2]


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


def wide(engine: str, **more: Any) -> DeployJob:
    """DeepSeek V3 on two machines: sixteen groups of the attention, the experts over all GPUs."""
    return job(served("deepseek-v3", "H200", engine, tp=1, dp=16, ep=16), replicas=1, offer=machine("H200"), **more)


@pytest.mark.parametrize("target", [Target.vllm, Target.skypilot])
def test_vllm_joins_groups_of_the_attention_over_machines_by_data_parallelism(target: Target) -> None:
    # As in vLLM's documentation, "Data Parallel Deployment": sizes on both, headless and a first rank on the second.
    text = script_of(deploy_file(target, wide("vllm")).text)
    addresses = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    first, second = (
        run_in_shell(f"set -- {rank} 10.0.0.1\n{text}", SKYPILOT_NODE_RANK=str(rank), **addresses)[0] for rank in (0, 1)
    )
    joined = {
        ("--data-parallel-size", "16"), ("--data-parallel-size-local", "8"),
        ("--data-parallel-address", "10.0.0.1"), ("--data-parallel-rpc-port", "13345"),
    }  # fmt: skip
    for words in (first, second):
        assert joined <= set(pairwise(words))
        assert {"--enable-expert-parallel", "--enable-dbo"} <= set(words)
        assert {word for word in words if word.startswith("--")} <= set(ACCEPTED["vllm"]["flags"])
        assert not {"--nnodes", "--node-rank"} & set(words)
    assert second == [*first, "--headless", "--data-parallel-start-rank", "8"]


def test_sglang_joins_groups_of_the_attention_over_machines_by_ranks() -> None:
    text = deploy_file(Target.sglang, wide("sglang")).text
    (words,) = run_in_shell(f"set -- 1 10.0.0.1\n{text}")
    asked = {"tp-size": 16, "attn-dp-size": 16, "ep-size": 16, "nnodes": 2, "node-rank": 1, "moe-a2a-backend": "deepep"}
    assert {(f"--{name}", str(value)) for name, value in asked.items()} <= set(pairwise(words))
    assert ("--dist-init-addr", "10.0.0.1:5000") in pairwise(words)
    assert {word for word in words if word.startswith("--")} <= set(ACCEPTED["sglang"]["flags"])


def test_a_script_for_several_machines_asks_which_one_this_is() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run_in_shell(deploy_file(Target.vllm, wide("vllm")).text)


def test_groups_that_span_machines_are_joined_by_ranks_instead() -> None:
    made = job(served("deepseek-v3", tp=8, pp=2), replicas=1, offer=machine())
    assert made.groups_per_machine == 0
    assert "--nnodes 2" in deploy_file(Target.vllm, made).text
    assert wide("vllm").groups_per_machine == 8


# --- memories behind the GPUs ---------------------------------------------------------------------------------------


def flags_with(tiers: str, engine: str, deployment: Deployment | None = None) -> dict[str, str]:
    command = job(deployment or served("llama-3.1-8b", engine=engine, tp=2), tiers=tiers).command
    assert {word for word in command.arguments if word.startswith("--")} <= set(ACCEPTED[engine]["flags"])
    return dict(pairwise(command.arguments))


def test_host_memory_for_kv_is_that_of_the_plan() -> None:
    # vLLM: GiB of an engine, all its ranks together. SGLang: whole GB of each rank.
    assert flags_with("dram=200@0", "vllm")["--kv-offloading-size"] == f"{200e9 / 2**30:.1f}"
    flags = flags_with("dram=201@0", "sglang")
    assert "--enable-hierarchical-cache" in flags
    assert flags["--hicache-size"] == "100"


def test_each_group_of_the_attention_has_its_part_of_host_memory() -> None:
    deployment = wide("vllm").deployment
    assert flags_with("dram=1600@0", "vllm", deployment)["--kv-offloading-size"] == f"{100e9 / 2**30:.1f}"


def test_disks_lie_behind_host_memory_in_a_folder_that_the_user_names() -> None:
    vllm = json.loads(flags_with("dram=200@0,ssd=2000@0", "vllm")["--kv-transfer-config"])
    assert vllm["kv_connector"] == "OffloadingConnector"
    assert vllm["kv_connector_extra_config"]["cpu_bytes_to_use"] == 200e9
    (behind,) = vllm["kv_connector_extra_config"]["secondary_tiers"]
    flags = flags_with("dram=200@0,ssd=2000@0", "sglang")
    sglang = json.loads(flags["--hicache-storage-backend-extra-config"])
    assert flags["--hicache-storage-backend"] == "file"
    assert sglang["max_size"] == 1000e9, "of each of two ranks"
    assert behind["root_dir"] == sglang["file_storage_path"] == "FILL-IN-kv-folder"
    file = deploy_file(Target.vllm, job(replicas=1, tiers="dram=200@0,ssd=2000@0"))
    assert file.fill_in[0].startswith("FILL-IN-kv-folder: ")


@pytest.mark.parametrize(
    ("engine", "tiers"), [("vllm", "ssd=2000@0"), ("sglang", "ssd=2000@0"), ("sglang", "dram=8@0,ssd=9@0,remote=9@0")]
)
def test_memories_that_an_engine_cannot_have_are_refused(engine: str, tiers: str) -> None:
    with pytest.raises(BadInput):
        flags_with(tiers, engine)


def test_pods_count_the_kv_that_they_keep_in_host_memory() -> None:
    known = machine(gpus=2).model_copy(update={"memory_gb": 160.0})
    plain, kept = (deploy_file(Target.kubernetes, job(offer=known, tiers=tiers)).text for tiers in (None, "dram=60@0"))
    assert "GiB of a machine's" not in plain
    assert re.search(r"Weights and processes and KV may take 1[23]\d\.\d GiB of a machine's 160, ", kept)


def test_the_start_up_probe_outlasts_a_slow_download() -> None:
    for model in ("llama-3.1-8b", "deepseek-v3"):
        made = job(served(model, tp=8), offer=machine())
        text = deploy_file(Target.kubernetes, made).text
        probe = text.split("startupProbe:")[1]
        allowed_s = 10 * int(probe.split("failureThreshold: ")[1].split()[0])
        spec = find_model(model)
        assert allowed_s >= 300 + spec.weight_bytes(spec.checkpoint) / 100e6
        # The API server refuses a longer window than an hour.
        assert int(text.split("stabilizationWindowSeconds: ")[1].split()[0]) <= 3600


# --- Kubernetes -----------------------------------------------------------------------------------------------------


def selector_of(provider: str, instance: str, gpu: str = "H100-SXM") -> dict[str, str]:
    made = job(served(gpu=gpu, tp=2), offer=machine(gpu, 8, provider, instance))
    return dict(pod_of(made).get("nodeSelector", {}))


def test_pods_run_on_the_planned_machines_where_their_label_is_known() -> None:
    label = "node.kubernetes.io/instance-type"
    for provider in ("aws", "azure", "gcp", "oci", "do"):
        assert selector_of(provider, "some.type")[label] == "some.type"
    assert selector_of("gcp", "a3-highgpu-8g")["cloud.google.com/gke-accelerator"] == "nvidia-h100-80gb"
    assert selector_of("gcp", "a3-megagpu-8g")["cloud.google.com/gke-accelerator"] == "nvidia-h100-mega-80gb"
    # The same host is sold with several GPUs: only the accelerator's label tells them apart.
    assert selector_of("gcp", "n1-standard-16", "T4")["cloud.google.com/gke-accelerator"] == "nvidia-tesla-t4"
    assert selector_of("lambda", "gpu_8x_h100_sxm5") == {}


def test_elsewhere_pods_run_on_machines_labelled_with_the_gpu() -> None:
    for gpu, key, value in (
        ("H100-SXM", "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
        ("MI300X", "amd.com/gpu.device-id", "74a1"),
    ):
        for offer in (None, machine(gpu, 8, "lambda", "gpu_8x")):
            pod = pod_of(job(served(gpu=gpu, tp=2), offer=offer))
            required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ((expression,),) = (term["matchExpressions"] for term in required["nodeSelectorTerms"])
            assert expression["key"] == key
            assert value in expression["values"]


def test_every_gpu_of_the_shipped_offers_is_selected_or_the_file_says_that_it_is_not() -> None:
    sold = {offer.gpu: offer for offer in load_offers() if offer.provider not in ("aws", "azure", "gcp", "oci", "do")}
    vllm, bf16 = find_engine("vllm"), Precision.bf16
    served_on = {key: offer for key, offer in sold.items() if not why_not_run(vllm, find_gpu(key), bf16, bf16)}
    assert len(served_on) > 15
    for key, offer in served_on.items():
        made = job(served("llama-3.1-8b", gpu=key), offer=offer)
        assert ("affinity" in pod_of(made)) is not ("No label is known" in deploy_file(Target.kubernetes, made).text)


def test_requests_are_what_a_replica_needs_not_its_part_of_the_machine() -> None:
    # 70.6 B parameters in FP8 are 65.7 GiB, and a process for each GPU takes 3 GiB. Two GPUs are two workers, an API
    # server and a scheduler: two hardware threads each.
    for offer in (machine(), machine(gpus=2).model_copy(update={"memory_gb": None, "vcpus": None})):
        (container,) = pod_of(job(offer=offer))["containers"]
        requests = container["resources"]["requests"]
        assert 65.7 + 6 <= int(requests.pop("memory").removesuffix("Gi")) <= 80
        assert requests == {"cpu": "8", "ephemeral-storage": "10Gi", "nvidia.com/gpu": 2}
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}


def test_groups_of_the_attention_have_servers_and_schedulers_of_their_own() -> None:
    # vLLM, arch_overview: -tp=2 -dp=4 are 4 API servers, 4 engine cores, 8 GPU workers and a coordinator.
    (container,) = pod_of(job(served("deepseek-v3", "H200", tp=2, dp=4, ep=8), offer=machine("H200")))["containers"]
    assert container["resources"]["requests"]["cpu"] == str(2 * 17)


def test_on_a_thin_machine_less_is_asked_for_than_needed() -> None:
    thin = machine(gpus=2).model_copy(update={"memory_gb": 80.0, "vcpus": 8.0})
    (container,) = pod_of(job(replicas=1, offer=thin))["containers"]
    assert container["resources"]["requests"]["memory"] == "60Gi"
    assert container["resources"]["requests"]["cpu"] == "6"


def test_pods_have_no_more_rights_than_their_image_and_gpu_need() -> None:
    for engine, gpu, user in (("vllm", "H100-SXM", 2000), ("sglang", "H100-SXM", None), ("vllm", "MI300X", None)):
        pod = pod_of(job(served(engine=engine, gpu=gpu, tp=4), offer=machine(gpu)))
        (container,), context = pod["containers"], pod.get("securityContext", {})
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert pod["automountServiceAccountToken"] is False
        assert (context.get("runAsNonRoot", False), context.get("runAsUser")) == (user is not None, user)
        # vLLM, docs/deployment/docker.md: user 2000 of group 0, for which mounted folders are writable.
        assert (context.get("runAsGroup"), context.get("fsGroup")) == ((0, 0) if user else (None, None))
        assert ("seccompProfile" in context) is (gpu == "H100-SXM")
    gaudi = pod_of(job(served("llama-3.1-8b", gpu="Gaudi3"), offer=machine("Gaudi3")))["containers"][0]
    assert gaudi["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_NICE"]}


@pytest.mark.parametrize(("engine", "name"), [("vllm", "VLLM_API_KEY"), ("sglang", "API_KEY")])
def test_a_server_asks_for_the_key_of_a_secret(engine: str, name: str) -> None:
    made = job(served(engine=engine, tp=4), offer=machine())
    (container,) = pod_of(made)["containers"]
    (key,) = [each for each in container["env"] if each["name"] == name]
    secret = key["valueFrom"]["secretKeyRef"]
    assert not secret.get("optional")  # without it no server is started, rather than an open one
    assert f"create secret generic {secret['name']} --from-literal={secret['key']}=" in deploy_file(
        Target.kubernetes, made
    ).text.replace("\n# ", " ")
    assert (("--api-key", f"$({name})") in pairwise(container["args"])) is (engine == "sglang")


def test_no_argument_of_a_pod_is_read_as_a_variable() -> None:
    made = job(served("llama-3.1-8b", lora_rank=8, lora_adapters=1), offer=machine(), tiers="dram=10@0,ssd=10@0")
    (container,) = pod_of(made)["containers"]
    assert not [word for word in container["args"] if re.search(r"(?<!\$)\$\(", word)]


def test_only_labelled_namespaces_reach_a_server_and_prometheus_finds_it() -> None:
    found = objects(job(offer=machine()))
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    policy, monitor = found["NetworkPolicy"]["spec"], found["PodMonitor"]["spec"]
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    for selector in (policy["podSelector"], monitor["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (let_in,) = policy["ingress"]
    assert [set(each) for each in let_in["from"]] == [{"namespaceSelector"}] * 2
    assert [each["port"] for each in let_in["ports"]] == [port["name"]]
    assert {(each["protocol"], each["port"]) for each in policy["egress"][0]["ports"]} == {
        ("UDP", 53), ("TCP", 53), ("TCP", 443)
    }  # fmt: skip
    assert len(policy["egress"]) == 1
    assert [(each["port"], each["path"]) for each in monitor["podMetricsEndpoints"]] == [(port["name"], "/metrics")]


def test_arm_machines_are_selected_and_the_file_says_that_containers_are_of_arm64() -> None:
    for gpu, provider, instance, arm in (
        ("GH200", "lambda", "gpu_1x_gh200", True), ("GB200", "aws", "p6e-gb200", True),
        ("GB10", "on-prem", "dgx-spark", True),
        ("T4", "aws", "g5g.xlarge", True), ("T4", "aws", "g4dn.xlarge", False), ("H200", "aws", "p5en", False),
    ):  # fmt: skip
        made = job(served("llama-3.1-8b", gpu=gpu), replicas=1, offer=machine(gpu, 1, provider, instance))
        selector = pod_of(made).get("nodeSelector", {})
        assert (selector.get("kubernetes.io/arch") == "arm64") is arm, instance
        tolerated = {each["key"]: each.get("value") for each in pod_of(made)["tolerations"]}
        assert (tolerated.get("kubernetes.io/arch") == "arm64") is arm
        for target in (Target.kubernetes, Target.compose, Target.vllm):
            assert ("arm64" in deploy_file(target, made).text.split("\n---")[0]) is arm


def allocatable_gib(memory_gib: float) -> float:
    """What GKE leaves to pods: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes."""
    left, kept = memory_gib, 100 / 1024
    for step, share in ((4, 0.25), (4, 0.2), (8, 0.1), (112, 0.06), (math.inf, 0.02)):
        kept += share * min(step, left)
        left -= min(step, left)
    return memory_gib - kept


def test_on_every_shipped_machine_pods_ask_for_no_more_than_the_cluster_can_give() -> None:
    told = {
        (offer.gpu, offer.gpus, offer.vcpus, offer.memory_gb): offer
        for offer in load_offers()
        if offer.vcpus and offer.memory_gb
    }
    count = 0
    for offer, model, tp in product(told.values(), ("llama-3.1-8b", "gemma-3-12b", "llama-3.3-70b"), (1, 2, 8)):
        gpu, vllm = find_gpu(offer.gpu), find_engine("vllm")
        if gpu.vendor not in machine_names()["vendors"]:
            continue  # refused: tests/questions/test_new_hardware.py
        if tp > offer.gpus or why_not_run(vllm, gpu, Precision.bf16, Precision.bf16):
            continue
        deployment = Deployment(
            model=find_model(model), gpu=gpu, engine=vllm, tp=tp, weights=Precision.bf16, kv=Precision.bf16
        )
        assert offer.vcpus is not None
        assert offer.memory_gb is not None
        if offer.memory_gb < host_gib(deployment, offer.gpus):
            continue
        (container,) = unwritten(job(deployment, offer=offer))["Deployment"]["spec"]["template"]["spec"]["containers"]
        requests, pods = container["resources"]["requests"], offer.gpus // tp
        milli = requests["cpu"].endswith("m")
        cpus = int(requests["cpu"].removesuffix("m")) / (1000 if milli else 1)
        memory_gib = int(requests["memory"].removesuffix("Gi"))
        assert memory_gib > 0
        assert pods * memory_gib <= allocatable_gib(offer.memory_gb)
        assert pods * cpus <= 0.8 * offer.vcpus
        count += 1
    assert count > 500


class Machine:
    def __init__(self, zone: str) -> None:
        self.zone, self.pods = zone, 0

    def domain(self, key: str) -> object:
        return {"kubernetes.io/hostname": self, "topology.kubernetes.io/zone": self.zone}[key]


class Cluster:
    """A scheduler that follows the strict rules alone, and of the machines that they allow takes any.

    A rule allows a place if its domain, with the pod, has at most ``maxSkew`` pods more than the emptiest domain; that
    one counts as empty while there are fewer than ``minDomains`` (API reference, TopologySpreadConstraint v1).
    """

    def __init__(self, made: DeployJob, chance: Random, zones: str = "") -> None:
        rules = unwritten(made)["Deployment"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
        self.strict = [rule for rule in rules if rule["whenUnsatisfiable"] == "DoNotSchedule"]
        self.made, self.chance, self.machines = made, chance, [Machine(zone) for zone in zones]

    @property
    def running(self) -> int:
        return sum(machine.pods for machine in self.machines)

    def pods_in_domains(self, key: str) -> Counter[object]:
        pods: Counter[object] = Counter()
        for machine in self.machines:
            pods[machine.domain(key)] += machine.pods
        return pods

    def places(self) -> list[Machine]:
        """Machines on which one more pod may run."""
        free = [machine for machine in self.machines if machine.pods < self.made.places_per_machine]
        for rule in self.strict:
            key, pods = rule["topologyKey"], self.pods_in_domains(rule["topologyKey"])
            fewest = min(pods.values(), default=0) if len(pods) >= rule.get("minDomains", 1) else 0
            free = [machine for machine in free if pods[machine.domain(key)] + 1 - fewest <= rule["maxSkew"]]
        return free

    def start(self) -> None:
        while self.running < self.made.replicas and (places := self.places()):
            self.chance.choice(places).pods += 1

    def grow(self, zones: str) -> None:
        """Start every pod: where one has to wait, a machine is added in some zone in which it may run."""
        self.start()
        while self.running < self.made.replicas:
            for zone in self.chance.sample(zones, len(zones)):
                self.machines.append(Machine(zone))
                if self.machines[-1] in self.places():
                    break
                self.machines.pop()
            else:
                pytest.fail("no machine in any zone would do")
            self.start()

    def stop(self, pods: int) -> None:
        on = [machine for machine in self.machines for _ in range(machine.pods)]
        for machine in self.chance.sample(on, pods):
            machine.pods -= 1

    def lost_at_worst(self, key: str) -> int:
        return max(self.pods_in_domains(key).values())


@given(
    replicas=st.integers(2, 24), gpus=st.sampled_from([2, 4, 8]), extra=st.integers(0, 4),
    chance=st.randoms(use_true_random=False),
)  # fmt: skip
def test_a_lost_machine_takes_only_the_planned_replicas(replicas: int, gpus: int, extra: int, chance: Random) -> None:
    machines = min(replicas, math.ceil(replicas / (gpus // 2)) + extra)
    cluster = Cluster(job(replicas=replicas, machines=machines, offer=machine(gpus=gpus)), chance)
    cluster.grow("abc")
    assert len(cluster.machines) == machines
    assert cluster.lost_at_worst("kubernetes.io/hostname") == math.ceil(replicas / machines)


ZONE = Spare(zone=True)
ZONE_PLANS = {
    "needed": st.integers(1, 30),
    "gpus": st.sampled_from([2, 4, 8, 16]),
    "chance": st.randoms(use_true_random=False),
}


def zone_job(needed: int, gpus: int) -> DeployJob:
    """As planned so that so many replicas are left when a zone fails; each takes two of a machine's GPUs."""
    deployment, offer = served(tp=2, weights=Precision.fp8), machine(gpus=gpus)
    machines = machines_for(deployment, offer, needed, ZONE)
    replicas = replicas_on(deployment, offer, needed, ZONE)
    return job(replicas=replicas, machines=machines, spare=ZONE.lost_of(machines), over_zones=True, offer=offer)


def left_without_a_zone(cluster: Cluster) -> int:
    return cluster.running - cluster.lost_at_worst("topology.kubernetes.io/zone")


@given(**ZONE_PLANS)
def test_pods_run_on_machines_even_over_zones_of_which_one_may_fail(needed: int, gpus: int, chance: Random) -> None:
    made = zone_job(needed, gpus)
    cluster = Cluster(made, chance, ("abc" * made.machines)[: made.machines])
    cluster.start()
    assert cluster.running == made.replicas
    assert left_without_a_zone(cluster) >= needed
    # And again after an update, which stops as many as the plan can do without, wherever they are.
    update = unwritten(made)["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    cluster.stop(update["maxUnavailable"])
    assert cluster.running >= needed
    cluster.start()
    assert cluster.running == made.replicas
    assert left_without_a_zone(cluster) >= needed


@given(**ZONE_PLANS)
def test_a_cluster_that_grows_for_its_pods_has_the_planned_machines(needed: int, gpus: int, chance: Random) -> None:
    made = zone_job(needed, gpus)
    cluster = Cluster(made, chance)
    cluster.grow("abc")
    assert len(cluster.machines) == made.machines
    assert left_without_a_zone(cluster) >= needed


@given(**ZONE_PLANS, data=st.data())
def test_pods_wait_rather_than_crowd_a_zone(needed: int, gpus: int, chance: Random, data: st.DataObject) -> None:
    made = zone_job(needed, gpus)
    zones = data.draw(st.text("abcd", min_size=made.machines, max_size=made.machines))
    cluster = Cluster(made, chance, zones)
    cluster.start()
    assert cluster.lost_at_worst("topology.kubernetes.io/zone") <= made.replicas - needed


@pytest.mark.parametrize(
    ("replicas", "gpus", "zones", "running"),
    [
        (4, 4, "ab", 4),  # two machines of two replicas
        (4, 4, "aa", 1),
        (10, 4, "aabbc", 10),  # full machines: 4 + 4 + 2
        (10, 4, "aaabc", 8),  # 4 + 2 + 2: six of ten would be lost with the first zone
        (20, 8, "aabbc", 20),  # 8 + 8 + 4
        (8, 8, "abc", 8),  # 3 + 3 + 2, and room for four more
        (8, 8, "aab", 2),
    ],
)
def test_pods_run_by_zones(replicas: int, gpus: int, zones: str, running: int) -> None:
    offer, spare = machine(gpus=gpus), math.ceil(len(zones) / 3)
    made = job(replicas=replicas, machines=len(zones), spare=spare, over_zones=True, offer=offer)
    cluster = Cluster(made, Random(1), zones)
    cluster.start()
    assert cluster.running == running


def test_a_zone_may_fail_only_if_asked() -> None:
    """Machines in one zone serve, unless it is a zone that may fail: then pods wait for a second one."""
    for over_zones, running in ((False, 3), (True, 1)):
        made = job(machines=3, spare=1, over_zones=over_zones, offer=machine(gpus=2))
        cluster = Cluster(made, Random(1), "aaa")
        cluster.start()
        assert cluster.running == running


def test_a_single_replica_is_spread_over_nothing() -> None:
    assert "topologySpreadConstraints" not in pod_of(job(replicas=1, offer=machine()))


def test_without_a_label_that_tells_gpu_machines_apart_spreading_does_not_keep_pods_waiting() -> None:
    # Machines without a GPU would count as empty: no second pod could ever run on a machine.
    made = job(served("llama-3.1-8b", gpu="Gaudi3"), replicas=4, offer=machine("Gaudi3", 8, "own", "hls"))
    assert {each["whenUnsatisfiable"] for each in pod_of(made)["topologySpreadConstraints"]} == {"ScheduleAnyway"}


@pytest.mark.parametrize(("spare", "machines", "missing"), [(0, 2, 0), (1, 2, 2), (2, 4, 2)])
def test_an_update_and_a_drain_take_no_more_than_the_plan_can_spare(spare: int, machines: int, missing: int) -> None:
    found = objects(job(replicas=4, machines=machines, spare=spare, offer=machine(gpus=4)))
    assert found["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": missing}
    assert "PodDisruptionBudget" not in objects(job(replicas=1, offer=machine(gpus=4)))
    # A budget of nothing would keep machines from being drained at all.
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == max(1, missing)
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("e2e_s", "answer_s"),
    [(latency(12.3), 13), (latency(0.2), 1), (latency(None, mean=10.0), 47)],  # ln(100) × 10 s = 46.05 s
)
def test_a_pod_that_leaves_answers_its_last_requests_first(e2e_s: Spread, answer_s: int) -> None:
    pod = pod_of(job(offer=machine(), e2e_s=e2e_s))
    program, waits_s = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert int(waits_s) == 10 + answer_s
    assert pod["terminationGracePeriodSeconds"] >= int(waits_s) + 30


def test_weights_are_on_a_volume_that_holds_two_revisions_and_that_pods_share() -> None:
    made = job(offer=machine())
    claim = objects(made)["PersistentVolumeClaim"]
    # 70.6 B parameters of 16 bits.
    assert 2 * 131 <= int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) <= 280
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    pod = pod_of(made)
    (volume,) = [each for each in pod["volumes"] if "persistentVolumeClaim" in each]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    assert {"name": "HF_HOME", "value": mount["mountPath"]} in pod["containers"][0]["env"]
    file = deploy_file(Target.kubernetes, made)
    assert any(text.startswith(claim["spec"]["storageClassName"]) for text in file.fill_in)


# --- what every file says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "model", "layout"),
    [
        (Target.sglang, "llama-3.3-70b", {"tp": 2}),
        (Target.kubernetes, "llama-3.3-70b", {"engine": "tensorrt-llm", "tp": 4}),
        (Target.vllm, "qwen3-30b-a3b", {"tp": 4, "ep": 2}),
        (Target.kubernetes, "deepseek-v3", {"tp": 8, "pp": 2}),
    ],
)
def test_what_a_target_cannot_start_is_refused(target: Target, model: str, layout: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        deploy_file(target, job(served(model, **layout), offer=machine()))


# --- YAML -----------------------------------------------------------------------------------------------------------

EXAMPLES: dict[str, tuple[Target, Callable[[], DeployJob]]] = {
    "vllm.sh": (Target.vllm, lambda: job(replicas=1, offer=machine(gpus=2))),
    "vllm-ports.sh": (Target.vllm, lambda: job(served("qwen3-30b-a3b", tp=2), replicas=7, offer=machine())),
    "sglang.sh": (Target.sglang, lambda: job(served("qwen3-30b-a3b", engine="sglang", tp=2, ep=2, kv=Precision.fp8))),
    "skypilot.yaml": (Target.skypilot, lambda: job(replicas=7, offer=machine(), terms=Terms.spot)),
    "skypilot-ports.yaml": (Target.skypilot, lambda: job(served("qwen3-30b-a3b", tp=2), replicas=7, offer=machine())),
    "skypilot-nodes.yaml": (Target.skypilot, lambda: job(served("deepseek-v3", tp=8, pp=2), offer=machine())),
    "kubernetes.yaml": (Target.kubernetes, lambda: job(offer=machine(), terms=Terms.spot)),
    "kubernetes-spare.yaml": (Target.kubernetes, lambda: job(machines=3, spare=1, offer=machine())),
    "skypilot-zones.yaml": (
        Target.skypilot,
        lambda: job(replicas=20, machines=5, spare=2, over_zones=True, offer=machine()),
    ),
    "kubernetes-zones.yaml": (
        Target.kubernetes,
        lambda: job(replicas=20, machines=5, spare=2, over_zones=True, offer=machine()),
    ),
    "kubernetes-sglang.yaml": (Target.kubernetes, lambda: job(served(engine="sglang", tp=4, gpu="MI300X"))),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_files_are_those_that_were_validated(name: str) -> None:
    target, make = EXAMPLES[name]
    text = deploy_file(target, make()).text
    path = HERE / "files" / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


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


@pytest.mark.parametrize("name", [each for each in EXAMPLES if each.startswith("skypilot")])
def test_skypilot_accepts_its_tasks(name: str) -> None:
    schemas = pytest.importorskip("sky.utils.schemas")
    task = yaml.safe_load((HERE / "files" / name).read_text(encoding="utf-8"))
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())
    if "service" in task:
        jsonschema.validate(task["service"], schemas.get_service_schema())
    for cloud in machine_names()["skypilot"]["clouds"]:
        jsonschema.validate({"infra": cloud}, schemas.get_resources_schema())


def script_of(text: str) -> str:
    """A shell file, or the ``run`` part of a task, which comes last."""
    if "\nrun: |\n" not in text:
        return text
    return "".join(f"{line[2:]}\n" for line in text.split("\nrun: |\n")[1].splitlines())


def test_a_machine_of_no_known_region_is_looked_for_in_all() -> None:
    nowhere = machine().model_copy(update={"region": UNSPECIFIED})
    known, unknown = (pod_of(job(offer=offer))["nodeSelector"] for offer in (machine(), nowhere))
    assert known["topology.kubernetes.io/region"] == "us-east-1"
    assert "topology.kubernetes.io/region" not in unknown
