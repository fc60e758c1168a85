r"""Losses over pairs of units, among them one of your own written in JAX.

Weights, clusters, strata and times are given per unit, never per pair: no pair has a score that
is independent of the others'. `etafree.pairs` says how sums over pairs become scores of units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etafree.differences import PairwiseDifference, Wilcoxon
from etafree.errors import InputError
from etafree.linalg import majorized
from etafree.pairs import PER_UNIT, PairTotal, RowSums, checked_units, tiles
from etafree.pytrees import double_precision, import_jax, rebuild, refuse_other_rows
from etafree.totals import GeneralLoss
from etafree.validation import Array, check_finite, refuse_masked

__all__ = ["PairLoss", "PairwiseDifference", "Wilcoxon"]

#: Numbers that the derivatives of a tile of pairs, and the losses at many parameters, may take.
TILE_NUMBERS = 1 << 20
#: Pairs on which symmetry is checked.
CHECKED = 32


@dataclass(frozen=True, eq=False)
class PairLoss(GeneralLoss):
    r"""A loss of your own over pairs, :math:`M(\theta)=\sum_{i<j}h(\theta,z_i,z_j)`.

    Gradients and Hessians come from JAX, in double precision whatever its global setting, over
    tiles of pairs. It is not known to be convex: the minimum is the one next to the criterion's
    `start`. Every evaluation takes :math:`n^2/2` pairs.

    Parameters
    ----------
    h : callable
        ``h(theta, a, b)``: a number, in terms of ``jax.numpy``. `a` and `b` are rows of the data
        (a dict of columns gives dicts of numbers), `theta` has the structure of `start`. It must
        not change when `a` and `b` change places, which is checked on a few pairs.
    constants : bool
        As for `JaxLoss`: arrays that `h` closes over are no other rows.

    Raises
    ------
    InputError
        `h` is not callable. The criterion refuses one that is not symmetric or not finite.
    MissingExtraError
        JAX is not installed (raised by the criterion).

    Notes
    -----
    Data are columns: a DataFrame (its numeric columns), or a dict, tuple or any pytree of arrays
    with a row per *unit*. Rows that are pairs already (differences, say) cannot be told from units
    and give intervals that are far too short. Pass ``ef.Criterion(..., start=theta0)``.

    References
    ----------
    Hoeffding, W. (1948). A class of statistics with asymptotically normal distribution. Ann. Math.
    Statist. 19, 293-325.

    Examples
    --------
    >>> import etafree as ef
    >>> def h(theta, a, b):  # half the squared difference estimates the variance
    ...     return (theta - 0.5 * (a["y"] - b["y"]) ** 2) ** 2
    >>> data = {"y": np.array([1.0, 2.0, 4.0])}
    >>> ef.minimise(ef.Criterion(ef.PairLoss(h), data, start=1.0)).theta.round(8)
    array([2.33333333])
    """

    h: Callable[[Any, Any, Any], Any]
    constants: bool = False
    row_advice: ClassVar[str] = PER_UNIT

    def __post_init__(self) -> None:
        if not callable(self.h):
            raise InputError("h", f"is a {type(self.h).__name__}", "pass a function (theta, a, b)")

    def count(self, data: Any) -> int:
        """Return the number of units."""
        return _columns(data)[1]

    def bind(
        self, data: Any, start: Any, weights: Array | None, frequency: bool
    ) -> tuple[JaxPairTotal, Array, tuple[str, ...] | None]:
        """Return the total, the start as a vector and names made of its keys."""
        if start is None:
            raise InputError("start", "is missing", "pass start=theta0, which gives theta's shape")
        jax = import_jax()
        columns, n = _columns(data)
        checked_units(n, weights)
        leaves, tree = jax.tree_util.tree_flatten_with_path(start)
        numbers = [_number_array(leaf, "start").astype(np.float64) for _, leaf in leaves]
        first = np.concatenate([np.zeros(0), *(array.reshape(-1) for array in numbers)])
        if len(first) == 0:
            raise InputError("start", "is empty", "pass a number or array per parameter")
        names = [
            _path(path) + "".join(f"[{k}]" for k in index)
            for (path, _), array in zip(leaves, numbers, strict=True)
            for index in np.ndindex(array.shape)
        ]
        sums = _TileSums(self.h, rebuild(jax.tree.unflatten(tree, numbers)), columns)
        sums.check(first, n)
        if not self.constants:
            refuse_other_rows("h", sums._one, n, first, sums._rows(0), sums._rows(1))
        total = JaxPairTotal(self, sums, n, len(first), weights, frequency)
        return total, first, tuple(names) if leaves[0][0] else None

    def describe(self) -> str:
        return f"the expected {getattr(self.h, '__name__', 'loss')!s} over pairs of units"


@dataclass(frozen=True, eq=False)
class JaxPairTotal(PairTotal):
    """Sum over pairs of a loss written in JAX."""

    loss: Any
    sums: _TileSums
    units: int
    parameters: int
    weights: Array | None
    frequency: bool

    @property
    def n(self) -> int:
        """Number of units."""
        return self.units

    @property
    def p(self) -> int:
        """Number of parameters."""
        return self.parameters

    def _weighted_tiles(self, size: int) -> Iterator[tuple[slice, slice, Array]]:
        """Yield blocks of units and the weights of their pairs, zero for a unit with itself."""
        w = np.ones(self.n) if self.weights is None else self.weights
        for R, C in tiles(self.n, size):
            pairs = np.outer(w[R], w[C])
            if R == C:
                np.fill_diagonal(pairs, w[R] * (w[R] - 1.0) if self.frequency else 0.0)
            yield R, C, pairs

    def row_sums(self, theta: Array, *, majorize: bool = False) -> RowSums:
        """Return all sums over pairs; `majorize` turns negative eigenvalues of the Hessian."""
        n, p = self.n, self.p
        values, scores = np.zeros(n), np.zeros((n, p))
        hessian: Array = np.zeros((p, p))
        scale = np.zeros(p)
        side = int(np.clip(np.sqrt(TILE_NUMBERS / (1 + p + p * p)), 16, 512))
        for R, C, pairs in self._weighted_tiles(side):
            share = 0.5 if R == C else 1.0
            rows, columns, slope_rows, slope_columns, bend, size = self.sums.all(theta, R, C, pairs)
            values[R] += rows
            scores[R] += slope_rows
            if R != C:
                values[C] += columns
                scores[C] += slope_columns
            hessian += share * bend
            scale += share * size
        hessian = 0.5 * (hessian + hessian.T)
        if majorize and np.isfinite(hessian).all():
            hessian = _positive(hessian)
        return RowSums(values, scores, 0.5 * scores.sum(axis=0), hessian, scale)

    def totals(self, thetas: Array) -> Array:
        """Return the total loss at each of many parameter values, (D, p) -> (D,)."""
        side = min(self.n, 512)
        most = max(1, TILE_NUMBERS // side**2)
        out = np.zeros(len(thetas))
        for first in range(0, len(thetas), most):
            some = thetas[first : first + most]
            many = min(most, 1 << (len(some) - 1).bit_length())  # few shapes to compile for
            padded = np.concatenate([some, np.repeat(some[:1], many - len(some), axis=0)])
            for R, C, pairs in self._weighted_tiles(side):
                found = self.sums.values(padded, R, C, pairs)[: len(some)]
                out[first : first + most] += (0.5 if R == C else 1.0) * found
        return out


class _TileSums:
    """Compiled sums of h and its derivatives over tiles of pairs."""

    def __init__(self, h: Callable[[Any, Any, Any], Any], unravel: Any, columns: Any) -> None:
        jax = import_jax()
        numpy, self._map = jax.numpy, jax.tree_util.tree_map
        with double_precision():
            self._columns = self._map(numpy.asarray, columns)

        def one(theta: Any, a: Any, b: Any) -> Any:
            return h(unravel(theta), a, b)

        def over(function: Any) -> Any:
            return jax.vmap(jax.vmap(function, (None, None, 0)), (None, 0, None))

        def kept(array: Any, pairs: Any) -> Any:  # what has no weight is not there, were it NaN
            pairs = pairs.reshape(pairs.shape + (1,) * (array.ndim - 2))
            return numpy.where(pairs == 0, 0.0, pairs * array)

        def everything(theta: Any, a: Any, b: Any, pairs: Any) -> Any:
            value, slope = over(jax.value_and_grad(one))(theta, a, b)
            value, slope = kept(value, pairs), kept(slope, pairs)
            bend = kept(over(jax.hessian(one))(theta, a, b), pairs).sum((0, 1))
            size = numpy.abs(slope).sum((0, 1))
            return value.sum(1), value.sum(0), slope.sum(1), slope.sum(0), bend, size

        def total(theta: Any, a: Any, b: Any, pairs: Any) -> Any:
            return kept(over(one)(theta, a, b), pairs).sum()

        self._one = one
        self._all = jax.jit(everything)
        self._values = jax.jit(jax.vmap(total, (0, None, None, None)))

    def _rows(self, which: Any) -> Any:
        return self._map(lambda column: column[which], self._columns)

    def all(self, theta: Array, R: slice, C: slice, pairs: Array) -> list[Array]:
        """Return row and column sums of losses and gradients, Hessian and size of the gradient."""
        with double_precision():
            made = self._all(theta, self._rows(R), self._rows(C), pairs)
            return [np.asarray(part) for part in made]

    def values(self, thetas: Array, R: slice, C: slice, pairs: Array) -> Array:
        """Return the loss of a tile at many parameters."""
        with double_precision():
            return np.asarray(self._values(thetas, self._rows(R), self._rows(C), pairs))

    def check(self, theta: Array, n: int) -> None:
        """Refuse an h that is no number or depends on the order of its rows."""
        rng = np.random.default_rng(0)
        i, gap = rng.integers(0, n, CHECKED), rng.integers(1, n, CHECKED)
        moved = theta + 0.1 * (1.0 + np.abs(theta)) * rng.standard_normal(len(theta))
        jax, a, b = import_jax(), i, (i + gap) % n
        with double_precision():
            try:
                shape = jax.eval_shape(self._one, theta, self._rows(0), self._rows(1)).shape
            except Exception as error:  # whatever the user's function raises
                raise InputError("h", f"fails on the first two rows: {error}",
                                 "it is called as h(theta, a, b)") from error  # fmt: skip
            if shape != ():
                raise InputError("h", f"returns an array of shape {shape}", "return a number")
            each = jax.vmap(self._one, (None, 0, 0))
            for point in (theta, moved):
                one = np.asarray(each(point, self._rows(a), self._rows(b)))
                two = np.asarray(each(point, self._rows(b), self._rows(a)))
                off = ~np.isclose(one, two, rtol=1e-7, atol=1e-9 * np.nanmax(np.abs(one)),
                                  equal_nan=True)  # fmt: skip
                for k in np.flatnonzero(off)[:1]:
                    raise InputError(
                        "h", f"is {one[k]:g} for rows {a[k]} and {b[k]} but {two[k]:g} with the "
                        "rows exchanged", "a loss over pairs must be symmetric in its rows",
                    )  # fmt: skip


def _positive(hessian: Array) -> Array:
    """Return the matrix with eigenvalues made positive, in units where its diagonal is one."""
    unit = np.sqrt(np.maximum(np.abs(np.diagonal(hessian)), 1e-300))
    return majorized(hessian, unit, 1e-4)


def _columns(data: Any) -> tuple[Any, int]:
    """Return the data as a pytree of numeric columns, and the number of units."""
    jax = import_jax()
    if hasattr(data, "columns"):
        data = {str(name): np.asarray(data[name]) for name in data.columns}
        data = {name: column for name, column in data.items() if column.dtype.kind in "biuf"}
    leaves, tree = jax.tree_util.tree_flatten_with_path(data)
    made = [_number_array(leaf, "data" + jax.tree_util.keystr(path)) for path, leaf in leaves]
    if not made:
        raise InputError("data", "has no numeric columns", "pass a dict of arrays")
    counts = {column.shape[0] if column.ndim else 0 for column in made}
    if len(counts) > 1 or 0 in counts:
        raise InputError("data", f"has columns of {sorted(counts)} rows", "pass one row per unit")
    return jax.tree_util.tree_unflatten(tree, made), counts.pop()


def _number_array(value: Any, argument: str) -> Any:
    refuse_masked(value, argument)
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InputError(argument, f"has dtype {array.dtype}", "pass numbers")
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
        check_finite(array, argument)
    return array


def _path(path: Any) -> str:
    """Return the key of a parameter as in a name, its parts joined by points."""
    return ".".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)
