"""Admissible centres: where calibrated draws are put."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from etafree import linalg
from etafree.axes import in_order
from etafree.criterion import Criterion
from etafree.errors import InputError
from etafree.linalg import check_covariance
from etafree.optimize import minimise
from etafree.validation import Array, as_array, as_choice

__all__ = ["CENTERS", "find_center", "one_step"]

CENTERS = ("map", "one_step", "mean")


def one_step(criterion: Criterion, start: Array) -> Array:
    r"""Return one Newton step from `start`, :math:`\theta - A(\theta)^{-1}\nabla L(\theta)`.

    Examples
    --------
    >>> import etafree as ef
    >>> c = ef.Criterion(ef.losses.Squared(), data=(np.ones((2, 1)), np.array([1.0, 3.0])))
    >>> one_step(c, np.array([10.0]))
    array([2.])
    """
    here = criterion.derivatives(criterion.point(start, "start"))
    hessian = check_covariance(
        here.hessian, "Hessian at the posterior mean", criterion.p, "use center='map'"
    )
    return start - linalg.solve(hessian, here.gradient, "Hessian")


def find_center(
    center: Any, criterion: Criterion | None, mean: Array | None = None, names: Sequence[str] = ()
) -> tuple[str, Array]:
    """Return the kind of centre and the point (p,).

    ``map`` is the minimiser of loss plus penalty, without any unscaled log prior and without a
    Jacobian; ``one_step`` a Newton step from the posterior mean; ``mean`` the posterior mean, which
    is not safe when the learning rate is small; an array is taken as it is, a Series by the
    criterion's names, or `names` where there is none.
    """
    if not isinstance(center, str):
        size = criterion.p if criterion is not None else (None if mean is None else len(mean))
        center = in_order(center, names if criterion is None else criterion.names, "center")
        point = np.atleast_1d(as_array(center, "center"))
        if point.ndim != 1:
            raise InputError("center", f"has shape {point.shape} but must be a vector")
        if size is not None and len(point) != size:
            raise InputError("center", f"has {len(point)} entries for {size} parameter(s)")
        return "given", point
    as_choice(center, "center", CENTERS)
    if center != "map" and mean is None:
        raise InputError("center", f"{center!r} needs draws", "pass draws, or center='map'")
    if center == "mean":
        assert mean is not None
        return "mean", mean
    if criterion is None:
        raise InputError(
            "center", f"{center!r} needs scores and a Hessian, and there are draws only",
            "pass a criterion, an array, or center='mean'",
        )  # fmt: skip
    if center == "map":
        return "map", minimise(criterion).theta
    assert mean is not None
    return "one_step", one_step(criterion, mean)
