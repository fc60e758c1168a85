r"""SafeBayes: the learning rate whose posteriors predict the next observation best.

Every prefix of the data has a posterior, and the next observation has a loss under it. Draws of a
prefix are reweighted as rows come in, and drawn anew where too few of them are left. Linear
regression has a closed form: with likelihood weight :math:`\eta`, an observation (x, y) moves
:math:`\beta\sim N(m,\sigma^2V)` to

.. math:: V - \frac{\eta Vxx^\top V}{1+\eta q},\quad m+\frac{\eta Vx\,r}{1+\eta q},\quad
          a+\tfrac{\eta}{2},\quad b+\frac{\eta r^2}{2(1+\eta q)},\qquad
          r=y-x^\top m,\ q=x^\top Vx,

for :math:`\sigma^2\sim\mathrm{IG}(a,b)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etafree.errors import ConvergenceError, InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_array, as_bool, as_choice, as_count, as_positive
from etafree.foundation.terminal import counted
from etafree.learning_rates.problem import LearningRate, Problem, normal_prior
from etafree.losses import Squared
from etafree.posterior import GeneralizedPosterior, LogPrior
from etafree.samplers import sample
from etafree.totals.base import require
from etafree.totals.linear import has_design

#: Share of effective draws below which a prefix is drawn anew, and rows taken at a time.
RENEW, ROWS = 0.5, 64
#: Independent runs, and errors within which a loss may be the smallest.
RUNS, UNSURE = 4, 3.0


@dataclass(frozen=True, eq=False)
class NormalInverseGamma:
    r"""Prior :math:`\beta\mid\sigma^2\sim N(m, \sigma^2V)`, :math:`\sigma^2\sim\mathrm{IG}(a, b)`.

    Parameters
    ----------
    mean, covariance : (p,) array and (p, p) array
    shape, rate : float
        a and b.
    """

    mean: Array
    covariance: Array
    shape: float
    rate: float

    def __post_init__(self) -> None:
        mean = as_array(self.mean, "mean", ndim=1)
        covariance = linalg.check_covariance(self.covariance, "covariance", len(mean))
        put = object.__setattr__
        put(self, "mean", mean)
        put(self, "covariance", covariance)
        put(self, "shape", as_positive(self.shape, "shape"))
        put(self, "rate", as_positive(self.rate, "rate"))


def prequential_losses(
    X: Array,
    y: Array,
    grid: Array,
    mean: Array,
    covariance: Array,
    version: str,
    variance: NormalInverseGamma | None = None,
) -> Array:
    """Return losses (n, rates) of predicting rows from those before: squared or normal log loss."""
    from scipy.special import digamma

    m, V = np.tile(mean, (len(grid), 1)), np.tile(covariance, (len(grid), 1, 1))
    shape, rate = (1.0, 1.0) if variance is None else (variance.shape, variance.rate)
    a, b = np.full(len(grid), shape), np.full(len(grid), rate)
    if variance is not None and version == "I" and shape <= 1:
        problem = f"has shape {shape:g}: the mean of the variance, used by version 'I', is infinite"
        raise InputError("conjugate", problem, "pass a shape above one")
    out = np.empty((len(X), len(grid)))
    for i, (x, response) in enumerate(zip(X, y, strict=True)):
        Vx = V @ x
        q, r = Vx @ x, response - m @ x
        spread = q if version == "R" else 0.0
        if variance is None:
            out[i] = 0.5 * (r * r + spread)
        elif version == "R":
            out[i] = 0.5 * (np.log(2 * np.pi * b) - digamma(a) + r * r * a / b + spread)
        else:
            mean_variance = b / (a - 1)
            out[i] = 0.5 * (np.log(2 * np.pi * mean_variance) + r * r / mean_variance)
        gain = grid / (1 + grid * q)
        V -= gain[:, None, None] * Vx[:, :, None] * Vx[:, None, :]
        m += (gain * r)[:, None] * Vx
        a += 0.5 * grid
        b += 0.5 * gain * r * r
    return out


def safebayes(
    problem: Problem,
    version: str = "R",
    grid: object = None,
    permute: bool = False,
    conjugate: NormalInverseGamma | None = None,
    start: int | None = None,
    draws: int = 500,
) -> LearningRate:
    r"""Return the learning rate on a grid with the smallest cumulative loss of predictions.

    .. math:: \hat\eta = \arg\min_\eta \sum_i E_{\Pi_\eta(\theta\mid z^{i-1})}\ell(\theta, z_i)
              \ \text{(R)},\qquad
              \arg\min_\eta \sum_i \ell\{E_{\Pi_\eta(\theta\mid z^{i-1})}\theta, z_i\}\ \text{(I)}.

    Ties go to the largest, and the order of the rows matters. Closed form for least squares under a
    normal prior, and with a `conjugate` prior of the variance too; any other loss by draws.

    Parameters
    ----------
    version : {"R", "I"}
        Randomized predictions, or predictions at the posterior mean.
    grid : array, optional
        Learning rates; by default 1, 1/2, ..., 1/256.
    permute : bool
        Take the rows in random order (by the seed) instead of the one given.
    conjugate : NormalInverseGamma, optional
        Linear regression with unknown variance: the loss is then the normal log loss.
    start : int, optional
        Rows that only train. By default none under a normal prior, else the larger of 20 and 5p.
    draws : int
        Per posterior, where there is no closed form; everything runs four times to see the noise.

    References
    ----------
    Grünwald, P. and van Ommen, T. (2017). Inconsistency of Bayesian inference for misspecified
    linear models, and a proposal for repairing it. Bayesian Anal. 12, 1069-1103.
    """
    as_choice(version, "version", ("R", "I"))
    rates = _rates(grid)
    permute = as_bool(permute, "permute")
    count = as_count(draws, "draws", least=100)
    _check(problem, conjugate)
    n, p, prior = problem.criterion.n, problem.criterion.p, normal_prior(problem)
    proper = prior is not None or conjugate is not None
    default = 0 if proper else max(20, 5 * p)
    first = default if start is None else as_count(start, "start", least=0)
    if first >= n or (first == 0 and not proper):
        advice = "leave rows to predict and, without a normal log_prior, rows to learn from first"
        raise InputError("start", f"is {first} of {n} rows", advice)
    order_seed, draw_seed = problem.seeds.spawn(2)
    order = np.random.default_rng(order_seed).permutation(n) if permute else np.arange(n)
    facts: dict[str, object] = {"version": version, "permuted": permute, "start": first}
    sequence = _Sequence(problem, order, first, version, prior)
    losses = sequence.closed_form(rates, conjugate)
    if losses is not None:
        totals = losses[first:].sum(axis=0)
        facts["computed"] = "closed form"
    else:
        seeds = draw_seed.spawn(RUNS)
        runs = np.empty((RUNS, len(rates)))
        with counted(runs.size * (n - first), "safebayes: predictions") as step:
            for run, k in np.ndindex(runs.shape):
                runs[run, k] = sequence.by_draws(float(rates[k]), count, seeds[run], step)
        totals = runs.mean(axis=0)
        apart = runs - runs[:, [int(totals.argmin())]]
        error = apart.std(axis=0, ddof=1) / np.sqrt(RUNS)
        facts |= {"computed": "draws", "loss_error": error}
    least = totals.min() + 1e-12 * abs(totals.min())
    eta, noise = float(rates[totals <= least].max()), 0.0
    if losses is None:
        noise = 0.5 * float(np.ptp(rates[totals <= least + UNSURE * error]))
    trace = {"eta": rates, "loss": totals}
    status = "boundary" if eta in (rates[0], rates[-1]) else "converged"
    return problem.rate("safebayes", "prediction", eta, noise, trace, facts, status=status)


def _rates(grid: object) -> Array:
    """Return the learning rates to try, the largest first."""
    rates = 2.0 ** -np.arange(9.0) if grid is None else as_array(grid, "grid", ndim=1)
    if len(rates) < 2 or np.any(rates <= 0) or len(np.unique(rates)) < len(rates):
        raise InputError("grid", f"is {rates.tolist()}", "pass two or more distinct positive rates")
    return np.sort(rates)[::-1]


def _check(problem: Problem, conjugate: object) -> None:
    """Refuse criteria whose rows cannot be predicted one by one, and priors that do not fit."""
    criterion = problem.criterion
    require(criterion.total, "rows", "loss")
    if criterion.total.weights is not None and np.any(criterion.total.weights != 1):
        meaning = "have no meaning in a sequence of predictions"
        raise InputError("weights", meaning, "repeat the rows instead")
    if conjugate is None:
        return
    if not isinstance(conjugate, NormalInverseGamma):
        advice = "pass ef.learning_rates.NormalInverseGamma(mean, covariance, shape, rate)"
        raise InputError("conjugate", f"is {conjugate!r}", advice)
    plain = criterion.strength == 0 and problem.log_prior is None
    if not (isinstance(criterion.loss, Squared) and plain):
        raise InputError("conjugate", "is for the squared loss without penalty or prior", "drop it")
    if len(conjugate.mean) != criterion.p:
        raise InputError("conjugate", f"is for {len(conjugate.mean)} of {criterion.p} parameters")


@dataclass(frozen=True, eq=False)
class _Sequence:
    """Rows in the `order` in which they are predicted, all but the `first` ones."""

    problem: Problem
    order: NDArray[np.intp]
    first: int
    version: str
    prior: tuple[Array, Array] | None

    def closed_form(self, rates: Array, conjugate: NormalInverseGamma | None) -> Array | None:
        """Return the losses (n, rates) if they have a closed form."""
        criterion, prior = self.problem.criterion, self.prior
        if conjugate is not None:
            prior = conjugate.mean, conjugate.covariance
        if prior is None or not isinstance(criterion.loss, Squared) or criterion.strength != 0:
            return None
        total, order = criterion.total, self.order
        y = total.y if total.offset is None else total.y - total.offset
        return prequential_losses(total.X[order], y[order], rates, *prior, self.version, conjugate)

    def by_draws(
        self, eta: float, draws: int, seed: np.random.SeedSequence, step: Callable[[int], None]
    ) -> float:
        """Return the cumulative loss of predictions at one learning rate."""
        rng, done, loss, fresh = np.random.default_rng(seed), self.first, 0.0, True
        while done < len(self.order):
            if fresh:
                theta, log_weights = self._draws(eta, done, draws, rng), np.zeros(draws)
            rows = self.order[done : done + ROWS]
            losses = self._losses(theta, rows)
            added = losses + self._penalty_steps(theta, done, len(rows))
            power = log_weights[:, None] - eta * np.cumsum(added, axis=1)
            before = np.column_stack([log_weights, power[:, :-1]])
            weights = np.exp(before - before.max(axis=0))
            weights /= weights.sum(axis=0)
            poor = 1 / np.square(weights).sum(axis=0) < RENEW * draws
            poor[0] &= not fresh  # fresh draws predict at least one row
            usable = int(poor.argmax()) if poor.any() else len(rows)
            weights = weights[:, :usable]
            if self.version == "R":
                loss += float(np.einsum("di,di->", weights, losses[:, :usable]))
            else:
                means = zip(weights.T @ theta, rows[:usable], strict=True)
                loss += sum(float(self._losses(m[None], row[None])[0, 0]) for m, row in means)
            done += usable
            step(usable)
            fresh, log_weights = usable < len(rows), power[:, -1]
        return loss

    def _draws(self, eta: float, done: int, draws: int, rng: np.random.Generator) -> Array:
        """Return draws given the first rows; the prior stays that of the full sample."""
        if done == 0:
            assert self.prior is not None
            mean, covariance = self.prior
            lower = linalg.cholesky(covariance, "log_prior", "its covariance is not one")
            return mean + rng.standard_normal((draws, len(mean))) @ lower.T
        own, size = self.problem.log_prior, self.problem.criterion.size
        fixed = own and LogPrior(
            lambda t, n: own.value(t, size),
            lambda t, n: own.gradient(t, size),
            lambda t, n: own.hessian(t, size),
            own.name,
            own.support,
        )
        try:
            prefix = self.problem.criterion.subset(self.order[:done])
            return sample(GeneralizedPosterior(prefix, eta, fixed), draws, seed=rng).array[:draws]
        except (ConvergenceError, InputError) as error:
            raise ConvergenceError(
                f"the first {done} rows have no posterior to draw from at eta = {eta:.3g} "
                f"({error}); let more rows train (start=) or pass a log_prior"
            ) from error

    def _losses(self, thetas: Array, rows: NDArray[np.intp]) -> Array:
        """Return the losses of these rows at many parameter values, (D, rows)."""
        total = self.problem.criterion.total
        if has_design(total):
            u = thetas @ total.X[rows].T
            if total.offset is not None:
                u += total.offset[rows]
            return total.loss.values(u, total.y[rows])
        return np.asarray(total.losses_of(rows, thetas))

    def _penalty_steps(self, thetas: Array, done: int, count: int) -> Array:
        """Return what the penalty adds with every row, (D, count)."""
        criterion = self.problem.criterion
        if criterion.strength == 0:
            return np.zeros((len(thetas), count))
        sizes = criterion.loss.effective_unit * np.arange(done, done + count + 1.0)
        pulls = [0.0 if s == 0 else criterion.penalty.strength_at(float(s)) * s for s in sizes]
        return np.outer(criterion.penalty.value(thetas), np.diff(pulls))
