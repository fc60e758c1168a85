r"""What is asked of a structure of dependence: its groups of rows, its corrections and its B.

A *structure* is what a user names (`Clusters`, `Survey`, `ReplicateWeights`, `TimeSeries`,
`Panel`). Bound to the rows of a criterion or of a fit it is a `Dependence`: groups of rows whose
scores are summed, and the variance :math:`B` of the total score that follows from these sums. The
sandwich takes score sums from derivatives, the jackknife from draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np

from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_choice
from etafree.foundation.check import Finding
from etafree.target import Laws
from etafree.totals.nuisance import Stacked

if TYPE_CHECKING:
    from etafree.criterion import Criterion

#: From score sums (G, p), where the Hessian is the identity, to a covariance; quadratic.
Form = Callable[[Array], Array]
#: Corrections that need each row's, or cluster's, share of the Hessian.
LEVERAGE = ("HC2", "HC3", "CR2", "CR3", "survey-CR3", "AR-EWC-HC3", "two-way-CR3")
#: Every correction there is.
CORRECTIONS = (
    *LEVERAGE,
    *("HC0", "HC1", "CR0", "CR1", "CR1S", "survey"),
    *("AR-EWC", "two-way", "EWC", "Bartlett", "DK", "refits"),
)


@dataclass(frozen=True, eq=False)
class Meat:
    """Estimated variance of the total score (p, p), the sandwich of it, and how it was made."""

    matrix: Array
    covariance: Array
    dof: float | Array  #: Of the reference distribution, infinite for the normal; or of each (p,).
    correction: str
    clusters: int | None = None  #: Independent clusters, the fewest if there are several ways.
    design: str = "independent observations"
    findings: tuple[Finding, ...] = ()
    joint_dof: float | None = None  #: Of joint regions and tests, where it is not `dof`.
    inflation: float | Array = 1.0  #: Of each variance (p,), if the working model is right.
    laws: Laws | None = None  #: Of contrasts of several parameters.


class Point(NamedTuple):
    """Where scores are taken, and what is known there."""

    criterion: Criterion
    theta: Array
    hessian: Array  #: A, of the penalized total loss.
    whiten: Array  #: W (k, p) with WAW' = I; k < p where other directions have no variance.
    gradient: Array  #: Of the total loss without its penalty.
    centered: bool = True  #: Whether scores are centred at observation level.
    stacked: Stacked | None = None  #: What estimated nuisance values add to scores.
    laws: bool = True  #: Whether degrees of freedom are asked for.

    def added(self, groups: Groups) -> Array | None:
        """Return what nuisance values add to the score sums of groups (G, p), whitened, if any."""
        if self.stacked is None:
            return None
        return self.stacked.sums(groups, self.criterion.total.weights) @ self.whiten.T


class GroupScores(NamedTuple):
    """Centred score sums of groups, where the Hessian is the identity."""

    sums: Array  #: (G, k).
    whiten: Array  #: Takes scores to these coordinates, (k, p).
    weights: Array  #: Of the groups (G,); those without weight do not count.
    rows: float  #: Number of rows, copies counted.
    intercept: int | None = None  #: Column that Newey and West's rule leaves out.


def finish(whitened: Array, whiten: Array) -> tuple[Array, Array]:
    """Return B and A^{-1} B A^{-1} from B in whitened coordinates."""
    covariance = whiten.T @ whitened @ whiten
    square = len(whiten) == whiten.shape[1]
    lower = (
        linalg.inv(whiten, "Hessian")
        if square
        else linalg.least_squares(whiten, np.eye(len(whiten)))
    )
    meat = lower @ whitened @ lower.T
    return 0.5 * (meat + meat.T), 0.5 * (covariance + covariance.T)


def from_covariance(covariance: Array, whiten: Array) -> tuple[Array, Array]:
    """Return B = A C A and C from the sandwich C, and what takes A to the identity."""
    lower = linalg.inv(whiten, "Hessian")
    hessian = lower @ lower.T
    meat = hessian @ covariance @ hessian
    return 0.5 * (meat + meat.T), 0.5 * (covariance + covariance.T)


def group_totals(sums: Array, groups: Groups) -> Array:
    """Return sums (G, p) over groups of rows or cells (n, p)."""
    totals = np.zeros((len(groups), sums.shape[1]))
    np.add.at(totals, groups.codes, sums)
    return totals


def small_sample_factor(correction: str, count: int, rows: float, p: int) -> float:
    """Return what CR0, CR1 or CR1S multiply a sum over `count` clusters with."""
    factor = 1.0 if correction == "CR0" else count / (count - 1)
    if correction == "CR1S" and rows <= p:
        raise InputError("correction", f"'CR1S' needs more than p = {p} observations", "use 'CR1'")
    return factor * (rows - 1) / (rows - p) if correction == "CR1S" else factor


class Dependence(ABC):
    """Which rows may depend on each other, and the variance of the total score that follows."""

    groups: Groups  #: The finest sets of rows whose scores are summed.
    corrections: ClassVar[tuple[str, ...]]
    #: Corrections by default: where rows have shares of the Hessian, and where they have none.
    defaults: ClassVar[tuple[str, str]]
    argument: ClassVar[str] = "dependence"  #: What messages call it.
    label: str = ""  #: Name of the column that its groups come from, where it is known.
    other_corrections: ClassVar[str] = ""  #: Advice on a correction of another structure.
    takes_meat: ClassVar[bool] = False  #: Whether it goes with a meat of the user's own.
    independent: ClassVar[bool] = False  #: Whether no row depends on another.

    @abstractmethod
    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the variance of the total from the scores of its groups."""

    def form(self, scores: GroupScores, correction: str) -> tuple[Meat, Form]:
        """Return the meat, and the quadratic form of score sums that gives its covariance."""

        def covariance(sums: Array) -> Array:
            return self.meat(scores._replace(sums=sums), correction).covariance

        return self.meat(scores, correction), covariance

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the variance of the total where score sums are not enough, `summed` is None."""
        raise InputError("correction", f"is {correction!r}", "this structure has score sums only")

    def by_default(self, at: Point, correction: str) -> Meat:
        """Return the same if the correction was not asked for: it may give way to another."""
        return self.by_leverage(at, correction)

    def adjusted(self, at: Point) -> Point:
        """Return the point with what the structure itself adds to the rows' scores."""
        return at

    def narrowed(self, at: Point) -> Point | None:
        """Return the point without directions that a group alone determines, None if all are."""
        return None

    def with_laws(self, meat: Meat, at: Point) -> Meat:
        """Return the same with laws of each coefficient, where score sums do not give them."""
        return meat

    def given(self, matrix: Array, covariance: Array) -> Meat:
        """Return a variance of the total that the user computed."""
        return Meat(matrix, covariance, np.inf, "custom", design="user-supplied meat")

    def check_meat(self) -> None:
        """Raise an error if a variance of the user's own leaves the structure without meaning."""
        if not self.takes_meat:
            problem = "does not apply with meat=, which says how scores depend on each other"
            advice = "leave it out; one-way clusters= give the degrees of freedom"
            raise InputError(self.argument, problem, advice)

    def check_draws(self) -> None:  # noqa: B027
        """Refuse draws with log-likelihoods where the rows of a criterion are needed."""

    def summed(self, correction: str) -> Groups | None:
        """Return the groups whose score sums the correction needs; None if it needs more."""
        return None if correction in LEVERAGE else self.groups

    def check_size(self, weights: Array | None, p: int, fewer: str = "fit") -> None:  # noqa: B027
        """Refuse groups too few for p parameters; `fewer` says how to get fewer parameters."""

    def row_groups(self) -> Mapping[str, Groups]:
        """Return the groups of rows whose leverage matters, by name."""
        return {}

    @property
    def clusters(self) -> Groups | None:
        """Groups that are independent of each other, so that they can be resampled as wholes."""
        return None

    def correction(self, asked: object, without_shares: tuple[str, str] | None = None) -> str:
        """Return the correction by name, checked.

        If rows have no share of the Hessian, `without_shares` is the reason and what to do.
        """
        if asked is None:
            return self.defaults[without_shares is not None]
        if isinstance(asked, str) and asked in CORRECTIONS and asked not in self.corrections:
            options = ", ".join(self.corrections)
            advice = self.other_corrections or f"for this structure choose from {options}"
            raise InputError("correction", f"is {asked!r}", advice)
        name = as_choice(asked, "correction", self.corrections)
        if name in LEVERAGE and without_shares is not None:
            reason, advice = without_shares
            problem = f"is {name!r}, which needs each row's contribution to the Hessian; {reason}"
            raise InputError("correction", problem, advice)
        return name


@dataclass(frozen=True, eq=False, repr=False)
class Structure(ABC):
    """Dependence as a user names it, before it is lined up with rows."""

    def __repr__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        shown = [f"{name}={_short(value)}" for name, value in values.items() if value is not None]
        return f"{type(self).__name__}({', '.join(shown)})"

    @abstractmethod
    def bind(self, rows: Rows, copies: bool = False) -> Dependence:
        """Return it bound to rows; `copies` says that weights repeat rows."""

    def with_labels(self, change: Callable[[object, str], object]) -> Self:
        """Return the same structure with labels that a function of them and their name returns."""
        labels = {f.name: getattr(self, f.name) for f in fields(self) if f.metadata}
        given = {name: value for name, value in labels.items() if value is not None}
        return replace(self, **{name: change(value, name) for name, value in given.items()})


def _short(value: object) -> str:
    """Return names and numbers as they are, labels of rows as how many there are."""
    text = repr(value)
    if len(text) <= 60:
        return text
    return f"<{len(value)} labels>" if hasattr(value, "__len__") else f"<{type(value).__name__}>"
