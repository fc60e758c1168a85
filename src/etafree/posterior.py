r"""Generalized posteriors, :math:`\pi(\theta)\propto\exp\{-\eta L(\theta)\}\tilde\pi_n(\theta)`.

:math:`\eta` multiplies the loss *and* the penalty. A `LogPrior` is not multiplied by it: it plays
the part of the paper's remainder :math:`r_n` and must be weak, or the posterior's own mode moves
with :math:`\eta`. What changes the density so that it has the sandwich's spread is `adjusted`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from etafree.criterion import Criterion
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import (
    Array,
    as_array,
    as_choice,
    as_count,
    as_positive,
    in_order,
    owned,
)
from etafree.losses.base import name_in_words
from etafree.penalties import KinkedPenalty, Penalty
from etafree.target import Target
from etafree.totals.linear import LinearTotal

#: Random directions in which the tail of a redescending loss is checked.
DIRECTIONS = 50
#: By what the log of a density that does not vanish at infinity must fall: so much, and so much per
#: parameter, for the volume that a sampler may reach grows with their number.
NEGLIGIBLE = 10.0, 2.0
ADJUSTMENTS = ("curvature", "vertical", "magnitude")
#: Standard errors that a target's centre may be from the minimiser, around which a density turns.
FARTHEST = 0.1


@dataclass(frozen=True, eq=False)
class _NormalDensity:
    """The log of a normal density up to a constant, whatever the effective scale n."""

    mean: Array
    precision: Array

    def value(self, theta: Array, n: float) -> float:
        return -0.5 * float((theta - self.mean) @ self.precision @ (theta - self.mean))

    def gradient(self, theta: Array, n: float) -> Array:
        return -self.precision @ (theta - self.mean)

    def hessian(self, theta: Array, n: float) -> Array:
        return -self.precision


@dataclass(frozen=True, eq=False)
class _PenaltyDensity:
    r"""The log density :math:`-\lambda_n s_n\rho(\theta)`."""

    penalty: Penalty

    def value(self, theta: Array, n: float) -> float:
        return -self.penalty.strength_at(n) * n * float(self.penalty.value(theta))

    def gradient(self, theta: Array, n: float) -> Array:
        return -self.penalty.strength_at(n) * n * self.penalty.gradient(theta)

    def hessian(self, theta: Array, n: float) -> Array:
        return -self.penalty.strength_at(n) * n * self.penalty.hessian(theta)


@dataclass(frozen=True, eq=False)
class _Inside:
    """A log prior within bounds (p, 2): outside its density is zero, and nothing is asked of it."""

    prior: LogPrior
    bounds: Array

    def holds(self, theta: Array) -> bool:
        return bool(((self.bounds[:, 0] < theta) & (theta < self.bounds[:, 1])).all())

    def value(self, theta: Array, n: float) -> float:
        return self.prior.value(theta, n) if self.holds(theta) else -np.inf

    def gradient(self, theta: Array, n: float) -> Array:
        return self.prior.gradient(theta, n) if self.holds(theta) else np.zeros(len(theta))

    def hessian(self, theta: Array, n: float) -> Array:
        p = len(theta)
        return self.prior.hessian(theta, n) if self.holds(theta) else np.zeros((p, p))


@dataclass(frozen=True, eq=False)
class LogPrior:
    r"""A log prior density :math:`\log\tilde\pi_n` that the learning rate does not multiply.

    Parameters
    ----------
    value, gradient, hessian : callable
        Functions of (theta, n) that return a float, (p,) and (p, p); theta has shape (p,), n is
        the effective scale: the number of rows, or the sum of their weights.
    name : str
        Name used in results.
    support : (p, 2) array or mapping, optional
        Lower and upper bounds between which the density is not zero, infinite where there are none;
        a mapping names the parameters that have some. The functions are not called outside. A
        half-normal, gamma or beta prior needs one. Calibrated draws may lie outside: their target
        is the normal limit of the minimiser, which does not involve the prior.

    See Also
    --------
    etafree.penalties.Penalty : Penalties, which the learning rate multiplies.

    Examples
    --------
    >>> import etafree as ef
    >>> prior = ef.LogPrior.normal(np.zeros(1), np.eye(1))
    >>> prior.gradient(np.array([2.0]), 10.0)
    array([-2.])
    >>> ef.LogPrior.from_penalty(ef.penalties.Ridge(0.5), p=1).value(np.array([2.0]), 10.0)
    -10.0

    The half-normal density is that of a normal one, on positive numbers:

    >>> half = replace(prior, name="half-normal", support=[(0.0, np.inf)])
    >>> mean = ef.Criterion(ef.losses.Squared(), (np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])))
    >>> ef.GeneralizedPosterior(mean, 0.1, half).log_density(np.array([[-1.0], [0.0], [1.0]]))
    array([-inf, -inf, -1.4])
    """

    value: Callable[[Array, float], float]
    gradient: Callable[[Array, float], Array]
    hessian: Callable[[Array, float], Array]
    name: str = "log prior"
    support: object = None

    def __repr__(self) -> str:
        bounded = "" if self.support is None else ", with bounds"
        return f"LogPrior({self.name}{bounded})"

    def fitted_to(self, names: tuple[str, ...]) -> LogPrior:
        """Return this prior with bounds (p, 2) for these parameters, zero outside its support."""
        if self.support is None:
            return self
        bounds, advice = np.tile([-np.inf, np.inf], (len(names), 1)), "pass (lower, upper) for each"
        try:
            if isinstance(self.support, Mapping):
                for name, pair in self.support.items():
                    bounds[names.index(name)] = pair
            else:
                bounds = np.array(self.support, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(
                "support", f"does not give bounds of {list(names)}: {error}", advice
            ) from error
        if bounds.shape != (len(names), 2) or not (bounds[:, 0] < bounds[:, 1]).all():
            problem = f"has shape {bounds.shape}, or an upper bound that is not above the lower"
            raise InputError("support", problem, f"{advice} of {list(names)}")
        inside = _Inside(self, owned(bounds))
        return replace(
            self,
            value=inside.value,
            gradient=inside.gradient,
            hessian=inside.hessian,
            support=inside.bounds,
        )

    @classmethod
    def normal(cls, mean: object, covariance: object) -> LogPrior:
        """Return the log density of a normal prior, up to a constant.

        Parameters
        ----------
        mean : (p,) array
            Its mean.
        covariance : (p, p) array
            Positive definite.

        Returns
        -------
        LogPrior
            An `InputError` if shapes differ or the covariance is not positive definite.
        """
        center = as_array(mean, "mean", ndim=1)
        if len(center) == 0:
            raise InputError("mean", "is empty")
        precision = linalg.inv(linalg.check_covariance(covariance, "covariance", len(center)))
        density = _NormalDensity(owned(center), owned(precision))
        return cls(density.value, density.gradient, density.hessian, "normal prior")

    @classmethod
    def from_penalty(cls, penalty: Penalty, p: int) -> LogPrior:
        r"""Return :math:`-\lambda_n s_n\rho(\theta)`: a penalty that :math:`\eta` does not scale.

        Parameters
        ----------
        penalty : Penalty
            A ridge gives the Gaussian prior of the paper's appendix.
        p : int
            Number of parameters.

        Returns
        -------
        LogPrior
            With the effective scale of the criterion it is used with; an `InputError` if the
            penalty does not fit.
        """
        if not isinstance(penalty, Penalty):
            raise InputError("penalty", f"is {penalty!r}", "pass ef.penalties.Ridge(...)")
        density = _PenaltyDensity(penalty.fitted_to(as_count(p, "p")))
        name = f"unscaled {name_in_words(type(penalty).__name__)}"
        return cls(density.value, density.gradient, density.hessian, name)


@dataclass(frozen=True, eq=False)
class _Energy(Penalty):
    """Penalty and log prior together, per unit of effective scale: rho of -log(posterior)/eta."""

    criterion: Criterion
    prior: LogPrior
    eta: float
    strength: float = 1.0

    def describe(self, size: float) -> str:
        own = self.criterion
        penalty = f"{own.penalty.describe(own.size)} and " if own.strength > 0 else ""
        return f"{penalty}{self.prior.name} over eta = {self.eta:g}, which depends on eta"

    def _sum(self, penalty: Array, prior: object) -> Array:
        """Return a derivative of the penalty less that of the log prior over eta."""
        log_prior = np.asarray(prior, dtype=np.float64)
        return self.criterion.strength * penalty - log_prior / (self.eta * self.criterion.size)

    def value(self, theta: Array) -> Array:
        rows, size = theta.reshape(-1, theta.shape[-1]), self.criterion.size
        prior = np.array([float(self.prior.value(row, size)) for row in rows])
        return self._sum(self.criterion.penalty.value(theta), prior.reshape(theta.shape[:-1]))

    def gradient(self, theta: Array) -> Array:
        prior = self.prior.gradient(theta, self.criterion.size)
        return self._sum(self.criterion.penalty.gradient(theta), prior)

    def hessian(self, theta: Array) -> Array:
        prior = self.prior.hessian(theta, self.criterion.size)
        return self._sum(self.criterion.penalty.hessian(theta), prior)


@dataclass(eq=False)
class Largest:
    """The largest of all values seen: ``+=`` takes the larger."""

    values: Array

    def __iadd__(self, other: Largest) -> Largest:
        np.maximum(self.values, other.values, out=self.values)
        return self


@dataclass(frozen=True, eq=False)
class GeneralizedPosterior:
    r"""The generalized posterior :math:`\exp\{-\eta L(\theta)\}\tilde\pi_n(\theta)` of a criterion.

    Methods take a parameter vector `theta`, (p,).

    Parameters
    ----------
    criterion : Criterion
        The penalized total loss :math:`L`.
    eta : float
        Learning rate, above zero; it multiplies loss and penalty.
    log_prior : LogPrior, optional
        Added to the log density as it is; flat if not given.

    Raises
    ------
    InputError
        `eta` is not positive, the prior cannot be evaluated, or the posterior is improper or has
        no finite variance, as with a bounded loss and no penalty.

    See Also
    --------
    sample : Draw from it.
    calibrate : Make its draws cover at any learning rate.

    References
    ----------
    Bissiri, P. G., Holmes, C. C. and Walker, S. G. (2016). A general framework for updating belief
    distributions. J. Roy. Statist. Soc. B 78, 1103-1130.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> post = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), data=(X, y)), eta=0.5)
    >>> post.gradient(np.array([2.0])), post.hessian(np.array([2.0]))
    (array([-0.]), array([[-2.]]))
    >>> post.log_density(np.array([[2.0], [3.0]]))
    array([-3.5, -4.5])
    >>> goal = ef.target(post.criterion)
    >>> -1 / post.adjusted(goal).hessian(goal.center) / goal.covariance
    array([[1.]])
    """

    criterion: Criterion
    eta: float
    log_prior: LogPrior | None = None
    #: What makes the posterior nearer to normal.
    remedy: ClassVar[str] = "use a larger eta or add a penalty"

    def __post_init__(self) -> None:
        if not isinstance(self.criterion, Criterion):
            kind = type(self.criterion).__name__
            raise InputError("criterion", f"is a {kind}", "pass an ef.Criterion")
        eta = as_positive(self.eta, "eta")
        if not 1e-100 < eta < 1e100:
            raise InputError("eta", f"is {eta:g}", "rescale the loss instead")
        object.__setattr__(self, "eta", eta)
        if self.log_prior is not None:
            object.__setattr__(self, "log_prior", self._checked_prior(self.log_prior))
        self._check_proper()

    def _checked_prior(self, prior: LogPrior) -> LogPrior:
        """Return the prior with its bounds, after a try at a point between them."""
        if not isinstance(prior, LogPrior):
            advice = "use ef.LogPrior.normal(mean, covariance), or ef.LogPrior of three functions"
            raise InputError("log_prior", f"is a {type(prior).__name__}", advice)
        if isinstance(self.criterion.penalty, KinkedPenalty):
            advice = "put it into the penalty, or use ef.penalties.huberized_l1"
            raise InputError("log_prior", "cannot go with a penalty that has a kink", advice)
        p, n, prior = self.criterion.p, self.criterion.size, prior.fitted_to(self.criterion.names)
        theta = np.linspace(-0.3, 0.4, p)
        if prior.support is not None:
            low, high = np.asarray(prior.support).T
            near = np.clip(theta, low + 0.1, high - 0.1)
            narrow = high - low <= 0.2
            theta = np.where(narrow, low + 0.5 * np.where(narrow, high - low, 0.0), near)
        try:
            as_array(prior.value(theta, n), "its value", shape=())
            as_array(prior.gradient(theta, n), "its gradient", shape=(p,))
            as_array(prior.hessian(theta, n), "its Hessian", shape=(p, p))
        except Exception as error:  # whatever the user's function raises
            advice = f"value, gradient and Hessian are functions of (theta, n) for {p} parameters"
            if prior.support is None:
                advice += "; where it is defined between bounds only, pass LogPrior(support=...)"
            raise InputError("log_prior", f"fails at a test point: {error}", advice) from error
        return prior

    @property
    def bounds(self) -> Array | None:
        """Bounds (p, 2) between which the log prior's density is not zero, None without any."""
        support = None if self.log_prior is None else self.log_prior.support
        return None if support is None else np.asarray(support)

    @cached_property
    def tail_exponent(self) -> float:
        """Exponent k when the density falls like ``|theta|**-k`` far out; infinite if faster.

        Finite without penalty and log prior, for losses that grow like a logarithm: that of the
        coordinate, or direction orthogonal to p - 1 rows, that fewest observations depend on.
        """
        exponent = self.criterion.loss.tail_exponent
        if np.isinf(exponent) or self.log_prior is not None or self.criterion.strength > 0:
            return np.inf
        total, rng = self.criterion.total, np.random.default_rng(0)
        directions: list[Array] = [np.eye(total.p)]
        if 1 < total.p <= total.n:
            picked = [rng.choice(total.n, total.p - 1, replace=False) for _ in range(DIRECTIONS)]
            subsets = total.take(np.concatenate(picked)).X.reshape(DIRECTIONS, -1, total.p)
            directions += [linalg.null_direction(rows) for rows in subsets]
        every = np.concatenate(directions).T

        def reach(block: LinearTotal, largest: Largest) -> None:
            largest += Largest(np.abs(block.X @ every).max(axis=0))

        def count(block: LinearTotal, weight: Array) -> None:
            depends = np.abs(block.X @ every) > 1e-9 * np.maximum(largest.values, 1e-300)
            weight += (np.ones(block.n) if block.weights is None else block.weights) @ depends

        (largest,) = total.fold(reach, Largest(np.zeros(every.shape[1])))
        (weight,) = total.fold(count, np.zeros(every.shape[1]))
        return float(self.eta * exponent * np.min(weight))

    def _check_proper(self) -> None:
        """Refuse a learning rate so small that the density has no finite variance."""
        loss, advice = self.criterion.loss, "add a Ridge penalty or a log_prior"
        flat = self.log_prior is None and self.criterion.strength == 0
        if "moments" in self.criterion.total.traits and flat:
            rise = self.eta * self.criterion.total.rise(self.criterion.start)
            if rise < NEGLIGIBLE[0] + NEGLIGIBLE[1] * self.criterion.p:
                problem = f"is {self.eta:g}: far out the quasi-posterior of {loss!r} stays at "
                problem += f"exp(-{rise:.3g}) of its maximum, which is improper"
                raise InputError("eta", problem, f"use a larger one, or {advice}")
        if self.tail_exponent == 0.0:
            problem = f"has the bounded loss {loss!r}, whose posterior is improper at every eta"
            raise InputError("criterion", problem, advice)
        if self.tail_exponent <= self.criterion.p + 2.0:
            least = self.eta * (self.criterion.p + 2.0) / self.tail_exponent
            problem = f"is {self.eta:g}: the posterior of {loss!r} is improper or has no finite"
            raise InputError("eta", f"{problem} variance there (needs eta > {least:.3g})", advice)

    @cached_property
    def energy(self) -> Criterion:
        """The criterion E with log density = -eta E: penalized loss minus log prior / eta."""
        if self.log_prior is None:
            return self.criterion
        return self.criterion.with_penalty(_Energy(self.criterion, self.log_prior, self.eta))

    def log_density(self, theta: object) -> Any:
        """Return the log density up to a constant, (p,) -> float or (D, p) -> (D,).

        An `InputError` for other shapes.
        """
        points = as_array(in_order(theta, self.criterion.names, "theta"), "theta")
        if points.ndim == 1:
            return float(self._log_densities(points[None])[0])
        if points.ndim != 2 or points.shape[1] != self.criterion.p:
            raise InputError("theta", f"has shape {points.shape}", f"pass (D, {self.criterion.p})")
        return self._log_densities(points)

    def _log_densities(self, points: Array) -> Array:
        return -self.eta * self.energy.values_at(points)

    def _log_priors(self, points: Array) -> Array:
        if self.log_prior is None:
            return np.zeros(len(points))
        return np.array([float(self.log_prior.value(x, self.criterion.size)) for x in points])

    def gradient(self, theta: object) -> Array:
        """Return the gradient of the log density (p,)."""
        return -self.eta * self.energy.gradient(theta)

    def hessian(self, theta: object) -> Array:
        """Return the Hessian of the log density (p, p)."""
        return -self.eta * self.energy.hessian(theta)

    @property
    def limit(self) -> tuple[Array, Array] | None:
        """Centre (p,) and covariance (p, p) that the likelihood part was made to have, if any."""
        return None

    def adjusted(self, target: Target, kind: str = "curvature") -> GeneralizedPosterior:
        r"""Return the posterior whose density, not its draws, has the target's spread.

        With centre c, Hessian A, target covariance V and :math:`d=\theta-c`, the penalized loss
        :math:`\eta L` becomes

        - "curvature": :math:`\eta L(c+Cd)` with :math:`C^\top\eta AC=V^{-1}`, of these the one
          that does not depend on units: under a flat prior, the law of
          :math:`c+C^{-1}(\theta-c)`;
        - "vertical": :math:`\{L(\theta)-L(c)\}\,d^\top V^{-1}d/d^\top Ad`, the same at every eta;
        - "magnitude": :math:`L(\theta)\,p/\mathrm{tr}(AV)`, right on average over directions only.

        A log prior stays as it is.

        Parameters
        ----------
        target : Target
            Of the criterion, centred at its minimiser: ``ef.target(criterion, clusters=...)``.
        kind : {"curvature", "vertical", "magnitude"}
            Which adjustment.

        Returns
        -------
        GeneralizedPosterior
            For `sample`. An `InputError` if the target is not one of this criterion at its
            minimiser, or the penalty has a kink.

        References
        ----------
        Chandler, R. E. and Bate, S. (2007). Inference for clustered data using the independence
        loglikelihood. Biometrika 94, 167-183. Pauli, F., Racugno, W. and Ventura, L. (2011).
        Bayesian composite marginal likelihoods. Statist. Sinica 21, 149-164. Ribatet, M., Cooley,
        D. and Davison, A. C. (2012). Bayesian inference from composite likelihoods, with an
        application to spatial extremes. Statist. Sinica 22, 813-845.
        """
        as_choice(kind, "kind", ADJUSTMENTS)
        advice = "pass ef.target(criterion) of this posterior's criterion"
        if not isinstance(target, Target) or target.hessian is None:
            raise InputError("target", "is not the target of a criterion", advice)
        if target.names != self.criterion.names or isinstance(
            self.criterion.penalty, KinkedPenalty
        ):
            problem = f"is of {list(target.names)}, or of a penalty with a kink"
            raise InputError("target", problem, advice)
        A, V = target.hessian, target.covariance
        step = linalg.solve(A, self.criterion.gradient(target.center), "Hessian")
        if (off := float(np.max(np.abs(step) / target.se))) > FARTHEST:
            raise InputError("target", f"is centred {off:.2g} se away from the minimiser", advice)
        if kind == "magnitude":
            return replace(self, eta=target.p / float(np.trace(A @ V)))
        if kind == "curvature":
            turn, eta = linalg.transport(V, linalg.inv(self.eta * A, "Hessian")), self.eta
        else:  # the smallest rate over directions says how fast the tails fall
            turn, eta = (
                np.eye(target.p),
                1 / float(linalg.relative_eigenvalues(V, linalg.inv(A))[-1]),
            )
        return AdjustedPosterior(self.criterion, eta, self.log_prior, target=target, turn=turn)


@dataclass(frozen=True, eq=False)
class AdjustedPosterior(GeneralizedPosterior):
    r"""Log density :math:`-r(d)\{L(c+Cd)-L(c)\}` plus log prior, precise to :math:`V^{-1}` at c.

    :math:`r(d)=d^\top V^{-1}d/d^\top C^\top ACd` is eta for the curvature adjustment; C is the
    identity for the vertical one.
    """

    target: Target = field(kw_only=True)
    turn: Array = field(kw_only=True)

    remedy = "use its draws with calibrate() instead"

    @property
    def limit(self) -> tuple[Array, Array]:
        """Centre (p,) and covariance (p, p) of the target."""
        return self.target.center, self.target.covariance

    @cached_property
    def _forms(self) -> tuple[Array, Array]:
        """Precision of the target, and the Hessian of the turned loss."""
        hessian = self.turn.T @ np.asarray(self.target.hessian) @ self.turn
        return linalg.inv(self.target.covariance, "covariance"), hessian

    def _log_densities(self, points: Array) -> Array:
        away = points - self.target.center
        above, below = (np.einsum("ij,jk,ik->i", away, form, away) for form in self._forms)
        losses = self.criterion.values_at(self.target.center + away @ self.turn.T)
        rate = above / np.where(below > 0, below, 1.0)
        losses -= self.criterion.value(self.target.center)
        return np.asarray(self._log_priors(points) - rate * losses)

    def gradient(self, theta: object) -> Array:
        """Return the gradient of the log density (p,)."""
        return self._derivatives(theta)[0]

    def hessian(self, theta: object) -> Array:
        """Return the Hessian of the log density (p, p)."""
        return self._derivatives(theta)[1]

    def _derivatives(self, theta: object) -> tuple[Array, Array]:
        point = self.criterion.point(theta)
        away, (P, H) = point - self.target.center, self._forms
        here = self.criterion.derivatives(self.target.center + self.turn @ away)
        loss = here.value - self.criterion.value(self.target.center)
        slope, bend = self.turn.T @ here.gradient, self.turn.T @ here.hessian @ self.turn
        if away.any():  # rate r with r d'Hd = d'Pd, differentiated twice
            below = float(away @ H @ away)
            rate = float(away @ P @ away) / below
            turned = 2 * H @ away
            first = (2 * P @ away - rate * turned) / below
            crossed = np.outer(first, turned)
            second = (2 * (P - rate * H) - crossed - crossed.T) / below
            crossed = np.outer(first, slope)
            gradient: Array = -rate * slope - loss * first
            hessian: Array = -rate * bend - crossed - crossed.T - loss * second
        else:
            gradient, hessian = np.zeros(len(point)), -P
        if self.log_prior is not None:
            n = self.criterion.size
            gradient = gradient + np.asarray(self.log_prior.gradient(point, n))
            hessian = hessian + np.asarray(self.log_prior.hessian(point, n))
        return gradient, hessian
