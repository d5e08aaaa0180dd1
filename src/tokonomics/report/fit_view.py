"""Where a GPU's memory goes, as a bar and a few lines."""

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.physics.memory import Fit
from tokonomics.report.tables import bar, legend, pairs
from tokonomics.units import gigabytes


def fit_view(fit: Fit) -> RenderableType:
    deployment = fit.deployment
    engine = deployment.engine
    if fit.fits:
        headline = Text.assemble(
            ("fits", "bold green"), f": {deployment} holds {fit.max_sequences:,} sequences of {fit.context:,} tokens"
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
    share = f"{engine.key} takes {limits.memory_fraction:.0%} of {gigabytes(fit.usable_bytes)}"
    batch_note = f"in memory; {engine.key} runs {limits.max_sequences:,} at once unless told otherwise"
    smallest = f"{fit.min_gpus} GPU{'s' * (fit.min_gpus != 1)}" if fit.min_gpus else "none"
    chunk = f"activations of {limits.max_batched_tokens:,} tokens or logits, runtime"
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
    over = Text()
    if held > fit.memory_bytes:
        too_much = gigabytes(held - fit.memory_bytes)
        over = Text(f"{too_much} more than the {gigabytes(fit.memory_bytes)} of one {deployment.gpu.key}", "red")
    labels = [gigabytes(size) for _, size, _ in parts]
    return Group(headline, "", bar(parts), legend(parts, labels), over, pairs(rows))
