r"""Equal expected information: how far the data lie from what the fitted likelihood expects."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_count
from etafree.learning_rates.problem import LearningRate, Problem, normal_prior
from etafree.losses import Gamma, LinearLoss, Logistic, NegativeBinomial, Poisson, Squared, StudentT
from etafree.totals.linear import has_design

#: Losses that are negative log-likelihoods and know how to simulate.
LIKELIHOODS = (Squared, StudentT, Logistic, Poisson, Gamma, NegativeBinomial)


def simulated(
    loss: LinearLoss, u: Array, y: Array, count: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return responses (k, n, ...) at predictors `u`, drawn or normal nodes, and masses (k,)."""
    shape = (count, len(u))
    y_new: Array
    match loss:
        case Squared():
            nodes, mass = _normal_nodes()
            return u + nodes[:, None], mass
        case StudentT():
            y_new = u + loss.scale_value * rng.standard_t(loss.df, shape)
        case Logistic():
            trials = y[:, 1] if y.ndim == 2 else np.ones(len(u))
            if np.any(trials != np.round(trials)):
                raise InputError("trials", "are not whole numbers", "simulation needs counts")
            y_new = rng.binomial(trials.astype(np.int64), 1 / (1 + np.exp(-u)), shape) * 1.0
            if y.ndim == 2:
                y_new = np.stack([y_new, np.broadcast_to(trials, shape)], axis=-1)
        case Poisson():
            y_new = rng.poisson(np.exp(u), shape) * 1.0
        case Gamma():
            y_new = np.exp(u) * rng.standard_exponential(shape)
        case NegativeBinomial():
            frailty = rng.gamma(1.0 / loss.dispersion, loss.dispersion, shape)
            y_new = rng.poisson(np.exp(u) * frailty) * 1.0
        case _:
            raise InputError("loss", f"{type(loss).__name__} cannot simulate")
    return y_new, np.full(count, 1.0 / count)


def _normal_nodes() -> tuple[Array, Array]:
    """Return Gauss-Hermite nodes and masses of the standard normal."""
    nodes, mass = np.polynomial.hermite_e.hermegauss(40)
    return nodes, mass / mass.sum()


def holmes_walker(problem: Problem, simulations: int = 200) -> LearningRate:
    r"""Return the learning rate that makes expected and observed information gains equal.

    .. math:: \eta = \Bigl\{\frac{n^{-1}\sum_i\int f(y\mid x_i,\hat\theta)\Delta_i(y)\,dy}
              {n^{-1}\sum_i\Delta_i(y_i)}\Bigr\}^{1/2},\qquad
              \Delta_i(y)=\int\pi(\theta)\|\nabla_\theta\log f(y\mid x_i,\theta)\|^2d\theta.

    The loss must be a negative log-likelihood that can simulate (`Squared` is the normal with unit
    variance) and the prior normal. It changes with the units of the parameters.

    Parameters
    ----------
    simulations : int
        Responses drawn for every row; normal ones need none.

    References
    ----------
    Holmes, C. C. and Walker, S. G. (2017). Assigning a value to a power likelihood in a general
    Bayesian model. Biometrika 104, 497-503.
    """
    count = as_count(simulations, "simulations")
    loss, total = problem.criterion.loss, problem.criterion.total
    if type(loss) not in LIKELIHOODS or not has_design(total):
        bare = f"{type(loss).__name__} is a loss, not a likelihood that can simulate data"
        names = ", ".join(kind.__name__ for kind in LIKELIHOODS)
        raise InputError("loss", bare, f"use {names}, or another method")
    prior = normal_prior(problem)
    if prior is None:
        improper = "is not a proper normal, and holmes_walker averages over the prior"
        advice = "pass ef.GeneralizedPosterior(criterion, 1.0, ef.LogPrior.normal(mean, V))"
        raise InputError("log_prior", improper, advice)
    mean, covariance = prior
    rng, X = np.random.default_rng(problem.seeds), total.X
    sd = np.sqrt(np.einsum("ij,ij->i", X @ covariance, X))
    weights = np.ones(total.n) if total.weights is None else total.weights
    length = weights * np.einsum("ij,ij->i", X, X) / weights.sum()
    squares, log_unit = _expected_squares(loss, total.predictor(mean), sd)
    plugged, theta = problem.plugged
    responses, share = simulated(loss, total.predictor(theta), total.y, count, rng)
    gains = np.array([squares(y) @ length for y in responses])
    expected, observed = float(share @ gains), float(squares(total.y) @ length)
    eta = float(np.sqrt(expected / observed))
    spread = 0.0 if isinstance(loss, Squared) else float(gains.std() / np.sqrt(len(gains)))
    error = 0.5 * eta * spread / expected
    with np.errstate(over="ignore"):
        unit = float(np.exp(log_unit))
    gained: dict[str, object] = {"expected_gain": expected * unit, "observed_gain": observed * unit}
    gained["plugged_in"] = plugged
    return problem.rate("holmes_walker", "information", eta, error, None, gained, units_matter=True)


def _expected_squares(
    loss: LinearLoss, middle: Array, sd: Array
) -> tuple[Callable[[Array], Array], float]:
    r"""Return y -> :math:`E\{\ell'(u, y)^2\}e^{-c}`, (n,) each, for normal predictors u; and c.

    For Poisson, :math:`\ell'=e^u-y`, and gamma, :math:`\ell'=1-ye^{-u}`, by exact moments of the
    lognormal in units of the largest: quadrature misses it, and squares overflow.
    """
    if isinstance(loss, Poisson | Gamma):
        u = middle if isinstance(loss, Poisson) else -middle
        powers = np.array([np.zeros_like(sd), u + 0.5 * sd**2, 2 * u + 2 * sd**2])
        log_unit = float(powers.max())
        one, first, second = np.exp(powers - log_unit)
        if isinstance(loss, Poisson):
            return lambda y: second - 2 * y * first + y**2 * one, log_unit
        return lambda y: one - 2 * y * first + y**2 * second, log_unit
    nodes, mass = _normal_nodes()
    predictors = middle + nodes[:, None] * sd
    return lambda y: mass @ np.square(loss.first(predictors, y)), 0.0
