"""How a deployment's speed is known: kernels measured on its GPU, scaled from a relative, or assumed."""

from tokonomics.catalog.models import LatentAttention
from tokonomics.physics import attention_kernels
from tokonomics.physics.calibration import active
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.matrix_kernels import curve_origin
from tokonomics.types import Badge


def speed_badge(deployment: Deployment) -> Badge:
    """The weakest origin among its matrix and attention kernels; measured where its server was calibrated on."""
    profile = active()
    if profile and profile.correction_of(deployment, deployment.engine.key):
        return Badge.measured
    own = profile.kernels_of(deployment.gpu) if profile else None
    model, gpu, backend = deployment.model, deployment.gpu, deployment.engine.key
    bases: set[str] = {
        "measured" if own and own.gemm_curve(precision) else curve_origin(gpu, "gemm", precision, backend).basis
        for precision in model.precisions(deployment.weights)
    }
    if model.is_moe:
        bases.add(curve_origin(gpu, "experts", deployment.weights, backend).basis)
    latent = any(isinstance(group.mixer, LatentAttention) for group in model.groups)
    op: attention_kernels.Op = "mla_decode" if latent else "decode"
    bases.add(attention_kernels.curve_origin(gpu, op, deployment.kv, backend).basis)
    if "assumed" in bases:
        return Badge.assumed
    return Badge.measured if bases == {"measured"} else Badge.modelled
