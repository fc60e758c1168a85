"""From a formula and a DataFrame to arrays, with names and the rows that were kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from etafree.errors import InputError
from etafree.rows import Rows
from etafree.validation import Array

__all__ = ["Design", "design", "plain_text", "screened"]

#: What a formula from a file or the command line may call, and the keywords it may pass.
CALLS = {"C", "I", "Treatment", "Sum", "Helmert", "Diff", "Poly", "bs", "cc", "cr", "cs", "center",
         "exp", "exp2", "exp10", "lag", "log", "log2", "log10", "poly", "scale", "standardize",
         "np.abs", "np.cos", "np.exp", "np.expm1", "np.log", "np.log10", "np.log1p", "np.log2",
         "np.sin", "np.sqrt", "np.tanh"}  # fmt: skip
KEYWORDS = {"base", "ddof", "degree", "df", "include_intercept", "raw", "reference"}
TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>`[^`]*`)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|
    (?P<name>[^\W\d][\w.]*)|(?P<text>"[\w .-]*"|'[\w .-]*')|(?P<sign>\*\*|[-+*/:~|^(),=.]))\s*""",
    re.VERBOSE,
)
LONGEST, POWERS = 2000, 4


class Design(NamedTuple):
    """What a formula makes of a DataFrame."""

    X: Array
    y: Array
    names: tuple[str, ...]
    intercept: int | None
    rows: Rows


def plain_text(error: Exception) -> str:
    """Return an error's message on one line, without a terminal's colours and marks."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return " ".join(re.sub("[⧛⧚]", "", text).split())


def screened(formula: str, columns: Iterable[Any]) -> str:
    """Return a formula of unknown origin, checked word by word before anything evaluates it.

    formulaic evaluates Python. Here only columns, numbers, operators and listed functions pass;
    write columns with other characters in backticks.

    Examples
    --------
    >>> screened("y ~ log(x) + C(g)", ["y", "x", "g"])
    'y ~ log(x) + C(g)'
    >>> screened("y ~ {__import__('os')}", ["y"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    etafree.errors.InputError: formula: has '{' at place 5; use columns...
    """
    known = {str(name) for name in columns}
    if not isinstance(formula, str) or len(formula) > LONGEST:
        raise InputError("formula", f"is longer than {LONGEST} characters or no text")
    place, before, powers = 0, "", 0
    while place < len(formula):
        token = TOKEN.match(formula, place)
        if token is None:
            raise InputError("formula", f"has {formula[place]!r} at place {place + 1}",
                             "use columns, + - * : / ** and functions such as log(x)")  # fmt: skip
        kind, word = next((k, w) for k, w in token.groupdict().items() if w is not None)
        place = token.end()
        after = formula[place : place + 1]
        if kind == "quoted" and word[1:-1] not in known:
            raise InputError("formula", f"has {word}", f"columns: {sorted(known)}")
        if kind == "name":
            plain = {name for name in known if "." not in name}  # a dot reaches into objects
            allowed = CALLS if after == "(" else KEYWORDS if after == "=" else plain
            if word not in allowed and word not in ("True", "False"):
                what = "calls" if after == "(" else "has"
                advice = (
                    f"functions: {sorted(CALLS)}"
                    if after == "("
                    else (f"columns: {sorted(known)}, in backticks if they are no plain words")
                )
                raise InputError("formula", f"{what} {word!r}", advice)  # fmt: skip
        if word in ("**", "^"):
            powers += 1
            if before == "number" or powers > POWERS or not re.match(r"\d{1,2}\b", formula[place:]):
                raise InputError("formula", f"has a power at place {place}",
                                 "write (a + b)**2 or I(x**3), one number after it")  # fmt: skip
        before = kind
    return formula


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
    import formulaic
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    if not isinstance(data, pd.DataFrame):
        raise InputError("data", f"is a {type(data).__name__}", "pass a pandas DataFrame")
    if not isinstance(formula, str) or "~" not in formula:
        raise InputError("formula", f"is {formula!r}", 'write it as "response ~ predictors"')
    odd = [name for name in data.columns if data[name].dtype.kind == "c"]
    if any(re.search(rf"\b{re.escape(str(name))}\b", formula) for name in odd):
        raise InputError("formula", f"uses complex columns {odd}")
    table = data.reset_index(drop=True)
    try:
        matrices = formulaic.model_matrix(
            formula, table, context={"np": np, **(context or {})}, na_action="drop"
        )
    except Exception as error:  # formulaic raises its own and Python's errors alike
        raise InputError(
            "formula",
            f"{formula!r} cannot be evaluated: {plain_text(error)}",
            f"columns: {list(data.columns)}",
        ) from None
    left, right = getattr(matrices, "lhs", None), getattr(matrices, "rhs", None)
    if not isinstance(left, pd.DataFrame) or not isinstance(right, pd.DataFrame):
        raise InputError("formula", f"{formula!r} needs one left and one right side")
    words = [v for v in left.model_spec.variables if v in data and not is_numeric_dtype(data[v])]
    if words:
        raise InputError("formula", f"the response {words} is not numeric", "code it as numbers")
    if left.shape[1] != 1:
        raise InputError(
            "formula", f"the left side of {formula!r} gives {left.shape[1]} columns",
            "use one numeric response",
        )  # fmt: skip
    if right.shape[0] == 0:
        raise InputError("data", "has no complete row for this formula", "check missing values")
    if right.shape[1] == 0:
        raise InputError("formula", f"{formula!r} has no predictors")
    names = tuple(str(c) for c in right.columns)
    kept = np.asarray(right.index, dtype=np.intp)
    return Design(
        np.ascontiguousarray(right.to_numpy(dtype=np.float64)),
        left.to_numpy(dtype=np.float64)[:, 0],
        names,
        names.index("Intercept") if "Intercept" in names else None,
        Rows(len(data), None if len(kept) == len(data) else kept, data.index, data),
    )
