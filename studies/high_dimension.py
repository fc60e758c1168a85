r"""More coefficients than rows or clusters: a ridge that leaves few effective, and sparse fits.

Covariates are independent, so the minimisers of the expected penalized loss have closed forms:
:math:`(\Sigma+\lambda I)^{-1}\Sigma\beta`, and coefficients that are moved towards zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.losses import Squared
from etafree.penalties import L1, ElasticNet, GroupL1, Penalty, Ridge
from studies.problem import Problem

__all__ = ["HIGH", "SPARSE", "ridge", "sparse"]

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


def sparse(rng: np.random.Generator, n: int, p: int, penalty: Penalty) -> Problem:
    """Return penalized least squares with two strong signals among p, errors wider away from zero.

    The penalty is so strong that another coefficient is hardly ever active: what an uncertain
    selection does to coverage is not the question here.
    """
    X, beta = rng.standard_normal((n, p)), np.zeros(p)
    beta[:2] = 3.0, -3.0
    y = X @ beta + (0.5 + 0.5 * np.abs(X[:, 0])) * rng.standard_normal(n)
    strength, share = penalty.strength_at(n), getattr(penalty, "mix", 1.0)
    truth = np.sign(beta) * (3.0 - strength * share) / (1.0 + strength * (1.0 - share))
    criterion = Criterion(Squared(), (X, y), penalty, names=_names(p))
    return Problem(criterion, {}, truth, {name: {"correction": name} for name in ("HC0", "HC2")})


#: Sparse fits of 80 coefficients to 60 rows.
SPARSE: dict[str, tuple[Any, dict[str, Any]]] = {
    f"{name}, two of 80, n = 60": (sparse, {"n": 60, "p": 80, "penalty": penalty})
    for name, penalty in {
        "L1": L1(0.9),
        "elastic net": ElasticNet(1.1, mix=0.9),
        "group L1": GroupL1(0.7, groups=np.arange(80) // 2),
    }.items()
}

#: Label, function and its arguments, as in `studies.scenarios`.
HIGH: dict[str, tuple[Any, dict[str, Any]]] = {
    "ridge, p = 60, n = 40": (ridge, {"n": 40, "p": 60}),
    "ridge, p = 60, G = 40": (ridge, {"n": 80, "p": 60, "groups": 40}),
    **SPARSE,
}
