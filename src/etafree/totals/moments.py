r"""Estimating equations without a loss, :math:`g(\theta)=\sum_i w_i\psi_i(\theta)`, written in JAX.

The q moments of p parameters have the quadratic form

.. math:: M(\theta)=\tfrac12\,g(\theta)^\top W g(\theta),

which is zero at a root if :math:`q=p` and is Hansen's (1982) criterion if :math:`q>p`; its
posterior :math:`\exp\{-\eta M\}` is the quasi-posterior of Chernozhukov and Hong (2003). With
:math:`D=\sum_iw_i\partial\psi_i/\partial\theta^\top`, which need not be symmetric,

.. math:: s_i = D^\top W w_i\psi_i,\qquad A=D^\top WD,\qquad A_g=D^\top WD_g

take the places of scores, Hessian and a cluster's share of it, so that the sandwich
:math:`A^{-1}BA^{-1}` is :math:`D^{-1}\operatorname{var}(g)D^{-\top}` at a root and the sandwich of
GMM elsewhere, and CR3 leaves a cluster out of the equations, :math:`(A-A_g)^{-1}s_g`. The weight
matrix is given, or the inverse of :math:`S=\sum_iw_i(\psi_i-\bar\psi)(\psi_i-\bar\psi)^\top` at a
first estimate (two steps), at the estimate itself (iterated), or at every :math:`\theta`
(continuously updated). In the last case the
gradient is :math:`D^\top S^{-1}g` as well, with terms of D weighted by :math:`1-g^\top
S^{-1}(\psi_i-\bar\psi)` (Newey and Smith 2004). Terms with derivatives of D, which vanish where the
moments do, are left out.

References
----------
Hansen, L. P. (1982). Large sample properties of generalized method of moments estimators.
Econometrica 50, 1029-1054. Chernozhukov, V. and Hong, H. (2003). An MCMC approach to classical
estimation. J. Econometrics 115, 293-346. Newey, W. K. and Smith, R. J. (2004). Higher order
properties of GMM and generalized empirical likelihood estimators. Econometrica 72, 219-255.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from etafree.data import pytrees
from etafree.data.groups import Groups
from etafree.data.labels import needs_rows
from etafree.data.pytrees import double_precision, import_jax
from etafree.errors import ConvergenceError, InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_choice, owned
from etafree.totals.base import ClusterBlock, ClusterTotals, Derivatives, Total
from etafree.totals.jax import CHUNK, AutodiffLoss, JaxRows
from etafree.totals.linear import add_group_sums, symmetric

if TYPE_CHECKING:
    from jax import Array as JaxArray

    from etafree.totals.chunked import Part, StreamedTotal

#: The moments of one observation: parameters and a row, pytrees of arrays, to an array (q,).
RowMoments = Callable[[Any, Any], Any]
WEIGHTS = ("iterated", "two-step", "continuous", "identity")
#: A quadratic form of the moments, in units of their variance, that is zero but for rounding.
ROOT = 1e-6
#: How often a weight matrix is updated, and the step, in standard errors, after which it is kept.
UPDATES, SETTLED = 100, 1e-9
#: Standard errors that are far out, and random directions in which one looks there.
FAR, DIRECTIONS = 1e6, 50
#: Parameter values at which the moments of a part are summed at a time.
MANY = 64

T = TypeVar("T", "MomentTotal", "StreamedMoments")


class MomentKernels:
    """Compiled functions of flat parameters (p,), rows and weights (m,)."""

    def __init__(self, function: RowMoments, template: object) -> None:
        import jax
        import jax.numpy as jnp

        structured = pytrees.rebuild(template)

        def psi(theta: Any, row: object) -> JaxArray:
            return jnp.ravel(jnp.asarray(function(structured(theta), row)))

        def moments(theta: JaxArray, rows: object, w: JaxArray) -> tuple[JaxArray]:
            return (w[:, None] * jax.vmap(psi, (None, 0))(theta, rows),)

        def summed(theta: JaxArray, rows: object, w: JaxArray) -> JaxArray:
            return moments(theta, rows, w)[0].sum(0)

        def jacobian(theta: JaxArray, rows: object, w: JaxArray) -> tuple[Any]:
            return (jax.jacfwd(summed)(theta, rows, w),)

        def jacobians(theta: JaxArray, rows: object, w: JaxArray) -> tuple[JaxArray]:
            each: JaxArray = jax.vmap(jax.jacfwd(psi), (None, 0))(theta, rows)
            return (w[:, None, None] * each,)

        def squares(theta: JaxArray, rows: object, w: JaxArray, u: JaxArray) -> Squares:
            each = jax.vmap(psi, (None, 0))(theta, rows)
            weighted = (w * u)[:, None] * each
            return Squares((w[:, None] * each).sum(0), weighted.sum(0), weighted.T @ each)

        self.psi, self.moments = psi, jax.jit(moments)
        self.jacobian, self.jacobians = jax.jit(jacobian), jax.jit(jacobians)
        self.squares = squares
        self.many = jax.jit(jax.vmap(squares, (0, None, None, None)))
        self.sums = jax.jit(jax.vmap(summed, (0, None, None)))


class Squares(NamedTuple):
    r"""Sums over rows with weights w and u: of :math:`w\psi`, :math:`wu\psi`, :math:`wu\psi\psi'`.

    Weights that count copies have u = 1, sampling weights u = w, as they enter variances.
    """

    sums: Any  #: (..., q)
    twice: Any  #: (..., q)
    outer: Any  #: (..., q, q)

    def spread(self, weight: float, square: float) -> Any:
        """Return S (..., q, q), about the mean; the weights w sum to `weight`, wu to `square`."""
        mean = self.sums / weight
        cross = self.twice[..., :, None] * mean[..., None, :]
        cross = cross + cross.swapaxes(-1, -2)
        return self.outer - cross + square * mean[..., :, None] * mean[..., None, :]


class Form(NamedTuple):
    """The quadratic form at a point."""

    sums: Array  #: Of the moments, g (q,).
    spread: Array  #: Of the moments about their mean, S (q, q).
    jacobian: Array  #: D (q, p).
    weighting: Array  #: W (q, q).
    tilted: Array | None = None  #: Weights (n,) of rows in D, where they are not the rows' own.

    @property
    def direction(self) -> Array:
        """Return what takes moments to scores, WD (q, p)."""
        return self.weighting @ self.jacobian

    @property
    def hessian(self) -> Array:
        """Return D'WD (p, p), which is never negative."""
        return self.jacobian.T @ self.direction


class QuadraticForm(Total):
    """What follows from sums of moments, wherever their rows are."""

    loss: Moments
    weighting: Array | None  #: W (q, q); None where it is updated continuously.

    @abstractmethod
    def sums(self, theta: Array) -> tuple[Squares, Array]:
        """Return sums of the moments and their squares, and D (q, p)."""

    @abstractmethod
    def many_sums(self, thetas: Array) -> Squares:
        """Return sums of the moments (D, q) and, where W is not fixed, of their squares."""

    @abstractmethod
    def group_moments(self, theta: Array, groups: Groups) -> Array:
        """Return the moments' sums over groups (G, q)."""

    @property
    @abstractmethod
    def square(self) -> float:
        """Sum of the weights times what they are multiplied with in variances, wu."""

    def form(self, theta: Array) -> Form:
        """Return the quadratic form at a point."""
        squares, jacobian = self.sums(theta)
        spread = symmetric(squares.spread(self.weight, self.square))
        weighting = inverse(spread) if self.weighting is None else self.weighting
        return Form(squares.sums, spread, jacobian, weighting)

    def derivatives(self, theta: Array, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient and D'WD."""
        form = self.form(theta)
        direction, mean = form.direction, form.sums / self.weight
        outer = form.spread + self.square * np.outer(mean, mean)
        scale = np.sqrt(self.n * np.einsum("qi,qr,ri->i", direction, outer, direction))
        value = 0.5 * float(form.sums @ form.weighting @ form.sums)
        return Derivatives(value, form.sums @ direction, form.hessian, scale)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the quadratic form and its gradient (p,)."""
        here = self.derivatives(theta)
        return here.value, here.gradient

    def values_of(self, thetas: Array) -> Array:
        """Return the quadratic form at parameters (D, p)."""
        total = self.many_sums(thetas)
        if self.weighting is not None:
            solved = total.sums @ self.weighting
        else:
            spread = total.spread(self.weight, self.square)
            solved = linalg.solve(spread, total.sums[..., None], "variance of moments")[..., 0]
        return np.asarray(0.5 * np.einsum("di,di->d", total.sums, solved))

    def cluster_totals(self, theta: Array, groups: Groups) -> ClusterTotals:
        form = self.form(theta)
        sums, weights = self.group_moments(theta, groups), groups.weights(self.weights)
        return ClusterTotals(
            form.sums @ form.direction, form.hessian, sums @ form.direction, weights
        )

    def rise(self, theta: Array) -> float:
        """Return by how much the quadratic form rises far out, in the least of many directions.

        Far is a million standard errors of the posterior. Moments that are bounded, and weights
        that are updated continuously, leave it bounded: then there is no posterior on all of space.
        """
        rng, root = np.random.default_rng(0), linalg.whitener(self.form(theta).hessian).T
        axes = np.diag(1.0 / np.sqrt(np.square(linalg.inv(root)).sum(axis=0)))
        ways = np.concatenate([axes, rng.standard_normal((DIRECTIONS, self.p)) @ root.T])
        return float(self.totals(theta + FAR * np.concatenate([ways, -ways])).min())

    def overidentification(self, theta: Array, groups: Groups | None) -> tuple[float, int]:
        r"""Return Hansen's statistic and its degrees of freedom, q - p.

        With :math:`R=I-DA^{-1}D^\top W`, which takes away what estimation fits, and C the variance
        of the moments' sum over independent groups, it is :math:`g^\top(RCR^\top)^+g`, for any W.
        """
        form = self.form(theta)
        white = linalg.cholesky(form.weighting, "weight").T  # where W is the identity
        slope, extra, spread = white @ form.jacobian, len(white) - self.p, form.spread
        if groups is not None:
            sums, w = self.group_moments(theta, groups), groups.weights(self.weights)
            sums = sums - np.outer(w, form.sums / self.weight)
            spread = sums.T @ sums
        keep = np.eye(len(slope)) - slope @ linalg.solve(slope.T @ slope, slope.T, "Hessian")
        kept = keep @ white
        values, vectors = linalg.eigh(kept @ spread @ kept.T, "variance of the moments")
        along = vectors[:, self.p :].T @ kept @ form.sums
        return float(np.sum(np.square(along) / values[self.p :])), extra


@dataclass(frozen=True, eq=False)
class MomentTotal(QuadraticForm, JaxRows):
    """The quadratic form of `Moments` summed over weighted observations."""

    loss: Moments
    weighting: Array | None = None

    traits: ClassVar[frozenset[str]] = frozenset({"leverage", "memory", "moments"})

    @cached_property
    def _kernels(self) -> MomentKernels:
        return self._compile(MomentKernels)

    @property
    def _weights(self) -> Array:
        return np.ones(self.n) if self.weights is None else self.weights

    @property
    def _variance_weights(self) -> Array:
        return np.ones(self.n) if self.frequency else self._weights

    @property
    def square(self) -> float:
        return float(self._weights @ self._variance_weights)

    def moments(self, theta: Array) -> Array:
        """Return the weighted moments of every row, (n, q)."""
        with double_precision():
            (q,) = import_jax().eval_shape(self._kernels.psi, theta, self.row).shape
            out = np.zeros((self.n, q))
            for chunk, (each,) in self._run("moments", theta):
                out[chunk.where[chunk.skip :]] = np.asarray(each)[chunk.skip :]
        return out

    def sums(self, theta: Array) -> tuple[Squares, Array]:
        squares = Squares(*(each[0] for each in self._squares(theta[None])))
        return squares, self._sums("jacobian", theta)[0]

    def _squares(self, thetas: Array) -> Squares:
        u = self._variance_weights
        with double_precision():
            parts = [
                self._kernels.many(thetas, c.rows, c.weights, u[c.where]) for c in self._chunks
            ]
            return Squares(
                *(np.sum([np.asarray(a) for a in t], axis=0) for t in zip(*parts, strict=True))
            )

    def many_sums(self, thetas: Array) -> Squares:
        if self.weighting is None:
            return self._squares(thetas)
        with double_precision():
            parts = [self._kernels.sums(thetas, c.rows, c.weights) for c in self._chunks]
            sums = np.sum([np.asarray(part) for part in parts], axis=0)
        return Squares(sums, None, None)

    def group_moments(self, theta: Array, groups: Groups) -> Array:
        moments = self.moments(theta)
        out = np.zeros((len(groups), moments.shape[1]))
        add_group_sums(out, groups.codes, np.ones(self.n), moments, self._compiled)
        return out

    def form(self, theta: Array) -> Form:
        """Return the quadratic form; where W is updated, with D as the gradient has it."""
        form = super().form(theta)
        if self.weighting is not None:
            return form
        w, moments = self._weights, self.moments(theta)
        off = np.divide(moments @ (form.weighting @ form.sums), w, np.zeros(self.n), where=w > 0)
        off = (off - w @ off / w.sum()) * self._variance_weights
        tilted = w * (1.0 - off + w @ off / w.sum())
        jacobian = self.reweighted(tilted, self.frequency)._sums("jacobian", theta)[0]
        return form._replace(jacobian=jacobian, tilted=tilted)

    def values(self, theta: Array) -> Array:
        """Return each row's part in the quadratic form (n,)."""
        form = self.form(theta)
        return np.asarray(0.5 * self.moments(theta) @ (form.weighting @ form.sums))

    def scores(self, theta: Array) -> Array:
        return np.asarray(self.moments(theta) @ self.form(theta).direction)

    def totals(self, thetas: Array) -> Array:
        numbers = min(CHUNK, 16 * CHUNK // self._width)
        step = 1 << max(0, (numbers // len(self._chunks[0].where)).bit_length() - 1)
        return pytrees.in_bundles(thetas, step, self.values_of)

    def log_density_parts(self) -> Callable[[JaxArray], JaxArray]:
        """Return the quadratic form as a function of theta (p,) that JAX can trace in float64."""
        import jax.numpy as jnp

        chunks, u = self._chunks, self._variance_weights
        fixed, weight, square = self.weighting, self.weight, self.square

        def form(theta: JaxArray) -> JaxArray:
            parts = [
                self._kernels.squares(theta, c.rows, c.weights, jnp.asarray(u[c.where]))
                for c in chunks
            ]
            total = Squares(*(sum(terms) for terms in zip(*parts, strict=True)))
            if fixed is not None:
                value = 0.5 * total.sums @ fixed @ total.sums
            else:
                spread = total.spread(weight, square)
                value = 0.5 * total.sums @ jnp.linalg.solve(spread, total.sums)
            return jnp.where(jnp.isnan(value), jnp.inf, value)

        return form

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield score sums and shares of the Hessian, D'W D_g, which are not symmetric."""
        form, weights = self.form(theta), groups.weights(self.weights)
        scores = self.moments(theta) @ form.direction
        rows = self if form.tilted is None else self.reweighted(form.tilted, self.frequency)
        for first, count, members in self._blocks(groups):
            codes = groups.codes[members] - first
            sums, slopes = np.zeros((count, self.p)), np.zeros((count, form.jacobian.size))
            add_group_sums(sums, codes, np.ones(len(codes)), scores[members], self._compiled)
            there = members[rows._weights[members] != 0]
            codes = groups.codes[there] - first
            for part, (each,) in rows._gathered("jacobians", theta, there, form.jacobian.size):
                one = np.ones(len(each))
                add_group_sums(slopes, codes[part], one, each, self._compiled)
            shares = form.direction.T @ slopes.reshape(count, *form.jacobian.shape)
            outer = sums[:, :, None] * sums[:, None, :]
            yield ClusterBlock(first, sums, shares, weights[first : first + count], outer)


@dataclass(frozen=True, eq=False)
class StreamedMoments(QuadraticForm):
    """The same over rows that are read in parts, each ``{"X": design, "y": response}``."""

    loss: Moments
    template: object
    table: StreamedTotal  #: The rows, with a loss that is not asked for.
    weighting: Array | None = None
    weights: None = field(default=None, init=False)  # each part has its own

    traits: ClassVar[frozenset[str]] = frozenset({"moments"})

    @property
    def n(self) -> int:
        return self.table.n

    @property
    def p(self) -> int:
        return sum(leaf.size for leaf in import_jax().tree.leaves(self.template))

    @property
    def frequency(self) -> bool:  # type: ignore[override]
        return self.table.frequency

    @property
    def weight(self) -> float:
        return self.table.weight

    @property
    def count(self) -> float:
        return self.table.count

    @property
    def copies(self) -> bool:
        return self.table.copies

    @cached_property
    def row(self) -> object:
        """Shapes and types of one row."""
        like, k = import_jax().ShapeDtypeStruct, self.table.p
        return {"X": like((k,), np.float64), "y": like((), np.float64)}

    @cached_property
    def q(self) -> int:
        """Number of moments."""
        with double_precision():
            made = import_jax().eval_shape(self.loss.function, self.template, self.row)
        return int(np.prod(made.shape))

    def _part(self, part: Part) -> MomentTotal:
        columns = {"X": np.ascontiguousarray(part.X[np.arange(part.n)]), "y": part.y}
        return MomentTotal(
            self.loss,
            self.template,
            columns,
            part.weights,
            self.frequency,
            weighting=self.weighting,
        )

    @cached_property
    def square(self) -> float:
        def add(part: Part, out: Array) -> None:
            out += self._part(part).square

        return float(self.table.fold(add, np.zeros(1))[0][0])

    def sums(self, theta: Array) -> tuple[Squares, Array]:
        def add(part: Part, *out: Array) -> None:
            squares, jacobian = self._part(part).sums(theta)
            for total, more in zip(out, (*squares, jacobian), strict=True):
                total += more

        q = self.q
        zeros = np.zeros(q), np.zeros(q), np.zeros((q, q)), np.zeros((q, self.p))
        *squares, jacobian = self.table.fold(add, *zeros)
        return Squares(*squares), jacobian

    def many_sums(self, thetas: Array) -> Squares:
        def add(part: Part, out: Array) -> None:
            rows = self._part(part)
            for first in range(0, len(thetas), MANY):
                here = slice(first, first + MANY)
                out[here] += rows.many_sums(thetas[here]).sums

        return Squares(self.table.fold(add, np.zeros((len(thetas), self.q)))[0], None, None)

    def totals(self, thetas: Array) -> Array:
        values = self.values_of(thetas)
        return np.where(np.isnan(values), np.inf, values)

    def group_moments(self, theta: Array, groups: Groups) -> Array:
        def add(part: Part, out: Array) -> None:
            rows, codes = self._part(part), part.codes(groups)
            add_group_sums(out, codes, np.ones(part.n), rows.moments(theta), rows._compiled)

        zeros = np.zeros((len(groups), self.q))
        return np.asarray(self.table.fold(add, zeros, groups=groups)[0])

    def reweighted(self, weights: Array | None, frequency: bool) -> StreamedMoments:
        raise needs_rows("weights")

    def values(self, theta: Array) -> Array:
        raise needs_rows("criterion")

    def scores(self, theta: Array) -> Array:
        raise needs_rows("criterion")

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        raise needs_rows("correction")


@dataclass(frozen=True, repr=False, eq=False)
class Moments(AutodiffLoss):
    r"""Estimating equations :math:`\sum_iw_i\psi(\theta,\mathrm{row}_i)=0`, written in JAX.

    What is minimised is :math:`\tfrac12n\bar\psi^\top W\bar\psi`, zero at a root if there are as
    many moments as parameters; its generalized posterior is the quasi-posterior. Instrumental
    variables, generalized estimating equations, quasi-likelihood and several equations stacked
    are a line each. Its criterion takes ``data`` and ``start`` as that of `JaxLoss`.

    Parameters
    ----------
    function : callable
        ``psi(theta, row)``: the moments of one observation, an array of q >= p numbers, zero on
        average at the parameters that are meant.
    weight : {"iterated", "two-step", "continuous", "identity"} or (q, q) array
        :math:`W`: the inverse variance of the moments at the estimate, at a first one, or at every
        :math:`\theta`; the identity; or a matrix, such as :math:`(Z^\top Z/n)^{-1}` for two-stage
        least squares. With as many moments as parameters the estimate and its variance do not
        depend on it, only the posterior's shape does.
    first : (q, q) array, optional
        Weight matrix of the first step of two; the identity if it is not given.
    name : str, optional
        What results call it; default the function's own name.
    constants : bool
        As for `JaxLoss`: arrays that the function closes over are no other rows.

    Raises
    ------
    InputError
        `function` is not callable, `weight` is none of its choices. The criterion refuses fewer
        moments than parameters, moments that are not finite, and equations without a root near
        `start`.
    MissingExtraError
        JAX is not installed (raised by the criterion).

    See Also
    --------
    JaxLoss : A loss of your own.
    q_posterior : A posterior of the scores of a loss, without a learning rate.

    Notes
    -----
    Over-identified equations (q > p) are supposed to hold together: standard errors are those of
    Hansen (1982), and the check ``overidentification`` is his test.

    References
    ----------
    Hansen, L. P. (1982). Large sample properties of generalized method of moments estimators.
    Econometrica 50, 1029-1054. Chernozhukov, V. and Hong, H. (2003). An MCMC approach to classical
    estimation. J. Econometrics 115, 293-346.

    Examples
    --------
    >>> import etafree as ef
    >>> def instrument(theta, row):
    ...     return row["z"] * (row["y"] - theta * row["x"])
    >>> data = {"y": np.array([1.0, 2.0, 4.0, 4.0]), "x": np.array([1.0, 2.0, 3.0, 5.0])}
    >>> data["z"] = np.array([0.0, 1.0, 1.0, 2.0])
    >>> criterion = ef.Criterion(ef.Moments(instrument), data, start=0.0)
    >>> ef.target(criterion, correction="HC0").center.round(4)  # z'y / z'x
    array([0.9333])
    >>> criterion.loss.describe()
    'the quadratic form of the expected moments instrument'
    """

    function: RowMoments
    weight: str | Array = "iterated"
    first: Array | None = None
    name: str | None = None
    constants: bool = False

    arguments: ClassVar[str] = "theta, row"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.weight, str):
            as_choice(self.weight, "weight", WEIGHTS)
        if self.first is not None and self.weight != "two-step":
            raise InputError("first", "is for two steps", "pass weight='two-step', or weight=first")
        for argument in ("weight", "first"):
            given = getattr(self, argument)
            if given is not None and not isinstance(given, str):
                matrix = owned(linalg.check_covariance(given, argument))
                object.__setattr__(self, argument, matrix)

    def __repr__(self) -> str:
        kind = self.weight if isinstance(self.weight, str) else "given"
        return f"Moments({self.label}, weight={kind})"

    def describe(self) -> str:
        """Return what is minimised, in words."""
        return f"the quadratic form of the expected moments {self.label}"

    def count(self, data: object) -> int:
        return pytrees.as_columns(data)[1]

    def bind(
        self, data: object, start: object, weights: Array | None, frequency: bool
    ) -> tuple[MomentTotal, Array, tuple[str, ...] | None]:
        """Return the total with its weight matrix, the first estimate (p,) and names."""
        template, flat, names = pytrees.as_parameters(start)
        total = MomentTotal(self, template, pytrees.as_columns(data)[0], weights, frequency)
        q = _check_moments(total, flat)
        bad = np.flatnonzero(~np.isfinite(total.moments(flat)).all(axis=1))
        if len(bad):
            problem = f"is where the moments of {len(bad)} rows are not finite, the first {bad[0]}"
            advice = "pass another start=, or drop rows with missing values"
            raise InputError("start", problem, advice)
        return *self._weighted(total, flat, q), names

    def bind_parts(
        self, table: StreamedTotal, start: object
    ) -> tuple[StreamedMoments, Array, tuple[str, ...] | None]:
        """Return the same of rows that are read in parts."""
        if self.weight == "continuous":
            problem = "is 'continuous', and the data are read in parts"
            raise InputError("weight", problem, "use 'iterated'")
        template, flat, names = pytrees.as_parameters(start)
        total = StreamedMoments(self, template, table)
        return *self._weighted(total, flat, _check_moments(total, flat)), names

    def _weighted(self, total: T, start: Array, q: int) -> tuple[T, Array]:
        """Return a total with its weight matrix, and the first estimate (p,)."""
        fixed = None
        if not isinstance(self.weight, str) or self.weight == "identity":
            fixed = _of_size(self.weight, "weight", q) / total.weight
        first = _of_size(self.first, "first", q) / total.weight if fixed is None else fixed
        theta = _nearest(total, start, _scaled(total, start) if q == total.p else first)
        weighting = inverse(total.form(theta).spread)
        if q == total.p:
            _check_root(total, theta, weighting)
        if fixed is not None:
            return replace(total, weighting=fixed), theta
        if self.weight == "continuous":
            return total, _nearest(total, theta, weighting)
        if self.weight == "iterated" and q > total.p:
            theta, weighting = _iterated(total, theta, weighting)
        return replace(total, weighting=weighting), theta


def _of_size(matrix: object, argument: str, q: int) -> Array:
    """Return a weight matrix (q, q), the identity if none is given."""
    if not isinstance(matrix, np.ndarray):
        return np.eye(q)
    if len(matrix) != q:
        problem = f"has {len(matrix)} rows for {q} moments"
        raise InputError(argument, problem, f"pass a ({q}, {q}) matrix")
    return matrix


def inverse(spread: Array) -> Array:
    """Return the inverse of a variance (q, q) of moments, whatever their units."""

    def advice() -> str:
        loads = np.abs(linalg.correlation_eigenvalues(spread)[1][:, 0])
        named = ", ".join(str(k) for k in np.flatnonzero(loads > 0.1 * loads.max())[:8])
        return (
            f"moments {named} (counted from 0) are constant or determine each other: leave one "
            "out; for a function of other parameters use result.of(...)"
        )

    checked = linalg.check_covariance(spread, "function", len(spread), advice)
    white = linalg.whitener(checked, "variance of the moments")
    return np.asarray(white.T @ white)


def _scaled(total: QuadraticForm, theta: Array) -> Array:
    """Return a diagonal weight matrix that puts moments into units of their size."""
    size = np.diagonal(total.sums(theta)[0].outer)
    return np.diag(1.0 / np.where(size > 0, size, 1.0))


def _nearest(total: QuadraticForm, start: Array, weighting: Array) -> Array:
    """Return the minimiser of the quadratic form next to `start`, to be polished by Newton."""
    from scipy.optimize import least_squares

    root = linalg.cholesky(weighting, "weight").T
    seen: dict[bytes, tuple[Array, Array]] = {}

    def at(theta: Array) -> tuple[Array, Array]:
        if theta.tobytes() not in seen:
            squares, jacobian = total.sums(theta)
            seen.clear()
            seen[theta.tobytes()] = root @ squares.sums, root @ jacobian
        return seen[theta.tobytes()]

    def residuals(theta: Array) -> Array:
        return at(theta)[0]

    def slopes(theta: Array) -> Array:
        return at(theta)[1]

    fit = least_squares(residuals, start, slopes, xtol=1e-15, ftol=1e-15, gtol=1e-15, x_scale="jac")
    return np.asarray(fit.x)


def _iterated(total: QuadraticForm, theta: Array, weighting: Array) -> tuple[Array, Array]:
    """Return the estimate whose moments have the inverse variance that it was weighted with."""
    for _ in range(UPDATES):
        last, theta = theta, _nearest(total, theta, weighting)
        form = total.form(theta)
        weighting, step = inverse(form.spread), theta - last
        if step @ form.jacobian.T @ weighting @ form.jacobian @ step < SETTLED**2:
            return theta, weighting
    raise ConvergenceError(
        f"the weight matrix has not settled after {UPDATES} updates; use weight='two-step', "
        "'continuous', or another start="
    )


def _check_moments(total: MomentTotal | StreamedMoments, start: Array) -> int:
    """Return q; refuse functions that do not turn a row into p or more finite numbers."""
    loss, p = total.loss, total.p
    result = pytrees.traced("function", loss.function, total.template, total.row)
    shape = getattr(result, "shape", None)
    q = 0 if shape is None else int(np.prod(shape))
    if q < p:
        problem = f"returns {q} moments for {p} parameters"
        raise InputError("function", problem, "return an array of at least as many numbers")
    if not loss.constants:
        like = total.template, total.row
        pytrees.refuse_other_rows("function", loss.function, total.n, *like)
    squares, jacobian = total.sums(start)
    if np.isfinite(squares.sums).all() and not np.isfinite(jacobian).all():
        problem = "has derivatives that are not finite at the start, where its value is"
        raise InputError(
            "function", problem, "put another jnp.where inside the branch that is not taken"
        )
    if "memory" not in total.traits and not np.isfinite(squares.sums).all():
        raise InputError("start", "is where moments are not finite", "pass another start=")
    return q


def _check_root(total: QuadraticForm, theta: Array, weighting: Array) -> None:
    """Refuse a point that is no root of as many equations as there are parameters."""
    sums = total.sums(theta)[0].sums
    if sums @ weighting @ sums > ROOT * max(1.0, float(np.abs(theta).max())):
        raise InputError(
            "start",
            "leads to no root of the equations: they are smallest, and not zero, at "
            f"{np.array2string(theta, precision=4, threshold=8)}",
            "pass another start=, or check that there are parameters at which they vanish",
        )
