r"""What learning-rate methods start from, `Problem`, and what they return, `LearningRate`.

The posterior at :math:`\eta` has covariance :math:`(\eta A)^{-1}`, the estimator
:math:`A^{-1}BA^{-1}`, with :math:`A=s_nJ` and :math:`B=s_nK`. One :math:`\eta` makes them equal
only if :math:`J^{-1}K` is a multiple of the identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.data.groups import Groups
from etafree.errors import ConvergenceError, InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_seeds
from etafree.optimize import Minimum, minimise
from etafree.posterior import GeneralizedPosterior, LogPrior
from etafree.resampling import Resamples, resampled_groups, resamples
from etafree.samplers.variational import check_inside
from etafree.sandwich import target

#: What a method can aim at.
AIMS = {
    "coverage": "coverage of credible regions",
    "information": "equal information, not coverage",
    "prediction": "prediction of the next observation, not coverage",
    "reference": "closeness to a reference posterior, not coverage",
}
#: Counts of resamples that an answer had to do without, and of what.
FAILED = {"failed_minimisers": "minimisers", "failed_posteriors": "posteriors"}
#: A relative Monte Carlo error above this is noise.
NOISY = 0.15
#: Extreme eigenvalues of J^{-1}K further apart than this call for calibration instead.
ADEQUATE = 2.0


@dataclass(frozen=True, eq=False)
class Information:
    r"""Hessian A and score variance B of the total loss at its minimiser.

    Attributes
    ----------
    hessian, meat : (p, p) array
        :math:`A` and :math:`B`, sums over observations.
    size : float
        The effective scale :math:`s_n`.
    names : tuple of str
        Parameter names.

    See Also
    --------
    etafree.LearningRate : What holds it.

    Examples
    --------
    >>> info = Information(np.diag([1.0, 4.0]), 2 * np.eye(2), 1.0, ("a", "b"))
    >>> info.eigenvalues, info.scalar_adequacy
    (array([0.5, 2. ]), 4.0)
    >>> {name: round(value, 3) for name, value in info.predicted_coverage(0.5).items()}
    {'a': 0.95, 'b': 1.0}
    """

    hessian: Array
    meat: Array
    size: float
    names: tuple[str, ...]

    @property
    def J(self) -> Array:
        """Curvature per observation."""
        return self.hessian / self.size

    @property
    def K(self) -> Array:
        """Score variance per observation, of cluster sums where there are clusters."""
        return self.meat / self.size

    @cached_property
    def eigenvalues(self) -> Array:
        r"""Eigenvalues of :math:`J^{-1}K`, ascending: the right :math:`1/\eta` by direction."""
        return linalg.relative_eigenvalues(self.meat, self.hessian)

    @property
    def scalar_adequacy(self) -> float:
        """Ratio of the extreme eigenvalues: one if a single learning rate can be right."""
        return float(self.eigenvalues[-1] / self.eigenvalues[0])

    def predicted_coverage(self, eta: float, level: float = 0.95) -> dict[str, float]:
        r"""Return the coverage of credible intervals, by parameter.

        :math:`2\Phi(z\,\mathrm{sd}_j/\mathrm{se}_j)-1`: z is the normal quantile, sd the
        posterior's standard deviation at `eta`, se the standard error of the sandwich.

        Parameters
        ----------
        eta, level : float
            Learning rate, and level of the credible intervals.

        Returns
        -------
        dict of str to float
            By parameter.
        """
        from scipy.special import ndtr, ndtri

        if not (np.isfinite(eta) and eta > 0):
            return dict.fromkeys(self.names, np.nan)
        inverse = linalg.inv(self.hessian, "Hessian")
        ratio = np.sqrt(np.diagonal(inverse) / eta / np.diagonal(inverse @ self.meat @ inverse))
        covered = 2.0 * ndtr(ndtri(0.5 + 0.5 * level) * ratio) - 1.0
        return dict(zip(self.names, covered.tolist(), strict=True))


def information(criterion: Criterion, fit: Minimum, groups: Groups | None = None) -> Information:
    """Return A and B at the minimiser; scores are centred, and summed over clusters."""
    name, A = "HC0" if groups is None else "CR0", fit.hessian
    at_fit = target(criterion, center=fit.theta, clusters=groups, hessian=A, correction=name)
    assert at_fit.hessian is not None
    assert at_fit.meat is not None
    return Information(at_fit.hessian, at_fit.meat, criterion.size, criterion.names)


@dataclass(frozen=True, eq=False)
class Problem:
    """A criterion whose learning rate is asked for, its prior (None: flat), clusters and seeds."""

    criterion: Criterion
    log_prior: LogPrior | None
    groups: Groups | None
    seeds: np.random.SeedSequence

    @classmethod
    def of(cls, source: object, clusters: object, seed: object) -> Problem:
        """Return the problem of a criterion or posterior, checked."""
        prior = source.log_prior if isinstance(source, GeneralizedPosterior) else None
        criterion = source.criterion if isinstance(source, GeneralizedPosterior) else source
        if not isinstance(criterion, Criterion):
            advice = "pass an ef.Criterion or an ef.GeneralizedPosterior"
            raise InputError("source", f"is a {type(source).__name__}", advice)
        groups = resampled_groups(criterion, clusters, "every learning-rate method")
        seeds = as_seeds(seed)  # a copy has the same children in every call
        copy = np.random.SeedSequence(seeds.entropy, spawn_key=seeds.spawn_key)
        problem = cls(criterion, prior, groups, copy)
        if isinstance(source, GeneralizedPosterior) and source.bounds is not None:
            check_inside(source, problem.fit.theta)
        return problem

    @cached_property
    def fit(self) -> Minimum:
        """The minimiser of the penalized total loss."""
        return minimise(self.criterion)

    @cached_property
    def plugged(self) -> tuple[str, Array]:
        """What the data say of the parameters, (p,), and its name.

        The minimiser; where the data alone have none, as with more parameters than rows, the mode
        of the posterior under a log prior.
        """
        try:
            return "minimum", self.fit.theta
        except (ConvergenceError, InputError):
            if self.log_prior is None:
                raise
        energy = GeneralizedPosterior(self.criterion, 1.0, self.log_prior).energy
        return "mode at eta = 1", minimise(energy).theta

    @cached_property
    def information(self) -> Information:
        """Hessian and score variance there."""
        return information(self.criterion, self.fit, self.groups)

    def resamples(self, count: int) -> Resamples:
        """Return the minimisers of bootstrap data, clusters resampled as clusters."""
        return resamples(self.criterion, self.fit, count, self.groups, self.seeds)

    def prior_gradient(self, theta: Array) -> Array:
        """Return the gradient of the log prior (p,)."""
        if self.log_prior is None:
            return np.zeros_like(theta)
        return np.asarray(self.log_prior.gradient(theta, self.criterion.size), dtype=np.float64)

    def prior_hessian(self, theta: Array) -> Array:
        """Return the Hessian of the log prior (p, p)."""
        if self.log_prior is None:
            return np.zeros((len(theta), len(theta)))
        return np.asarray(self.log_prior.hessian(theta, self.criterion.size), dtype=np.float64)

    def rate(
        self,
        method: str,
        aim: str,
        eta: float,
        mc_error: float = 0.0,
        trace: Mapping[str, object] | None = None,
        diagnostics: Mapping[str, object] | None = None,
        *,
        status: str = "converged",
        units_matter: bool = False,
        level: float = 0.95,
    ) -> LearningRate:
        """Return the result of a method; its status says if it is no learning rate, or noisy."""
        facts: dict[str, Any] = {"minimum": self._status(), **(diagnostics or {})}
        if not (np.isfinite(eta) and eta > 0):
            status = "boundary"
        elif status == "converged":
            noisy = not mc_error <= NOISY * eta or any(facts.get(key) for key in FAILED)
            status = "noisy" if noisy else status
        sandwich: Information | None = None
        try:
            sandwich = self.information
        except (ConvergenceError, InputError) as error:  # nothing to predict coverage from
            facts["no_information"] = str(error)
        tried = {name: np.asarray(x, float) for name, x in (trace or {"eta": [eta]}).items()}
        several = units_matter and self.criterion.p > 1
        return LearningRate(
            float(eta), status, float(mc_error), tried, facts, method, aim, sandwich, several, level
        )

    def _status(self) -> str:
        """Return the status of the minimiser, "none" without one: a prior may do without."""
        try:
            return self.fit.status
        except (ConvergenceError, InputError):
            return "none"


def normal_prior(problem: Problem) -> tuple[Array, Array] | None:
    """Return mean and covariance of a proper normal log prior, None if it is not one."""
    if problem.log_prior is None or problem.log_prior.support is not None:
        return None
    zero, probe = np.zeros(problem.criterion.p), np.linspace(-3.0, 5.0, problem.criterion.p) + 0.1
    precision, slope = -problem.prior_hessian(zero), problem.prior_gradient(zero)
    tolerance = {"rtol": 1e-8, "atol": 1e-10 * np.abs(precision).max()}
    same = np.allclose(-problem.prior_hessian(probe), precision, **tolerance)
    straight = np.allclose(problem.prior_gradient(probe), slope - precision @ probe, **tolerance)
    if not (same and straight) or linalg.eigvalsh(precision, "log prior's Hessian")[0] <= 0:
        return None
    covariance = linalg.inv(precision, "log prior's Hessian")
    return covariance @ slope, covariance


@dataclass(frozen=True, eq=False)
class LearningRate:
    r"""A learning rate and how far to trust it.

    Attributes
    ----------
    eta : float
        Exactly as computed; look at `status` before using it.
    status : {"converged", "boundary", "max_iter", "noisy"}
        ``boundary``: the answer lies at or beyond the end of what was searched, or the formula has
        no positive value. ``max_iter``: iterations ran out. ``noisy``: the Monte Carlo error is
        above 15 %, reweighted draws were too few, or minimisers or posteriors of resamples failed.
    mc_error : float
        Monte Carlo standard error of `eta`, zero for a closed form.
    trace, diagnostics : mapping
        Learning rates tried with the value of the method's own criterion, and what it reports.
    method, aim : str
        Name of the method, and "coverage", "information", "prediction" or "reference".
    information : Information or None
        J and K at the minimiser; None where K is singular and not needed (see the diagnostics).
    units_matter : bool
        Whether another unit of a parameter changes `eta`.
    level : float
        Level of the intervals whose coverage is predicted.

    See Also
    --------
    etafree.select : What returns it.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> rate = ef.select(ef.Criterion(ef.losses.Squared(), data=(X, y)), method="magnitude")
    >>> round(rate.eta, 4), rate.status, rate.scalar_adequacy, rate.notes
    (0.2857, 'converged', 1.0, ())
    """

    eta: float
    status: str
    mc_error: float
    trace: Mapping[str, Array]
    diagnostics: Mapping[str, Any]
    method: str
    aim: str
    information: Information | None = field(repr=False)
    units_matter: bool = False
    level: float = 0.95

    @property
    def scalar_adequacy(self) -> float:
        r"""Ratio of the extreme eigenvalues of :math:`J^{-1}K`; above two, calibrate."""
        return np.nan if self.information is None else self.information.scalar_adequacy

    @property
    def predicted_coverage(self) -> dict[str, float]:
        """Coverage that the sandwich predicts for credible intervals at `eta`, by parameter."""
        if self.information is None:
            return {}
        return self.information.predicted_coverage(self.eta, self.level)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before using `eta`."""
        notes = []
        if self.aim != "coverage":
            notes.append(f"{self.method} aims at {AIMS[self.aim]}: intervals need not cover")
        if self.units_matter:
            notes.append("eta changes with the units of the parameters")
        if self.status != "converged":
            notes.append(f"status is {self.status!r}: {self._reason()}")
        if self.scalar_adequacy > ADEQUATE:
            notes.append(
                f"scalar adequacy {self.scalar_adequacy:.2g} is above {ADEQUATE:g}: some "
                "directions need learning rates that differ by this factor, and no single one "
                "covers; use ef.calibrate"
            )
        return tuple(notes)

    def _reason(self) -> str:
        """Return why the method did not simply converge."""
        if self.status == "boundary":
            return "the answer lies at or beyond the end of what was searched"
        if self.status == "max_iter":
            return "iterations or effective draws ran out"
        if not self.mc_error <= NOISY * self.eta:
            return f"its Monte Carlo error is {self.mc_error:.2g}"
        for key, what in FAILED.items():
            if failed := self.diagnostics.get(key):
                return f"{failed} bootstrap {what} failed"
        share = self.diagnostics.get("ess_share", np.nan)
        return f"only {share:.1%} of reweighted draws are effective"

    def __repr__(self) -> str:
        error = f" +- {self.mc_error:.2g}" if self.mc_error > 0 else ""
        shown = ", ".join(f"{name} {c:.3f}" for name, c in self.predicted_coverage.items())
        lines = [
            f"LearningRate: eta = {self.eta:.5g}{error} by {self.method} ({self.status})",
            f"  aims at {AIMS[self.aim]}",
            f"  predicted coverage of {100 * self.level:g} % intervals: {shown or 'unknown'}",
            f"  scalar adequacy {self.scalar_adequacy:.3g}",
            *(f"  note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)
