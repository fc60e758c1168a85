"""Minimise a criterion: by Newton steps where the penalty is smooth, by proximal ones at a kink."""

from __future__ import annotations

from typing import Any

from etafree.criterion import Criterion
from etafree.errors import InputError
from etafree.optimize.newton import Minimum, newton_minimise, subset_starts
from etafree.optimize.proximal import proximal_minimise
from etafree.penalties import KinkedPenalty

__all__ = ["Minimum", "minimise", "subset_starts"]


def minimise(criterion: Criterion, start: Any = None) -> Minimum:
    r"""Return the minimiser of the penalized total loss, :math:`\hat\theta = \arg\min L`.

    Smooth penalties go to `etafree.optimize.newton`, penalties with a kink (L1, elastic net,
    groups) to `etafree.optimize.proximal`; both stop when the gradient, or the smallest
    subgradient, is zero to rounding.

    Parameters
    ----------
    criterion : Criterion
        What is minimised.
    start : (p,) array, optional
        First point; found from the data if not given.

    Returns
    -------
    Minimum
        With ``theta`` (p,), the Hessian there and whether the minimum is known to be global.

    Raises
    ------
    InputError
        Collinear columns without a penalty; the message names them.
    ConvergenceError
        No finite minimiser, as for separated logistic data.

    See Also
    --------
    target : The minimiser with its standard errors.

    Examples
    --------
    >>> import numpy as np, etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> ef.minimise(ef.Criterion(ef.losses.Squared(), data=(X, y))).theta
    array([2.])
    """
    if not isinstance(criterion, Criterion):
        raise InputError("criterion", f"is a {type(criterion).__name__}", "pass an ef.Criterion")
    if isinstance(criterion.penalty, KinkedPenalty):
        return proximal_minimise(criterion, start)
    return newton_minimise(criterion, start)
