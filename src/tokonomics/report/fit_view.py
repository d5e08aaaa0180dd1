"""Where a GPU's memory goes, as a bar and a few lines."""

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.physics.memory import Fit
from tokonomics.report.tables import bar, legend, pairs
from tokonomics.units import gigabytes, plural


def fit_view(fit: Fit) -> RenderableType:
    deployment = fit.deployment
    engine = deployment.engine
    if fit.fits:
        headline = Text.assemble(
            ("fits", "bold green"),
            f": {deployment} holds {plural(fit.max_sequences, 'sequence')} of {fit.context:,} tokens",
        )
    else:
        need = f"needs {fit.min_gpus} GPUs" if fit.min_gpus else "no number of these GPUs is enough"
        headline = Text.assemble(("does not fit", "bold red"), f": {deployment}; {need}")
    held = fit.weight_bytes_per_gpu + fit.workspace_bytes + fit.kv_budget_bytes
    parts = [
        ("weights", float(fit.weight_bytes_per_gpu), "blue"),
        ("workspace", float(fit.workspace_bytes), "magenta"),
        ("KV cache", float(fit.kv_budget_bytes), "green"),
        ("not used", float(max(fit.memory_bytes - held, 0)), "bright_black"),
    ]
    limits = deployment.limits
    share = f"{gigabytes(fit.usable_bytes)} to share out; {engine.memory_text(deployment.gpu)}"
    batch_note = f"in memory; {engine.key} runs {limits.max_sequences:,} at once unless told otherwise"
    smallest = f"{fit.min_gpus} GPU{'s' * (fit.min_gpus != 1)}" if fit.min_gpus else "none"
    loras = f"{plural(deployment.lora_adapters, 'adapter')}, " if deployment.lora_adapters else ""
    chunk = f"{loras}activations of {limits.max_batched_tokens:,} tokens or logits, runtime"
    blocks = f"{fit.context:,} tokens in blocks of {engine.kv_block_tokens}"
    rows: list[tuple[str, str | Text, str]] = [
        (
            "weights",
            gigabytes(fit.weight_bytes),
            f"{deployment.weights}; {gigabytes(fit.weight_bytes_per_gpu)} on each GPU",
        ),
        ("workspace", gigabytes(fit.workspace_bytes), f"each GPU: {chunk}"),
        ("KV budget", gigabytes(fit.kv_budget_bytes), f"each GPU: {share}"),
        ("KV per token", f"{fit.kv_bytes_per_token:,} B", f"the whole model in {deployment.kv}"),
        ("KV per sequence", gigabytes(fit.kv_bytes_per_sequence), f"each GPU: {blocks}"),
        ("largest batch", f"{fit.max_sequences:,}", batch_note),
        ("smallest that fits", smallest, deployment.gpu.name),
    ]
    body: list[RenderableType] = [headline, "", bar(parts), legend(parts, [gigabytes(size) for _, size, _ in parts])]
    if fit.shortfall_bytes:
        body.append(Text(f"{gigabytes(fit.shortfall_bytes)} more than {engine.key} may use of one GPU", "red"))
    return Group(*body, "", pairs(rows))
