r"""General posterior calibration: the learning rate at which bootstrap coverage is nominal.

A credible region of the posterior given bootstrap data should cover the full-data minimiser
:math:`\hat\theta` as often as it says:

.. math:: c(\eta) = \frac1B\sum_b 1\{\hat\theta\in C_{\eta,\alpha}(D_b)\} = 1-\alpha.

The same bootstrap data serve every :math:`\eta`, so :math:`c` falls step by step and its root is
found by bisection in :math:`\log\eta`. Regions are those of normal approximations, or come from
draws of bootstrap posteriors that are reweighted to other learning rates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from etafree.bootstrap import Resamples, weight_blocks
from etafree.errors import ConvergenceError, InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_choice, as_count, as_level, as_positive
from etafree.learning_rates.problem import LearningRate, Problem
from etafree.posterior import GeneralizedPosterior
from etafree.samplers import sample

#: Factor within which the root is looked for, and terms of the series.
WIDEST, TERMS = 4.0**8, 6000
#: Reweighted draws worth fewer than this share of them are drawn anew, or are noise.
ESS_REDRAW, ESS_NOISY, ROUNDS = 0.5, 0.1, 3
#: How often regions at a learning rate hold the minimiser.
Coverage = Callable[[float], float]


def reweighted(losses: Array, change: float) -> Array:
    """Return weights that raise the learning rate of draws by `change`, over the last axis."""
    power = -change * (losses - losses.mean(axis=-1, keepdims=True))
    weights: Array = np.exp(power - power.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def effective_share(losses: Array, change: float) -> Array:
    """Return which share of the draws the reweighted ones are worth, over the last axis."""
    squares = np.square(reweighted(losses, change)).sum(axis=-1)
    return np.asarray(1.0 / squares / losses.shape[-1])


def weighted_chi_square_quantile(weights: Array, level: float) -> float:
    r"""Return the quantile of :math:`\sum_j\lambda_jZ_j^2`, by Ruben's series of chi-squares.

    Weights below 1/200 of the largest are replaced by their mean, which moves it by less than 1e-4.
    Ruben, H. (1962). Probability content of regions under spherical normal distributions, IV. Ann.
    Math. Statist. 33, 542-570.
    """
    from scipy.optimize import brentq
    from scipy.special import chdtr, chdtri

    small = weights < weights.max() / 200
    shift, weights = float(weights[small].sum()), weights[~small]
    p, base = len(weights), float(weights.min())
    shrink = 1.0 - base / weights
    powers = np.cumprod(np.broadcast_to(shrink, (TERMS, p)), axis=0).sum(axis=1)
    mass = np.zeros(TERMS)
    mass[0] = np.sqrt(np.prod(base / weights))
    for k in range(1, TERMS):
        mass[k] = 0.5 / k * float(powers[:k][::-1] @ mass[:k])
        if mass[: k + 1].sum() > 1 - 1e-12:
            break
    mass = mass[: k + 1] / mass.sum()
    dof, most = p + 2.0 * np.arange(len(mass)), float(chdtri(p, 1 - level) * weights.max())
    root = brentq(lambda q: mass @ chdtr(dof, q / base) - level, 0.0, 2 * most, xtol=1e-15 * most)
    return shift + float(root)


def gpc_limit(J: Array, K: Array, level: float = 0.95) -> float:
    r"""Return the rate for normal posteriors, :math:`\chi^2_{p,1-\alpha}/q`, q that of J and K."""
    from scipy.special import chdtri

    weights = linalg.relative_eigenvalues(K, J)
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

    The credible ellipsoid, and so the learning rate, does not depend on units of parameters.

    Parameters
    ----------
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
    """
    count, level = as_count(resamples, "resamples", least=20), as_level(level)
    contrast = _contrast(problem, functional)
    as_choice(region, "region", ("laplace", "draws"))
    as_choice(solver, "solver", ("root", "robbins-monro"))
    per_posterior, most = as_count(draws, "draws", least=100), as_count(max_iter, "max_iter")
    first, near = as_positive(start, "start"), as_positive(tolerance, "tolerance")
    drawn = problem.resamples(count)
    limit = gpc_limit(problem.information.J, problem.information.K, level)
    facts: dict[str, object] = {"resamples": count, "failed_minimisers": drawn.failed}
    facts |= {"region": region, "normal_limit": limit}
    dof = problem.criterion.p if contrast is None else 1
    search = _Search(_laplace(problem, drawn, level, contrast), level, len(drawn.thetas), dof)
    if solver == "root" or region == "draws":
        search.root(limit)
    if region == "draws":
        search, effective = _by_draws(problem, drawn, per_posterior, contrast, search)
        facts |= effective
    if solver == "robbins-monro":
        search.robbins_monro(first, near, most)
        facts["halved_steps"] = search.halved
    order = np.argsort(search.etas) if solver == "root" else slice(None)
    trace = {"eta": np.array(search.etas)[order], "coverage": np.array(search.values)[order]}
    eta, error, status = search.eta, search.error, search.status
    return problem.rate("gpc", "coverage", eta, error, trace, facts, status=status, level=level)


def _contrast(problem: Problem, functional: object) -> Array | None:
    """Return the contrast (p,) that is calibrated, None for the joint ellipsoid."""
    if functional is None:
        return None
    names = problem.criterion.names
    if isinstance(functional, str):
        if functional not in names:
            advice = f"choose from {list(names)} or pass a contrast"
            raise InputError("functional", f"{functional!r} is no parameter", advice)
        functional = np.eye(len(names))[names.index(functional)]
    contrast = problem.criterion.point(functional, "functional")
    if not contrast.any():
        raise InputError("functional", "is zero", "pass a contrast that is not")
    return contrast


def _laplace(problem: Problem, drawn: Resamples, level: float, contrast: Array | None) -> Coverage:
    """Return the coverage of normal credible regions."""
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
    problem: Problem, drawn: Resamples, count: int, contrast: Array | None, search: _Search
) -> tuple[_Search, dict[str, object]]:
    """Return the root for regions of draws, made anew where few are effective, and diagnostics."""
    for _ in range(ROUNDS):
        near = search.eta
        draws, losses = _draws(problem, drawn, near, count)
        coverage = _drawn(problem.fit.theta, near, draws, losses, search.level, contrast)
        search = _Search(coverage, search.level, len(draws), search.dof)
        search.root(near)
        share = float(np.quantile(effective_share(losses, search.eta - near), 0.05))
        if share >= ESS_REDRAW:
            break
    if share < ESS_NOISY and search.status == "converged":
        search.status = "noisy"
    return search, {"ess_share": share, "failed_posteriors": len(drawn.thetas) - len(draws)}


def _draws(problem: Problem, drawn: Resamples, eta: float, count: int) -> tuple[Array, Array]:
    """Return draws (B, D, p) of the posteriors of resamples that have a minimiser, and losses."""
    criterion, seeds = problem.criterion, problem.seeds.spawn(drawn.drawn)
    blocks = weight_blocks(criterion, drawn.drawn, problem.groups, problem.seeds, "counts")
    weightings = ((weights, kind) for block, kind in blocks for weights in block)
    wanted, draws, losses = set(drawn.which.tolist()), [], []
    for number, (weights, kind) in enumerate(weightings):
        if number not in wanted:
            continue
        try:
            again = criterion.reweighted(weights, kind)
            posterior = GeneralizedPosterior(again, eta, problem.log_prior)
            thetas = sample(posterior, count, seed=np.random.default_rng(seeds[number])).array
        except (ConvergenceError, InputError):  # no sampler reaches it, or it is improper
            continue
        draws.append(thetas[:count])
        losses.append(again.values_at(draws[-1]))
    failed = len(wanted) - len(draws)
    if failed > 0.5 * len(wanted):
        which = f"{failed} of {len(wanted)} bootstrap posteriors at eta = {eta:.3g}"
        advice = "add a penalty or use region='laplace'"
        raise ConvergenceError(f"{which} could not be drawn from; {advice}")
    return np.array(draws), np.array(losses)


def _drawn(
    center: Array, base: float, draws: Array, losses: Array, level: float, contrast: Array | None
) -> Coverage:
    """Return the coverage of ellipsoids, or intervals, of reweighted draws."""
    advice = "reweighting leaves too few draws of a posterior: pass more draws="

    def coverage(eta: float) -> float:
        weights = reweighted(losses, eta - base)
        if contrast is not None:
            values, point, tail = draws @ contrast, center @ contrast, 0.5 * (1 - level)
            above = _quantiles(values, weights, tail) <= point
            return float(np.mean(above & (point <= _quantiles(values, weights, 1 - tail))))
        mean = np.einsum("bd,bdi->bi", weights, draws)
        apart = draws - mean[:, None]
        covariance = np.einsum("bdi,bdj->bij", weights[:, :, None] * apart, apart)
        lower = linalg.inv(linalg.cholesky(covariance, "draws", advice), "draws", advice)
        size = np.square(np.einsum("bij,bdj->bdi", lower, apart)).sum(axis=2)
        own = np.square(np.einsum("bij,bj->bi", lower, center - mean)).sum(axis=1)
        return float(np.mean(own <= _quantiles(size, weights, level)))

    return coverage


def _quantiles(values: Array, weights: Array, level: float) -> Array:
    """Return the quantile of weighted values in every row, (B, D) -> (B,), by mid-ranks."""
    order = np.argsort(values, axis=1)
    values = np.take_along_axis(values, order, axis=1)
    weights = np.take_along_axis(weights, order, axis=1)
    ranks = np.cumsum(weights, axis=1) - 0.5 * weights
    return np.array([np.interp(level, rank, row) for rank, row in zip(ranks, values, strict=True)])


class _Search:
    """The root of a coverage that falls step by step, with everything that was tried."""

    def __init__(self, coverage: Coverage, level: float, count: int, dof: int) -> None:
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
        from scipy.special import chdtri, gammaln

        self.eta, self.status = self._crossing(near, self.level)
        low, _ = self._crossing(self.eta, min(self.level + self.step, 1.0))
        high, _ = self._crossing(self.eta, self.level - self.step)
        # the error of the coverage over its slope in log eta if posteriors had the right shape
        half = 0.5 * float(chdtri(self.dof, 1 - self.level))
        slope = np.exp(0.5 * self.dof * np.log(half) - half - gammaln(0.5 * self.dof))
        self.error = max(0.5 * (high - low), self.eta * self.step / float(slope))

    def _crossing(self, near: float, level: float) -> tuple[float, str]:
        """Return where the coverage falls below a level, and whether that was found."""
        low = high = near
        while self._at(low) < level:
            low, high = low / 4, low
            if low <= near / WIDEST:
                return low, "boundary"
        start = high
        while self._at(high) >= level:
            low, high = high, 4 * high
            if high >= start * WIDEST:
                return high, "boundary"
        while high > low * (1 + 1e-6):
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
