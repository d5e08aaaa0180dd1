"""How a deployment's speed is known: kernels measured on its GPU, scaled from a relative, or assumed."""

from tokonomics.nouns import Badge
from tokonomics.physics import attention_kernels, matrix_kernels
from tokonomics.physics.deployment import Deployment


def speed_badge(deployment: Deployment) -> Badge:
    """The weakest origin among the kernels a deployment runs."""
    gpu, backend = deployment.gpu, deployment.engine.key
    bases = {
        matrix_kernels.curve_origin(gpu, "gemm", deployment.weights, backend).kind,
        attention_kernels.curve_origin(gpu, "decode", deployment.kv, backend).basis,
    }
    if "assumed" in bases:
        return Badge.assumed
    return Badge.measured if bases == {"measured"} else Badge.modelled
