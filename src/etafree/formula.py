"""From a formula and a DataFrame to arrays, with names and the rows that were kept."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.columns import as_frame, numbers
from etafree.errors import InputError
from etafree.expressions import check_columns, check_expressions, expanded
from etafree.rows import Rows
from etafree.validation import Array, as_mapping, check_finite

__all__ = ["Design", "Recipe", "check_kinds", "design", "formula_columns", "matrices", "plain_text"]


class Design(NamedTuple):
    """What a formula makes of a DataFrame."""

    X: Array
    y: Array
    names: tuple[str, ...]
    intercept: int | None
    rows: Rows
    spec: Any


def plain_text(error: Exception) -> str:
    """Return an error's message on one line, without a terminal's colours and marks."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return " ".join(re.sub("[⧛⧚]", "", text).split())


def design(formula: str, data: Any, context: Mapping[str, Any] | None = None) -> Design:
    """Return the model matrices of ``"y ~ x1 + C(group)"``; rows with missing values are dropped.

    Functions in the formula come from numpy as ``np``, from formulaic, or from `context`.

    Examples
    --------
    >>> import pandas as pd
    >>> d = design("y ~ x", pd.DataFrame({"y": [1.0, 2.0, None], "x": [0.0, 1.0, 2.0]}))
    >>> d.names, d.X.shape, d.rows.dropped
    (('Intercept', 'x'), (2, 2), 1)
    """
    import pandas as pd

    if not isinstance(data, pd.DataFrame):
        raise InputError("data", f"is a {type(data).__name__}", "pass a pandas DataFrame")
    if not isinstance(formula, str) or "~" not in formula:
        raise InputError("formula", f"is {formula!r}", 'write it as "response ~ predictors"')
    if not data.columns.is_unique:
        twice = sorted(set(map(str, data.columns[data.columns.duplicated()])))
        raise InputError("data", f"has several columns named {twice}", "rename them")
    odd = [name for name in data.columns if data[name].dtype.kind == "c"]
    if any(re.search(rf"\b{re.escape(str(name))}\b", formula) for name in odd):
        raise InputError("formula", f"uses complex columns {odd}", "take real parts first")
    made = matrices(formula, data, context)
    if len(made.X) == 0:
        raise InputError("data", "has no complete row for this formula", "check missing values")
    return made


def matrices(formula: Any, data: Any, context: Mapping[str, Any] | None) -> Design:
    """Return the model matrices of a formula, or of the specification an earlier one left."""
    import formulaic
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    table = as_frame(data, data.columns).reset_index(drop=True)
    if isinstance(formula, str):
        table = _used_levels(table, None)
    else:  # the levels are known; more may be declared, or stand in rows that are left out
        declared = [name for name in table if table[name].dtype.name == "category"]
        table = table.astype(dict.fromkeys(declared, object))
    own = {} if context is None else as_mapping(context, "context")
    known = {"np": np, "exp10": _exp10, "C": _categories, **own}
    try:
        if isinstance(formula, str):
            check_expressions(expanded(formula, list(data.columns)), table, context)
        both = formulaic.model_matrix(formula, table, context=known, na_action="drop")
        rows = getattr(getattr(both, "rhs", None), "index", table.index)
        if isinstance(formula, str) and len(rows) < len(table):
            fewer = _used_levels(table, rows)
            if fewer is not table:  # some labels stand in dropped rows only
                both = formulaic.model_matrix(formula, fewer, context=known, na_action="drop")
    except InputError:
        raise
    except Exception as error:  # formulaic raises its own and Python's errors alike
        told = plain_text(error)
        problem = f"{_text(formula)!r:.200} cannot be evaluated: {told:.400}"
        raise InputError("formula", problem, _remedy(told, data)) from None
    left, right = getattr(both, "lhs", None), getattr(both, "rhs", None)
    if not isinstance(left, pd.DataFrame) or not isinstance(right, pd.DataFrame):
        raise InputError("formula", f"{_text(formula)!r} needs one left and one right side",
                         'write it as "response ~ predictors"')  # fmt: skip
    words = [v for v in left.model_spec.variables if v in table and not is_numeric_dtype(table[v])]
    if words:
        raise InputError("formula", f"the response {words} is not numeric", "code it as numbers")
    if left.shape[1] != 1:
        raise InputError(
            "formula", f"the left side of {_text(formula)!r} gives {left.shape[1]} columns",
            "use one numeric response",
        )  # fmt: skip
    if right.shape[1] == 0:
        raise InputError("formula", f"{_text(formula)!r} has no predictors", "write 1 for a mean")
    try:
        X, y = right.to_numpy(dtype=np.float64), left.to_numpy(dtype=np.float64)[:, 0]
    except (TypeError, ValueError) as error:
        raise InputError(
            "formula", f"{_text(formula)!r} makes entries that are no numbers ({error})",
            "code its columns as numbers, or write C(column) for categories",
        ) from None  # fmt: skip
    X, y = _without_overflow(both, X, y, table, known)
    names = tuple(str(c) for c in right.columns)
    kept = np.asarray(right.index, dtype=np.intp)
    return Design(
        np.ascontiguousarray(X),
        y,
        names,
        names.index("Intercept") if "Intercept" in names else None,
        Rows(
            len(data), None if len(kept) == len(data) else kept, data.index, data,
            missing=len(data) - len(kept),
        ),
        both.model_spec,
    )  # fmt: skip


def _used_levels(table: Any, rows: Any) -> Any:
    """Return a table whose categories are those that some row has, of the given rows if any."""
    fewer = {}
    for name, kind in table.dtypes.items():
        if kind.name == "category":
            column = table[name] if rows is None else table.loc[rows, name]
            used = column.cat.remove_unused_categories().cat.categories
            if len(used) < len(kind.categories):
                fewer[name] = table[name].cat.set_categories(used)
    return table.assign(**fewer) if fewer else table


def _categories(data: Any, *arguments: Any, **options: Any) -> Any:
    """Return formulaic's ``C()`` of a column or an expression, unless its labels are too many."""
    import pandas as pd
    from formulaic.transforms.contrasts import C

    column = pd.Series(getattr(data, "__wrapped__", data))
    check_columns("C()", column.nunique(), len(column))
    return C(data, *arguments, **options)


def _remedy(told: str, data: Any) -> str:
    """Return what to do about an error of formulaic's."""
    reference = re.search(r"Value `(.*?)` for `TreatmentContrasts", told)
    if reference is None:
        return f"columns: {list(data.columns)}"
    quoted = f"write {reference[1]!r} in quotes, as labels of a file are text, or "
    return (quoted if reference[1][0] not in "'\"" else "") + "name one of the column's labels"


def _without_overflow(
    both: Any, X: Array, y: Array, table: Any, known: Mapping[str, Any]
) -> tuple[Array, Array]:
    """Return the matrices computed in floating point, where whole numbers ran over in silence.

    ``I(x**9)`` of whole numbers wraps around at 2⁶³, of small integer types earlier. Otherwise the
    numbers stay: differences of long ids are exact in whole numbers only.
    """
    import formulaic

    terms = [term.factors for side in both.model_spec for term in side.terms]
    derived = [factor.expr for factors in terms for factor in factors
               if len(factors) > 1 or factor.expr not in table]  # fmt: skip
    computed = " ".join(text for text in derived if not re.fullmatch(r"1|C\(\w+(, .*)?\)", text))
    whole = [c for c in table if table[c].dtype.kind in "iu" and str(c) in computed]
    if not whole:
        return X, y
    floats = table.assign(**{c: numbers(table, c, "data") for c in whole})
    try:
        again = formulaic.model_matrix(both.model_spec, floats, context=known, na_action="drop")
        pair = again.rhs.to_numpy(dtype=np.float64), again.lhs.to_numpy(dtype=np.float64)[:, 0]
    except Exception:  # what takes whole numbers only, such as an index
        return X, y
    near = 1e-9 * float(np.abs(floats[whole].to_numpy()).max(initial=0.0))
    same = [a.shape == b.shape and np.allclose(a, b, 1e-6, near, equal_nan=True)
            for a, b in zip((X, y), pair, strict=True)]  # fmt: skip
    return (X, y) if all(same) else pair


def _exp10(x: Any) -> Any:
    return np.power(10.0, x)  # formulaic's own is the tenth power of x


def _text(formula: Any) -> str:
    return formula if isinstance(formula, str) else "the formula"


def formula_columns(
    formula: str, columns: Sequence[str], context: Mapping[str, Any] | None
) -> tuple[str, ...]:
    """Return the columns of a table that a formula uses, in the table's order.

    Examples
    --------
    >>> formula_columns("y ~ np.log(x) + C(g)", ["g", "h", "x", "y"], None)
    ('g', 'x', 'y')
    """
    if not isinstance(formula, str) or "~" not in formula:
        raise InputError("formula", f"is {formula!r}", 'write it as "response ~ predictors"')
    try:
        terms = expanded(formula, columns)
        used = {str(name) for name in terms.required_variables} - set(context or ())
    except InputError:
        raise
    except Exception as error:  # formulaic raises its own and Python's errors alike
        raise InputError("formula", f"{formula!r:.200} cannot be read: {plain_text(error):.400}",
                         'write it as "response ~ predictors"') from None  # fmt: skip
    missing = sorted(used - set(columns))
    if missing:
        raise InputError("formula", f"uses {missing}", f"columns: {list(columns)}")
    # formulaic overlooks the arguments of some functions, such as center(x)
    return tuple(c for c in columns if c in used or re.search(rf"\b{re.escape(c)}\b", formula))


@dataclass(frozen=True, eq=False)
class Recipe:
    """How the parts of one table become rows of one design matrix.

    Attributes
    ----------
    names : tuple of str
    intercept : int or None
    columns : tuple of str
        What a part must have.
    plain : tuple of (str or None), or None
        Each parameter's own column, None for the intercept, if the formula asks for no more.
    response : str
        Its column, if `plain`.
    spec, context
        What formulaic needs otherwise.
    kinds : mapping
        What each column holds, as `check_kinds` has it.
    """

    names: tuple[str, ...]
    intercept: int | None
    columns: tuple[str, ...]
    plain: tuple[str | None, ...] | None
    response: str
    spec: Any
    context: Mapping[str, Any] | None
    kinds: Mapping[str, str]

    @classmethod
    def of(cls, formula: str, sample: Any, context: Mapping[str, Any] | None) -> Recipe:
        """Return the recipe that some rows show, all levels of all categories among them."""
        made = design(formula, sample, context)
        left, right = made.spec.lhs, made.spec.rhs
        plain = [_column(term, sample) for term in (*left.terms, *right.terms)]
        simple = len(plain) == len(made.names) + 1 and "" not in plain and plain[0] is not None
        stateful = [*left.transform_state, *right.transform_state]
        if stateful or not (simple or _row_by_row(made, sample, context)):
            named = f"{stateful[0]!r}" if stateful else f"something in {formula!r}"
            raise InputError("formula", f"{named} looks at other rows than its own, and these are "
                             "read in parts", "store it as a column of the data")  # fmt: skip
        return cls(
            made.names, made.intercept, tuple(map(str, sample.columns)),
            tuple(plain[1:]) if simple else None, str(plain[0]), made.spec, context,
            check_kinds(sample, {}),
        )  # fmt: skip

    def arrays(
        self, chunk: Any, complete: bool = False
    ) -> tuple[Array, Array, NDArray[np.intp] | None]:
        """Return X, y and the rows kept, None for all, of a part of the table.

        `complete` says that an earlier pass found no missing value.
        """
        if self.plain is None:
            frame = as_frame(chunk, self.columns)
            check_kinds(frame, self.kinds)
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Data has categories outside")
                made = matrices(self.spec, frame, self.context)
            return made.X, made.y, made.rows.kept
        y = numbers(chunk, self.response, "y")
        found = [None if c is None else numbers(chunk, c, "X") for c in self.plain]
        X = np.empty((len(y), len(found)), order="F")  # as columns come
        for j, column in enumerate(found):
            X[:, j] = 1.0 if column is None else column
        kept = None
        flat = X.reshape(-1, order="F")
        if not complete and not np.isfinite(flat @ flat + y @ y):
            whole = ~(np.isnan(X).any(axis=1) | np.isnan(y))
            if not whole.all():
                kept = np.flatnonzero(whole)
                X, y = X[kept], y[kept]
            check_finite(X, "X")
            check_finite(y, "y")
        return X, y, kept

    def level_columns(self) -> list[list[str]]:
        """Return the columns behind each category of the formula."""
        found = []
        for spec in (self.spec.lhs, self.spec.rhs):
            for factor, variables in spec.factor_variables.items():
                state = spec.encoder_state.get(factor.expr)
                if state is not None and state[0].value == "categorical":
                    found.append([c for c in self.columns if c in variables])
        return found


def check_kinds(frame: Any, known: Mapping[str, str]) -> dict[str, str]:
    """Return what columns hold, with what is known of other parts; refuse what differs from it.

    Examples
    --------
    >>> import pandas as pd
    >>> check_kinds(pd.DataFrame({"x": [1, 2], "g": ["a", "b"]}), {"x": "numbers"})
    {'x': 'numbers', 'g': 'categories'}
    """
    from pandas.api.types import is_numeric_dtype

    kinds = dict(known)
    for name in map(str, frame.columns):
        column = frame[name]
        kind = "numbers" if is_numeric_dtype(column) else "categories"
        kind = "dates" if column.dtype.kind in "Mm" else kind
        if kinds.get(name, kind) != kind and column.notna().any():
            raise InputError(
                "data",
                f"column {name!r} holds {kinds[name]} in some parts and {kind} in others",
                "store it as one type",
            )
        if column.notna().any():
            kinds.setdefault(name, kind)
    return kinds


def _row_by_row(made: Design, sample: Any, context: Mapping[str, Any] | None) -> bool:
    """Return whether half of the rows give what they give among all."""
    half = len(sample) // 2
    part = matrices(made.spec, sample.iloc[half:], context)
    kept = np.arange(len(sample)) if made.rows.kept is None else made.rows.kept
    return np.array_equal(made.X[kept >= half], part.X) and np.array_equal(
        made.y[kept >= half], part.y
    )


def _column(term: Any, table: Any) -> str | None:
    """Return the numeric column that a term is, None for the intercept, "" for anything else."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    name = ":".join(factor.expr for factor in term.factors)
    if name == "1":
        return None
    known = name in table and is_numeric_dtype(table[name]) and not is_bool_dtype(table[name])
    return name if known and len(term.factors) == 1 else ""
