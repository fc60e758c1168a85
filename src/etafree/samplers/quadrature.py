"""Exact draws of a one-parameter posterior by inverting its distribution function."""

from __future__ import annotations

import numpy as np

from etafree.draws import Draws
from etafree.errors import ConvergenceError, InputError
from etafree.posterior import GeneralizedPosterior
from etafree.samplers.variational import Normal
from etafree.validation import Array

__all__ = ["distribution", "quadrature_draws"]

POINTS = 4097
#: The grid reaches to where the log density has fallen by this much from its peak.
DEPTH = 40.0


def distribution(posterior: GeneralizedPosterior, normal: Normal) -> tuple[Array, Array]:
    """Return a grid (m,) and the distribution function on it, error below 1e-7 for smooth losses.

    Simpson's rule in t with theta = mode + sd sinh(t), as far as exp(-40) of the peak.
    """
    if posterior.criterion.p != 1:
        raise InputError(
            "posterior", f"has {posterior.criterion.p} parameters; quadrature takes one"
        )
    mode, sd = float(normal.mode[0]), float(normal.lower[0, 0])
    peak = posterior.log_density(np.array([mode]))

    def reach(sign: float) -> float:
        inner, outer = 0.0, sd
        for _ in range(200):
            if posterior.log_density(np.array([mode + sign * outer])) < peak - DEPTH:
                break
            inner, outer = outer, 2 * outer
        else:
            raise ConvergenceError("the posterior's tail does not fall; add a penalty")
        for _ in range(30):
            middle = 0.5 * (inner + outer)
            if posterior.log_density(np.array([mode + sign * middle])) < peak - DEPTH:
                outer = middle
            else:
                inner = middle
        return outer

    # theta = mode + sd sinh(t): dense around the mode, and far enough out for polynomial tails.
    ends = np.arcsinh(np.array([-reach(-1.0), reach(1.0)]) / sd)
    t = np.concatenate([np.linspace(ends[0], 0.0, POINTS), np.linspace(0.0, ends[1], POINTS)[1:]])
    theta = mode + sd * np.sinh(t)
    density = np.exp(posterior.log_density(theta[:, None]) - peak) * np.cosh(t)
    step = np.repeat(-ends[0], POINTS // 2), np.repeat(ends[1], POINTS // 2)
    cells = (density[:-2:2] + 4 * density[1:-1:2] + density[2::2]) * np.concatenate(step)
    mass = np.concatenate([np.zeros(1), cells]).cumsum()
    return theta[::2], mass / mass[-1]


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
