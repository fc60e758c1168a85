"""Exact draws of a one-parameter posterior by inverting its distribution function."""

from __future__ import annotations

import numpy as np

from etafree.draws import Draws
from etafree.errors import ConvergenceError, InputError
from etafree.foundation.arguments import Array
from etafree.penalties import KinkedPenalty
from etafree.posterior import GeneralizedPosterior
from etafree.samplers.variational import Normal

POINTS = 257
#: The grid reaches to where the log density has fallen by this much from its peak.
DEPTH = 40.0


def distribution(
    posterior: GeneralizedPosterior, normal: Normal, rates: Array | None = None
) -> tuple[Array, Array]:
    """Return a grid (m,) and the distribution function on it, error below 1e-8 at its points.

    Parabolas through three points in t with theta = mode + sd sinh(t), as far as exp(-40) of the
    peak. With `rates`, a row for each: the posterior's log density times that rate, on one grid,
    which is dense enough for rates above one because it is logarithmic away from the mode.
    """
    if posterior.criterion.p != 1:
        problem = f"has {posterior.criterion.p} parameters; quadrature takes one"
        raise InputError("posterior", problem)
    rates = np.ones(1) if rates is None else rates
    mode, sd = float(normal.mode[0]), float(normal.lower[0, 0] / np.sqrt(rates.max()))
    peak = posterior.log_density(np.array([mode]))
    # theta = mode + sd sinh(t): dense around the mode, and far enough out for polynomial tails.
    depth = DEPTH / rates.min()
    ends = [_reach(posterior, mode, side * sd, peak - depth) for side in (-1.0, 1.0)]
    bounds, penalty = posterior.bounds, posterior.criterion.penalty
    if isinstance(penalty, KinkedPenalty):
        bounds = penalty.bounds(1)
    if bounds is not None:  # up to just before a bound, where a log density may end
        gaps = np.abs(bounds[0] - mode) / sd * (1 - 1e-12)
        ends = [min(end, float(np.arcsinh(gap))) for end, gap in zip(ends, gaps, strict=True)]
    t = np.concatenate([np.linspace(-ends[0], 0.0, POINTS), np.linspace(0.0, ends[1], POINTS)[1:]])
    theta = mode + sd * np.sinh(t)
    below = posterior.log_density(theta[:, None]) - peak
    masses = np.array([_cumulative(np.exp(rate * below) * np.cosh(t), ends) for rate in rates])
    return theta, masses[0] if len(rates) == 1 else masses


def _cumulative(density: Array, ends: list[float]) -> Array:
    """Return the normalised integral up to each point of two evenly spaced halves."""
    left, middle, right = density[:-2:2], density[1:-1:2], density[2::2]
    step = np.repeat(ends, POINTS // 2)
    halves = np.empty(len(density))  # the parabola of three points, over its first and second half
    halves[0] = 0.0
    halves[1::2] = step * (5 * left + 8 * middle - right)
    halves[2::2] = step * (-left + 8 * middle + 5 * right)
    mass = np.maximum(halves, 0.0).cumsum()
    return np.asarray(mass / mass[-1])


def _reach(posterior: GeneralizedPosterior, mode: float, step: float, floor: float) -> float:
    """Return t with the log density at mode + step sinh(t) below `floor`."""
    t = np.linspace(0.1, 20.0, 200)
    for grid in (t[:50], t):
        values = posterior.log_density((mode + step * np.sinh(grid))[:, None])
        below = np.flatnonzero(~(values > floor))
        if len(below):
            return float(grid[below[0]])
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
    theta = stratified(grid, mass, draws, rng)
    info = {"ess": float(draws), "grid": len(grid)}
    names = posterior.criterion.names
    return Draws(theta[None, :, None], names, posterior.eta, "quadrature", info)


def stratified(grid: Array, mass: Array, draws: int, rng: np.random.Generator) -> Array:
    """Return draws (draws,), one in each slice of equal probability, in random order.

    Between grid points theta is taken linear in the normal score of the distribution function:
    nearly true, where linear in the function itself is off by 1e-3 standard deviations.
    """
    from scipy.special import ndtri

    uniform = (np.arange(draws) + rng.random(draws)) / draws
    theta = np.interp(ndtri(uniform), ndtri(np.clip(mass, 1e-300, 1 - 1e-16)), grid)
    rng.shuffle(theta)
    return theta
