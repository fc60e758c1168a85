r"""Criterion = data + loss + penalty: the penalized total loss and its derivatives.

:math:`L(\theta) = M(\theta) + \lambda_n s_n\rho(\theta)`, sums over observations throughout. Data
are arrays, a table with a formula, or a table that is read in parts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etafree.data.formula import design
from etafree.data.labels import StreamedGroups, StreamedRows, column_name
from etafree.data.rows import KINDS, Rows, checked_arrays, checked_weights, shared_index
from etafree.data.sources import BATCH, as_source
from etafree.errors import InputError
from etafree.foundation.arguments import (
    Array,
    as_array,
    as_bool,
    as_choice,
    as_count,
    as_mapping,
    as_names,
    as_number,
    as_pandas,
    in_order,
    owned,
    refuse_masked,
    renamed,
)
from etafree.foundation.terminal import counted_noun
from etafree.losses import LinearLoss, Squared
from etafree.penalties import KinkedPenalty, NoPenalty, Penalty
from etafree.totals.base import Derivatives, GeneralLoss
from etafree.totals.chunked import Reader, StreamedTotal, find_recipe
from etafree.totals.linear import LinearTotal, has_design, is_linear
from etafree.totals.nuisance import Stacked, stack


@dataclass(frozen=True, eq=False, repr=False)
class Criterion:
    r"""Penalized total loss of a data set, :math:`L = M + \lambda_n s_n\rho`.

    From arrays here, from a table by `from_formula`, from data larger than memory by `from_parts`
    or `from_parquet`. Methods take a parameter vector `theta`, (p,). It is a frozen dataclass:
    ``dataclasses.replace`` changes a field and keeps the others.

    Parameters
    ----------
    loss : Loss
        For example ``ef.losses.Huber(1.345)``, or one of your own: ``ef.JaxLoss(f)``.
    data : (X, y), or what the loss takes
        Design matrix (n, p), array or DataFrame (its columns name the parameters), and response
        (n,); tables and columns may be pandas's, polars's or PyArrow's. No intercept is added.
        Your own losses and losses over pairs document what they take. Arrays of numbers are not
        copied: do not write into them while the criterion, or a result made with it, is in use.
        Everything else that is passed is copied.
    penalty : Penalty, optional
        For example ``ef.penalties.Ridge(0.5)``. None means no penalty.
    weights : (n,) array, optional
        At least zero. `weight_kind` must then say which kind they are.
    weight_kind : {"frequency", "sampling"}
        ``frequency``: a weight counts identical copies of the row. ``sampling``: a weight is the
        number of units of the population that the row represents.
    offset : (n,) array, optional
        Added to the linear predictor.
    trials : (n,) array, optional
        Number of trials behind each response (`Logistic` only).
    names : sequence of str, optional
        Parameter names.
    start : optional
        Starting value for a loss of your own; its structure defines the parameters.
    total : Total, optional
        The unpenalized total loss M, made from `data` if it is not given.
    rows : Rows, optional
        Which rows of the user's table are in use.
    intercept : int, optional
        Column that a ridge leaves alone; only the formula front end sets it.
    recorded : mapping, optional
        Nuisance values recorded in addition to those of the loss, see `plug_ins`.

    Raises
    ------
    InputError
        Data, weights, names or penalty cannot be used with the loss or with each other.

    See Also
    --------
    minimise : Its minimiser.
    target : The minimiser with the sandwich covariance.
    GeneralizedPosterior : Its posterior at a learning rate.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.array([[1.0], [1.0]]), np.array([1.0, 3.0])
    >>> c = ef.Criterion(ef.losses.Squared(), data=(X, y), penalty=ef.penalties.Ridge(1.0))
    >>> c.value(np.array([1.0])), c.gradient(np.array([1.0]))
    (3.0, array([0.]))
    >>> c.hessian([1.0]), c.values_at([[1.0], [2.0]])
    (array([[4.]]), array([3., 5.]))
    >>> c.estimated, c.stacked([1.0]) is None  # no plug-in scale, nothing to add to scores
    ((), True)
    >>> plain = c.with_loss(ef.losses.Huber(1.0)).with_penalty(ef.penalties.NoPenalty())
    >>> plain.describe(), plain.reweighted([3, 1]).derivatives([1.0]).gradient
    ('the minimiser of the expected Huber loss', array([-1.]))
    >>> ef.minimise(plain.subset(np.array([1]))).theta
    array([3.])
    """

    loss: Any
    data: InitVar[Any] = None
    penalty: Penalty = field(default_factory=NoPenalty)
    _: KW_ONLY
    weights: InitVar[object] = None
    weight_kind: InitVar[str | None] = None
    offset: InitVar[object] = None
    trials: InitVar[object] = None
    names: Any = None
    start: Any = None
    total: Any = None
    rows: Rows = None  # type: ignore[assignment]
    intercept: int | None = None
    recorded: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(
        self, data: Any, weights: object, weight_kind: str | None, offset: object, trials: object
    ) -> None:
        if self.total is None:
            check_penalty(self.penalty)
            bind = _bind_general if isinstance(self.loss, GeneralLoss) else _bind_linear
            data = tuple(map(as_pandas, data)) if isinstance(data, tuple) else as_pandas(data)
            bound = bind(self, data, weights, weight_kind, offset, trials)
            for name, value in bound.items():
                object.__setattr__(self, name, value)
            penalty = (self.penalty or NoPenalty()).fitted_to(self.p)  # None is no penalty
            object.__setattr__(self, "penalty", penalty)
        object.__setattr__(self, "loss", self.total.loss)  # with its plug-in scale filled in
        assert self.strength >= 0  # an invalid strength is refused here

    @classmethod
    def from_formula(
        cls,
        formula: str,
        data: object,
        loss: LinearLoss | GeneralLoss,
        penalty: Penalty | None = None,
        *,
        weights: object = None,
        weight_kind: str | None = None,
        offset: object = None,
        trials: object = None,
        penalize_intercept: bool = False,
        context: Mapping[str, Any] | None = None,
    ) -> Criterion:
        """Return the criterion of a formula such as ``"y ~ x1 + C(region)"`` and a DataFrame.

        Rows with missing values are dropped, and a printed calibration says how many. Anything
        passed later with one value per original row (clusters, say) is reduced to the same rows; it
        may also be a column name. Categories that do not occur get no column.

        Parameters
        ----------
        formula : str
            Response and terms; an intercept is added unless the formula has ``- 1``.
        data : DataFrame
            Of pandas, polars or PyArrow, with a row per observation.
        loss : LinearLoss or Cox
            For example ``ef.losses.Huber(1.345)``. `Cox` takes ``Surv(time, event) ~ x``.
        penalty : Penalty, optional
            For example ``ef.penalties.Ridge(0.5)``.
        weights, offset, trials : (n,) array or column name, optional
            As for the criterion.
        weight_kind : {"frequency", "sampling"}
            Kind of the weights.
        penalize_intercept : bool
            By default ridge and kinked penalties do not apply to the intercept (a ridge with an
            explicit Q, and any other penalty, is used unchanged).
        context : mapping, optional
            Your own functions that the formula calls.

        Returns
        -------
        Criterion
            Its names are those of the design matrix.

        Examples
        --------
        >>> import etafree as ef, pandas as pd
        >>> df = pd.DataFrame({"y": [1.0, 2.0, 4.0], "x": [0.0, 1.0, 2.0]})
        >>> ef.Criterion.from_formula("y ~ x", df, ef.losses.Squared()).names
        ('Intercept', 'x')
        """
        as_bool(penalize_intercept, "penalize_intercept")
        if isinstance(loss, GeneralLoss):
            matrix, read = loss.bind_formula(formula, data, context)
        else:
            matrix = design(formula, data, context)
            read = (matrix.X, matrix.y)

        def column(value: object, argument: str) -> object:
            return None if value is None else matrix.rows.align(value, argument)

        intercept = None if penalize_intercept else matrix.intercept
        if isinstance(penalty, Penalty):
            penalty = penalty.fitted_to(len(matrix.names), intercept)
        criterion = cls(
            loss,
            read,
            NoPenalty() if penalty is None else penalty,
            weights=column(weights, "weights"),
            weight_kind=weight_kind,
            offset=column(offset, "offset"),
            trials=column(trials, "trials"),
            names=matrix.names,
        )
        rows = replace(matrix.rows, advice=criterion.rows.advice)
        return replace(criterion, rows=rows, intercept=intercept)

    @classmethod
    def from_parts(
        cls,
        loss: LinearLoss | GeneralLoss,
        data: object,
        formula: str,
        penalty: Penalty | None = None,
        *,
        start: object = None,
        clusters: str | Sequence[str] = (),
        weights: str | None = None,
        weight_kind: str | None = None,
        offset: str | None = None,
        trials: str | None = None,
        penalize_intercept: bool = False,
        context: Mapping[str, Any] | None = None,
        batch: int = BATCH,
        scheduler: object = None,
    ) -> Criterion:
        """Return the criterion of a formula and a table larger than memory, read in parts.

        Everything is a sum over parts, so results equal those of `from_formula`. What needs all
        rows at once is refused: arrays with a value per row (name a column), scale="mad", kinks.

        Parameters
        ----------
        loss : LinearLoss or Moments
            For example ``ef.losses.Huber(1.345)``. Equations take rows ``{"X": ..., "y": ...}`` of
            the formula's columns and response.
        data : path, Arrow dataset or table, Dask DataFrame, or DataFrames
            Parquet files or folders; an iterable of DataFrames that can be run through again, or a
            function that returns one. A Dask DataFrame is worked on where its partitions are.
        formula : str
            As for `from_formula`.
        penalty : Penalty, optional
            A smooth one.
        start : array or pytree, optional
            Of equations, as for `Criterion`.
        clusters : str or sequence of str
            Columns of labels: rows depend on each other within them, by default in `calibrate` and
            `target`; several are several ways. The first pass collects their labels, others take a
            pass when they are used.
        weights, offset, trials : str, optional
            Columns.
        weight_kind, penalize_intercept, context : optional
            As for `from_formula`.
        batch : int
            Most rows of a part of a Parquet file or Arrow table.
        scheduler : distributed.Client or address, optional
            Where the parts of a Parquet file or Dask DataFrame are worked on. A client stays open.

        Returns
        -------
        Criterion
            Every evaluation is a pass over the parts.

        Raises
        ------
        InputError
            A column is missing, the loss or penalty needs all rows, or a file cannot be read.

        Examples
        --------
        >>> import etafree as ef, pandas as pd
        >>> parts = [pd.DataFrame({"y": [1.0, 2.0]}), pd.DataFrame({"y": [6.0]})]
        >>> criterion = ef.Criterion.from_parts(ef.losses.Squared(), parts, "y ~ 1")
        >>> criterion.n, ef.minimise(criterion).theta
        (3, array([3.]))
        """
        _check_for_parts(loss, penalty, offset, trials, start)
        if not isinstance(clusters, Iterable) or getattr(clusters, "ndim", 1) == 0:
            raise InputError(
                "clusters", f"is {clusters!r}", "pass names of columns, or leave it out"
            )
        labels = (clusters,) if isinstance(clusters, str) else tuple(clusters)
        if weights is not None or weight_kind is not None:
            as_choice(weight_kind, "weight_kind", KINDS)
        source = as_source(data, as_count(batch, "batch"), scheduler)
        for argument, name in {"weights": weights, "offset": offset, "trials": trials}.items():
            if name is not None:
                column_name(name, source.columns, argument)
        as_bool(penalize_intercept, "penalize_intercept")
        columns = {column_name(name, source.columns, "clusters"): "clusters" for name in labels}
        recipe = find_recipe(source, formula, context)
        reader = Reader(recipe, weights, weight_kind != "sampling", offset, trials)
        linear = loss if isinstance(loss, LinearLoss) else Squared()
        total, known = StreamedTotal.of(linear, source, reader, columns)
        rows = _streamed_rows(total, source.columns, known, labels)
        if not isinstance(loss, LinearLoss):
            equations, first, own = loss.bind_parts(total, start)
            fitted = (penalty or NoPenalty()).fitted_to(equations.p)
            names = as_names(own, equations.p)
            return cls(loss, penalty=fitted, names=names, total=equations, rows=rows, start=first)
        intercept = None if penalize_intercept else recipe.intercept
        fitted = (penalty or NoPenalty()).fitted_to(total.p, intercept)
        names = as_names(recipe.names, total.p)
        return cls(loss, penalty=fitted, names=names, total=total, rows=rows, intercept=intercept)

    @classmethod
    def from_parquet(
        cls,
        loss: LinearLoss | GeneralLoss,
        path: object,
        formula: str,
        penalty: Penalty | None = None,
        **options: Any,
    ) -> Criterion:
        """Return the criterion of a Parquet file or folder, or of several.

        Every file's footer is read first: one that is cut short, or has not the columns that are
        used, is an error that names it.

        Parameters
        ----------
        loss, formula, penalty : optional
            As for `from_parts`.
        path : str or path, or a list of them
            A file, or a folder of files.
        **options : optional
            As for `from_parts`.

        Returns
        -------
        Criterion
            As of `from_parts`.

        Raises
        ------
        InputError
            `path` is none, or what `from_parts` refuses.

        Examples
        --------
        >>> import etafree as ef, pandas as pd, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "y.parquet")
        ...     pd.DataFrame({"y": [1.0, 2.0, 6.0]}).to_parquet(path)
        ...     criterion = ef.Criterion.from_parquet(ef.losses.Squared(), path, "y ~ 1")
        ...     ef.minimise(criterion).theta
        array([3.])
        """
        several = path if isinstance(path, list | tuple) and path else [path]
        if not all(isinstance(name, str | os.PathLike) for name in several):
            raise InputError(
                "path", f"is a {type(path).__name__}", "pass a path, or use from_parts"
            )
        return cls.from_parts(loss, path, formula, penalty, **options)

    def reweighted(self, weights: object, weight_kind: str = "frequency") -> Criterion:
        """Return the same criterion under other observation weights.

        The penalty's strength is that of the new size; a plug-in scale stays as it was, and is
        taken as known.

        Parameters
        ----------
        weights, weight_kind : (n,) array and {"frequency", "sampling"}
            As for the criterion.

        Returns
        -------
        Criterion
            Of the same rows.
        """
        checked = checked_weights(self.rows, self.n, weights, weight_kind)
        return replace(self, total=self.total.reweighted(*checked))

    def subset(self, rows: NDArray[np.intp]) -> Criterion:
        """Return the criterion of some `rows`, (m,) numbers counted from 0 among those in use.

        Labels, clusters say, are lined up with these rows; a plug-in scale stays as it was, and is
        taken as known. An `InputError` for other numbers.
        """
        refuse_masked(rows, "rows")
        try:
            rows = np.asarray(rows)
        except ValueError:  # lists of several lengths
            rows = np.zeros(0, dtype=np.intp)
        whole = rows.ndim == 1 and rows.dtype.kind in "iu" and len(rows) > 0
        if not whole or rows.min() < 0 or rows.max() >= self.n:
            raise InputError(
                "rows", "are not numbers of rows", f"pass whole numbers from 0 to {self.n - 1}"
            )
        if not has_design(self.total):
            return self.reweighted(np.bincount(rows, minlength=self.n))
        kept = rows if self.rows.kept is None else self.rows.kept[rows]
        return replace(self, total=self.total.take(rows), rows=replace(self.rows, kept=kept))

    def with_plug_ins(self, plug_ins: Mapping[str, float]) -> Criterion:
        """Return the same criterion with recorded nuisance values, which are treated as known."""
        named = as_mapping(plug_ins, "plug_ins")
        values = {name: as_number(value, "plug_ins") for name, value in named.items()}
        return replace(self, recorded={**self.recorded, **values})

    def with_loss(self, loss: LinearLoss) -> Criterion:
        """Return the same data and penalty under another `loss` over a linear predictor.

        An `InputError` if it is none, or if the criterion's own loss is none.
        """
        _check_linear(loss)
        if not is_linear(self.total):
            raise InputError("loss", f"cannot replace {self.loss!r}", "build a new Criterion")
        if self.total.trials and not loss.takes_trials:
            raise InputError(
                "loss",
                f"{type(loss).__name__} does not use the data's trials",
                "build a new Criterion without them",
            )
        return replace(self, total=self.total.with_loss(loss))

    def with_penalty(self, penalty: Penalty) -> Criterion:
        """Return the same data and loss under another `penalty`, an `InputError` if it is none."""
        if not isinstance(penalty, Penalty):
            raise InputError("penalty", f"is {penalty!r}", "pass ef.penalties.Ridge(...)")
        return replace(self, penalty=penalty.fitted_to(self.p, self.intercept))

    @cached_property
    def size(self) -> float:
        r"""The effective scale :math:`s_n`.

        The sum of the weights, :math:`nh` for a kernel-smoothed loss, the number of pairs for a
        loss over pairs.
        """
        return float(self.total.size)

    @cached_property
    def strength(self) -> float:
        r"""Strength :math:`\lambda_n` of the penalty at that scale."""
        return self.penalty.strength_at(self.size)

    @property
    def plug_ins(self) -> dict[str, float]:
        """Nuisance values that were estimated beforehand."""
        values = {k: v for each in self.total.nuisance for k, v in each.values.items()}
        return {**self.loss.plug_ins(), **values, **self.recorded}

    @property
    def estimated(self) -> tuple[str, ...]:
        """Names of the plug-ins whose own equations, in these very rows, are known.

        A target includes how they vary; the others are taken as known.
        """
        return tuple(name for each in self.total.nuisance for name in each.values)

    def stacked(self, theta: object) -> Stacked | None:
        """Return what the plug-ins' own equations add to scores at `theta`, None if nothing."""
        nuisance = self.total.nuisance
        return stack(nuisance, self.total, self.point(theta)) if nuisance else None

    @cached_property
    def n(self) -> int:
        """Number of rows."""
        return int(self.total.n)

    @cached_property
    def p(self) -> int:
        """Number of parameters."""
        return int(self.total.p)

    def derivatives(self, theta: object, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient, Hessian of L and the size of the terms of the gradient.

        Parameters
        ----------
        theta : (p,) array
            Where.
        majorize : bool
            Use the curvature of a safe quadratic model, positive semi-definite everywhere.

        Returns
        -------
        Derivatives
            ``value``, ``gradient`` (p,), ``hessian`` (p, p) and ``gradient_scale`` (p,).
        """
        point = self.point(theta)
        if not isinstance(majorize, bool):
            majorize = as_bool(majorize, "majorize")
        loss: Derivatives = self.total.derivatives(point, majorize=majorize)
        if self.strength == 0:
            return loss
        weight = self.strength * self.size
        slope = weight * self.penalty.gradient(point)
        return Derivatives(
            loss.value + weight * float(self.penalty.value(point)),
            loss.gradient + slope,
            loss.hessian + weight * self.penalty.hessian(point),
            loss.gradient_scale + np.abs(slope),
        )

    def value(self, theta: object) -> float:
        """Return L at one point (p,)."""
        return float(self.values_at(np.atleast_2d(self.point(theta)))[0])

    def gradient(self, theta: object) -> Array:
        """Return the gradient of L (p,)."""
        return self.derivatives(theta).gradient

    def hessian(self, theta: object) -> Array:
        """Return the Hessian of L (p, p)."""
        return self.derivatives(theta).hessian

    def values_at(self, thetas: object) -> Array:
        """Return L at many points `thetas`, (D, p) -> (D,); `InputError` for other shapes."""
        thetas = as_array(in_order(thetas, self.names, "thetas"), "thetas", ndim=2)
        if thetas.shape[1] != self.p:
            raise InputError(
                "thetas", f"has {thetas.shape[1]} columns for {counted_noun(self.p, 'parameter')}"
            )
        values: Array = self.total.totals(thetas)
        if self.strength == 0:
            return values
        return values + self.strength * self.size * self.penalty.value(thetas)

    def penalty_share(self, theta: Array) -> Array:
        r"""Return :math:`\lambda_n s_n\nabla^2\rho` per unit of weight."""
        if self.strength == 0:
            return np.zeros((self.p, self.p))
        per_unit: float = self.strength * self.size / self.total.weight
        return per_unit * self.penalty.hessian(theta)

    def point(self, theta: object, argument: str = "theta") -> Array:
        """Return `theta` as a checked parameter vector (p,)."""
        if (
            type(theta) is np.ndarray
            and theta.dtype == np.float64
            and theta.shape == (self.p,)
            and np.isfinite(theta).all()
        ):  # at every step of a minimiser
            return theta
        return as_array(in_order(theta, self.names, argument), argument, shape=(self.p,))

    def describe(self) -> str:
        """Return what intervals for this criterion cover, in words."""
        minimised = self.loss.describe()
        if self.strength > 0:
            minimised += f" plus the {self.penalty.describe(self.size)}"
        unit = self.loss.effective_unit
        scale = "" if unit == 1.0 else f", effective scale s_n = n h = {self.size:g}"
        return f"the minimiser of {minimised}{scale}"

    def __repr__(self) -> str:
        extra = "" if self.total.weights is None else f", weights sum to {self.total.weight:g}"
        penalty = self.penalty.describe(self.size)
        return f"Criterion({self.loss!r}, n={self.n}, p={self.p}, {penalty}{extra})"


def _bind_linear(
    criterion: Criterion,
    data: Any,
    weights: object,
    weight_kind: str | None,
    offset: object,
    trials: object,
) -> dict[str, object]:
    """Return the fields of a criterion over a linear predictor, from X and y."""
    loss = criterion.loss
    if criterion.start is not None:
        raise InputError("start", "is for losses of your own", "pass it to ef.minimise")
    _check_linear(loss)
    X, y, rows = checked_arrays(data)
    n, p = X.shape
    ordered, names = renamed(data[0], criterion.names, "X")
    if ordered is not data[0]:
        X = np.ascontiguousarray(as_array(ordered, "X"))

    def vector(value: object, argument: str) -> Array | None:
        if value is None:
            return None
        return owned(as_array(rows.align(value, argument), argument, shape=(n,)))

    predictor_offset, counts = vector(offset, "offset"), vector(trials, "trials")
    checked, frequency = checked_weights(rows, n, weights, weight_kind)
    if counts is not None:
        if not loss.takes_trials:
            raise InputError("trials", f"does not apply to {type(loss).__name__}", "drop it")
        y = np.column_stack([y, counts])
    total = LinearTotal(loss, X, y, predictor_offset, checked, frequency).fitted()
    return {"total": total, "names": as_names(names, p), "rows": rows}


def _bind_general(
    criterion: Criterion,
    data: Any,
    weights: object,
    weight_kind: str | None,
    offset: object,
    trials: object,
) -> dict[str, object]:
    """Return the fields of a criterion whose loss makes its own total."""
    loss, given = criterion.loss, criterion.names
    for argument, value in (("offset", offset), ("trials", trials)):
        if value is not None:
            problem = f"does not apply to {type(loss).__name__}"
            raise InputError(argument, problem, "let the loss take it from the data")
    n = loss.count(data)
    table = data if hasattr(data, "columns") else None
    pair = isinstance(data, tuple) and len(data) == 2
    index = shared_index(*data) if pair else getattr(table, "index", None)
    rows = Rows(n, None, index, table, loss.row_advice)
    checked = checked_weights(rows, n, weights, weight_kind)
    total, start, own = loss.bind(data, criterion.start, *checked)
    names = as_names(own if given is None else given, total.p)
    if own is not None and names != tuple(own) and set(names) & set(own):
        raise InputError(
            "names",
            f"are {list(names)}, the loss has {list(own)}",
            "leave them out, or pass new names",
        )
    return {"total": total, "names": names, "rows": rows, "start": start}


def _check_linear(loss: object) -> None:
    if not isinstance(loss, LinearLoss):
        raise InputError("loss", f"is {loss!r}", "pass a loss such as ef.losses.Huber(1.345)")


def check_penalty(penalty: object) -> None:
    if penalty is not None and not isinstance(penalty, Penalty):
        raise InputError("penalty", f"is {penalty!r}", "pass ef.penalties.Ridge(...) or None")


def _streamed_rows(
    total: StreamedTotal,
    columns: Sequence[str],
    known: dict[str, StreamedGroups],
    labels: tuple[str, ...],
) -> StreamedRows:
    """Return the rows of a table in parts, with the columns of labels that it came with."""
    return StreamedRows(
        total.census.rows,
        table=columns,
        in_use=total.n,
        find=total.groups,
        known=known,
        missing=total.census.rows - total.n,
        clusters=(labels[0] if len(labels) == 1 else list(labels)) if labels else None,
    )


def _check_for_parts(
    loss: LinearLoss | GeneralLoss,
    penalty: Penalty | None,
    offset: str | None,
    trials: str | None,
    start: object,
) -> None:
    """Refuse losses and penalties that need all rows at once."""
    if not isinstance(loss, GeneralLoss):
        _check_linear(loss)
        if start is not None:
            raise InputError("start", "is for losses of your own", "pass it to ef.minimise")
    elif offset is not None:
        raise InputError("offset", f"does not apply to {type(loss).__name__}", "drop it")
    check_penalty(penalty)
    if isinstance(penalty, KinkedPenalty):
        raise InputError(
            "penalty",
            f"{type(penalty).__name__} has kinks, and the data are read in parts",
            "use ef.penalties.huberized_l1",
        )
    if trials is not None and not loss.takes_trials:
        raise InputError("trials", f"does not apply to {type(loss).__name__}", "drop it")
