"""Folding of batch normalisation into integer thresholds (exactness contract; Esser 2016)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.student.integer_net import IntegerLayer, sum_bound


def fold(
    ternary_OIHW: npt.NDArray[np.int8],
    gamma_O: npt.NDArray[np.float64],
    beta_O: npt.NDArray[np.float64],
    mu_O: npt.NDArray[np.float64],
    sigma_O: npt.NDArray[np.float64],
    *,
    stride: int,
    pad: int,
    groups: int,
    first: bool,
) -> IntegerLayer:
    """Return the integer layer that fires exactly where gamma (s - mu) / sigma + beta >= 0.

    gamma > 0: theta = ceil(mu - beta sigma / gamma). gamma < 0: w <- -w,
    theta = ceil(-mu + beta sigma / gamma). gamma = 0: always (beta >= 0) or never. theta is clamped to
    [-P, P + 1], the range in which it matters.

    Args:
        ternary_OIHW: int8 weights.
        gamma_O, beta_O, mu_O, sigma_O: float64 (O,); sigma is sqrt(variance + epsilon), > 0.
        stride, pad, groups: geometry.
        first: the layer is the transduction layer, with inputs 0..255.

    Raises:
        UserError: a parameter is not finite.
    """
    for name, values in (("gamma", gamma_O), ("beta", beta_O), ("mu", mu_O), ("sigma", sigma_O)):
        if not np.isfinite(values).all():
            raise UserError(
                f"{name} of feature {int(np.flatnonzero(~np.isfinite(values))[0])} is not finite",
                "lower --learning_rate, or begin anew where it was resumed",
            )
    sign = np.where(gamma_O < 0, -1, 1)
    weight = (ternary_OIHW * sign[:, None, None, None]).astype(np.int8)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        theta = np.ceil(sign * (mu_O - beta_O * sigma_O / gamma_O))
    theta = np.where(gamma_O == 0, np.where(beta_O >= 0, -np.inf, np.inf), theta)
    probe = IntegerLayer(weight, np.zeros(len(weight), np.int32), stride, pad, groups)
    bound = sum_bound(probe, first=first).astype(np.float64)
    return IntegerLayer(weight, np.clip(theta, -bound, bound + 1).astype(np.int32), stride, pad, groups)
