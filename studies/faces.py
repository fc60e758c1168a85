r"""Penalties whose fits lie on a face: ties, zeros and bounds that the data make clear.

Covariates are independent with variance one, so the minimiser of the expected penalized squared
loss is the penalty's proximal point of the coefficients that made the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.losses import Squared
from etafree.penalties import Fused, NonNegative, Slope
from studies.problem import Problem

__all__ = ["FACES", "on_a_face"]


def on_a_face(rng: np.random.Generator, n: int, kind: str) -> Problem:
    """Return least squares with errors that are wider away from zero."""
    penalty, beta = {
        "slope": (Slope(0.3), [3.0, 2.0, 1.0, 0.0, 0.0, -1.5]),
        "fused": (Fused(0.5, mix=0.5), [2.0, 2.0, 2.0, 0.0, 0.0, -1.5]),
        "positive": (NonNegative(), [2.0, 1.5, 1.0, -1.0, -1.0, 0.8]),
    }[kind]
    X = rng.standard_normal((n, 6))
    error = (0.5 + 0.5 * np.abs(X[:, 0])) * rng.standard_normal(n)
    criterion = Criterion(Squared(), (X, X @ beta + error), penalty, names=list("abcdef"))
    truth = penalty.prox(np.array(beta), penalty.strength_at(n))
    return Problem(criterion, {}, truth, {"HC0": {"correction": "HC0"}})


#: Label, function and its arguments, as in `studies.scenarios`.
FACES: dict[str, tuple[Any, dict[str, Any]]] = {
    "SLOPE, four of six, n = 300": (on_a_face, {"n": 300, "kind": "slope"}),
    "fused, three levels of six, n = 300": (on_a_face, {"n": 300, "kind": "fused"}),
    "non-negative, four of six, n = 300": (on_a_face, {"n": 300, "kind": "positive"}),
}
