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

import zlib
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_array, as_choice, as_pandas, as_table
from etafree.foundation.terminal import counted_noun
from etafree.inference import derivative, equal_tails, neighbours
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


class Rows(Protocol):
    """Rows at which something is predicted for parameters."""

    @property
    def random(self) -> bool:
        """Whether predictions vary given the parameters, as group effects do."""

    @property
    def inner(self) -> Rows | None:
        """The same rows on the scale of the linear predictor; None if they are, or have none."""

    def __len__(self) -> int:
        """Return the number m of rows."""

    def values(self, thetas: Array) -> Array:
        """Return predictions (d, m) at points (d, p)."""

    def slopes(self, theta: Array) -> Array:
        """Return the derivatives (m, p) of predictions at a point (p,)."""

    def response(self, u: Array) -> Array:
        """Return what belongs to values on the scale of the linear predictor."""


@dataclass(frozen=True, eq=False)
class LinearRows:
    """Rows of a design matrix, at which a loss predicts."""

    X: Array  #: (m, p).
    offset: Array  #: (m,).
    loss: LinearLoss
    link: bool  #: Whether predictions are linear predictors.
    random: bool = False

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.X)

    @property
    def inner(self) -> LinearRows | None:
        """The same rows on the scale of the linear predictor."""
        return None if self.link else replace(self, link=True)

    def values(self, thetas: Array) -> Array:
        """Return predictions (d, m) at points (d, p)."""
        u: Array = thetas @ self.X.T + self.offset
        return u if self.link else self.response(u)

    def slopes(self, theta: Array) -> Array:
        """Return the derivatives (m, p) of predictions at a point (p,)."""
        if self.link:
            return self.X
        return self.loss.response_slope(self.X @ theta + self.offset)[:, None] * self.X

    def response(self, u: Array) -> Array:
        """Return the responses of linear predictors."""
        return self.loss.response(u)


class FromModel(Protocol):
    """Predictions of another package's model at rows, as its adapter gives them."""

    @property
    def table(self) -> pd.DataFrame:
        """Variables of the rows (m,)."""

    @property
    def variables(self) -> Sequence[str]:
        """Columns of the table that predictions depend on."""

    @property
    def coded(self) -> Container[str]:
        """Columns of numbers that stand for categories."""

    @property
    def known(self) -> pd.DataFrame:
        """The rows of the data, whose values are the categories."""

    @property
    def effects(self) -> bool:
        """Whether predictions take group effects, which are drawn given the parameters."""

    @property
    def links(self) -> tuple[Callable[[Array], Array], Callable[[Array], Array]] | None:
        """What takes predictions to the scale of the linear predictor and back, if known."""

    def at(self, variables: Mapping[str, Array], table: pd.DataFrame) -> Array:
        """Return predictions (d, m) at another table's rows from the model's variables (d, ...)."""


class Drawn:
    """A model's variables at parameters, with group effects if they are drawn; the last are kept.

    Effects depend on the parameters alone: differences of predictions have the same ones.
    """

    def __init__(
        self,
        constrain: Callable[[Array], Mapping[str, Array]],
        effects: Callable[[Array, int], Mapping[str, Array]] | None,
    ) -> None:
        self._functions = constrain, effects
        self._last: tuple[bytes, Mapping[str, Array]] = b"", {}

    def __call__(self, thetas: Array) -> Mapping[str, Array]:
        """Return the variables (d, ...) at points (d, p)."""
        key = thetas.tobytes()
        if self._last[0] != key:
            constrain, effects = self._functions
            drawn = {} if effects is None else effects(thetas, zlib.crc32(key) >> 1)
            self._last = key, {**constrain(thetas), **drawn}
        return self._last[1]


@dataclass(frozen=True, eq=False)
class ModelRows:
    """Rows of a table, at which a model predicts."""

    model: FromModel
    drawn: Drawn
    table: pd.DataFrame
    se: Array  #: Standard errors of the parameters, which steps of derivatives are of.
    link: bool

    @property
    def random(self) -> bool:
        """Whether group effects are drawn."""
        return self.model.effects

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.table)

    @property
    def inner(self) -> ModelRows | None:
        """The same rows on the scale of the linear predictor."""
        return None if self.link or self.model.links is None else replace(self, link=True)

    def values(self, thetas: Array) -> Array:
        """Return predictions (d, m) at points (d, p)."""
        made = self.model.at(self.drawn(thetas), self.table)
        if not np.isfinite(made).all():
            problem = "leads to predictions that are not finite"
            raise InputError("newdata", problem, "are there missing values?")
        return self.model.links[0](made) if self.link and self.model.links else made

    def slopes(self, theta: Array) -> Array:
        """Return the derivatives (m, p) of predictions at a point (p,)."""
        return derivative(self.values(neighbours(theta, self.se)), self.se)

    def response(self, u: Array) -> Array:
        """Return the responses of linear predictors."""
        return u if self.model.links is None else self.model.links[1](u)


class Part(NamedTuple):
    """Rows with their weights in the sums that they belong to."""

    rows: Rows
    weights: Array  #: (m,).
    codes: NDArray[np.intp]  #: Which sum a row belongs to (m,).


@dataclass(frozen=True, eq=False)
class Sums:
    """Weighted sums of predictions at rows, one for each row of an index."""

    parts: tuple[Part, ...]
    index: pd.Index

    @property
    def random(self) -> bool:
        """Whether they vary given the parameters."""
        return any(part.rows.random for part in self.parts)

    @property
    def inner(self) -> Rows | None:
        """Rows on the scale of the linear predictor, if every sum is one prediction."""
        rows, weights, codes = self.parts[0]
        single = len(self.parts) == 1 and len(codes) == len(self.index) and np.all(weights == 1.0)
        return rows.inner if single else None

    def values(self, thetas: Array) -> Array:
        """Return the sums (d, k) at points (d, p)."""
        out = np.empty((len(thetas), len(self.index)))
        many = max(1, BLOCK // max(len(part.rows) for part in self.parts))
        for first in range(0, len(thetas), many):
            block = thetas[first : first + many]
            out[first : first + many] = self._added(
                (part, part.rows.values(block).T) for part in self.parts
            ).T
        return out

    def slopes(self, theta: Array) -> Array:
        """Return the derivatives (k, p) of the sums at a point (p,)."""
        return self._added((part, part.rows.slopes(theta)) for part in self.parts)

    def _added(self, parts: Iterable[tuple[Part, Array]]) -> Array:
        """Return the weighted sums (k, ...) of values (m, ...) of rows."""
        out = np.zeros((len(self.index), 0))
        for part, values in parts:
            out = out if out.shape[1] else np.zeros((len(self.index), values.shape[1]))
            np.add.at(out, part.codes, part.weights[:, None] * values)
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
    if sums.random:
        return _table_of_draws(sums, draws, kind, level, tests=tests)
    slopes = sums.slopes(target.center)
    estimate = sums.values(target.center[None])[0]
    se = _delta(slopes, target)
    columns: dict[str, Array] = {"estimate": estimate, "se": se}
    reach, p_values = np.zeros(len(se)), np.ones(len(se))
    if kind == "wald" or tests:
        for part in _blocks(np.flatnonzero(se > 0)):
            law = target.law(slopes[part])
            reach[part] = law.quantile(0.5 + 0.5 * level) * se[part]
            p_values[part] = 2 * law.tail(np.abs(estimate[part] / se[part]))
    if kind == "wald" and (inner := sums.inner) is not None:  # nearer to normal
        middle = inner.values(target.center[None])[0]
        ratio = np.divide(reach, se, out=np.zeros(len(se)), where=se > 0)
        half = ratio * _delta(inner.slopes(target.center), target)
        ends = np.sort([inner.response(middle - half), inner.response(middle + half)], axis=0)
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


def _delta(slopes: Array, target: Target) -> Array:
    """Return standard errors (k,) by the delta method of what has these derivatives (k, p)."""
    variance = np.einsum("ij,jk,ik->i", slopes, target.covariance, slopes)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)))


def _table_of_draws(
    sums: Sums, draws: Array, kind: str, level: float, *, tests: bool
) -> pd.DataFrame:
    """Return the same table of sums that vary given the parameters: of their draws alone."""
    import pandas as pd

    if kind != "draws":
        problem = f"is {kind!r}, and group effects are drawn: the delta method has no part in it"
        raise InputError("kind", problem, 'pass group_effects=False, or kind="draws"')
    values = sums.values(draws)
    estimate, se = values.mean(axis=0), values.std(axis=0, ddof=1)
    lower, upper = equal_tails(values, level)
    columns: dict[str, Array] = {"estimate": estimate, "se": se, "lower": lower, "upper": upper}
    if tests:
        least = np.minimum((values <= 0).sum(axis=0), (values >= 0).sum(axis=0))
        p_values = np.minimum(2 * (1 + least) / (1 + len(values)), 1.0)
        ratio = np.divide(estimate, se, out=np.full(len(se), np.nan), where=se > 0)
        columns |= {"t": ratio, "p": np.where(se > 0, p_values, np.nan)}
    return pd.DataFrame(columns, index=sums.index)


def _blocks(places: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """Yield places, some at a time."""
    for first in range(0, len(places), TOGETHER):
        yield places[first : first + TOGETHER]


@dataclass(frozen=True, eq=False)
class Grid:
    """Rows at which something predicts, those of the data or new ones, and how they change."""

    table: pd.DataFrame  #: Variables behind the rows.
    rows: Rows
    at: Callable[[pd.DataFrame], Rows]  #: Rows of another table of the same length.
    weights: Array  #: For averages.
    index: pd.Index
    variables: Sequence[str]  #: Columns of the table that predictions depend on.
    coded: Container[str]  #: Columns of numbers that stand for categories.
    known: pd.DataFrame  #: Whose values are the categories.

    @classmethod
    def of_criterion(
        cls,
        criterion: Criterion | None,
        columns: Columns,
        newdata: object,
        offset: object,
        scale: str,
    ) -> Grid:
        """Return the rows of new data, of the criterion's own if `newdata` is None."""
        import pandas as pd

        link = as_choice(scale, "scale", SCALES) == "link"
        if not has_rows(criterion):
            problem = "needs all coefficients of a loss over a linear predictor, or a model"
            advice = (
                "calibrate an ef.Criterion without var_names=, or a PyMC or Bambi fit with its "
            )
            advice += "model=, or give predict() rows with a column per coefficient and link="
            raise InputError("predict", problem, advice)
        total, own, right = criterion.total, criterion.rows, criterion.rows.right
        if newdata is None:
            if offset is not None:
                raise InputError("offset", "is that of the data already", "pass newdata= with it")
            X, shift = total.X, np.zeros(total.n) if total.offset is None else total.offset
            weights = np.ones(total.n) if total.weights is None else total.weights
            index = pd.RangeIndex(own.original) if own.index is None else own.index
            index = index if own.kept is None else index[own.kept]
            if right is None:
                table = pd.DataFrame(X, columns=list(criterion.names), index=index)
            else:
                table = own.table if own.kept is None else own.table.iloc[own.kept]
        else:
            table, X = _new_rows(criterion, columns, newdata)
            shift = _new_offset(criterion, offset, len(X))
            weights, index = np.ones(len(X)), table.index
        names = [str(name) for name in table.columns]

        def at(table: pd.DataFrame) -> Rows:
            X = _design_rows(criterion, columns, table)
            return LinearRows(X, shift, criterion.loss, link)

        return cls(
            table,
            LinearRows(X, shift, criterion.loss, link),
            at,
            weights,
            index,
            names if right is None else right.variables(names),
            () if right is None else right.categories,
            pd.DataFrame(total.X, columns=list(criterion.names)) if right is None else own.table,
        )

    @classmethod
    def of_model(cls, model: FromModel, drawn: Drawn, se: Array, scale: str) -> Grid:
        """Return the rows at which a model predicts, with its variables at parameters."""
        link = as_choice(scale, "scale", SCALES) == "link"
        if link and model.links is None:
            problem = "is not known of this prediction"
            raise InputError("scale", problem, "name a variable on that scale with variable=")
        table = model.table

        def at(table: pd.DataFrame) -> Rows:
            return ModelRows(model, drawn, table, se, link)

        ones = np.ones(len(table))
        described = model.variables, model.coded, model.known
        return cls(table, at(table), at, ones, table.index, *described)

    def each(self) -> Sums:
        """Return the prediction at every row."""
        every = np.arange(len(self.rows))
        return Sums((Part(self.rows, np.ones(len(every)), every),), self.index)

    def averages(self, by: object) -> Sums:
        """Return the average of predictions, by the values of columns if they are named."""
        codes, index = self._cells(by)
        return Sums((Part(self.rows, self._shares(codes, len(index)), codes),), index)

    def contrasts(self, variables: object, by: object, *, slopes: bool) -> Sums:
        """Return the averages of what predictions change by when each variable changes."""
        import pandas as pd

        codes, cells = self._cells(by)
        shares = self._shares(codes, len(cells))
        parts: list[Part] = []
        labels: list[tuple[Hashable, ...]] = []
        for change in self._changes(variables, slopes):
            own = codes + len(labels)
            for value, sign in zip(change.values, (1.0, -1.0), strict=True):
                rows = self.at(self._with(change.name, value))
                parts.append(Part(rows, sign * shares / change.distance, own))
            for cell in cells if by is not None else [()]:
                inside = cell if isinstance(cell, tuple) else (cell,)
                labels.append((change.name, change.label, *inside))
        names = ["term", "contrast", *(cells.names if by is not None else ())]
        return Sums(tuple(parts), pd.MultiIndex.from_tuples(labels, names=names))

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
            return np.zeros(len(self.rows), dtype=np.intp), pd.Index(["average"])
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
        known = list(self.variables)
        if not known:
            advice = "write what they depend on as pm.Data with a value per row"
            raise InputError("variables", "are none that predictions depend on", advice)
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

    def _is_number(self, name: str) -> bool:
        from pandas.api.types import is_bool_dtype, is_numeric_dtype

        column = self.table[name]
        number = is_numeric_dtype(column) and not is_bool_dtype(column)
        return bool(number) and name not in self.coded

    def _is_binary(self, name: str) -> bool:
        """Return whether a variable is zero or one in the data, and both occur."""
        if name not in self.known or not self._is_number(name):
            return False
        return sorted(self.known[name].dropna().unique().tolist()) == [0, 1]

    def _change(self, name: str, to: object, slope: bool) -> Iterator[Change]:
        """Yield the changes of one variable: by one, to each other level, or as asked."""
        column = self.table[name]
        if slope:
            yield self._slope(name)
        elif isinstance(to, tuple | list) and len(to) == 2:
            yield Change(name, f"{to[1]} - {to[0]}", (to[1], to[0]))
        elif to is None and self._is_binary(name):
            yield Change(name, "1 - 0", (1, 0))
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

    def _slope(self, name: str) -> Change:
        """Return a small change of a number."""
        if not self._is_number(name):
            raise InputError("variables", f"{name!r} has no slope", "use comparisons()")
        values = self.table[name].to_numpy(dtype=float)
        step = STEP * float(np.ptp(values) or max(abs(values[0]), 1.0))
        return Change(name, "slope", (values + step, values - step), 2 * step)

    def _levels(self, name: str) -> list[object]:
        """Return the values of a variable that is no number, the reference first."""
        column = self.known[name]
        if column.dtype.name == "category":
            return [level for level in column.cat.categories if (column == level).any()]
        return sorted(column.dropna().unique().tolist())


def named_rows(columns: Columns, newdata: object, offset: object, scale: str, link: str) -> Sums:
    """Return predictions at rows whose columns are named after coefficients.

    A column ``offset`` is added. Parameters without a column do not enter, as a scale does not.
    """

    loss = LINKS[as_choice(link, "link", tuple(LINKS))]
    on_link = as_choice(scale, "scale", SCALES) == "link"
    table, known = as_table(newdata, "newdata"), list(columns.names)
    if not table.size:
        advice = f"pass a table with columns out of {known[:20]}"
        raise InputError("newdata", "is empty", advice)
    if OFFSET in table and OFFSET not in known:
        if offset is not None:
            raise InputError("offset", "is a column of newdata too", "pass one of the two")
        table, offset = table.drop(columns=OFFSET), table[OFFSET].to_numpy()
    strange = [str(name) for name in table if str(name) not in known]
    if strange or not table.size:
        problem = f"has columns that are not parameters: {strange[:5]}"
        raise InputError("newdata", problem, f"name them after some of {known[:20]}")
    X = np.zeros((len(table), len(known)))
    X[:, [known.index(str(name)) for name in table]] = as_array(table.to_numpy(), "newdata", ndim=2)
    shift = np.zeros(len(X)) if offset is None else as_array(offset, "offset")
    if shift.ndim > 0 and shift.shape != (len(X),):
        raise InputError("offset", f"has shape {shift.shape} for {len(X)} rows")
    ones, every = np.ones(len(X)), np.arange(len(X))
    rows = LinearRows(X @ columns.basis, shift * ones, loss, on_link)
    return Sums((Part(rows, ones, every),), table.index)


class Change(NamedTuple):
    """A variable at two values, the later first, and how far these are from each other."""

    name: str
    label: str
    values: tuple[object, object]
    distance: float = 1.0


def _design_rows(criterion: Criterion, columns: Columns, table: pd.DataFrame) -> Array:
    """Return the design matrix of a table."""
    if (right := criterion.rows.right) is not None:
        return right.rows(table, columns.names)[0] @ columns.basis
    own = list(criterion.names)  # of the data's own rows; new ones have all columns
    if not set(columns.names) <= set(table.columns):
        return np.ascontiguousarray(table[own].to_numpy(dtype=float))
    whole: Array = table[list(columns.names)].to_numpy(dtype=float)
    return whole @ columns.basis


def _new_offset(criterion: Criterion, offset: object, rows: int) -> Array:
    """Return the offset of new rows (rows,)."""
    if criterion.total.offset is not None and offset is None:
        problem = "is needed: the data had one for each row"
        raise InputError("offset", problem, "pass a number or a value per row of newdata")
    shift = 0.0 if offset is None else as_array(offset, "offset")
    if np.ndim(shift) > 0 and np.shape(shift) != (rows,):
        raise InputError("offset", f"has shape {np.shape(shift)} for {rows} rows")
    return shift * np.ones(rows)


def _new_rows(
    criterion: Criterion, columns: Columns, newdata: object
) -> tuple[pd.DataFrame, Array]:
    """Return new data as a table, and their design matrix."""
    import pandas as pd

    right, names, newdata = criterion.rows.right, list(columns.names), as_pandas(newdata)
    if right is not None:
        table = as_table(newdata, "newdata")
        X, complete = right.rows(table, names)
        if not complete.all():
            problem = f"has missing values in {counted_noun(int((~complete).sum()), 'row')}"
            raise InputError("newdata", problem, "fill them in, or drop these rows")
        return table, X @ columns.basis
    newdata = as_table(newdata, "newdata") if isinstance(newdata, Mapping) else newdata
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
