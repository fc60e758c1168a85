"""Exact draws of a one-parameter posterior by inverting its distribution function."""

from __future__ import annotations

import numpy as np

from etafree.draws import Draws
from etafree.errors import ConvergenceError, InputError
from etafree.posterior import GeneralizedPosterior
from etafree.samplers.variational import Normal
from etafree.validation import Array

__all__ = ["distribution", "quadrature_draws"]

POINTS = 513
#: The grid reaches to where the log density has fallen by this much from its peak.
DEPTH = 40.0


def distribution(posterior: GeneralizedPosterior, normal: Normal) -> tuple[Array, Array]:
    """Return a grid (m,) and the distribution function on it, error below 1e-9 at its points.

    Parabolas through three points in t with theta = mode + sd sinh(t), as far as exp(-40) of the
    peak.
    """
    if posterior.criterion.p != 1:
        raise InputError(
            "posterior", f"has {posterior.criterion.p} parameters; quadrature takes one"
        )
    mode, sd = float(normal.mode[0]), float(normal.lower[0, 0])
    peak = posterior.log_density(np.array([mode]))

    # theta = mode + sd sinh(t): dense around the mode, and far enough out for polynomial tails.
    ends = [_reach(posterior, mode, side * sd, peak) for side in (-1.0, 1.0)]
    t = np.concatenate([np.linspace(-ends[0], 0.0, POINTS), np.linspace(0.0, ends[1], POINTS)[1:]])
    theta = mode + sd * np.sinh(t)
    density = np.exp(posterior.log_density(theta[:, None]) - peak) * np.cosh(t)
    left, middle, right = density[:-2:2], density[1:-1:2], density[2::2]
    step = np.repeat(ends, POINTS // 2)
    halves = np.empty(len(t))  # the parabola through three points, over its first and second half
    halves[0] = 0.0
    halves[1::2] = step * (5 * left + 8 * middle - right)
    halves[2::2] = step * (-left + 8 * middle + 5 * right)
    mass = np.maximum(halves, 0.0).cumsum()
    return theta, mass / mass[-1]


def _reach(posterior: GeneralizedPosterior, mode: float, step: float, peak: float) -> float:
    """Return t with the log density at mode + step sinh(t) below its peak by `DEPTH` at least."""
    t = np.linspace(0.1, 20.0, 200)
    for some in (t[:50], t):
        values = posterior.log_density((mode + step * np.sinh(some))[:, None])
        below = np.flatnonzero(~(values > peak - DEPTH))
        if len(below):
            return float(some[below[0]])
    raise ConvergenceError("the posterior's tail does not fall; add a penalty")


def quadrature_draws(
    posterior: GeneralizedPosterior, normal: Normal, draws: int, rng: np.random.Generator
) -> Draws:
    """Return stratified draws: one uniform in each of `draws` equal slices of probability.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> post = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), data=(X, y)), eta=1.0)
    >>> d = ef.sample(post, draws=1000, seed=1)
    >>> d.sampler, round(float(d.mean[0]), 2), round(float(d.array.std()), 2)
    ('quadrature', 2.0, 0.5)
    """
    grid, mass = distribution(posterior, normal)
    uniform = (np.arange(draws) + rng.random(draws)) / draws
    theta = np.interp(uniform, mass, grid)
    rng.shuffle(theta)
    return Draws(
        theta[None, :, None],
        posterior.criterion.names,
        posterior.eta,
        float(draws),
        "quadrature",
        {"grid": len(grid)},
    )
