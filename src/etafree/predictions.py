r"""Predictions at rows of data, their averages, and what changes when a variable changes.

With :math:`\mu` what a loss predicts at a linear predictor (a mean, a probability, a quantile),
everything here is a weighted sum of predictions at rows, observed or imagined,

.. math:: f_k(\theta)=\sum_iw_{ki}\,\mu(x_i^\top\theta+o_i),\qquad
    \frac{\partial f_k}{\partial\theta}=\sum_iw_{ki}\,\mu'(x_i^\top\theta+o_i)\,x_i.

An average has weights that sum to one over its rows, a comparison takes rows with a variable at one
value and, with the opposite sign, the same rows with it at another, a slope two values close to
each other divided by their distance. Limits are quantiles of f over the calibrated draws, or by the
delta method with the t quantile that the law of the contrast :math:`\partial f_k/\partial\theta`
has, of a single row on the scale of its linear predictor. Rows are taken as they are: an average is
that of these rows.

References
----------
Arel-Bundock, V., Greifer, N. and Heiss, A. (2024). How to interpret statistical models using
marginaleffects for R and Python. J. Statist. Software 111(9).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.data.formula import RightSide
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_array, as_choice, as_pandas
from etafree.inference import equal_tails
from etafree.losses import LinearLoss, Logistic, Poisson, Squared
from etafree.target import Target
from etafree.totals.linear import has_design

if TYPE_CHECKING:
    import pandas as pd

#: Numbers that draws of predictions take at a time, and contrasts whose laws are found together.
BLOCK, TOGETHER = 1 << 21, 256
#: Step of a slope, relative to the range of its variable.
STEP = 1e-5
KINDS, SCALES = ("draws", "wald"), ("response", "link")
#: Losses that predict through a link, for coefficients of another package's model.
LINKS: Mapping[str, LinearLoss] = {"identity": Squared(), "log": Poisson(), "logit": Logistic()}
#: A column of a design that is added to its linear predictor.
OFFSET = "offset"
NO_FORMULA = "calibrate a criterion of Criterion.from_formula, or pass rows of X as newdata="


@dataclass(frozen=True, eq=False)
class Sums:
    """Weighted sums of predictions at rows, one for each row of an index."""

    X: Array  #: (m, p).
    offset: Array  #: (m,).
    weights: Array  #: Of the rows (m,), in the sum that each belongs to.
    codes: NDArray[np.intp]  #: Which sum a row belongs to (m,).
    index: pd.Index
    loss: LinearLoss
    link: bool  #: Whether sums are of linear predictors.

    @property
    def single(self) -> bool:
        """Whether every sum is one prediction."""
        return len(self.codes) == len(self.index) and bool(np.all(self.weights == 1.0))

    def values(self, thetas: Array) -> Array:
        """Return the sums (d, k) at points (d, p)."""
        out = np.empty((len(thetas), len(self.index)))
        many = max(1, BLOCK // len(self.X))
        for first in range(0, len(thetas), many):
            u = thetas[first : first + many] @ self.X.T + self.offset
            each = (u if self.link else self.loss.response(u)) * self.weights
            out[first : first + many] = self._added(each.T).T
        return out

    def slopes(self, theta: Array) -> Array:
        """Return the derivatives (k, p) of the sums at a point (p,)."""
        u = self.X @ theta + self.offset
        bend = np.ones_like(u) if self.link else self.loss.response_slope(u)
        return self._added((self.weights * bend)[:, None] * self.X)

    def _added(self, rows: Array) -> Array:
        """Return the sums (k, ...) of rows (m, ...)."""
        out: Array = np.zeros((len(self.index), *rows.shape[1:]))
        np.add.at(out, self.codes, rows)
        return out


def has_rows(criterion: Criterion | None) -> TypeGuard[Criterion]:
    """Return whether a criterion knows how rows become predictions."""
    return criterion is not None and has_design(criterion.total)


class Columns(NamedTuple):
    """Names of all coefficients, and how they follow from those that were calibrated."""

    names: tuple[str, ...]
    basis: Array  #: (all, p); zero rows are coefficients that a penalty sets to zero.


def table_of(
    sums: Sums, target: Target, draws: Array, kind: str, level: float, *, tests: bool
) -> pd.DataFrame:
    """Return estimates, standard errors and limits of sums, and with `tests` t and p."""
    import pandas as pd

    as_choice(kind, "kind", KINDS)
    slopes = sums.slopes(target.center)
    estimate = sums.values(target.center[None])[0]
    variance = np.einsum("ij,jk,ik->i", slopes, target.covariance, slopes)
    se = np.sqrt(np.maximum(variance, 0.0))
    columns: dict[str, Array] = {"estimate": estimate, "se": se}
    reach, p_values = np.zeros(len(se)), np.ones(len(se))
    if kind == "wald" or tests:
        for part in _blocks(np.flatnonzero(se > 0)):
            law = target.law(slopes[part])
            reach[part] = law.quantile(0.5 + 0.5 * level) * se[part]
            p_values[part] = 2 * law.tail(np.abs(estimate[part] / se[part]))
    if kind == "wald" and sums.single and not sums.link:  # on the scale that is nearer to normal
        inner = replace(sums, link=True)
        middle, slopes = inner.values(target.center[None])[0], inner.slopes(target.center)
        ratio = np.divide(reach, se, out=np.zeros(len(se)), where=se > 0)
        half = ratio * np.sqrt(np.einsum("ij,jk,ik->i", slopes, target.covariance, slopes))
        ends = sums.loss.response(middle - half), sums.loss.response(middle + half)
        columns |= {"lower": ends[0], "upper": ends[1]}
    elif kind == "wald":
        columns |= {"lower": estimate - reach, "upper": estimate + reach}
    else:
        lower, upper = equal_tails(sums.values(draws), level)
        columns |= {"lower": lower, "upper": upper}
    if tests:
        ratio = np.divide(estimate, se, out=np.full(len(se), np.nan), where=se > 0)
        columns |= {"t": ratio, "p": np.where(se > 0, p_values, np.nan)}
    return pd.DataFrame(columns, index=sums.index)


def _blocks(places: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """Yield places, some at a time."""
    for first in range(0, len(places), TOGETHER):
        yield places[first : first + TOGETHER]


@dataclass(frozen=True, eq=False)
class Grid:
    """Rows at which a criterion predicts: its own, or new ones."""

    criterion: Criterion
    columns: Columns
    link: bool
    X: Array
    offset: Array
    weights: Array  #: For averages.
    table: pd.DataFrame  #: Variables behind the rows.
    right: RightSide | None  #: What makes rows of a table; None where columns are variables.
    index: pd.Index

    @classmethod
    def of(
        cls,
        criterion: Criterion | None,
        columns: Columns,
        newdata: object,
        offset: object,
        scale: str,
    ) -> Grid:
        """Return the rows of new data, of the criterion's own if `newdata` is None."""
        link = as_choice(scale, "scale", SCALES) == "link"
        if not has_rows(criterion):
            problem = "needs all coefficients of a loss over a linear predictor"
            advice = "calibrate an ef.Criterion without var_names=, or pass rows with a column per "
            advice += "coefficient and link= to predict()"
            raise InputError("predict", problem, advice)
        if newdata is None:
            if offset is not None:
                raise InputError("offset", "is that of the data already", "pass newdata= with it")
            return cls._own(criterion, columns, link)
        table, X = _new_rows(criterion, columns, newdata)
        if criterion.total.offset is not None and offset is None:
            problem = "is needed: the data had one for each row"
            raise InputError("offset", problem, "pass a number or a value per row of newdata")
        shift = 0.0 if offset is None else as_array(offset, "offset")
        if np.ndim(shift) > 0 and np.shape(shift) != (len(X),):
            raise InputError("offset", f"has shape {np.shape(shift)} for {len(X)} rows")
        ones, right = np.ones(len(X)), criterion.rows.right
        return cls(criterion, columns, link, X, shift * ones, ones, table, right, table.index)

    @classmethod
    def _own(cls, criterion: Criterion, columns: Columns, link: bool) -> Grid:
        """Return the rows that the criterion has."""
        import pandas as pd

        total, rows = criterion.total, criterion.rows
        offset = np.zeros(total.n) if total.offset is None else total.offset
        weights = np.ones(total.n) if total.weights is None else total.weights
        index = pd.RangeIndex(rows.original) if rows.index is None else rows.index
        index = index if rows.kept is None else index[rows.kept]
        if rows.right is None:
            table = pd.DataFrame(total.X, columns=list(criterion.names), index=index)
        else:
            table = rows.table if rows.kept is None else rows.table.iloc[rows.kept]
        return cls(criterion, columns, link, total.X, offset, weights, table, rows.right, index)

    def at(self, table: pd.DataFrame) -> Array:
        """Return the design matrix of another table with the same rows."""
        if self.right is not None:
            return self.right.rows(table, self.columns.names)[0] @ self.columns.basis
        own = list(self.criterion.names)  # of the data's own rows; new ones have all columns
        if not set(self.columns.names) <= set(table.columns):
            return np.ascontiguousarray(table[own].to_numpy(dtype=float))
        whole: Array = table[list(self.columns.names)].to_numpy(dtype=float)
        return whole @ self.columns.basis

    def each(self) -> Sums:
        """Return the prediction at every row."""
        every = np.arange(len(self.X))
        return self._sums(self.X, self.offset, np.ones(len(every)), every, self.index)

    def averages(self, by: object) -> Sums:
        """Return the average of predictions, by the values of columns if they are named."""
        codes, index = self._cells(by)
        return self._sums(self.X, self.offset, self._shares(codes, len(index)), codes, index)

    def contrasts(self, variables: object, by: object, *, slopes: bool) -> Sums:
        """Return the averages of what predictions change by when each variable changes."""
        import pandas as pd

        codes, cells = self._cells(by)
        shares = self._shares(codes, len(cells))
        parts: list[tuple[Array, Array, Array, NDArray[np.intp]]] = []
        labels: list[tuple[Hashable, ...]] = []
        for change in self._changes(variables, slopes):
            high, low = (self.at(self._with(change.name, value)) for value in change.values)
            own = codes + len(labels)
            for X, sign in ((high, 1.0), (low, -1.0)):
                parts.append((X, self.offset, sign * shares / change.distance, own))
            for cell in cells if by is not None else [()]:
                inside = cell if isinstance(cell, tuple) else (cell,)
                labels.append((change.name, change.label, *inside))
        X, offset, weights, place = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        names = ["term", "contrast", *(cells.names if by is not None else ())]
        index = pd.MultiIndex.from_tuples(labels, names=names)
        return self._sums(X, offset, weights, place, index)

    def _sums(
        self, X: Array, offset: Array, weights: Array, codes: NDArray[np.intp], index: pd.Index
    ) -> Sums:
        return Sums(X, offset, weights, codes, index, self.criterion.loss, self.link)

    def _with(self, name: str, value: Any) -> pd.DataFrame:
        """Return the table with a variable at a value, or at one for every row."""
        return self.table.assign(**{name: value})

    def _shares(self, codes: NDArray[np.intp], count: int) -> Array:
        """Return the weights of rows in their averages."""
        whole = np.bincount(codes, self.weights, count)[codes]
        return np.divide(self.weights, whole, out=np.zeros(len(codes)), where=whole > 0)

    def _cells(self, by: object) -> tuple[NDArray[np.intp], pd.Index]:
        """Return the cell of each row, and the cells."""
        import pandas as pd

        if by is None:
            return np.zeros(len(self.X), dtype=np.intp), pd.Index(["average"])
        names = [by] if isinstance(by, str) else by
        columns = list(self.table.columns)
        if not isinstance(names, Sequence) or not names or not set(names) <= set(columns):
            raise InputError("by", f"is {by!r:.60}", f"name columns among {columns[:20]}")
        grouped = self.table.groupby(list(names), observed=True)
        codes = np.asarray(grouped.ngroup(), dtype=np.intp)
        if np.any(codes < 0):
            raise InputError("by", "has missing values", "fill them in, or drop these rows")
        return codes, grouped.size().index

    def _changes(self, variables: object, slopes: bool) -> list[Change]:
        """Return how each variable changes; all variables if none is named."""
        known = self._variables()
        asked: Mapping[str, object]
        if variables is None:
            asked = dict.fromkeys(name for name in known if not slopes or self._is_number(name))
        elif isinstance(variables, Mapping) and not slopes:
            asked = variables
        else:
            names = [variables] if isinstance(variables, str) else variables
            if not isinstance(names, Iterable):
                raise InputError("variables", f"is {variables!r:.60}", f"choose from {known}")
            asked = dict.fromkeys(names)
        unknown = [name for name in asked if name not in known]
        if unknown or not asked:
            raise InputError("variables", f"has {unknown!r:.100}", f"choose from {known}")
        return [c for name, to in asked.items() for c in self._change(name, to, slopes)]

    def _variables(self) -> list[str]:
        """Return the columns that predictions depend on."""
        columns = [str(name) for name in self.table.columns]
        return columns if self.right is None else self.right.variables(columns)

    def _is_number(self, name: str) -> bool:
        from pandas.api.types import is_bool_dtype, is_numeric_dtype

        column = self.table[name]
        coded = self.right is not None and name in self.right.categories
        return bool(is_numeric_dtype(column) and not is_bool_dtype(column)) and not coded

    def _change(self, name: str, to: object, slope: bool) -> Iterator[Change]:
        """Yield the changes of one variable: by one, to each other level, or as asked."""
        column = self.table[name]
        if slope:
            if not self._is_number(name):
                raise InputError("variables", f"{name!r} has no slope", "use comparisons()")
            values = column.to_numpy(dtype=float)
            step = STEP * float(np.ptp(values) or max(abs(values[0]), 1.0))
            yield Change(name, "slope", (values + step, values - step), 2 * step)
        elif isinstance(to, tuple | list) and len(to) == 2:
            yield Change(name, f"{to[1]} - {to[0]}", (to[1], to[0]))
        elif self._is_number(name):
            by = 1.0 if to is None else float(as_array(to, "variables", ndim=0))
            values = column.to_numpy(dtype=float)
            yield Change(name, f"+{by:g}" if by >= 0 else f"{by:g}", (values + by, values))
        elif to is not None:
            advice = f'give two of its values, {{"{name}": ("before", "after")}}'
            raise InputError("variables", f"{name!r} is {to!r:.40}", advice)
        else:
            levels = self._levels(name)
            yield from (Change(name, f"{k} - {levels[0]}", (k, levels[0])) for k in levels[1:])

    def _levels(self, name: str) -> list[object]:
        """Return the values of a variable that is no number, the reference first."""
        source = self.criterion.rows.table if self.right is not None else self.table
        column = source[name]
        if column.dtype.name == "category":
            return [level for level in column.cat.categories if (column == level).any()]
        return sorted(column.dropna().unique().tolist())


def named_rows(columns: Columns, newdata: object, offset: object, scale: str, link: str) -> Sums:
    """Return predictions at rows whose columns are named after coefficients.

    A column ``offset`` is added. Parameters without a column do not enter, as a scale does not.
    """
    import pandas as pd

    loss = LINKS[as_choice(link, "link", tuple(LINKS))]
    on_link = as_choice(scale, "scale", SCALES) == "link"
    table, known = as_pandas(newdata), list(columns.names)
    if not isinstance(table, pd.DataFrame) or not table.size:
        problem = f"is a {type(newdata).__name__}" if table is newdata else "is empty"
        raise InputError("newdata", problem, f"pass a table with columns out of {known[:20]}")
    if OFFSET in table and OFFSET not in known:
        if offset is not None:
            raise InputError("offset", "is a column of newdata too", "pass one of the two")
        table, offset = table.drop(columns=OFFSET), table[OFFSET].to_numpy()
    strange = [str(name) for name in table if str(name) not in known]
    if strange or not table.size:
        problem = f"has columns that are no parameters: {strange[:5]}"
        raise InputError("newdata", problem, f"name them after some of {known[:20]}")
    X = np.zeros((len(table), len(known)))
    X[:, [known.index(str(name)) for name in table]] = as_array(table.to_numpy(), "newdata", ndim=2)
    shift = np.zeros(len(X)) if offset is None else as_array(offset, "offset")
    if shift.ndim > 0 and shift.shape != (len(X),):
        raise InputError("offset", f"has shape {shift.shape} for {len(X)} rows")
    ones, every = np.ones(len(X)), np.arange(len(X))
    return Sums(X @ columns.basis, shift * ones, ones, every, table.index, loss, on_link)


class Change(NamedTuple):
    """A variable at two values, the later first, and how far these are from each other."""

    name: str
    label: str
    values: tuple[object, object]
    distance: float = 1.0


def _new_rows(
    criterion: Criterion, columns: Columns, newdata: object
) -> tuple[pd.DataFrame, Array]:
    """Return new data as a table, and their design matrix."""
    import pandas as pd

    right, names = criterion.rows.right, list(columns.names)
    if right is not None:
        if not isinstance(newdata, pd.DataFrame):
            raise InputError("newdata", f"is a {type(newdata).__name__}", "pass a DataFrame")
        X, complete = right.rows(newdata, names)
        if not complete.all():
            problem = f"has missing values in {int((~complete).sum())} rows"
            raise InputError("newdata", problem, "fill them in, or drop these rows")
        return newdata, X @ columns.basis
    if isinstance(newdata, pd.DataFrame):
        missing = [name for name in names if name not in newdata]
        if missing:
            raise InputError("newdata", f"lacks {missing}", f"columns are {names}")
        whole = as_array(newdata[names].to_numpy(dtype=float), "newdata", ndim=2)
        return newdata, whole @ columns.basis
    X = as_array(newdata, "newdata", ndim=2)
    if X.shape[1] != len(names):
        raise InputError("newdata", f"has {X.shape[1]} columns for {len(names)}", NO_FORMULA)
    return pd.DataFrame(X, columns=names), X @ columns.basis
