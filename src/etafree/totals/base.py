r"""What criteria, samplers and sandwiches ask of a total loss :math:`M(\theta)`.

`LinearTotal` has it in closed form over a linear predictor; losses written in JAX and losses over
pairs have totals of their own. Everything is a sum over observations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from etafree.data.formula import Context, Design, design
from etafree.data.groups import Groups
from etafree.errors import InputError
from etafree.foundation.arguments import Array
from etafree.losses import Loss
from etafree.totals.nuisance import Nuisance

T = TypeVar("T")


class Derivatives(NamedTuple):
    """Value, gradient and Hessian of a total, and the size of the terms the gradient sums."""

    value: float
    gradient: Array
    hessian: Array
    gradient_scale: Array


class ClusterTotals(NamedTuple):
    """Gradient and Hessian of a total, and the score sums (G, p) and weights (G,) of clusters."""

    gradient: Array
    hessian: Array
    sums: Array
    weights: Array

    @classmethod
    def zeros(cls, many: int, p: int) -> ClusterTotals:
        """Return what sums start from."""
        return cls(np.zeros(p), np.zeros((p, p)), np.zeros((many, p)), np.zeros(many))


class GroupSums(NamedTuple):
    """Score sums (G, p) and weights (G,) of groups of rows."""

    sums: Array
    weights: Array


class ClusterBlock(NamedTuple):
    """Consecutive clusters: score sums (g, p), Hessians (g, p, p) and weights (g,).

    `variances` (g, p, p) is what the scores' variances would be if each observation's were its
    Hessian: the Hessians themselves unless sampling weights count twice.
    """

    first: int
    scores: Array
    hessians: Array
    weights: Array
    variances: Array


class Total(ABC):
    """A loss summed over weighted observations.

    Attributes
    ----------
    loss : Loss
    weights : (n,) array or None
        None means one each.
    frequency : bool
        Whether a weight counts copies of a row (True) or represents other units (False).
    nuisance : tuple of Nuisance
        What was estimated from its rows beforehand.
    """

    loss: Any
    weights: Array | None
    frequency: bool
    nuisance: tuple[Nuisance, ...] = ()
    #: What it has beyond sums: "rows", a loss of each observation's own; "leverage", a share of the
    #: Hessian of each, which HC2, HC3, CR2 and CR3 need; "linear", losses of a linear predictor;
    #: "memory", all rows at once; "moments", equations of their own, whose shares of the Hessian
    #: are not symmetric and do not say how scores vary; "units", sums over tuples of them.
    traits: ClassVar[frozenset[str]] = frozenset({"rows", "leverage", "memory"})

    @property
    @abstractmethod
    def n(self) -> int:
        """Number of observations."""

    @property
    @abstractmethod
    def p(self) -> int:
        """Number of parameters."""

    @property
    def weight(self) -> float:
        """Sum of the weights."""
        return float(self.n) if self.weights is None else float(self.weights.sum())

    @property
    def size(self) -> float:
        """The paper's effective scale s_n: the sum of the weights, times a kernel's bandwidth."""
        return self.weight * float(self.loss.effective_unit)

    @property
    def count(self) -> float:
        """Number of observations: copies count under frequency weights, zero weights never do."""
        if self.weights is None or self.frequency:
            return self.weight
        return float(np.count_nonzero(self.weights))

    @property
    def copies(self) -> bool:
        """Whether weights repeat rows."""
        if not self.frequency or self.weights is None:
            return False
        return not bool(np.isin(self.weights, (0.0, 1.0)).all())

    def compiled(self) -> Self:
        """Return the total as one that compiles no more programs, for few points."""
        return self

    def small_sample_factor(self) -> float:
        """Return what HC1 multiplies the sum of squared scores with."""
        if self.count <= self.p:
            raise InputError(
                "correction",
                f"'HC1' needs more than p = {self.p} observations",
                "use fewer parameters",
            )
        return self.count / (self.count - self.p)

    @property
    def score_factor(self) -> float:
        """What the variance of a cluster's `scores` is times that of its `cluster_blocks`."""
        return 1.0

    @property
    def column_norms(self) -> Array:
        """How far the predictor moves with each parameter, times the root of n."""
        return np.full(self.p, np.sqrt(self.n))

    @abstractmethod
    def reweighted(self, weights: Array | None, frequency: bool) -> Self:
        """Return the same total under other weights."""

    @abstractmethod
    def values(self, theta: Array) -> Array:
        """Return each observation's weighted loss (n,)."""

    @abstractmethod
    def scores(self, theta: Array) -> Array:
        """Return each observation's weighted score (n, p), whose variance is the total's."""

    @abstractmethod
    def derivatives(self, theta: Array, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient and Hessian; `majorize` asks for a safe positive Hessian."""

    @abstractmethod
    def totals(self, thetas: Array) -> Array:
        """Return the total loss at each of many parameter values, (D, p) -> (D,)."""

    def losses_of(self, rows: NDArray[np.intp], thetas: Array) -> Array:
        """Return the losses of some rows, of weight one, at parameters (D, p): (D, rows)."""
        single = (np.bincount([row], minlength=self.n).astype(np.float64) for row in rows)
        return np.column_stack([self.reweighted(one, True).totals(thetas) for one in single])

    @abstractmethod
    def cluster_totals(self, theta: Array, groups: Groups) -> ClusterTotals:
        """Return gradient, Hessian and every cluster's score sum."""

    def group_sums(self, theta: Array, groups: Groups) -> GroupSums:
        """Return every group's score sum and weight alone, where the Hessian is known."""
        totals = self.cluster_totals(theta, groups)
        return GroupSums(totals.sums, totals.weights)

    @abstractmethod
    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield score sums and Hessians of blocks of clusters."""

    def unweighted_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield the same blocks of the rows that have weight, each counted once."""
        once = None if self.weights is None else np.sign(self.weights)
        yield from self.reweighted(once, True).cluster_blocks(theta, groups)


#: What is said of a total that lacks a trait, and what to do about it.
LACKS = {
    "rows": (
        "is over pairs, risk sets or moments: an observation has no loss of its own",
        "use another method",
    ),
    "leverage": ("has no Hessian of each observation", "use correction='HC1' or 'CR1'"),
    "linear": ("has no linear predictor", "use a loss of ef.losses"),
    "memory": ("reads its data in parts, and every row is needed at once", "use data in memory"),
}


def require(total: Total, trait: str, argument: str) -> None:
    """Refuse a total that lacks a trait, in words about the argument that needs it."""
    if trait not in total.traits:
        raise InputError(argument, *LACKS[trait])


class GeneralLoss(Loss):
    """A loss that makes its own total from data that are not (X, y)."""

    convex = False
    #: What to say when labels do not fit the number of observations.
    row_advice: ClassVar[str] = "pass one value per row of the data"

    def __getstate__(self) -> dict[str, object]:  # compiled functions stay behind
        return {key: value for key, value in self.__dict__.items() if key != "_compiled"}

    def _cached(self, key: Hashable, compile_: Callable[[], T]) -> T:
        """Return what was compiled for parameters like these, made once."""
        cache: dict[Hashable, T] = self.__dict__.setdefault("_compiled", {})
        if key not in cache:
            cache[key] = compile_()
        return cache[key]

    def bind(
        self, data: object, start: object, weights: Array | None, frequency: bool
    ) -> tuple[Total, Array, tuple[str, ...] | None]:
        """Return the total, a start (p,) and parameter names, None for the default."""
        raise TypeError(f"{type(self).__name__} must define bind(data, start, weights, frequency)")

    def bind_parts(self, table: Any, start: object) -> tuple[Total, Array, tuple[str, ...] | None]:
        """Return the same of the rows of a table that is read in parts, `StreamedTotal`."""
        problem = f"{type(self).__name__} needs all rows, and the data are read in parts"
        raise InputError("loss", problem, "use a loss of ef.losses or ef.Moments, or a sample")

    def bind_formula(self, formula: str, data: object, context: Context) -> tuple[Design, object]:
        """Return the design of a formula, and the data that `bind` takes."""
        matrix = design(formula, data, context)
        return matrix, (matrix.X, matrix.y)

    def count(self, data: object) -> int:
        """Return the number of observations in the data."""
        raise TypeError(f"{type(self).__name__} must define count(data)")
