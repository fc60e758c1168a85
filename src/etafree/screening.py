"""Formulas that people type, read word by word before anything evaluates them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from etafree.errors import InputError

__all__ = ["column_uses", "screened"]

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
        raise InputError("formula", f"is longer than {LONGEST} characters or no text",
                         'write it as "response ~ predictors"')  # fmt: skip
    before, powers = "", 0
    for kind, word, place in _tokens(formula):
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


def column_uses(formula: str, columns: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the columns that a screened formula uses as they are, and those inside ``C()``.

    Examples
    --------
    >>> bare, categories = column_uses("y ~ log(x) + C(g, Treatment('a'))", ["a", "g", "x", "y"])
    >>> sorted(bare), sorted(categories)
    (['x', 'y'], ['g'])
    """
    known = set(columns)
    bare: set[str] = set()
    categories: set[str] = set()
    opened: tuple[str, ...] = ()
    for kind, word, place in _tokens(formula):
        name = word.strip("`") if kind in ("name", "quoted") else ""
        if word == "." and kind == "sign":
            bare |= known
        elif name in known and formula[place : place + 1] not in ("(", "="):
            (categories if opened[-2:] == ("C", "(") else bare).add(name)
        opened = (*opened[-1:], word)
    return bare, categories


def _tokens(formula: str) -> Iterator[tuple[str, str, int]]:
    """Yield each word of a formula: its kind, itself, and the place where the next begins."""
    place = 0
    while place < len(formula):
        token = TOKEN.match(formula, place)
        if token is None:
            raise InputError("formula", f"has {formula[place]!r} at place {place + 1}",
                             "use columns, + - * : / ** and functions such as log(x)")  # fmt: skip
        place = token.end()
        yield next((k, w, place) for k, w in token.groupdict().items() if w is not None)
