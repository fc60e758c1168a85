"""What a learning-rate method returns, and what can be said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etafree.errors import InputError
from etafree.learning_rates.information import ADEQUATE, Information
from etafree.learning_rates.problem import Problem
from etafree.validation import Array

__all__ = ["AIMS", "STATUSES", "LearningRate", "learning_rate"]

#: What a method can aim at, in words.
AIMS = {
    "coverage": "coverage of credible regions",
    "information": "equal information, not coverage",
    "prediction": "prediction of the next observation, not coverage",
    "reference": "closeness to a reference posterior, not coverage",
}
STATUSES = ("converged", "boundary", "max_iter", "noisy")
#: A relative Monte Carlo error above this is noise.
NOISY = 0.15


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
        above 15 %, reweighted draws were too few, or minimisers failed.
    mc_error : float
        Monte Carlo standard error of `eta`, zero for a closed form.
    trace : mapping of str to arrays
        What was tried: learning rates and the value of the method's own criterion at each.
    diagnostics : mapping
        What the method reports of itself.
    method : str
        Name of the method, as `select` takes it.
    aim : {"coverage", "information", "prediction", "reference"}
        What the method aims at.
    information : Information or None
        J, K and the eigenvalues of :math:`J^{-1}K` at the minimiser; None where K is singular and
        the method does not need it (the diagnostics say why).
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
        r"""Ratio of the extreme eigenvalues of :math:`J^{-1}K`.

        One if a single learning rate can be right for all parameters; above two, calibrate.
        """
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
        found = []
        if self.aim != "coverage":
            found.append(f"{self.method} aims at {AIMS[self.aim]}: intervals need not cover")
        if self.units_matter:
            found.append("eta changes with the units of the parameters")
        if self.status != "converged":
            found.append(f"status is {self.status!r}: {self._reason()}")
        if self.scalar_adequacy > ADEQUATE:
            found.append(
                f"scalar adequacy {self.scalar_adequacy:.2g} is above {ADEQUATE:g}: directions "
                "need learning rates that far apart and no single one covers; use ef.calibrate"
            )
        return tuple(found)

    def _reason(self) -> str:
        """Return why the method did not simply converge."""
        told = self.diagnostics
        if self.status == "boundary":
            return "the answer lies at or beyond the end of what was searched"
        if self.status == "max_iter":
            return "iterations or effective draws ran out"
        if not self.mc_error <= NOISY * self.eta:
            return f"its Monte Carlo error is {self.mc_error:.2g}"
        if told.get("failed_minimisers", 0):
            return f"{told['failed_minimisers']} bootstrap minimisers failed"
        return f"only {told.get('ess_share', np.nan):.1%} of reweighted draws are effective"

    def __repr__(self) -> str:
        error = f" +- {self.mc_error:.2g}" if self.mc_error > 0 else ""
        covered = self.predicted_coverage
        shown = ", ".join(f"{name} {value:.3f}" for name, value in covered.items())
        lines = [
            f"LearningRate: eta = {self.eta:.5g}{error} by {self.method} ({self.status})",
            f"  aims at {AIMS[self.aim]}",
            f"  predicted coverage of {100 * self.level:g} % intervals: {shown or 'unknown'}",
            f"  scalar adequacy {self.scalar_adequacy:.3g}",
            *(f"  note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def learning_rate(
    problem: Problem, eta: float, method: str, aim: str, *, status: str = "converged",
    mc_error: float = 0.0, trace: Mapping[str, Any] | None = None,
    diagnostics: Mapping[str, Any] | None = None, units_matter: bool = False, level: float = 0.95,
) -> LearningRate:  # fmt: skip
    """Return the result of a method; a value that is no learning rate, or is noisy, says so."""
    if not (np.isfinite(eta) and eta > 0):
        status = "boundary"
    elif status == "converged" and not mc_error <= NOISY * eta:
        status = "noisy"
    known = {"minimum": problem.fit.status, **(diagnostics or {})}
    try:
        found = problem.information
    except InputError as error:  # scores without variance: nothing to predict coverage from
        found, known["no_information"] = None, str(error)
    if status == "converged" and known.get("failed_minimisers", 0):
        status = "noisy"
    tried = {name: np.asarray(values, dtype=np.float64)
             for name, values in (trace or {"eta": [eta]}).items()}  # fmt: skip
    return LearningRate(
        float(eta), status, float(mc_error), tried, known, method, aim, found,
        units_matter, level,
    )  # fmt: skip
