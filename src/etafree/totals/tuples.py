r"""U-type losses: totals over m-tuples of units.

.. math:: M(\theta)=\sum_{i_1<\dots<i_m}h(\theta,z_{i_1},\dots,z_{i_m}).

The score of unit i is its full row sum :math:`g_i=\sum_{t\ni i}\nabla h_t` over the tuples with
it; these add up to m times the gradient. If :math:`\nabla h_t=\sum_{i\in t}u_i`, the first term of
Hoeffding's decomposition (Hajek's projection), the gradient is
:math:`\binom{n-1}{m-1}\sum_iu_i` and :math:`g_i-\bar g=\binom{n-2}{m-1}(u_i-\bar u)`. So
:math:`\sum_i(g_i-\bar g)(g_i-\bar g)^\top` estimates the variance of the total score, but for

.. math:: \frac n{n-1}\Bigl(\frac{n-1}{n-m}\Bigr)^2=\frac{n(n-1)}{(n-m)^2},

which HC1 multiplies by: then it is the jackknife of the total score that leaves out one unit at a
time (Arvesen 1969). Two tuples that share a unit depend on each other, so tuples taken as
independent are far too sure. Everything is a label or a weight per *unit*; clusters, strata and
time mean what they mean elsewhere. The effective scale :math:`s_n` is the number of tuples;
:math:`\eta` multiplies a sum over tuples, so that about m over their number per unit,
:math:`m/\binom{n-1}{m-1}`, is what 1 is elsewhere.

A cluster g (or a single unit) of weight :math:`w_g` among W takes all tuples with one of its units
along when it leaves. What is left, :math:`M_{-g}`, is a sum over tuples of the other units; per
unit it grows like a sum over units, so the share of g in the loss, and alike in gradient, Hessian
and number of tuples, is

.. math:: M_g = M - \Bigl(\frac{W}{W-w_g}\Bigr)^{m-1}M_{-g}.

Then :math:`(A-A_g)^{-1}\psi_g` is, with either sign, the Newton step from the minimiser to that of
:math:`M_{-g}`: HC3 and CR3 are the jackknife of the estimate, exactly so for a quadratic loss. For
:math:`h=\sum_{i\in t}a_i` the share is that of the sum :math:`\binom{n-1}{m-1}\sum_ia_i` up to
terms of order 1/n, so that degrees of freedom follow from shares as they do for sums
(`dependence.clusters.contrast_laws`).

A tuple weighs the product of its units' weights. Copies under frequency weights are tupled with
each other too, exactly as if the rows were repeated, so that :math:`s_n=\binom Wm` for them.

An incomplete sum takes R rounds of n tuples, in which every unit appears :math:`k=Rm` times, and
multiplies by :math:`\binom nm/(Rn)` (Blom 1976). The projection does not change, as every unit
appears equally often. With :math:`\sigma^2` the variance of u and :math:`\tau^2` that of what is
left of :math:`\nabla h`, the sample adds a share :math:`\tau^2/(mk\sigma^2)` to the variance of the
score (Janson 1984). Row sums contain it and more, :math:`\{(m-1)\sigma^2+\tau^2\}/(k\sigma^2)`, as
each also has the noise of its own tuples: standard errors are on the safe side.

References
----------
Arvesen, J. N. (1969). Jackknifing U-statistics. Ann. Math. Statist. 40, 2076-2100. Blom, G. (1976).
Some properties of incomplete U-statistics. Biometrika 63, 573-580. Janson, S. (1984). The
asymptotic distributions of incomplete U-statistics. Z. Wahrsch. verw. Gebiete 66, 495-505.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import comb
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from etafree.data import pytrees
from etafree.data.groups import Groups
from etafree.data.pytrees import double_precision, import_jax
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_count, as_rng, check_finite
from etafree.foundation.linalg import absolute, majorized
from etafree.totals.base import ClusterBlock, ClusterTotals, Derivatives, GeneralLoss, Total
from etafree.totals.linear import add_group_sums

if TYPE_CHECKING:
    from jax import Array as JaxArray

#: Numbers in the Hessians of a block of units, and in the derivatives of a chunk of tuples.
HESSIANS, CHUNK = 1 << 22, 1 << 20
#: Tuples that are summed at most.
MOST_TUPLES = 1 << 23
#: Tuples on which symmetry is checked.
CHECKED = 32
#: Advice for a wrong number of labels, after "has 4950 entries for 100 rows".
PER_UNIT = "scores belong to units, not to pairs: pass one value per unit"
#: The loss of a tuple: parameters and rows, pytrees of arrays, to a number.
KernelFunction = Callable[..., Any]
Units = NDArray[np.intp]


class RowSums(NamedTuple):
    """Row sums of h (n,) and of its gradients (n, p); gradient, Hessian and size of the total."""

    values: Array
    scores: Array
    gradient: Array
    hessian: Array
    scale: Array


class TupleTotal(Total):
    """A loss summed over tuples of weighted units."""

    traits: ClassVar[frozenset[str]] = frozenset({"leverage", "memory", "units"})

    @property
    @abstractmethod
    def order(self) -> int:
        """Number of units in a tuple, m."""

    @abstractmethod
    def row_sums(self, theta: Array, *, majorize: bool = False) -> RowSums:
        """Return all sums over tuples in one pass."""

    @abstractmethod
    def leaving(self, theta: Array, s: RowSums, members: list[Units]) -> tuple[Array, Array, Array]:
        """Return gradients and Hessians of what leaves with clusters of units.

        Also the working variances of units with sampling weights, which count twice in them.
        """

    @property
    def size(self) -> float:
        """Number of tuples: the sum of their weights, copies tupled with each other."""
        return float(self._number(self._powers(lambda own: np.sum(own))))

    def small_sample_factor(self) -> float:
        """Return n (n - 1) / (n - m)^2, the jackknife's factor."""
        n, m = self.count, self.order
        if n <= m:
            problem = f"'HC1' needs more than {m} units, which a tuple has"
            raise InputError("correction", problem, "add units")
        return n * (n - 1.0) / (n - m) ** 2

    @property
    def score_factor(self) -> float:
        """Return (1 - 1/n)^(2m - 2): `_share` divides row sums by the root of it."""
        return (1.0 - 1.0 / self.count) ** (2 * self.order - 2)

    def reweighted(self, weights: Array | None, frequency: bool) -> Self:
        """Return the same total under other weights."""
        return replace(self, weights=weights, frequency=frequency)  # type: ignore[type-var]

    def values(self, theta: Array) -> Array:
        """Return 1/m of each unit's weighted row sum (n,); they add up to the total."""
        return self.row_sums(theta).values / self.order

    def scores(self, theta: Array) -> Array:
        """Return each unit's weighted row sum of gradients (n, p); m times the gradient in all."""
        return self.row_sums(theta).scores

    def derivatives(self, theta: Array, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient and Hessian of the total over tuples."""
        s = self.row_sums(theta, majorize=majorize)
        return Derivatives(float(s.values.sum()) / self.order, s.gradient, s.hessian, s.scale)

    def cluster_totals(self, theta: Array, groups: Groups) -> ClusterTotals:
        """Return gradient, Hessian and the score sums of clusters of units."""
        s, sums = self.row_sums(theta), np.zeros((len(groups), self.p))
        np.add.at(sums, groups.codes, s.scores)
        return ClusterTotals(s.gradient, s.hessian, sums, groups.weights(self.weights))

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield the shares of blocks of clusters in gradient, Hessian and number of tuples."""
        s, step = self.row_sums(theta), max(1, HESSIANS // self.p**2)
        mass = groups.weights(self.weights)
        if mass.max() >= self.weight:
            raise InputError("clusters", "hold all units in one", "at least two must vary")
        part = self.leaving_part(mass)
        without = self._powers(lambda own: own.sum() - groups.weights(own))
        left = self._number(without) / (1.0 - part)
        weights = np.where(part > 0, self.weight * (1.0 - left / self.size), 0.0)
        order, starts = groups.order()
        rows = np.arange(self.n) if order is None else order
        for first in range(0, len(groups), step):
            here = slice(first, min(first + step, len(groups)))
            members = np.split(
                rows[starts[first] : starts[here.stop]], starts[here][1:] - starts[first]
            )
            scores, hessians, variances = self.leaving(theta, s, members)
            scores = share(scores, s.gradient, part[here, None])
            hessians = share(hessians, s.hessian, part[here, None, None])
            variances = absolute(hessians if self.frequency else variances)
            yield ClusterBlock(first, scores, hessians, weights[here], variances)

    def leaving_part(self, mass: Array) -> Array:
        """Return the part of a sum over units' tuples that leaves with so much weight."""
        return 1.0 - (1.0 - mass / self.weight) ** (self.order - 1)

    def _powers(self, add: Callable[[Array], Any]) -> list[Array]:
        """Return sums of w, w^2, ..., w^m; of w alone for copies, which are units of weight one."""
        w = np.ones(self.n) if self.weights is None else self.weights
        alike = self.weights is None or self.frequency
        return [np.asarray(add(w if alike else w**k)) for k in range(1, self.order + 1)]

    def _number(self, powers: list[Array]) -> Array:
        """Return sums over tuples of products of weights, from sums of powers (Newton)."""
        sums = [np.ones_like(powers[0])]
        for k in range(1, self.order + 1):
            terms = [(-1.0) ** (i - 1) * sums[k - i] * powers[i - 1] for i in range(1, k + 1)]
            sums.append(np.sum(terms, axis=0) / k)
        return sums[-1]


def share(removed: Array, total: Array, part: Array) -> Array:
    """Return the share of clusters from what leaves with them, M - (M - removed) / (1 - part)."""
    out: Array = (removed - part * total) / (1.0 - part)
    return out


def in_words(order: int) -> str:
    """Return a number of rows, in words if it is two."""
    return "two" if order == 2 else str(order)


def checked_units(n: int, weights: Array | None, order: int = 2) -> Array:
    """Return the weights of the units, of which there must be as many as a tuple has."""
    w = np.ones(n) if weights is None else weights
    if np.count_nonzero(w) < order:
        argument, few = "data" if weights is None else "weights", in_words(order)
        raise InputError(argument, f"leave fewer than {few} units", "add units")
    return w


def majorized_hessian(hessian: Array, majorize: bool) -> Array:
    """Return a symmetric Hessian; `majorize` turns its negative eigenvalues."""
    hessian = 0.5 * (hessian + hessian.T)
    if majorize and np.isfinite(hessian).all():  # in units where the diagonal is one
        unit = np.sqrt(np.maximum(np.abs(np.diagonal(hessian)), 1e-300))
        return majorized(hessian, unit, 1e-4)
    return hessian


class Kernel:
    """A user's h as a function of flat parameters, and the rows that it takes."""

    columns: object

    def __init__(self, h: KernelFunction, template: object) -> None:
        jax, structured = import_jax(), pytrees.rebuild(template)

        def one(theta: Any, *rows: object) -> Any:
            return h(structured(theta), *rows)

        def each(theta: JaxArray, rows: list[object]) -> JaxArray:
            values: JaxArray = jax.vmap(one, (None, *[0] * len(rows)))(theta, *rows)
            return values

        self.one, self.each = one, jax.jit(each)

    def on(self, columns: object) -> Self:
        """Return the same compiled functions with these rows."""
        jax, kernel = import_jax(), copy(self)
        with double_precision():
            kernel.columns = jax.tree.map(jax.numpy.asarray, columns)
        return kernel

    def rows(self, which: object) -> object:
        """Return rows of the data."""
        return import_jax().tree.map(lambda column: column[which], self.columns)

    def check(self, theta: Array, n: int, order: int) -> None:
        """Refuse an h that is no number or depends on the order of its rows."""
        jax, rng = import_jax(), np.random.default_rng(0)
        units = np.array([rng.choice(n, order, replace=False) for _ in range(CHECKED)])
        moved = theta + 0.1 * (1.0 + np.abs(theta)) * rng.standard_normal(len(theta))
        with double_precision():
            try:
                shape = jax.eval_shape(self.one, theta, *map(self.rows, range(order))).shape
            except Exception as error:  # whatever the user's function raises
                problem = f"fails on the first {in_words(order)} rows: {error}"
                called = ", ".join(["theta", *"abcdefgh"[:order]])
                raise InputError("h", problem, f"it is called as h({called})") from error
            if shape != ():
                raise InputError("h", f"returns an array of shape {shape}", "return a number")
            for point in (theta, moved):
                one = np.asarray(self.each(point, [self.rows(u) for u in units.T]))
                for k in range(1, order):  # these exchanges make up every order of the rows
                    exchanged = units.copy()
                    exchanged[:, [0, k]] = units[:, [k, 0]]
                    two = self.each(point, [self.rows(u) for u in exchanged.T])
                    _check_symmetric(units, one, two)


def _check_symmetric(units: Units, one: Array, exchanged: JaxArray) -> None:
    """Refuse values of tuples that differ when rows are exchanged."""
    two, room = np.asarray(exchanged), 1e-9 * np.nanmax(np.abs(one))
    off = ~np.isclose(one, two, rtol=1e-7, atol=room, equal_nan=True)
    if off.any():
        k = int(off.argmax())
        problem = f"is {one[k]:g} for rows {', '.join(map(str, units[k]))} but {two[k]:g} with two "
        raise InputError("h", problem + "rows exchanged", "it must be symmetric in its rows")


K = TypeVar("K", bound=Kernel)


class KernelLoss(GeneralLoss):
    """A loss of the user's own over tuples of units, written in JAX."""

    h: KernelFunction
    constants: bool
    order: int
    row_advice: ClassVar[str] = PER_UNIT

    def __post_init__(self) -> None:
        if not callable(self.h):
            raise InputError("h", f"is a {type(self.h).__name__}", "pass a function (theta, a, b)")

    def count(self, data: object) -> int:
        return pytrees.as_columns(data)[1]

    def _checked(
        self, kind: type[K], data: object, start: object, weights: Array | None
    ) -> tuple[K, int, Array, tuple[str, ...] | None]:
        """Return the kernel, the number of units, the start (p,) and names made of its keys."""
        jax, (columns, n) = import_jax(), pytrees.as_columns(data)
        for path, column in jax.tree_util.tree_flatten_with_path(columns)[0]:
            if column.dtype.kind == "f":
                check_finite(column, "data" + jax.tree_util.keystr(path))
        checked_units(n, weights, self.order)
        template, first, names = pytrees.as_parameters(start)
        key = pytrees.structure(template)
        kernel = self._cached(key, lambda: kind(self.h, template)).on(columns)
        kernel.check(first, n, self.order)
        if not self.constants:
            pytrees.refuse_other_rows(
                "h", kernel.one, n, first, *map(kernel.rows, range(self.order))
            )
        return kernel, n, first, names


@dataclass(frozen=True, eq=False)
class TupleLoss(KernelLoss):
    r"""A loss of your own over m-tuples of units.

    .. math:: M(\theta)=\sum_{i_1<\dots<i_m}h(\theta,z_{i_1},\dots,z_{i_m}).

    Gradients and Hessians come from JAX, in double precision whatever its global setting. The
    minimum is the one next to the criterion's `start`.

    Parameters
    ----------
    h : callable
        ``h(theta, a, b, c)`` for tuples of three: a number, in terms of ``jax.numpy``. `a`, `b` and
        `c` are rows of the data (a dict of columns gives dicts of numbers), `theta` has the
        structure of `start`. It must not change when rows change places, which is checked on a few
        tuples.
    order : int
        Units in a tuple, m, from 2 to 8. `PairLoss` has fewer arrays to carry around for pairs.
    rounds : int, optional
        None: all :math:`\binom nm` tuples, of which there may be 8 million. R: a random sample of
        :math:`B=Rn` tuples, drawn once, in which every unit appears Rm times; sums are multiplied
        by :math:`\binom nm/B`. See Notes.
    seed : int, SeedSequence or Generator
        Of that sample.
    constants : bool
        As for `JaxLoss`: arrays that `h` closes over are no other rows.

    Raises
    ------
    InputError
        `h` is not callable, `order` or `rounds` no such number. The criterion refuses an `h` that
        is not symmetric or not finite, too many tuples, and for a sample of tuples frequency
        weights that repeat rows.
    MissingExtraError
        JAX is not installed (raised by the criterion).

    See Also
    --------
    PairLoss : The same over pairs, in tiles.

    Notes
    -----
    Data are columns with a row per *unit*, as for `PairLoss`; pass ``ef.Criterion(..., start=)``.

    A sample of tuples estimates the same parameters with a little more noise, which standard errors
    contain and overstate: with k = Rm appearances of every unit, variances are too large by a share
    of at least (m - 1) / k, more if h is far from a sum over its units. Ten rounds of triples make
    standard errors about 3 % too long, thirty 1 %.

    References
    ----------
    Hoeffding, W. (1948). A class of statistics with asymptotically normal distribution. Ann. Math.
    Statist. 19, 293-325. Blom, G. (1976). Some properties of incomplete U-statistics. Biometrika
    63, 573-580.

    Examples
    --------
    >>> import etafree as ef
    >>> def h(theta, a, b, c):  # the third central moment: its kernel is a product of deviations
    ...     m = (a + b + c) / 3
    ...     return (theta - 4.5 * (a - m) * (b - m) * (c - m)) ** 2
    >>> z = np.array([1.0, 2.0, 4.0, 9.0])
    >>> ef.minimise(ef.Criterion(ef.TupleLoss(h, order=3), z, start=1.0)).theta.round(8)
    array([60.])
    """

    h: KernelFunction
    order: int = 3
    rounds: int | None = None
    seed: Any = 0
    constants: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "order", as_count(self.order, "order", least=2))
        if self.order > 8:
            raise InputError("order", f"is {self.order}", "tuples have 2 to 8 units")
        if self.rounds is not None:
            object.__setattr__(self, "rounds", as_count(self.rounds, "rounds"))
        as_rng(self.seed)

    def bind(
        self, data: object, start: object, weights: Array | None, frequency: bool
    ) -> tuple[JaxTupleTotal, Array, tuple[str, ...] | None]:
        """Return the total, the start as a vector and names made of its keys."""
        sums, n, first, names = self._checked(_ListSums, data, start, weights)
        _check_number(n, self.order, self.rounds)
        if self.rounds is None:
            tuples = combinations(n, self.order)
        else:
            tuples = balanced_sample(n, self.order, self.rounds, as_rng(self.seed))
        total = JaxTupleTotal(self, sums, tuples, n, len(first), weights, frequency)
        return total, first, names

    def describe(self) -> str:
        name = getattr(self.h, "__name__", "loss")
        return f"the expected {name!s} over tuples of {self.order} units"


def _check_number(n: int, order: int, rounds: int | None) -> None:
    """Refuse more tuples than can be summed."""
    number = comb(n, order) if rounds is None else n * rounds
    if number > MOST_TUPLES:
        argument, advice = "rounds", f"pass rounds={max(1, min(30, MOST_TUPLES // n))} for a sample"
        raise InputError(argument, f"give {number:.2g} tuples, too many to sum", advice)


def combinations(n: int, order: int) -> Units:
    """Return all tuples of so many of n units, (C(n, m), m)."""
    tuples: Units = np.arange(n)[:, None]
    for _ in range(order - 1):
        room = n - 1 - tuples[:, -1]
        before = np.repeat(np.cumsum(room) - room, room)
        last = np.repeat(tuples[:, -1] + 1, room) + np.arange(room.sum()) - before
        tuples = np.column_stack([np.repeat(tuples, room, axis=0), last])
    return tuples


def balanced_sample(n: int, order: int, rounds: int, rng: np.random.Generator) -> Units:
    """Return tuples (rounds * n, m) in which every unit appears rounds * m times.

    A round takes the units in random order, and the same order shifted by random steps.
    """
    tuples: list[Units] = []
    for _ in range(rounds):
        shuffled = rng.permutation(n)
        shifts = 1 + rng.choice(n - 1, order - 1, replace=False)
        tuples.append(np.column_stack([np.roll(shuffled, s) for s in (0, *shifts)]))
    return np.concatenate(tuples)


@dataclass(frozen=True, eq=False)
class JaxTupleTotal(TupleTotal):
    """Sum over a list of tuples (B, m) of a loss written in JAX."""

    loss: TupleLoss
    sums: _ListSums
    tuples: Units
    units: int
    parameters: int
    weights: Array | None
    frequency: bool

    def __post_init__(self) -> None:
        if self.copies and self.loss.rounds is not None:
            problem = "repeat rows, and the tuples are a sample of rows"
            advice = "use weight_kind='sampling' (ef.loss_likelihood_bootstrap), or rounds=None"
            raise InputError("weights", problem, advice)

    @property
    def n(self) -> int:
        return self.units

    @property
    def p(self) -> int:
        return self.parameters

    @property
    def order(self) -> int:
        return self.loss.order

    @cached_property
    def _weighted(self) -> tuple[Units, Array]:
        """Tuples that have weight, and their weights."""
        tuples, w = self.tuples, self.weights
        scale = comb(self.n, self.order) / len(tuples)
        if w is None:
            return tuples, np.full(len(tuples), scale)
        if self.copies:  # a row may come several times
            tuples = combinations(self.n + self.order - 1, self.order) - np.arange(self.order)
        weights, again = np.full(len(tuples), scale), np.zeros(len(tuples))
        for k, units in enumerate(tuples.T):  # w (w - 1) / 2 for two copies of one row
            if k and self.copies:
                again = np.where(units == tuples[:, k - 1], again + 1.0, 0.0)
            weights *= (w[units] - again) / (again + 1.0)
        kept = np.flatnonzero(weights)
        return tuples[kept], weights[kept]

    def _chunks(self, numbers: int) -> Iterator[tuple[Units, Array]]:
        """Yield chunks of tuples and their weights, so many numbers each, filled up with zeros."""
        tuples, weights = self._weighted
        most = max(16, CHUNK // numbers)
        size = 1 << min(most.bit_length() - 1, (len(tuples) - 1).bit_length())
        for k in range(0, len(tuples), size):
            more = max(0, k + size - len(tuples))
            units = np.pad(tuples[k : k + size], ((0, more), (0, 0)), "edge")
            yield units, np.pad(weights[k : k + size], (0, more))

    def row_sums(self, theta: Array, *, majorize: bool = False) -> RowSums:
        """Return all sums over tuples; `majorize` turns negative eigenvalues of the Hessian."""
        n, p = self.n, self.p
        rows, scale = np.zeros((n, 1 + p)), np.zeros(p)
        hessian: Array = np.zeros((p, p))
        for tuples, weights in self._chunks(1 + p + p**2):
            each, bend, size = self.sums("sums", theta, tuples, weights)
            for units in tuples.T:
                add_group_sums(rows, units, np.ones(len(units)), each, False)
            hessian += bend
            scale += size
        gradient = rows[:, 1:].sum(axis=0) / self.order
        hessian = majorized_hessian(hessian, majorize)
        return RowSums(rows[:, 0], rows[:, 1:], gradient, hessian, scale)

    def leaving(self, theta: Array, s: RowSums, members: list[Units]) -> tuple[Array, Array, Array]:
        p, w = self.p, np.ones(self.n) if self.weights is None else self.weights
        part, cluster = self.leaving_part(w), np.full(self.n, len(members))
        for g, some in enumerate(members):
            cluster[some] = g
        left, twice = np.zeros((len(members) + 1, p + p**2)), np.zeros((len(members) + 1, p**2))
        for tuples, weights in self._chunks(1 + p + p**2):
            each = self.sums("each", theta, tuples, weights)[0]
            labels = np.sort(cluster[tuples], axis=1)
            for k in range(self.order):  # a tuple leaves once with each of its clusters
                new = np.ones(len(labels)) if k == 0 else 1.0 * (labels[:, k] != labels[:, k - 1])
                add_group_sums(left, labels[:, k], new, each, False)
            for units in () if self.frequency else tuples.T:
                factor = w[units] / (1.0 - part[units])
                add_group_sums(twice, cluster[units], factor, each[:, p:], False)
        own = np.array([(w[some] * part[some] / (1.0 - part[some])).sum() for some in members])
        shape = (len(members), p, p)
        variances = twice[:-1].reshape(shape) - own[:, None, None] * s.hessian
        return left[:-1, :p], left[:-1, p:].reshape(shape), variances

    def totals(self, thetas: Array) -> Array:
        def summed(bundle: Array) -> Array:
            total = np.zeros(len(bundle))
            for tuples, weights in self._chunks(len(bundle)):
                total += self.sums("totals", bundle, tuples, weights)[0]
            return total

        return pytrees.in_bundles(thetas, 64, summed)


class _ListSums(Kernel):
    """Compiled sums of h and its derivatives over lists of tuples."""

    def __init__(self, h: KernelFunction, template: object) -> None:
        super().__init__(h, template)
        import jax
        import jax.numpy as jnp

        def over(function: Callable[..., object], theta: JaxArray, rows: list[object]) -> Any:
            return jax.vmap(function, (None, *[0] * len(rows)))(theta, *rows)

        def first(theta: JaxArray, rows: list[object], weights: JaxArray) -> JaxArray:
            value, slope = over(jax.value_and_grad(self.one), theta, rows)
            return weights[:, None] * jnp.column_stack([value, slope])

        def bends(theta: JaxArray, rows: list[object], weights: JaxArray) -> JaxArray:
            each: JaxArray = over(jax.hessian(self.one), theta, rows)
            return weights[:, None, None] * each

        def sums(theta: JaxArray, rows: list[object], weights: JaxArray) -> tuple[JaxArray, ...]:
            """Return every tuple's value and gradient, the Hessian, the size of the gradient."""
            each = first(theta, rows, weights)
            return each, bends(theta, rows, weights).sum(0), jnp.abs(each[:, 1:]).sum(0)

        def each(theta: JaxArray, rows: list[object], weights: JaxArray) -> tuple[JaxArray]:
            """Return every tuple's gradient and Hessian, side by side."""
            hessians = bends(theta, rows, weights).reshape(len(weights), -1)
            return (jnp.column_stack([first(theta, rows, weights)[:, 1:], hessians]),)

        def totals(thetas: JaxArray, rows: list[object], weights: JaxArray) -> tuple[JaxArray]:
            return (jax.vmap(lambda t: weights @ over(self.one, t, rows))(thetas),)

        self.compiled = {f.__name__: jax.jit(f) for f in (sums, each, totals)}

    def __call__(self, name: str, theta: Array, tuples: Units, weights: Array) -> list[Array]:
        """Return `sums`, `each` or the `totals` at many parameters of weighted tuples."""
        with double_precision():
            rows = [self.rows(units) for units in tuples.T]
            return [np.asarray(array) for array in self.compiled[name](theta, rows, weights)]
