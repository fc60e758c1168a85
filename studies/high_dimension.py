r"""More coefficients than rows or clusters, and a ridge that leaves few effective parameters.

Covariates are independent, so the minimiser of the expected penalized loss has the closed form
:math:`(\Sigma+\lambda I)^{-1}\Sigma\beta`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.losses import Squared
from etafree.penalties import Ridge
from studies.problem import Problem

__all__ = ["HIGH", "ridge"]

REPORTED = ["x1", "x2", "x3"]


def _names(p: int) -> list[str]:
    return [f"x{j}" for j in range(1, p + 1)]


def ridge(rng: np.random.Generator, n: int, p: int, groups: int = 0) -> Problem:
    """Return ridge least squares on covariates of falling size, three coefficients reported.

    Errors grow with a covariate; those of groups, if there are some, share half of their variance.
    About four of the p parameters are effective.
    """
    sd, strength = 1.0 / np.arange(1, p + 1), 0.1
    beta = np.zeros(p)
    beta[:4] = [1.0, -1.0, 1.0, -1.0]
    X = sd * rng.standard_normal((n, p))
    error = rng.standard_normal(n)
    options: dict[str, Any] = {"var_names": REPORTED}
    if groups:
        labels = np.arange(n) // (n // groups)
        X[:, 0] = (X[:, 0] + rng.standard_normal(groups)[labels]) / np.sqrt(2)
        error = (error + rng.standard_normal(groups)[labels]) / np.sqrt(2)
        options["clusters"] = labels
    y = X @ beta + (0.5 + 0.5 * np.abs(X[:, 0])) * error
    truth = sd**2 / (sd**2 + strength) * beta
    none = "CR0" if groups else "HC0"
    return Problem(
        Criterion(Squared(), (X, y), Ridge(strength), names=_names(p)),
        options,
        truth,
        {name: {**options, "correction": name} for name in (none, none.replace("0", "2"))},
    )


#: Label, function and its arguments, as in `studies.scenarios`.
HIGH = {
    "ridge, p = 60, n = 40": (ridge, {"n": 40, "p": 60}),
    "ridge, p = 60, G = 40": (ridge, {"n": 80, "p": 60, "groups": 40}),
}
