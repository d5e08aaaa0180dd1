"""How a deployment's speed is known: kernels measured on its GPU, scaled from a relative, or assumed."""

from tokonomics.catalog.models import LatentAttention
from tokonomics.nouns import Badge
from tokonomics.physics import attention_kernels, matrix_kernels
from tokonomics.physics.deployment import Deployment


def speed_badge(deployment: Deployment) -> Badge:
    """The weakest origin among the kernels that a deployment runs."""
    model, gpu, backend = deployment.model, deployment.gpu, deployment.engine.key
    bases: set[str] = {
        matrix_kernels.curve_origin(gpu, "gemm", precision, backend).kind
        for precision in model.precisions(deployment.weights)
    }
    if model.is_moe:
        bases.add(matrix_kernels.curve_origin(gpu, "experts", deployment.weights, backend).kind)
    latent = any(isinstance(group.mixer, LatentAttention) for group in model.groups)
    op: attention_kernels.Op = "mla_decode" if latent else "decode"
    bases.add(attention_kernels.curve_origin(gpu, op, deployment.kv, backend).basis)
    if "assumed" in bases:
        return Badge.assumed
    return Badge.measured if bases == {"measured"} else Badge.modelled
