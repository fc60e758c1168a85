r"""What is asked of a structure of dependence: its groups of rows, its corrections and its B.

A *structure* is what a user names (`Clusters`, `Survey`, `TimeSeries`, `Panel`). Bound to the rows
of a criterion or of a fit it is a `Dependence`: groups of rows whose scores are summed, and the
variance :math:`B` of the total score that these sums make. The sandwich gives it score sums from
derivatives, the jackknife from draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_choice
from etafree.foundation.check import Finding
from etafree.target import Satterthwaite

if TYPE_CHECKING:
    from etafree.criterion import Criterion

#: From score sums (G, p), where the Hessian is the identity, to a covariance; quadratic.
Form = Callable[[Array], Array]
#: Every correction there is, and those that need each row's, or cluster's, share of the Hessian.
CORRECTIONS = (
    *("HC0", "HC1", "HC2", "HC3"),
    *("CR0", "CR1", "CR1S", "CR2", "CR3"),
    *("survey", "EWC", "Bartlett", "DK"),
)
LEVERAGE = ("HC2", "HC3", "CR2", "CR3")


@dataclass(frozen=True, eq=False)
class Meat:
    """Estimated variance of the total score and how it was made.

    Attributes
    ----------
    matrix : (p, p) array
    covariance : (p, p) array
        The sandwich :math:`A^{-1}BA^{-1}`.
    dof : float
        Degrees of freedom of the reference distribution, infinite for the normal.
    correction : str
    clusters : int or None
        Number of independent clusters, the smallest if there are several ways.
    satterthwaite : Satterthwaite or None
    joint_dof : float or None
        Degrees of freedom of joint regions and tests, where they are not `dof`.
    design : str
        The structure of dependence in words.
    findings : tuple of Finding
        What was found on the way.
    """

    matrix: Array
    covariance: Array
    dof: float
    correction: str
    clusters: int | None = None
    satterthwaite: Satterthwaite | None = None
    design: str = "independent observations"
    findings: tuple[Finding, ...] = ()
    joint_dof: float | None = None


class Point(NamedTuple):
    """Where scores are taken, and what is known there.

    Attributes
    ----------
    criterion : Criterion
    theta : (p,) array
    hessian : (p, p) array
        A, the Hessian of the penalized total loss.
    whiten : (p, p) array
        W with WAW' = I.
    gradient : (p,) array
        Gradient of the unpenalized total loss.
    centered : bool
        Whether scores are centred at observation level.
    """

    criterion: Criterion
    theta: Array
    hessian: Array
    whiten: Array
    gradient: Array
    centered: bool = True


class GroupScores(NamedTuple):
    """Centred score sums of groups, and what a formula of B asks besides.

    Attributes
    ----------
    sums : (G, p) array
        In coordinates where the Hessian is the identity.
    whiten : (p, p) array
        Takes scores to these coordinates.
    weights : (G,) array
        A group without weight is not there.
    rows : float
        Number of rows, copies counted.
    intercept : int or None
        Column that Newey and West's rule leaves out.
    """

    sums: Array
    whiten: Array
    weights: Array
    rows: float
    intercept: int | None = None


def finish(whitened: Array, whiten: Array) -> tuple[Array, Array]:
    """Return B and A^{-1} B A^{-1} from B in whitened coordinates."""
    covariance = whiten.T @ whitened @ whiten
    lower = linalg.inv(whiten, "Hessian")
    meat = lower @ whitened @ lower.T
    return 0.5 * (meat + meat.T), 0.5 * (covariance + covariance.T)


def small_sample_factor(correction: str, count: int, rows: float, p: int) -> float:
    """Return what CR0, CR1 or CR1S multiply a sum over `count` clusters with."""
    factor = 1.0 if correction == "CR0" else count / (count - 1)
    return factor * (rows - 1) / (rows - p) if correction == "CR1S" else factor


class Dependence(ABC):
    """Which rows may depend on each other, and the variance of the total score that follows.

    Attributes
    ----------
    groups : Groups
        The finest sets of rows whose scores are summed.
    corrections : tuple of str
        What it offers.
    argument : str
        What messages call it.
    other_corrections : str
        Advice to who asks for a correction that is offered elsewhere.
    takes_meat : bool
        Whether it means something beside a variance of the total that the user computed.
    """

    groups: Groups
    corrections: ClassVar[tuple[str, ...]]
    argument: ClassVar[str] = "dependence"
    other_corrections: ClassVar[str] = ""
    takes_meat: ClassVar[bool] = False

    @abstractmethod
    def default(self, leverage: bool) -> str:
        """Return the correction by default; `leverage`: rows have shares of the Hessian."""

    @abstractmethod
    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the variance of the total from the scores of its groups."""

    def form(self, scores: GroupScores, correction: str) -> tuple[Meat, Form]:
        """Return the meat, and the quadratic form of score sums that made its covariance."""

        def covariance(sums: Array) -> Array:
            return self.meat(scores._replace(sums=sums), correction).covariance

        return self.meat(scores, correction), covariance

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the variance of the total where `summed` is None: it takes more than sums."""
        raise InputError("correction", f"is {correction!r}", "this structure has score sums only")

    def given(self, matrix: Array, covariance: Array) -> Meat:
        """Return a variance of the total that the user computed, where it `takes_meat`."""
        return Meat(matrix, covariance, np.inf, "custom", design="meat of the user's")

    def check_meat(self) -> None:
        """Raise where a variance of the user's own leaves the structure without meaning."""
        if not self.takes_meat:
            raise InputError(
                self.argument,
                "means nothing with meat=, which says how scores depend on each other",
                "leave it out; one-way clusters= give the degrees of freedom",
            )

    def summed(self, correction: str) -> Groups | None:
        """Return the groups whose score sums the correction needs; None if these do not do."""
        return None if correction in LEVERAGE else self.groups

    def check_size(  # noqa: B027  most have no least number
        self, weights: Array | None, p: int, fewer: str = "fit"
    ) -> None:
        """Refuse groups too few for p parameters; `fewer` says how to get fewer parameters."""

    def row_groups(self) -> Mapping[str, Groups]:
        """Return the groups of rows whose leverage matters, by name."""
        return {}

    @property
    def independent(self) -> bool:
        """Whether no row depends on another."""
        return False

    @property
    def clusters(self) -> Groups | None:
        """Groups that are independent of each other, so that they can be resampled as wholes."""
        return None

    def correction(self, asked: object, without_shares: tuple[str, str] | None = None) -> str:
        """Return the correction by name, checked.

        `without_shares` says why rows have no share of the Hessian, and what to do, if it is so.
        """
        if asked is None:
            return self.default(without_shares is None)
        if isinstance(asked, str) and asked in self.corrections and asked in LEVERAGE:
            if without_shares is not None:
                reason, advice = without_shares
                problem = f"is {asked!r}, which needs each row's share of the Hessian; {reason}"
                raise InputError("correction", problem, advice)
        elif isinstance(asked, str) and asked in CORRECTIONS and asked not in self.corrections:
            options = ", ".join(self.corrections)
            advice = self.other_corrections or f"for this structure choose from {options}"
            raise InputError("correction", f"is {asked!r}", advice)
        return as_choice(asked, "correction", self.corrections)


@dataclass(frozen=True, eq=False, repr=False)
class Structure(ABC):
    """Dependence as a user names it, before it is lined up with rows."""

    def __repr__(self) -> str:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        told = [f"{name}={_short(value)}" for name, value in given.items() if value is not None]
        return f"{type(self).__name__}({', '.join(told)})"

    @abstractmethod
    def bind(self, rows: Rows, copies: bool = False) -> Dependence:
        """Return it bound to rows; `copies` says that weights repeat rows."""

    def with_labels(self, change: Callable[[Any, str], Any]) -> Self:
        """Return the same structure with labels that a function of them and their name returns."""
        changed = {
            f.name: change(getattr(self, f.name), f.name) for f in fields(self) if f.metadata
        }
        return replace(self, **changed)


def _short(value: object) -> str:
    """Return names and numbers as they are, labels of rows as how many there are."""
    text = repr(value)
    if len(text) <= 60:
        return text
    return f"<{len(value)} labels>" if hasattr(value, "__len__") else f"<{type(value).__name__}>"
