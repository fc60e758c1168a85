"""Kernel-smoothed losses: modal regression."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_choice, as_positive
from etafree.losses.residual import ResidualLoss

WIDER = 1.5  #: Multiple of the bandwidth at which the Hessian of the mode is taken.


@dataclass(frozen=True)
class Modal(ResidualLoss):
    r"""Modal regression: the kernel-smoothed loss :math:`1-\exp\{-\tfrac12(y-u)^2/h^2\}`.

    Along its minimiser :math:`\theta_h` the density of the residual, smoothed at bandwidth h, is
    highest. The effective scale is :math:`s_n = nh`. Intervals for the mode :math:`\theta_0`, by
    ``target="mode"``, ask for undersmoothing: the Hessian is taken at 1.5 h and rescaled, and the
    check ``smoothing bias`` compares fits at h and 1.5 h. The loss is bounded, so a posterior needs
    a penalty or a log prior to be proper.

    Parameters
    ----------
    h : float
        Bandwidth in units of the response, above zero.
    scale : float
        Stays 1: the bandwidth takes its place.
    target : {"smoothed", "mode"}
        Which parameter intervals are for, :math:`\theta_h` or :math:`\theta_0`.

    Raises
    ------
    InputError
        `h` is not positive, `scale` is given, or `target` unknown.

    References
    ----------
    Yao, W. and Li, L. (2014). Scand. J. Statist. 41, 656-671. Kemp, G. C. R. and Santos Silva,
    J. M. C. (2012). J. Econometrics 170, 92-101.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.losses.Modal(0.5).values(np.array([0.0, 0.0]), np.array([0.0, 50.0]))
    array([0., 1.])
    """

    h: float = 1.0
    target: str = field(default="smoothed", kw_only=True)
    convex = False
    starts = 8

    def __post_init__(self) -> None:
        if not isinstance(self.scale, int | float) or self.scale != 1.0:
            raise InputError("scale", "is the bandwidth here", "pass Modal(h)")
        object.__setattr__(self, "h", as_positive(self.h, "h"))
        as_choice(self.target, "target", ("smoothed", "mode"))

    @property
    def tail_exponent(self) -> float:
        return 0.0

    @property
    def effective_unit(self) -> float:
        return self.h

    @property
    def scale_value(self) -> float:
        return self.h

    def curvature(self) -> tuple[Modal, float] | None:
        if self.target == "smoothed":
            return None
        return replace(self, h=WIDER * self.h, target="smoothed"), 1 / WIDER

    def describe(self) -> str:
        if self.target == "mode":
            return "the conditional mode's loss"
        return f"the expected modal loss smoothed at h = {self.h:g} (theta_h, not the mode)"

    def residual(self, u: Array, y: Array) -> Array:
        return (y - u) / self.h

    def values(self, u: Array, y: Array) -> Array:
        return -np.expm1(-0.5 * np.square(self.residual(u, y)))

    def first(self, u: Array, y: Array) -> Array:
        r = self.residual(u, y)
        return -r * np.exp(-0.5 * np.square(r)) / self.h

    def second(self, u: Array, y: Array) -> Array:
        square = np.square(self.residual(u, y))
        return (1.0 - square) * np.exp(-0.5 * square) / self.h**2

    def majorizer(self, u: Array, y: Array) -> Array:
        return np.exp(-0.5 * np.square(self.residual(u, y))) / self.h**2
