"""Least squares, Poisson and logistic regression with the sandwich of the estimates.

Ten columns, one of them constant; everybody starts from arrays or a table in memory. One-way
clusters: n / 50 of them, labels in no order. Clustered variances carry the factor that Stata's do,
G/(G-1) (n-1)/(n-p), on both sides. Peers that iterate stop by rules of their own; glum runs twice,
as it comes and with a rule that takes it as close to the minimiser as etafree goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

import etafree as ef
from benchmarks.races import r
from benchmarks.races.race import Call, Numbers, Peer, Race, Side, arrays, size_of

__all__ = ["QUICK_SIZES", "SIZES", "races"]

COLUMNS = 10
SIZES, QUICK_SIZES = (1_000, 10_000, 100_000, 1_000_000), (1_000,)
SIZES_OF_R = (1_000, 100_000, 1_000_000)
GOAL = 2.0
#: Peers stop by rules of their own, which end at different points: in units of a standard error.
ITERATED = 1e-3
STRICT = 1e-8
LOSSES = {"OLS": ef.losses.Squared(), "Poisson": ef.losses.Poisson(), "logit": ef.losses.Logistic()}


class Rows:
    """A design, a response of one kind, and labels of two ways.

    Parameters
    ----------
    n : int
    job : {"OLS", "Poisson", "logit"}
    """

    def __init__(self, n: int, job: str) -> None:
        rng = np.random.default_rng(51)
        self.n, self.job = n, job
        self.X = rng.standard_normal((n, COLUMNS))
        self.X[:, 0] = 1.0
        self.g = rng.integers(n // 50, size=n)
        self.h = rng.integers(30, size=n)
        u = self.X @ np.linspace(-0.4, 0.4, COLUMNS)
        u += 0.3 * rng.standard_normal(n // 50)[self.g] + 0.1 * rng.standard_normal(30)[self.h]
        if job == "OLS":
            self.y = u + (1.0 + 0.3 * np.abs(self.X[:, 1])) * rng.standard_normal(n)
        elif job == "Poisson":
            self.y = rng.poisson(np.exp(u)).astype(float)
        else:
            self.y = (rng.random(n) < 1.0 / (1.0 + np.exp(-u))).astype(float)

    @cached_property
    def table(self) -> Any:
        """The same as a data frame."""
        import pandas as pd

        columns = {f"x{j}": self.X[:, j] for j in range(1, COLUMNS)}
        return pd.DataFrame({"y": self.y, **columns, "g": self.g, "h": self.h})

    @property
    def formula(self) -> str:
        return "y ~ " + " + ".join(f"x{j}" for j in range(1, COLUMNS))

    def criterion(self) -> ef.Criterion:
        return ef.Criterion(LOSSES[self.job], data=(self.X, self.y))

    def of_r(self, fit: str, *packages: str) -> Side:
        """Return R's side; `fit` makes `m` and `v`, a model and the covariance of its estimates."""
        code = "".join(f"library({name})\n" for name in packages)
        code += (
            "d <- data.frame(y = y, X[, -1], g = g, h = h)\n"
            f"names(d)[2:{COLUMNS}] <- paste0('x', 1:{COLUMNS - 1})\n"
            f"formula <- {self.formula}\n"
            "family <- list(OLS = gaussian, Poisson = quasipoisson, logit = quasibinomial)"
            f"${self.job}()\n"
            f"fit <- function() {{ {fit}; c(coef(m), sqrt(diag(v))) }}\n"
        )
        return r.Fit(code, {"X": self.X, "y": self.y, "g": self.g, "h": self.h})


def races(sizes: Sequence[int]) -> Iterator[Race]:
    """Yield fits with one-way clusters."""
    for job in LOSSES:
        for n in sizes:
            yield _clustered(Rows(n, job))


def _clustered(rows: Rows) -> Race:
    n, job = rows.n, rows.job

    def ours() -> Numbers:
        fit = ef.target(rows.criterion(), clusters=rows.g, correction="CR1S")
        return arrays(fit.center, fit.se)

    peers = [
        *_glum_peers(rows),
        Peer("pyfixest", partial(pyfixest_side, rows, {"CRV1": "g"}), ("pyfixest",)),
        Peer(
            "statsmodels",
            partial(statsmodels_side, rows, "cluster", groups=rows.g),
            ("statsmodels",),
        ),
    ]
    if job == "OLS":
        kind = partial(linearmodels_side, rows, "clustered", clusters=rows.g, debiased=True)
        peers.append(Peer("linearmodels", kind, ("linearmodels",)))
    if n in SIZES_OF_R:
        peers += _clustered_in_r(rows)
    return Race(
        f"{job}, one-way clusters",
        size_of(n),
        lambda: Call(ours),
        tuple(peers),
        GOAL,
        1e-8 if job == "OLS" else ITERATED,
    )


def _clustered_in_r(rows: Rows) -> Iterator[Peer]:
    cluster = "v <- vcovCL(m, cluster = d$g, type = 'HC1')"
    if rows.job == "OLS":
        fit = f"m <- lm(formula, d); {cluster}"
        yield Peer("R lm + vcovCL", partial(rows.of_r, fit, "sandwich"), ("sandwich",), of_r=True)
        fit = "m <- lm_robust(formula, d, clusters = g, se_type = 'stata'); v <- vcov(m)"
        yield Peer("R lm_robust", partial(rows.of_r, fit, "estimatr"), ("estimatr",), of_r=True)
    else:
        fit = f"m <- glm(formula, family, d); {cluster}"
        yield Peer("R glm + vcovCL", partial(rows.of_r, fit, "sandwich"), ("sandwich",), of_r=True)
    if rows.n < SIZES_OF_R[-1]:
        factor = (rows.n - 1) / (rows.n - COLUMNS)
        fit = (
            "design <- svydesign(ids = ~g, weights = ~1, data = d); "
            f"m <- svyglm(formula, design, family = family); v <- vcov(m) * {factor!r}"
        )
        note = "its variance times (n-1)/(n-p), which it leaves out"
        yield Peer("R svyglm", partial(rows.of_r, fit, "survey"), ("survey",), of_r=True, note=note)


def _glum_peers(rows: Rows) -> Iterator[Peer]:
    """Yield glum as it comes, and stopped as late as etafree stops."""
    yield Peer("glum", partial(_glum, rows, None), ("glum",))
    if rows.job != "OLS":
        name = f"glum, gradient_tol {STRICT:g}"
        yield Peer(name, partial(_glum, rows, STRICT), ("glum",), tolerance=1e-6)


def _glum(rows: Rows, gradient_tol: float | None) -> Side:
    from glum import GeneralizedLinearRegressor

    family = {"OLS": "normal", "Poisson": "poisson", "logit": "binomial"}[rows.job]

    def fit() -> Numbers:
        model = GeneralizedLinearRegressor(
            family=family, alpha=0.0, fit_intercept=False, gradient_tol=gradient_tol
        )
        model.fit(rows.X, rows.y)
        covariance = model.covariance_matrix(X=rows.X, y=rows.y, clusters=rows.g)
        return arrays(model.coef_, np.sqrt(np.diag(covariance)))

    return Call(fit)


def pyfixest_side(rows: Rows, vcov: Any, ssc: dict[str, Any] | None = None, **options: Any) -> Side:
    import pyfixest as pf

    table = rows.table
    common = {"vcov": vcov, "ssc": pf.ssc(**(ssc or {})), "copy_data": False, **options}
    fits: dict[str, Callable[[], Any]] = {
        "OLS": lambda: pf.feols(rows.formula, table, **common),
        "Poisson": lambda: pf.fepois(rows.formula, table, **common),
        "logit": lambda: pf.feglm(rows.formula, table, family="logit", **common),
    }

    def fit() -> Numbers:
        model = fits[rows.job]()
        return arrays(model.coef(), model.se())

    return Call(fit)


def statsmodels_side(rows: Rows, kind: str, **options: Any) -> Side:
    import statsmodels.api as sm

    models: dict[str, Callable[[], Any]] = {
        "OLS": lambda: sm.OLS(rows.y, rows.X),
        "Poisson": lambda: sm.GLM(rows.y, rows.X, family=sm.families.Poisson()),
        "logit": lambda: sm.GLM(rows.y, rows.X, family=sm.families.Binomial()),
    }

    def fit() -> Numbers:
        model = models[rows.job]().fit(cov_type=kind, cov_kwds=options)
        return arrays(model.params, model.bse)

    return Call(fit)


def linearmodels_side(rows: Rows, kind: str, **options: Any) -> Side:
    from linearmodels import OLS

    def fit() -> Numbers:
        model = OLS(rows.y, rows.X).fit(cov_type=kind, **options)
        return arrays(model.params, model.std_errors)

    return Call(fit)
