"""Regressions on a survey design: strata, primary sampling units and unequal weights.

Taylor linearisation, the variance of R's survey package. It leaves out the factor for the number of
coefficients, and etafree's correction "survey" does too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

import etafree as ef
from benchmarks.races import r
from benchmarks.races.race import Call, Numbers, Peer, Race, Side, arrays, size_of
from benchmarks.races.regression import COLUMNS, ITERATED, LOSSES, Rows

__all__ = ["QUICK_SIZES", "SIZES", "races"]

SIZES, QUICK_SIZES = (10_000, 100_000), (1_000,)
STRATA = 10
FAMILIES = {"OLS": "gaussian()", "logit": "quasibinomial()"}


def races(sizes: Sequence[int]) -> Iterator[Race]:
    """Yield linear and logistic regression at every size."""
    for n in sizes:
        for job in FAMILIES:
            yield _race(Rows(n, job))


def _race(rows: Rows) -> Race:
    rng = np.random.default_rng(58)
    weights = rng.uniform(0.5, 3.0, rows.n)
    strata = rows.g % STRATA  # every unit lies in one stratum
    design = ef.Survey(psu=rows.g, strata=strata)

    def ours() -> Numbers:
        data = (rows.X, rows.y)
        criterion = ef.Criterion(LOSSES[rows.job], data, weights=weights, weight_kind="sampling")
        fit = ef.target(criterion, dependence=design, correction="survey")
        return arrays(fit.center, fit.se)

    def in_r() -> Side:
        code = (
            "library(survey)\n"
            "d <- data.frame(y = y, X[, -1], g = g, s = s, w = w)\n"
            f"names(d)[2:{COLUMNS}] <- paste0('x', 1:{COLUMNS - 1})\n"
            "fit <- function() {\n"
            "  design <- svydesign(ids = ~g, strata = ~s, weights = ~w, data = d)\n"
            f"  m <- svyglm({rows.formula}, design, family = {FAMILIES[rows.job]})\n"
            "  c(coef(m), sqrt(diag(vcov(m))))\n"
            "}\n"
        )
        data = {"X": rows.X, "y": rows.y, "g": rows.g, "s": strata, "w": weights}
        return r.Fit(code, data)

    return Race(
        f"{rows.job}, stratified clusters",
        size_of(rows.n),
        lambda: Call(ours),
        (Peer("R survey", in_r, ("survey",), of_r=True),),
        tolerance=1e-8 if rows.job == "OLS" else ITERATED,
    )
