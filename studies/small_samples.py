"""Small and awkward samples of independent rows and of one-way clusters, with their truths.

Few treated rows or clusters, long tails of covariates and errors, many coefficients, rare events,
uneven clusters and healthy data beside them: the designs on which reference laws of intervals are
compared, and part of the study of coverage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from etafree import losses
from etafree.criterion import Criterion
from etafree.foundation.arguments import Array
from etafree.optimize import minimise
from etafree.penalties import Ridge
from studies.problem import Problem

__all__ = ["AWKWARD", "SMALL"]


def with_one(*columns: Array) -> Array:
    """Return a design matrix with an intercept."""
    return np.column_stack([np.ones(len(columns[0])), *columns])


def rows_of(loss: losses.LinearLoss, X: Array, y: Array, truth: object) -> Problem:
    """Return a problem of independent rows."""
    return Problem(Criterion(loss, (X, y)), {}, np.asarray(truth, dtype=float))


def clusters_of(
    loss: losses.LinearLoss, X: Array, y: Array, truth: object, labels: NDArray[np.intp]
) -> Problem:
    """Return a problem of one-way clusters."""
    return Problem(Criterion(loss, (X, y)), {"clusters": labels}, np.asarray(truth, dtype=float))


def mean(rng: np.random.Generator, n: int, sigma: float = 0.0) -> Problem:
    """Return a mean of normal data, or of lognormal data with this sigma."""
    normal = rng.standard_normal(n)
    y, truth = (np.exp(sigma * normal), np.exp(0.5 * sigma**2)) if sigma else (normal, 0.0)
    return rows_of(losses.Squared(), np.ones((n, 1)), y, [truth])


def treated(rng: np.random.Generator, n: int, few: int, ratio: float) -> Problem:
    """Return a difference of means: `few` treated of `n` rows, their variance ratio^2 times."""
    x = (np.arange(n) < few).astype(float)
    return rows_of(losses.Squared(), with_one(x), rng.standard_normal(n) * ratio**x, [0, 0])


def skewed_covariate(rng: np.random.Generator, n: int, kind: str, power: float) -> Problem:
    """Return least squares on a covariate with a long tail; errors grow with its power."""
    x = rng.pareto(2.5, n) if kind == "pareto" else rng.lognormal(size=n)
    y = rng.standard_normal(n) * (1 + (kind == "pareto") * x) * x**power
    return rows_of(losses.Squared(), with_one(x), y, [0, 0])


def many_covariates(rng: np.random.Generator, n: int, p: int) -> Problem:
    """Return least squares where nothing is wrong, with p coefficients."""
    X = with_one(*rng.standard_normal((p - 1, n)))
    return rows_of(losses.Squared(), X, rng.standard_normal(n), np.zeros(p))


def curved(rng: np.random.Generator, n: int) -> Problem:
    """Return a quadratic whose errors grow towards both ends."""
    x = rng.uniform(-2, 2, n)
    return rows_of(losses.Squared(), with_one(x, x**2), x * rng.standard_normal(n), np.zeros(3))


def zeros(rng: np.random.Generator, n: int) -> Problem:
    """Return counts of which four in five are zero, overdispersed."""
    x = rng.standard_normal(n)
    y = rng.poisson(np.exp(-1.7 + 0.5 * x) * rng.standard_exponential(n)).astype(float)
    return rows_of(losses.Poisson(), with_one(x), y, [-1.7, 0.5])


def gamma(rng: np.random.Generator, n: int) -> Problem:
    """Return the gamma loss on lognormal responses."""
    x = rng.standard_normal(n)
    y = np.exp(0.5 * x + rng.standard_normal(n))
    return rows_of(losses.Gamma(), with_one(x), y, [0.5, 0.5])


def rare(rng: np.random.Generator, n: int) -> Problem:
    """Return a logistic model with one success in eight."""
    x = rng.standard_normal(n)
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(2 - 0.7 * x))).astype(float)
    return rows_of(losses.Logistic(), with_one(x), y, [-2, 0.7])


def heavy(rng: np.random.Generator, n: int) -> Problem:
    """Return a Huber regression with errors of t with two degrees of freedom."""
    X = with_one(rng.standard_normal(n))
    return rows_of(losses.Huber(1.345, scale=1.0), X, rng.standard_t(2, n), [0, 0])


def _errors(rng: np.random.Generator, labels: NDArray[np.intp]) -> Array:
    """Return errors with an effect of each cluster."""
    noise: Array = rng.standard_normal(labels.max() + 1)[labels] + rng.standard_normal(len(labels))
    return noise


def equal_clusters(rng: np.random.Generator, groups: int, size: int) -> Problem:
    """Return equal clusters where nothing is wrong; the covariate varies between and within."""
    g = np.repeat(np.arange(groups), size)
    X = with_one(rng.standard_normal(groups)[g] + rng.standard_normal(len(g)))
    return clusters_of(losses.Squared(), X, _errors(rng, g), [0, 0], g)


def treated_clusters(
    rng: np.random.Generator, groups: int, few: int, size: int, covariates: int
) -> Problem:
    """Return a treatment of `few` whole clusters beside covariates."""
    g = np.repeat(np.arange(groups), size)
    X = with_one((g < few).astype(float), *rng.standard_normal((covariates, len(g))))
    return clusters_of(losses.Squared(), X, _errors(rng, g), np.zeros(covariates + 2), g)


def informative_sizes(rng: np.random.Generator, groups: int) -> Problem:
    """Return clusters that are larger where the outcome is."""
    u = rng.standard_normal(groups)
    g = np.repeat(np.arange(groups), 1 + rng.poisson(np.exp(1 + 0.7 * u)))
    x = rng.standard_normal(len(g))
    rate = np.exp(1 + 0.245)
    truth = [0.7 * rate / (1 + rate), 1.0]
    return clusters_of(
        losses.Squared(), with_one(x), u[g] + x + rng.standard_normal(len(g)), truth, g
    )


def giant(rng: np.random.Generator, groups: int, size: int) -> Problem:
    """Return clusters of which one is ten times as large."""
    sizes = np.where(np.arange(groups) == 0, 10 * size, size)
    g = np.repeat(np.arange(groups), sizes)
    X = with_one(rng.standard_normal(groups)[g] + rng.standard_normal(len(g)))
    return clusters_of(losses.Squared(), X, _errors(rng, g), [0, 0], g)


def skewed_level(rng: np.random.Generator, groups: int, size: int) -> Problem:
    """Return a lognormal covariate that is constant within clusters."""
    g = np.repeat(np.arange(groups), size)
    X = with_one(rng.lognormal(size=groups)[g], rng.standard_normal(len(g)))
    return clusters_of(losses.Squared(), X, _errors(rng, g), np.zeros(3), g)


def clustered_binary(rng: np.random.Generator, groups: int, few: int, size: int) -> Problem:
    """Return logistic regression with omitted effects of clusters, `few` of them treated."""
    g = np.repeat(np.arange(groups), size)
    X = with_one((g < few).astype(float), rng.standard_normal(len(g)))
    y = rng.uniform(size=len(g)) < 1 / (1 + np.exp(-rng.standard_normal(groups)[g]))
    return clusters_of(losses.Logistic(), X, y.astype(float), np.zeros(3), g)


def clustered_counts(rng: np.random.Generator, groups: int, size: int) -> Problem:
    """Return counts with gamma effects of clusters and a covariate of clusters."""
    g = np.repeat(np.arange(groups), size)
    x = rng.standard_normal(groups)[g]
    y = rng.poisson(rng.gamma(2, 0.5, groups)[g] * np.exp(0.3 * x)).astype(float)
    return clusters_of(losses.Poisson(), with_one(x), y, [0, 0.3], g)


def skewed_errors(rng: np.random.Generator, n: int) -> Problem:
    """Return least squares with chi-square errors of one degree of freedom."""
    x = rng.standard_normal(n)
    return rows_of(losses.Squared(), with_one(x), x + rng.chisquare(1, n) - 1, [0, 1])


def long_tailed_errors(rng: np.random.Generator, n: int) -> Problem:
    """Return least squares with errors of t with three degrees of freedom."""
    x = rng.standard_normal(n)
    return rows_of(losses.Squared(), with_one(x), x + rng.standard_t(3, n), [0, 1])


def interaction(rng: np.random.Generator, n: int) -> Problem:
    """Return two dummies and their product, which is one for a twentieth of the rows."""
    a, b = (np.arange(n) % 4 == 0).astype(float), (np.arange(n) % 5 == 0).astype(float)
    y = 0.5 * a + rng.standard_normal(n) * (1 + a)
    return rows_of(losses.Squared(), with_one(a, b, a * b), y, [0, 0.5, 0, 0])


def binary(rng: np.random.Generator, n: int, covariates: int) -> Problem:
    """Return a logistic regression that is right, with several covariates."""
    X = with_one(*rng.standard_normal((covariates, n)))
    truth = np.r_[0.3, 0.5, np.zeros(covariates - 1)]
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-X @ truth))).astype(float)
    return rows_of(losses.Logistic(), X, y, truth)


def overdispersed(rng: np.random.Generator, n: int) -> Problem:
    """Return a negative binomial regression whose dispersion is half the right one."""
    x = rng.standard_normal(n)
    y = rng.poisson(np.exp(0.5 + 0.4 * x) * rng.gamma(1.0, 1.0, n)).astype(float)
    return rows_of(losses.NegativeBinomial(0.5), with_one(x), y, [0.5, 0.4])


def shrunk(rng: np.random.Generator, n: int, p: int) -> Problem:
    """Return ridge least squares with p coefficients of one half; variances of x are one."""
    X = rng.standard_normal((n, p))
    y = X @ np.full(p, 0.5) + rng.standard_normal(n)
    criterion = Criterion(losses.Squared(), (X, y), Ridge(0.25))
    return Problem(criterion, {}, np.full(p, 0.5 / 1.25))


def weighted(rng: np.random.Generator, n: int) -> Problem:
    """Return least squares with lognormal sampling weights that errors do not depend on."""
    x = rng.standard_normal(n)
    y = 0.5 * x + rng.standard_normal(n) * (1 + 0.5 * np.abs(x))
    criterion = Criterion(
        losses.Squared(),
        (with_one(x), y),
        weights=rng.lognormal(0.0, 0.7, n),
        weight_kind="sampling",
    )
    return Problem(criterion, {}, np.array([0.0, 0.5]))


def one_sided(rng: np.random.Generator, n: int, loss: str) -> Problem:
    """Return a robust regression with an estimated scale; 15 % of the errors lie six above."""
    x = rng.standard_normal(n)
    error = rng.standard_normal(n) + 6.0 * (rng.uniform(size=n) < 0.15)
    return rows_of(robust(loss), with_one(x), x + error, _one_sided_truth(loss))


def robust(loss: str) -> losses.LinearLoss:
    """Return a loss whose scale is the median absolute residual."""
    return losses.Huber(1.345, scale="mad") if loss == "Huber" else losses.StudentT(4, scale="mad")


@lru_cache(maxsize=2)
def _one_sided_truth(loss: str) -> Array:
    """Return the population's intercept and slope, from quantiles of x and of the errors."""
    from scipy.optimize import brentq
    from scipy.special import ndtr, ndtri

    def chance(e: float) -> float:
        return float(0.85 * ndtr(e) + 0.15 * ndtr(e - 6.0))

    middles = (np.arange(1000) + 0.5) / 1000
    errors = [brentq(lambda e, u=u: chance(e) - u, -8.0, 14.0) for u in middles]
    nodes = ndtri((np.arange(100) + 0.5) / 100)
    x, e = np.repeat(nodes, len(errors)), np.tile(errors, len(nodes))
    return minimise(Criterion(robust(loss), (with_one(x), x + e))).theta


def zipf_sizes(rng: np.random.Generator, groups: int) -> Problem:
    """Return clusters whose sizes fall as one over their rank, from 100 down."""
    sizes = np.maximum(100 // np.arange(1, groups + 1), 2)
    g = np.repeat(np.arange(groups), sizes)
    X = with_one(rng.standard_normal(groups)[g], rng.standard_normal(len(g)))
    return clusters_of(losses.Squared(), X, _errors(rng, g), np.zeros(3), g)


def few_binary_clusters(rng: np.random.Generator, groups: int, size: int) -> Problem:
    """Return logistic regression, half of a dozen clusters treated, without effects of clusters."""
    g = np.repeat(np.arange(groups), size)
    X = with_one((g % 2).astype(float))
    y = (rng.uniform(size=len(g)) < 0.4).astype(float)
    return clusters_of(losses.Logistic(), X, y, [np.log(0.4 / 0.6), 0], g)


def adoption(rng: np.random.Generator, groups: int, few: int, periods: int) -> Problem:
    """Return a policy that `few` states adopt half way, with AR(1) errors within states."""
    from scipy.signal import lfilter

    g, t = np.repeat(np.arange(groups), periods), np.tile(np.arange(periods), groups)
    adopted = (g < few).astype(float)
    after = (t >= periods // 2).astype(float)
    noise = rng.standard_normal((groups, periods + 50))
    error = lfilter([1.0], [1.0, -0.6], noise, axis=1)[:, 50:].reshape(-1)
    X = with_one(adopted, after, adopted * after)
    return clusters_of(losses.Squared(), X, error, np.zeros(4), g)


def too_fine(rng: np.random.Generator, schools: int) -> Problem:
    """Return classes of schools as clusters, where the covariate and the errors are schools'."""
    lesson = np.repeat(np.arange(4 * schools), 5)
    school = lesson // 4
    X = with_one(rng.standard_normal(schools)[school])
    return clusters_of(losses.Squared(), X, _errors(rng, school), [0, 0], lesson)


#: Name and design.
SMALL: dict[str, Callable[[np.random.Generator], Problem]] = {
    "normal mean, n = 50": partial(mean, n=50),
    "normal mean, n = 100": partial(mean, n=100),
    "lognormal mean, n = 50": partial(mean, n=50, sigma=1.0),
    "lognormal mean, n = 200": partial(mean, n=200, sigma=1.0),
    "5 of 100 rows treated": partial(treated, n=100, few=5, ratio=2.0),
    "20 of 100 rows treated": partial(treated, n=100, few=20, ratio=2.0),
    "3 of 60 rows treated, equal variances": partial(treated, n=60, few=3, ratio=1.0),
    "lognormal x, n = 100": partial(skewed_covariate, n=100, kind="lognormal", power=0.0),
    "lognormal x, heteroscedastic": partial(skewed_covariate, n=100, kind="lognormal", power=0.5),
    "Pareto x, heteroscedastic": partial(skewed_covariate, n=100, kind="pareto", power=0.0),
    "p = 10, n = 60": partial(many_covariates, n=60, p=10),
    "quadratic, heteroscedastic, n = 80": partial(curved, n=80),
    "Poisson, 80 % zeros, n = 200": partial(zeros, n=200),
    "gamma on lognormal, n = 100": partial(gamma, n=100),
    "logistic, rare, n = 150": partial(rare, n=150),
    "Huber, t(2) errors, n = 60": partial(heavy, n=60),
    "50 equal clusters": partial(equal_clusters, groups=50, size=8),
    "20 equal clusters": partial(equal_clusters, groups=20, size=8),
    "100 clusters, 5 treated": partial(treated_clusters, groups=100, few=5, size=10, covariates=8),
    "8 clusters, 3 treated": partial(treated_clusters, groups=8, few=3, size=20, covariates=0),
    "informative sizes, G = 60": partial(informative_sizes, groups=60),
    "one giant cluster of 30": partial(giant, groups=30, size=8),
    "lognormal level, G = 20": partial(skewed_level, groups=20, size=10),
    "logistic, 10 of 30 clusters treated": partial(clustered_binary, groups=30, few=10, size=10),
    "Poisson, 25 clusters": partial(clustered_counts, groups=25, size=8),
}
#: Further ones.
AWKWARD: dict[str, Callable[[np.random.Generator], Problem]] = {
    "chi-square errors, n = 60": partial(skewed_errors, n=60),
    "t(3) errors, n = 40": partial(long_tailed_errors, n=40),
    "interaction of dummies, n = 80": partial(interaction, n=80),
    "logistic, six covariates, n = 150": partial(binary, n=150, covariates=6),
    "negative binomial, n = 150": partial(overdispersed, n=150),
    "ridge, p = 10, n = 60": partial(shrunk, n=60, p=10),
    "lognormal weights, n = 200": partial(weighted, n=200),
    "Huber, estimated scale, n = 200": partial(one_sided, n=200, loss="Huber"),
    "Student-t, estimated scale, n = 200": partial(one_sided, n=200, loss="StudentT"),
    "Zipf sizes, G = 40": partial(zipf_sizes, groups=40),
    "logistic, 12 clusters": partial(few_binary_clusters, groups=12, size=25),
    "10 of 50 states adopt": partial(adoption, groups=50, few=10, periods=20),
    "classes of 40 schools": partial(too_fine, schools=40),
}
