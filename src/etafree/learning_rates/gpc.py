r"""General posterior calibration: the learning rate at which bootstrap coverage is nominal.

A credible region of the posterior given bootstrap data should cover the full-data minimiser
:math:`\hat\theta` as often as it says:

.. math:: c(\eta) = \frac1B\sum_b 1\{\hat\theta\in C_{\eta,\alpha}(D_b)\} = 1-\alpha.

The same bootstrap data serve every :math:`\eta`, so :math:`c` falls step by step and its root is
found by bisection in :math:`\log\eta`.

Credible regions from draws of bootstrap posteriors, reweighted to other learning rates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from etafree.bootstrap import Resamples, weight_blocks
from etafree.errors import ConvergenceError, InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import (
    Array,
    as_array,
    as_choice,
    as_count,
    as_level,
    as_positive,
    in_order,
)
from etafree.foundation.linalg import relative_eigenvalues
from etafree.learning_rates.problem import LearningRate, Problem, learning_rate
from etafree.samplers import sample

TOO_FEW = "reweighting leaves too few draws of a posterior: pass more draws="


def reweighted(losses: Array, change: float) -> Array:
    r"""Return weights :math:`\propto e^{-c\,L}` that sum to one, over the last axis.

    They turn draws at one learning rate into draws at another, c further up.

    Examples
    --------
    >>> reweighted(np.array([1.0, 1.0]), 0.3)
    array([0.5, 0.5])
    """
    power = -change * (losses - losses.mean(axis=-1, keepdims=True))
    weights: Array = np.exp(power - power.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


@dataclass(frozen=True, eq=False)
class DrawnRegions:
    """Draws (B, D, p) of the posteriors of bootstrap data at `eta`, with their losses (B, D)."""

    center: Array
    eta: float
    draws: Array
    losses: Array
    failed: int

    @classmethod
    def of(cls, problem: Problem, drawn: Resamples, eta: float, count: int) -> DrawnRegions:
        """Draw from the posterior of every resample whose minimiser was found."""
        wanted, seeds = set(drawn.which.tolist()), problem.seeds.spawn(drawn.drawn)
        draws, losses, number = [], [], -1
        blocks = weight_blocks(
            problem.criterion, drawn.drawn, problem.groups, problem.seeds, "counts"
        )
        for block, kind in blocks:
            for weights in block:
                number += 1
                if number not in wanted:
                    continue
                try:
                    posterior = problem.posterior(eta, problem.criterion.reweighted(weights, kind))
                    made = sample(posterior, count, seed=np.random.default_rng(seeds[number]))
                except (ConvergenceError, InputError):  # no sampler reaches it, or it is improper
                    continue
                draws.append(made.array[:count])
                losses.append(posterior.criterion.values_at(draws[-1]))
        if len(draws) < 0.5 * len(wanted):
            raise ConvergenceError(
                f"{len(wanted) - len(draws)} of {len(wanted)} bootstrap posteriors at eta = "
                f"{eta:.3g} could not be drawn from; add a penalty or use region='laplace'"
            )
        return cls(
            problem.fit.theta, eta, np.array(draws), np.array(losses), len(wanted) - len(draws)
        )

    def effective(self, eta: float) -> Array:
        """Return how many draws the reweighted ones are worth at `eta`, (B,)."""
        size: Array = 1.0 / np.square(reweighted(self.losses, eta - self.eta)).sum(axis=1)
        return size

    def coverage(self, eta: float, level: float, contrast: Array | None) -> float:
        """Return how often the region at `eta` holds the centre.

        The ellipsoid of the draws' mean and covariance that holds a share `level` of them, or a
        contrast's equal-tailed interval.
        """
        weights = reweighted(self.losses, eta - self.eta)
        if contrast is not None:
            values, tail = self.draws @ contrast, 0.5 * (1 - level)
            limits = _quantiles(values, weights, [tail, 1 - tail])
            point = self.center @ contrast
            return float(np.mean((limits[0] <= point) & (point <= limits[1])))
        mean = np.einsum("bd,bdi->bi", weights, self.draws)
        apart = self.draws - mean[:, None]
        covariance = np.einsum("bdi,bdj->bij", weights[:, :, None] * apart, apart)
        lower = linalg.inv(linalg.cholesky(covariance, "draws", TOO_FEW), "draws", TOO_FEW)
        size = np.square(np.einsum("bij,bdj->bdi", lower, apart)).sum(axis=2)
        limit = _quantiles(size, weights, [level])[0]
        own = np.square(np.einsum("bij,bj->bi", lower, self.center - mean)).sum(axis=1)
        return float(np.mean(own <= limit))


def _quantiles(values: Array, weights: Array, levels: list[float]) -> Array:
    """Return quantiles of weighted values along the last axis, (levels, B), by mid-ranks."""
    order = np.argsort(values, axis=1)
    values = np.take_along_axis(values, order, axis=1)
    weights = np.take_along_axis(weights, order, axis=1)
    ranks = np.cumsum(weights, axis=1) - 0.5 * weights
    return np.array(
        [
            [np.interp(level, rank, row) for rank, row in zip(ranks, values, strict=True)]
            for level in levels
        ]
    )


#: Bisections of a factor of 4, how often that is widened, and terms of the series.
BISECTIONS, WIDENINGS, TERMS = 40, 8, 6000
#: Terms smaller than the largest by this factor count by their mean.
SMALL = 200.0
#: Reweighted draws worth fewer than this share of them are drawn anew, or are noise.
ESS_REDRAW, ESS_NOISY, ROUNDS = 0.5, 0.1, 3


def weighted_chi_square_quantile(weights: Array, level: float) -> float:
    r"""Return the quantile of :math:`\sum_j\lambda_jZ_j^2`, by Ruben's series of chi-squares.

    Weights below 1/200 of the largest are replaced by their mean, which moves it by less than 1e-4.

    References
    ----------
    Ruben, H. (1962). Probability content of regions under spherical normal distributions, IV. Ann.
    Math. Statist. 33, 542-570.

    Examples
    --------
    >>> round(weighted_chi_square_quantile(np.array([2.0, 2.0]), 0.95), 4)
    11.9829
    """
    from scipy.special import chdtr, chdtri

    small = weights < weights.max() / SMALL
    shift, weights = float(weights[small].sum()), weights[~small]
    p, base = len(weights), float(weights.min())
    shrink = 1.0 - base / weights
    powers = np.cumprod(np.broadcast_to(shrink, (TERMS, p)), axis=0).sum(axis=1)
    mass = np.zeros(TERMS)
    mass[0] = np.sqrt(np.prod(base / weights))
    for k in range(1, TERMS):
        mass[k] = 0.5 / k * float(powers[k - 1 :: -1] @ mass[:k] if k > 1 else powers[0] * mass[0])
        if mass[: k + 1].sum() > 1 - 1e-12:
            break
    mass = mass[: k + 1] / mass.sum()
    dof = p + 2.0 * np.arange(len(mass))
    low, high = 0.0, float(chdtri(p, 1 - level) * weights.max())
    for _ in range(80):
        middle = 0.5 * (low + high)
        below = float(mass @ chdtr(dof, middle / base)) < level
        low, high = (middle, high) if below else (low, middle)
    return shift + 0.5 * (low + high)


def gpc_limit(J: Array, K: Array, level: float = 0.95) -> float:
    r"""Return the learning rate of the ellipsoid when everything is normal.

    :math:`\eta=\chi^2_{p,1-\alpha}/q`, with q the quantile of :math:`\sum_j\lambda_jZ_j^2` and
    :math:`\lambda_j` the eigenvalues of :math:`J^{-1}K`.

    Examples
    --------
    >>> round(gpc_limit(np.diag([1.0, 4.0]), 2 * np.eye(2)), 5)
    0.72278
    """
    from scipy.special import chdtri

    weights = relative_eigenvalues(K, J)
    return float(chdtri(len(J), 1 - level) / weighted_chi_square_quantile(weights, level))


def gpc(
    problem: Problem,
    resamples: int = 1000,
    level: float = 0.95,
    functional: object = None,
    region: str = "laplace",
    draws: int = 1000,
    solver: str = "root",
    start: float = 1.0,
    tolerance: float = 0.005,
    max_iter: int = 1000,
) -> LearningRate:
    r"""Return the learning rate at which bootstrap coverage is nominal.

    The credible ellipsoid, and so the learning rate, does not depend on the units of the
    parameters. A box of marginal intervals is not a region and is not offered.

    Parameters
    ----------
    problem : Problem
    resamples : int
        Bootstrap data sets.
    level : float
        :math:`1-\alpha`.
    functional : str or (p,) array, optional
        A parameter, or a contrast, whose interval is calibrated instead of the joint ellipsoid.
    region : {"laplace", "draws"}
        ``laplace``: the posterior of bootstrap data is normal around its mode with precision
        :math:`\eta\nabla^2L_b-\nabla^2\log\pi`. ``draws``: as in the paper, regions come from
        `draws` draws of every bootstrap posterior, made once and reweighted to other learning
        rates; slower by orders of magnitude, and exact where the posterior is not normal.
    draws : int
    solver : {"root", "robbins-monro"}
        ``robbins-monro``: the paper's :math:`\eta_{t+1}=\eta_t+(1+t)^{-0.51}\{c(\eta_t)-(1-
        \alpha)\}` from `start`, until the coverage is within `tolerance` of its level, or for
        `max_iter` steps. A step that would leave the positive numbers halves the learning rate
        instead; the diagnostics count these.
    start, tolerance, max_iter : numbers
        Of that solver only.

    References
    ----------
    Syring, N. and Martin, R. (2019). Calibrating general posterior credible regions. Biometrika
    106, 479-486.

    Examples
    --------
    >>> import etafree as ef
    >>> from etafree.learning_rates import select
    >>> X, y = np.ones((200, 1)), 2 * np.random.default_rng(0).standard_normal(200)
    >>> made = select(ef.Criterion(ef.losses.Squared(), (X, y)), "gpc", seed=1)
    >>> made.status, bool(abs(made.eta - 1 / y.var()) < 4 * made.mc_error)
    ('converged', True)
    """
    count, alpha = as_count(resamples, "resamples", least=20), 1.0 - as_level(level)
    contrast = _contrast(problem, functional)
    as_choice(region, "region", ("laplace", "draws"))
    as_choice(solver, "solver", ("root", "robbins-monro"))
    per_posterior = as_count(draws, "draws", least=100)
    first, near = as_positive(start, "start"), as_positive(tolerance, "tolerance")
    most = as_count(max_iter, "max_iter")
    drawn = problem.resamples(count)
    made = problem.information
    known: dict[str, Any] = {
        "resamples": count,
        "failed_minimisers": drawn.failed,
        "region": region,
        "normal_limit": gpc_limit(made.J, made.K, 1 - alpha),
    }
    covered = _laplace(problem, drawn, 1 - alpha, contrast)
    dof = problem.criterion.p if contrast is None else 1
    search = _Search(covered, 1 - alpha, len(drawn.thetas), dof)
    if solver == "root" or region == "draws":
        search.root(known["normal_limit"])
    if region == "draws":
        search = _by_draws(problem, drawn, per_posterior, contrast, search, known)
    if solver == "robbins-monro":
        search.robbins_monro(first, near, most)
        known["halved_steps"] = search.halved
    order = np.argsort(search.etas) if solver == "root" else slice(None)
    trace = {"eta": np.array(search.etas)[order], "coverage": np.array(search.values)[order]}
    return learning_rate(
        problem,
        search.eta,
        "gpc",
        "coverage",
        status=search.status,
        mc_error=search.error,
        trace=trace,
        diagnostics=known,
        level=1 - alpha,
    )


def _contrast(problem: Problem, functional: object) -> Array | None:
    if functional is None:
        return None
    names = problem.criterion.names
    if isinstance(functional, str):
        if functional not in names:
            raise InputError(
                "functional",
                f"{functional!r} is no parameter",
                f"choose from {list(names)} or pass a contrast",
            )
        unit: Array = np.eye(len(names))[names.index(functional)]
        return unit
    contrast = as_array(
        in_order(functional, names, "functional"), "functional", shape=(len(names),)
    )
    if not contrast.any():
        raise InputError("functional", "is zero", "pass a contrast that is not")
    return contrast


def _laplace(
    problem: Problem, drawn: Resamples, level: float, contrast: Array | None
) -> Callable[[float], float]:
    """Return the coverage of normal credible regions as a function of the learning rate."""
    from scipy.special import chdtri

    gap = problem.fit.theta - drawn.thetas
    limit = float(chdtri(1 if contrast is not None else gap.shape[1], 1 - level))
    slopes = np.array([problem.prior_gradient(theta) for theta in drawn.thetas])
    bends = np.array([-problem.prior_hessian(theta) for theta in drawn.thetas])

    def coverage(eta: float) -> float:
        precision = eta * drawn.hessians + bends
        shift = gap - linalg.solve(precision, slopes[:, :, None], "posterior precision")[:, :, 0]
        if contrast is None:
            distance = np.einsum("bi,bij,bj->b", shift, precision, shift)
        else:
            spread = linalg.solve(precision, contrast, "posterior precision") @ contrast
            distance = np.square(shift @ contrast) / spread
        return float(np.mean(distance <= limit))

    return coverage


def _by_draws(
    problem: Problem,
    drawn: Resamples,
    draws: int,
    contrast: Array | None,
    search: _Search,
    known: dict[str, Any],
) -> _Search:
    """Return the root for regions made of draws, drawn anew where reweighting leaves too few."""
    level, near = search.level, search.eta
    for _ in range(ROUNDS):
        made = DrawnRegions.of(problem, drawn, near, draws)
        covered = partial(made.coverage, level=level, contrast=contrast)
        search = _Search(covered, level, len(made.losses), search.dof)
        search.root(near)
        near = search.eta
        share = float(np.quantile(made.effective(search.eta), 0.05)) / draws
        if share >= ESS_REDRAW:
            break
    if share < ESS_NOISY and search.status == "converged":
        search.status = "noisy"
    known["ess_share"], known["failed_posteriors"] = share, made.failed
    return search


class _Search:
    """The root of a coverage that falls step by step, with everything that was tried."""

    def __init__(
        self, coverage: Callable[[float], float], level: float, count: int, dof: int
    ) -> None:
        self.coverage, self.level, self.dof = coverage, level, dof
        self.step = float(np.sqrt(level * (1 - level) / count))  # binomial error of the coverage
        self.etas: list[float] = []
        self.values: list[float] = []
        self.eta, self.error, self.status, self.halved = np.nan, 0.0, "converged", 0

    def _at(self, eta: float) -> float:
        self.etas.append(eta)
        self.values.append(self.coverage(eta))
        return self.values[-1]

    def root(self, near: float) -> None:
        """Find the largest learning rate that still covers, also for the level +- its error."""
        self.eta, self.status = self._crossing(near, self.level)
        low, _ = self._crossing(self.eta, min(self.level + self.step, 1.0))
        high, _ = self._crossing(self.eta, self.level - self.step)
        self.error = max(0.5 * (high - low), self.eta * self._relative_error())

    def _relative_error(self) -> float:
        """Return the error of the coverage over its slope in log eta, were posteriors right."""
        from scipy.special import chdtri, gammaln

        half = 0.5 * float(chdtri(self.dof, 1 - self.level))
        slope = np.exp(0.5 * self.dof * np.log(half) - half - gammaln(0.5 * self.dof))
        return self.step / float(slope)

    def _crossing(self, near: float, level: float) -> tuple[float, str]:
        low = high = near
        for _ in range(WIDENINGS):
            if self._at(low) >= level:
                break
            low, high = low / 4, low
        else:
            return low, "boundary"
        for _ in range(WIDENINGS):
            if self._at(high) < level:
                break
            low, high = high, 4 * high
        else:
            return high, "boundary"
        for _ in range(BISECTIONS):
            if high <= low * (1 + 1e-6):
                break
            middle = float(np.sqrt(low * high))
            low, high = (middle, high) if self._at(middle) >= level else (low, middle)
        return low, "converged"

    def robbins_monro(self, start: float, tolerance: float, max_iter: int) -> None:
        """Take the paper's additive steps until the coverage is near its level."""
        eta, self.etas, self.values, ended = start, [], [], "max_iter"
        for t in range(max_iter):
            bracket = self._at(eta) - self.level
            if abs(bracket) <= tolerance:
                ended = "converged"
                break
            moved = eta + (1 + t) ** -0.51 * bracket
            self.halved += moved <= 0
            eta = moved if moved > 0 else 0.5 * eta
        tried = self.etas[:], self.values[:]
        self.root(eta)
        self.eta, self.status, (self.etas, self.values) = eta, ended, tried
