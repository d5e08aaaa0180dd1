"""Quantiles of the normal distribution for arrays, without the fifth of a second that scipy takes to load.

Wichura, "Algorithm AS241: The Percentage Points of the Normal Distribution", Applied Statistics 37 (3), 1988: ratios of
polynomials for the middle, the tails, and what is far out in them, to about 1 part in 10^16. ``statistics.NormalDist``
has the same for single numbers; all coefficients are the paper's, the highest power first.
"""

import numpy as np

from tokonomics.traffic.trace import Floats

_MIDDLE = 0.425  # on both sides of one half
_FAR = 5.0  # of √(−ln share)
# fmt: off
_IN_MIDDLE = (
    (2509.0809287301227, 33430.57558358813, 67265.7709270087, 45921.95393154987,
     13731.69376550946, 1971.5909503065513, 133.14166789178438, 3.3871328727963665),
    (5226.495278852854, 28729.085735721943, 39307.89580009271, 21213.794301586597,
     5394.196021424751, 687.1870074920579, 42.31333070160091, 1.0),
)
_IN_TAILS = (
    (0.0007745450142783414, 0.022723844989269184, 0.2417807251774506, 1.2704582524523684,
     3.6478483247632045, 5.769497221460691, 4.630337846156546, 1.4234371107496835),
    (1.0507500716444169e-09, 0.0005475938084995345, 0.015198666563616457, 0.14810397642748008,
     0.6897673349851, 1.6763848301838038, 2.053191626637759, 1.0),
)
_FAR_OUT = (
    (2.0103343992922881e-07, 2.7115555687434876e-05, 0.0012426609473880784, 0.026532189526576124,
     0.29656057182850487, 1.7848265399172913, 5.463784911164114, 6.657904643501103),
    (2.0442631033899397e-15, 1.421511758316446e-07, 1.8463183175100548e-05, 0.0007868691311456133,
     0.014875361290850615, 0.1369298809227358, 0.599832206555888, 1.0),
)
# fmt: on


def normal_quantiles(shares: Floats) -> Floats:
    """Standard deviations from the mean below which each of these shares lies; shares are above 0 and below 1."""
    from_half = shares - 0.5
    quantiles = from_half * _ratio(0.180625 - from_half**2, _IN_MIDDLE)
    outer = np.flatnonzero(np.abs(from_half) > _MIDDLE)
    tail = np.sqrt(-np.log(np.minimum(shares[outer], 1 - shares[outer])))
    far = np.where(tail > _FAR, _ratio(tail - _FAR, _FAR_OUT), _ratio(tail - 1.6, _IN_TAILS))
    quantiles[outer] = np.copysign(far, from_half[outer])
    return quantiles


def _ratio(at: Floats, polynomials: tuple[tuple[float, ...], tuple[float, ...]]) -> Floats:
    above, below = polynomials
    found: Floats = np.polyval(above, at) / np.polyval(below, at)
    return found
