r"""The active block of a fit under a penalty with kinks.

A coefficient that an L1 penalty sets to zero has no normal limit, and its neighbours' does not
depend on it: on the set :math:`\hat A` of the others the penalty is smooth, and calibration is that
of :math:`\theta_A` with :math:`J_{AA}`, :math:`K_{AA}` and the linear term :math:`\lambda
s_n\,\mathrm{sign}(\hat\theta_A)` (appendix "Non-smooth penalties" of Tamano and Tomo, arXiv
2511.15320).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from etafree.checks import Check
from etafree.criterion import Criterion
from etafree.errors import InputError
from etafree.linear import LinearTotal
from etafree.optimize import minimise
from etafree.penalties import ActivePenalty, KinkedPenalty
from etafree.targets import Target

__all__ = ["active_block", "fragile_selection"]

#: An active coefficient fewer standard errors than this from zero might not be there next time.
FRAGILE = 3.0


def active_block(criterion: Criterion) -> Criterion:
    """Return the criterion of the coefficients that are not zero, itself if there is no kink."""
    penalty = criterion.penalty
    if not isinstance(penalty, KinkedPenalty):
        return criterion
    if not isinstance(criterion.total, LinearTotal):
        raise InputError(
            "penalty", f"{type(penalty).__name__} goes with losses over a linear predictor",
            "use a smooth penalty, such as ef.penalties.huberized_l1",
        )  # fmt: skip
    fit = minimise(criterion)
    active = penalty.active(fit.theta)
    if not active.any():
        raise InputError(
            "penalty", f"of strength {criterion.strength:.4g} sets every coefficient to zero: "
            "there is nothing to calibrate", "lower its strength",
        )  # fmt: skip
    names = tuple(name for name, kept in zip(criterion.names, active, strict=True) if kept)
    position = None
    if criterion.intercept is not None and active[criterion.intercept]:
        position = int(np.count_nonzero(active[: criterion.intercept]))
    total = replace(criterion.total, X=np.ascontiguousarray(criterion.total.X[:, active]))
    smooth = penalty.restricted(active, fit.theta)
    return criterion._replaced(
        total=total, penalty=smooth, names=names, intercept=position, start=None
    )


def fragile_selection(penalty: ActivePenalty, target: Target) -> Check:
    """Return how many standard errors from zero the weakest selected coefficient is."""
    chosen = penalty.penalized()
    size = np.where(chosen, np.abs(target.center) / target.se, np.inf)
    weakest = int(size.argmin())
    verdict = "ok" if size[weakest] >= FRAGILE else "warn"
    advice = (
        f"{target.names[weakest]!r} is {size[weakest]:.1f} standard errors from zero: another "
        "sample might not select it, and intervals do not know of that"
    )
    return Check("selection", float(size[weakest]), FRAGILE, verdict,
                 "" if verdict == "ok" else advice)  # fmt: skip
