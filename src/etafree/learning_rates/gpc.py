r"""General posterior calibration: the learning rate at which bootstrap coverage is nominal.

A credible region of the posterior given bootstrap data should cover the full-data minimiser
:math:`\hat\theta` as often as it says:

.. math:: c(\eta) = \frac1B\sum_b 1\{\hat\theta\in C_{\eta,\alpha}(D_b)\} = 1-\alpha.

The same bootstrap data serve every :math:`\eta`, so :math:`c` falls step by step and its root is
found by bisection in :math:`\log\eta`. Regions come from draws of the bootstrap posteriors,
importance-weighted to the learning rate that is tried, or are those of normal approximations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import SeedSequence

from etafree.errors import ConvergenceError, InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_choice, as_count, as_level, as_positive
from etafree.learning_rates.problem import LearningRate, Problem
from etafree.posterior import GeneralizedPosterior
from etafree.resampling import Resamples, weight_blocks
from etafree.samplers import sample
from etafree.samplers.importance import student_proposal

#: Factor within which the root is looked for, and terms of the series.
WIDEST, TERMS = 4.0**8, 6000
#: Reweighted draws worth fewer than this share of fresh ones are drawn anew; worth fewer than the
#: second of their number, they are noise.
ESS_REDRAW, ESS_NOISY = 0.5, 0.1
#: Losses of rows, and numbers, up to which regions come from draws by default.
WORK, HELD = 2e9, 5e7
#: Degrees of freedom of proposals.
DOF = 20.0
#: How often regions at a learning rate hold the minimiser.
Coverage = Callable[[float], float]


def reweighted(losses: Array, change: float, logs: Array | float = 0.0) -> Array:
    """Return weights that raise the learning rate of draws by `change`, over the last axis.

    The draws may have weights already, whose logarithms are `logs`.
    """
    power = logs - change * (losses - losses.mean(axis=-1, keepdims=True))
    weights: Array = np.exp(power - power.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def effective_share(losses: Array, change: float, logs: Array | float = 0.0) -> Array:
    """Return which share of the draws the reweighted ones are worth, over the last axis."""
    squares = np.square(reweighted(losses, change, logs)).sum(axis=-1)
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
    region: str | None = None,
    draws: int = 400,
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
    region : {"draws", "laplace"}, optional
        ``draws``: as in the paper, regions come from `draws` draws of every bootstrap posterior at
        the learning rate that is tried; they are reweighted from a learning rate near by, and made
        anew where few of them count. ``laplace``: the posterior of bootstrap data is normal around
        its mode with precision :math:`\eta\nabla^2L_b-\nabla^2\log\pi`. By default draws, unless
        more than 2e9 losses of rows would have to be computed; the diagnostics name the region.
    draws : int
        Of each bootstrap posterior.
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
    as_choice(solver, "solver", ("root", "robbins-monro"))
    per_posterior, most = as_count(draws, "draws", least=100), as_count(max_iter, "max_iter")
    first, near = as_positive(start, "start"), as_positive(tolerance, "tolerance")
    region = _region(region, problem, count * per_posterior)
    drawn = problem.resamples(count)
    limit = gpc_limit(problem.information.J, problem.information.K, level)
    facts: dict[str, object] = {"resamples": count, "failed_minimisers": drawn.failed}
    dof = problem.criterion.p if contrast is None else 1
    search = _Search(_laplace(problem, drawn, level, contrast), level, len(drawn.thetas), dof)
    if solver == "root" or region == "draws":
        search.root(limit)
    posteriors = None
    if region == "draws" and search.status == "converged":  # else there is nowhere to draw at
        posteriors = _Posteriors(problem, drawn, per_posterior, level, contrast)
        search = _Search(posteriors.coverage, level, len(drawn.thetas), dof, search.eta)
        if solver == "root":
            search.root(search.eta)
    if solver == "robbins-monro":
        search.robbins_monro(first, near, most)
        facts["halved_steps"] = search.halved
    if posteriors is not None:
        share = posteriors.share(search.eta)
        facts |= {"ess_share": share, "failed_posteriors": posteriors.failed}
        if share < ESS_NOISY and search.status == "converged":
            search.status = "noisy"
    facts |= {"region": "laplace" if posteriors is None else "draws", "normal_limit": limit}
    order = np.argsort(search.etas) if solver == "root" else slice(None)
    trace = {"eta": np.array(search.etas)[order], "coverage": np.array(search.values)[order]}
    eta, error, status = search.eta, search.error, search.status
    return problem.rate("gpc", "coverage", eta, error, trace, facts, status=status, level=level)


def _region(asked: str | None, problem: Problem, draws: int) -> str:
    """Return what regions come from: draws, by default unless so many cost too much."""
    if asked is not None:
        return as_choice(asked, "region", ("draws", "laplace"))
    affordable = draws * problem.criterion.n <= WORK and draws * problem.criterion.p <= HELD
    return "draws" if affordable else "laplace"


def _contrast(problem: Problem, functional: object) -> Array | None:
    """Return the contrast (p,) that is calibrated, None for the joint ellipsoid."""
    if functional is None:
        return None
    names = problem.criterion.names
    if isinstance(functional, str):
        if functional not in names:
            advice = f"choose from {list(names)} or pass a contrast"
            raise InputError("functional", f"{functional!r} is not a parameter", advice)
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


class _Posteriors:
    """Draws (B, D, p) of the posteriors of resamples, their losses and log weights (B, D)."""

    def __init__(
        self, problem: Problem, drawn: Resamples, count: int, level: float, contrast: Array | None
    ) -> None:
        self.problem, self.resamples, self.count = problem, drawn, count
        self.level, self.contrast, self.seeds = level, contrast, problem.seeds.spawn(drawn.drawn)
        self.base, self.fresh, self.failed = np.nan, np.nan, 0

    def coverage(self, eta: float) -> float:
        """Return how often ellipsoids, or intervals, at a learning rate hold the minimiser."""
        if not self.share(eta) >= ESS_REDRAW * self.fresh:
            self.draw(eta)
        weights = reweighted(self.losses, eta - self.base, self.logs)[:, None]
        center = self.problem.fit.theta
        if self.contrast is not None:
            lower = self.draws @ self.contrast < center @ self.contrast
            rank = (weights @ lower[:, :, None])[:, 0, 0]
            return float(np.mean(np.abs(rank - 0.5) <= 0.5 * self.level))
        mean = weights @ self.draws
        apart = self.draws - mean
        covariance = apart.transpose(0, 2, 1) @ (apart * weights.transpose(0, 2, 1))
        advice = "reweighting leaves too few draws of a posterior: pass more draws="
        root = linalg.inv(linalg.cholesky(covariance, "draws", advice), "draws", advice)
        size = np.square(apart @ root.transpose(0, 2, 1)).sum(axis=2)
        own = np.square((center - mean) @ root.transpose(0, 2, 1)).sum(axis=2)
        return float(np.mean((weights[:, 0] * (size < own)).sum(axis=1) <= self.level))

    def share(self, eta: float) -> float:
        """Return the share of draws that count at a learning rate, in the worst of posteriors."""
        if np.isnan(self.base):
            return np.nan
        shares = effective_share(self.losses, eta - self.base, self.logs)
        return float(np.quantile(shares, 0.05))

    def draw(self, eta: float) -> None:
        """Draw from the posteriors of those resamples that have a minimiser."""
        criterion, drawn, problem = self.problem.criterion, self.resamples, self.problem
        blocks = weight_blocks(criterion, drawn.drawn, problem.groups, problem.seeds, "counts")
        weightings = ((weights, kind) for block, kind in blocks for weights in block)
        numbers, each = {int(which): k for k, which in enumerate(drawn.which)}, []
        for number, (weights, kind) in enumerate(weightings):
            if number not in numbers:
                continue
            theta, hessian = drawn.thetas[numbers[number]], drawn.hessians[numbers[number]]
            try:
                again = criterion.reweighted(weights, kind)
                posterior = GeneralizedPosterior(again, eta, problem.log_prior)
                each.append(self._of(posterior, theta, hessian, self.seeds[number]))
            except (ConvergenceError, InputError):  # no sampler reaches it, or it is improper
                continue
        self.failed = len(numbers) - len(each)
        if self.failed > 0.5 * len(numbers):
            which = f"{self.failed} of {len(numbers)} bootstrap posteriors at eta = {eta:.3g}"
            advice = "add a penalty or use region='laplace'"
            raise ConvergenceError(f"{which} could not be drawn from; {advice}")
        self.draws, self.losses, self.logs = (np.array(a) for a in zip(*each, strict=True))
        self.base = eta
        self.fresh = self.share(eta)

    def _of(
        self, posterior: GeneralizedPosterior, theta: Array, hessian: Array, seed: SeedSequence
    ) -> tuple[Array, Array, Array]:
        """Return draws (D, p) of one posterior with losses and log weights (D,).

        Proposals are Student-t around the normal approximation; where few of them count, the
        posterior is sampled as any other.
        """
        criterion, problem, rng = posterior.criterion, self.problem, np.random.default_rng(seed)
        precision = posterior.eta * hessian - problem.prior_hessian(theta)
        root = linalg.cholesky(precision, "posterior precision")
        mean = theta + linalg.solve(precision, problem.prior_gradient(theta), "posterior precision")
        z, log_proposal = student_proposal(self.count, criterion.p, DOF, rng)
        points: Array = mean + z @ linalg.inv(root, "posterior precision")
        losses = criterion.values_at(points)
        logs = -posterior.eta * losses - log_proposal
        if (prior := posterior.log_prior) is not None:
            logs += np.array([float(prior.value(x, criterion.size)) for x in points])
        if np.isfinite(logs).any() and effective_share(losses, 0.0, logs) >= ESS_NOISY:
            return points, losses, np.asarray(logs)
        points = sample(posterior, self.count, seed=rng).array[: self.count]
        return points, criterion.values_at(points), np.zeros(self.count)


class _Search:
    """The root of a coverage that falls step by step, with everything that was tried."""

    def __init__(
        self, coverage: Coverage, level: float, count: int, dof: int, near: float | None = None
    ) -> None:
        self.coverage, self.level, self.dof = coverage, level, dof
        # a search near a guess takes smaller steps, and ends when noise is all that is left
        self.stride, self.close = (4.0, 1e-6) if near is None else (1.5, 1e-3)
        self.step = float(np.sqrt(level * (1 - level) / count))  # binomial error of the coverage
        self.etas: list[float] = []
        self.values: list[float] = []
        self.eta = np.nan if near is None else near
        self.error, self.status, self.halved = 0.0, "converged", 0

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
            low, high = low / self.stride, low
            if low <= near / WIDEST:
                return low, "boundary"
        start = high
        while self._at(high) >= level:
            low, high = high, self.stride * high
            if high >= start * WIDEST:
                return high, "boundary"
        while high > low * (1 + self.close):
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
