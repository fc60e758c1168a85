r"""From a formula and a DataFrame to arrays, with names and the rows that were kept.

Formulas are R's, the functions inside them Python's, evaluated by formulaic. What a formula asks
for (its terms, functions and columns) is known before anything is computed, and it is refused
where the two languages differ silently (``I(x^2)`` is an exclusive or of bits, ``offset()`` a
column like others) or where memory cannot hold its columns. Formulas that people type into files
or the command line are read word by word first.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from etafree.data.labels import Chunk, Columns, Kept, as_frame, numbers
from etafree.data.rows import Rows
from etafree.errors import InputError
from etafree.foundation.arguments import (
    Array,
    as_floats,
    as_mapping,
    as_pandas,
    check_finite,
    is_numeric,
    side_by_side,
)
from etafree.foundation.storage import memory

if TYPE_CHECKING:
    import pandas as pd
    from formulaic import Formula, ModelMatrices, ModelSpecs
    from formulaic.parser.types import ASTNode, Term

#: Functions and values that a formula may name.
Context: TypeAlias = Mapping[str, object] | None
#: What a formula from a file or the command line may call, and the keywords it may pass.
CALLS = {"C", "I", "Treatment", "Sum", "Helmert", "Diff", "Poly", "bs", "cc", "cr", "cs", "poly"}
CALLS |= {"center", "scale", "standardize", "lag", "exp", "exp2", "exp10", "log", "log2", "log10"}
CALLS |= {"np.abs", "np.cos", "np.exp", "np.expm1", "np.log", "np.log10", "np.log1p", "np.log2"}
CALLS |= {"np.sin", "np.sqrt", "np.tanh"}
KEYWORDS = {"base", "ddof", "degree", "df", "include_intercept", "raw", "reference"}
TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>`[^`]*`)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|
    (?P<name>[^\W\d][\w.]*)|(?P<text>"[\w .-]*"|'[\w .-]*')|(?P<sign>\*\*|[-+*/:~|^(),=.]))\s*""",
    re.VERBOSE,
)
#: Characters and powers of such a formula.
LONGEST, POWERS = 2000, 4
#: Products of terms that a formula may ask for, and columns and cells of its matrix.
PRODUCTS, COLUMNS, CELLS = 100_000, 20_000, 1 << 31
#: Arguments, with their place, that say how many columns a function makes.
WIDTHS = {
    "bs": {"df": 1, "degree": 3},
    "poly": {"degree": 1},
    "hashed": {"levels": 1},
    **{spline: {"df": 1} for spline in ("cs", "cr", "cc")},
}
#: Functions whose numbers are lengths of what they return.
ALLOCATE = {"arange", "empty", "eye", "full", "geomspace", "identity", "linspace", "logspace"}
ALLOCATE |= {"ones", "range", "repeat", "tile", "zeros"}
#: Formulas whose terms are remembered: who simulates fits the same one to many tables.
PARSED = 256
#: Operators that work on the bits of whole numbers, and on truth values as words do.
BITS: dict[type[object], str] = {
    ast.BitXor: "^",
    ast.BitOr: "|",
    ast.BitAnd: "&",
    ast.Invert: "~",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
#: What constants are computed with; anything else counts as a difference.
ARITHMETIC: dict[type[ast.operator], Callable[[float, float], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    **dict.fromkeys((ast.Div, ast.FloorDiv), operator.truediv),
}
#: What to do about a text that is no formula.
FORM = 'write it as "response ~ predictors"'


def screened(formula: str, columns: Iterable[object]) -> str:
    """Return a formula of unknown origin, checked word by word before anything evaluates it.

    formulaic evaluates Python. Here only columns, numbers, operators and listed functions pass;
    write columns with other characters in backticks.
    """
    known = {str(name) for name in columns}
    if not isinstance(formula, str) or len(formula) > LONGEST:
        raise InputError("formula", f"is longer than {LONGEST} characters or no text", FORM)
    before, powers = "", 0
    for kind, word, place in _tokens(formula):
        if kind == "quoted" and word[1:-1] not in known:
            raise InputError("formula", f"has {word}", f"columns: {sorted(known)}")
        if kind == "name":
            _check_name(word, formula[place : place + 1], known)
        if word in ("**", "^"):
            powers += 1
            if before == "number" or powers > POWERS or not re.match(r"\d{1,2}\b", formula[place:]):
                advice = "write (a + b)**2 or I(x**3), one number after it"
                raise InputError("formula", f"has a power at place {place}", advice)
        before = kind
    return formula


def _check_name(word: str, after: str, columns: set[str]) -> None:
    """Refuse a word that is neither a column nor, judging by `after`, a function or keyword."""
    plain = {name for name in columns if "." not in name}  # a dot reaches into objects
    if word in {"(": CALLS, "=": KEYWORDS}.get(after, plain) or word in ("True", "False"):
        return
    if after == "(":
        raise InputError("formula", f"calls {word!r}", f"functions: {sorted(CALLS)}")
    raise InputError("formula", f"has {word!r}", f"columns, some in backticks: {sorted(columns)}")


def column_uses(formula: str, columns: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the columns that a screened formula uses as they are, and those inside ``C()``."""
    known, bare, categories = set(columns), set[str](), set[str]()
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
            advice = "use columns, + - * : / ** and functions such as log(x)"
            raise InputError("formula", f"has {formula[place]!r} at place {place + 1}", advice)
        place = token.end()
        yield next((k, w, place) for k, w in token.groupdict().items() if w is not None)


def expanded(formula: str, columns: Sequence[object]) -> Formula:
    """Return the terms of a formula: 1, x, z and x:z of ``y ~ (x + z)**2``; refuse too many."""
    return _parsed(formula, tuple(map(str, columns)))


@lru_cache(PARSED)
def _parsed(formula: str, columns: tuple[str, ...]) -> Formula:
    import formulaic
    from formulaic.parser import DefaultFormulaParser

    known = {"__formulaic_variables_available__": list(columns)}
    tree = DefaultFormulaParser().get_ast(formula, context=dict(known))
    products = _products(tree, len(columns))
    if products > PRODUCTS:
        problem = f"{formula!r:.200} multiplies out to about {products:.2g} terms"
        raise InputError("formula", problem, "name the interactions that you need")
    return formulaic.Formula(formula, _context=known)


def _products(tree: ASTNode, columns: int) -> float:
    """Return at most how many products of terms it takes to multiply a formula out."""
    terms: dict[int, float] = {}
    most = 0.0
    waiting = [(tree, False)]
    while waiting:  # no recursion: long sums are deep trees
        node, seen = waiting.pop()
        if not hasattr(node, "operator"):
            terms[id(node)] = 1.0
            continue
        if not seen:
            waiting += [(node, True), *((argument, False) for argument in node.args)]
            continue
        counts = [terms[id(argument)] for argument in node.args]
        symbol = node.operator.symbol
        if symbol in ("**", "^"):  # each product has as many factors; formulaic refuses no number
            exponent = _exponent(node.args[1])
            power = float(exponent[:18]) if exponent.isdecimal() else 0.0
            large = power > 1 and counts[0] > math.exp(700 / power)
            count = math.inf if large else max(counts[0] ** power, power)
        elif symbol == ".":
            count = float(columns)
        elif symbol in ("*", ":"):
            count = math.prod(counts) + (sum(counts) if symbol == "*" else 0.0)
        else:
            count = sum(counts)
        most, terms[id(node)] = max(most, count), count
    return most


def _exponent(node: ASTNode) -> str:
    """Return the exponent of a power; of a tower or a sum the largest number in it."""
    if not hasattr(node, "operator"):
        return str(getattr(node, "token", ""))
    return max(map(_exponent, node.args), key=lambda text: (text.isdecimal(), len(text), text))


def check_expressions(terms: Formula, data: pd.DataFrame, context: Mapping[str, object]) -> None:
    """Refuse terms that mean something else in Python, or whose columns memory cannot hold."""
    total, cells = 0.0, most_cells()
    for side in (getattr(terms, "lhs", ()), getattr(terms, "rhs", ())):
        for term in side if hasattr(side, "__iter__") else ():
            width = math.prod(_width(str(f.expr), data, context) for f in term.factors)
            total += width
            check_columns(str(term), width, len(data), cells, total)


def most_cells() -> int:
    """Return how many numbers of eight bytes a formula may make."""
    return min(CELLS, memory()[1] // 8)


def check_columns(term: str, columns: float, rows: int, cells: int, total: float = 0.0) -> None:
    """Refuse a term whose columns, with those before it, memory cannot hold."""
    total = max(total, columns)
    if total > COLUMNS or total * rows > cells:
        size = f"{columns:,.0f} columns of {rows:,} rows, and {total:,.0f} with the terms before it"
        advice = f"a formula may make {COLUMNS:,} columns and {cells:,} cells here"
        raise InputError("formula", f"{term!r:.80} makes {size}", advice)


def _width(factor: str, data: pd.DataFrame, context: Mapping[str, object]) -> float:
    """Return how many columns a factor makes, its expression checked."""
    if factor in data:
        column = data[factor]
        if column.dtype.kind == "M":  # formulaic's error does not name the column
            advice = f"store days since a start, or write C({factor}) for categories"
            raise InputError("formula", f"treats the dates in {factor!r} as numbers", advice)
        try:
            return 1.0 if column.dtype.kind in "iufc" else float(max(column.nunique(), 1))
        except TypeError:  # lists and the like, which are refused later
            return 1.0
    quoted = {f"_quoted_{k}": name for k, name in enumerate(re.findall(r"`([^`]*)`", factor))}
    for place, name in quoted.items():
        factor = factor.replace(f"`{name}`", place, 1)
    try:
        body = ast.parse(factor.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 1.0  # refused by formulaic
    return _Expression(factor, body, data, quoted, context).width()


@dataclass(frozen=True)
class _Expression:
    """A factor that Python evaluates, and what it may name."""

    text: str
    body: ast.expr
    data: pd.DataFrame
    quoted: Mapping[str, str]  # columns in backticks, by the names that stand for them in `text`
    context: Mapping[str, object]

    def width(self) -> float:
        """Return how many columns it makes; refuse what means something else in Python."""
        width = 1.0
        for node in ast.walk(self.body):
            shown = self.text if len(self.text) < 80 else ast.unparse(node)
            self._check_bits(node, shown)
            power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
            if power and abs(self._constant(node) or 0.0) > 1e300:
                raise InputError("formula", f"{shown!r} has a number beyond 1e300")
            if isinstance(node, ast.Call):
                width = max(width, self._columns_of(node, shown))
        return width

    def _columns_of(self, call: ast.Call, shown: str) -> float:
        """Return how many columns a function makes; refuse ``offset()`` and endless vectors."""
        function = _function(call)
        if function in self.context:
            return 1.0
        if function == "offset":
            problem = f"has {shown!r}, which would be a column with a coefficient"
            advice = "leave it out and pass offset=, a column's name or an array"
            raise InputError("formula", problem, advice)
        places = [self._constant(argument) for argument in call.args]
        keywords = {word.arg: self._constant(word.value) for word in call.keywords}
        if function in ALLOCATE:
            sizes = [abs(size) for size in (*places, *keywords.values()) if size is not None]
            size = max(sizes, default=0.0)
            ends = places[:2] if function in ("linspace", "geomspace") else []
            if size > COLUMNS and size not in ends:
                raise InputError("formula", f"{shown!r} makes a vector of {size:,.0f} numbers")
        if function == "C" and call.args and isinstance(call.args[0], ast.Name):
            name = self.quoted.get(call.args[0].id, call.args[0].id)
            return max(float(self.data[name].nunique()), 1.0) if name in self.data else 1.0
        at, widths = dict(enumerate(places)), WIDTHS.get(function, {})
        stated = (keywords.get(word, at.get(k)) for word, k in widths.items())
        return max([1.0, *filter(None, stated)])

    def _check_bits(self, node: ast.AST, shown: str) -> None:
        """Refuse operators on bits, unless it is truth values that they combine."""
        symbol = BITS.get(type(getattr(node, "op", None)))
        if symbol is not None and not self._is_truth(node):
            problem = f"{shown!r} has {symbol!r}, which works on the bits of numbers in Python"
            truth = "combine truth values only, (x > 0)"
            raise InputError("formula", problem, "write ** for a power" if symbol == "^" else truth)

    def _is_truth(self, node: ast.AST) -> bool:
        """Return whether a node is true or false in every row, as far as its form tells."""
        match node:
            case ast.BinOp(op=ast.BitXor() | ast.BitOr() | ast.BitAnd()):
                return self._is_truth(node.left) and self._is_truth(node.right)
            case ast.UnaryOp(op=ast.Invert()):
                return self._is_truth(node.operand)
            case ast.Name():
                name = self.quoted.get(node.id, node.id)
                return name in self.data and str(self.data[name].dtype) in ("bool", "boolean")
            case ast.Call():
                starts, whole = ("is", "logical_", "not"), ("between", "bool")
                return _function(node).startswith(starts) or _function(node) in whole
            case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Constant(value=bool()):
                return True
        return False

    def _constant(self, node: ast.AST) -> float | None:
        """Return a number that is written out or named in the context, None if it is neither."""
        match node:
            case ast.Constant() | ast.Name():
                value = node.value if isinstance(node, ast.Constant) else self.context.get(node.id)
                if isinstance(value, bool) or not isinstance(value, int | float):
                    return None
                return float(value) if abs(value) < 1e300 else math.inf
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                number = self._constant(node.operand)
                return -number if number is not None and isinstance(node.op, ast.USub) else number
            case ast.BinOp():
                a, b = self._constant(node.left), self._constant(node.right)
                compute = ARITHMETIC.get(type(node.op), ARITHMETIC[ast.Sub])
                try:
                    result = None if a is None or b is None else compute(a, b)
                except ArithmeticError as error:
                    return math.inf if isinstance(error, OverflowError) else None
                return result if isinstance(result, float) else None  # a negative's root is complex
        return None


def _function(call: ast.Call) -> str:
    """Return a function's name without the module's."""
    return ast.unparse(call.func).rpartition(".")[2]


class Design(NamedTuple):
    """What a formula makes of a DataFrame."""

    X: Array
    y: Array
    names: tuple[str, ...]
    intercept: int | None
    rows: Rows
    spec: ModelSpecs | None  # what formulaic needs for other tables, None if it was not needed


@dataclass(frozen=True, eq=False)
class RightSide:
    """The right side of a formula, with the table that says what its categories are."""

    formula: str
    table: pd.DataFrame
    context: Mapping[str, object] | None

    def __getstate__(self) -> dict[str, object]:
        """Return what travels to other processes and into files: functions may not."""
        state = {"formula": self.formula, "table": self.table}
        return {**state, "context": None if self.context else {}}

    @cached_property
    def _spec(self) -> Any:
        """What the table made of it: categories, knots, means."""
        spec = matrices(self.formula, self.table, self.context).spec
        assert spec is not None
        return spec.rhs

    @cached_property
    def categories(self) -> set[str]:
        """The variables behind its categories."""
        return set().union(*_categorical(self._spec))

    def variables(self, columns: Sequence[str]) -> list[str]:
        """Return the columns of a table that it uses."""
        right = self.formula.partition("~")[2]
        return list(formula_columns(f"1 ~ {right}", columns, self.context))

    def rows(self, table: pd.DataFrame, names: Sequence[str]) -> tuple[Array, NDArray[np.bool_]]:
        """Return columns `names` of a table's design matrix, and which rows are complete (n,)."""
        import formulaic

        if self.context is None:
            problem = "calls functions of your own, which do not travel with a pickled result"
            raise InputError("formula", problem, "calibrate again in this process")
        missing = [c for c in self.variables(list(map(str, self.table))) if c not in table]
        if missing:
            raise InputError("newdata", f"lacks {missing}", f"columns: {list(table.columns)[:20]}")
        plain = as_frame(table, table.columns).reset_index(drop=True)
        declared = [name for name in plain if plain[name].dtype.name == "category"]
        plain = plain.astype(dict.fromkeys(declared, object))
        known = {"np": np, "exp10": partial(np.power, 10.0), "C": _categories, **self.context}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Data has categories outside")
                made = formulaic.model_matrix(self._spec, plain, context=known, na_action="drop")
        except Exception as error:  # formulaic raises its own and Python's errors alike
            problem = f"does not fit {self.formula!r:.200}: {plain_text(error):.400}"
            advice = "it needs the columns and the categories of the data"
            raise InputError("newdata", problem, advice) from None
        X = made[list(names)].to_numpy(dtype=np.float64)
        check_finite(X, "newdata")
        complete = np.zeros(len(plain), dtype=bool)
        complete[np.asarray(made.index, dtype=np.intp)] = True
        return np.ascontiguousarray(X), complete


def plain_text(error: Exception) -> str:
    """Return an error's message on one line, without a terminal's colours and marks."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return " ".join(re.sub("[⧛⧚]", "", text).split())


def design(
    formula: str, data: object, context: Context = None, *, responses: bool = False
) -> Design:
    """Return the model matrices of ``"y ~ x1 + C(group)"``; rows with missing values are dropped.

    Functions in the formula come from numpy as ``np``, from formulaic, or from `context`. With
    `responses` there may be several, (n, k), and a row lacks them if it lacks a column behind one.
    """
    table = _checked_table(formula, data)
    columns = None if responses else _plain_terms(formula, table)
    if columns is None:
        complete = matrices(formula, table, context, responses=responses)
    else:
        complete = _of_columns(formula, columns, table, context)
    if len(complete.X) == 0:
        raise InputError("data", "has no complete row for this formula", "check missing values")
    return complete


def _checked_table(formula: object, data: object) -> pd.DataFrame:
    """Return data as a DataFrame with different names and real numbers; refuse what is none."""
    import pandas as pd

    data = as_pandas(data)
    if not isinstance(data, pd.DataFrame):
        raise InputError(
            "data",
            f"is a {type(data).__name__}",
            "pass a pandas DataFrame, or one of polars or PyArrow",
        )
    if not isinstance(formula, str) or "~" not in formula:
        raise InputError("formula", f"is {formula!r}", FORM)
    if not data.columns.is_unique:
        twice = sorted(set(map(str, data.columns[data.columns.duplicated()])))
        raise InputError("data", f"has several columns named {twice}", "rename them")
    kinds = zip(data.columns, data.dtypes, strict=True)
    imaginary = [name for name, kind in kinds if kind.kind == "c"]
    if any(re.search(rf"\b{re.escape(str(name))}\b", formula) for name in imaginary):
        raise InputError("formula", f"uses complex columns {imaginary}", "take real parts first")
    return data


def _plain_terms(formula: str, table: pd.DataFrame) -> list[str | None] | None:
    """Return the columns that a formula's terms are, the response first and None for ones.

    None if a term has to be evaluated, or if a side is missing, which formulaic says better.
    """
    try:
        terms = expanded(formula, list(table.columns))
        left, right = list(terms.lhs), list(terms.rhs)
        kinds = dict(zip(table.columns, table.dtypes, strict=True))
        columns = [_column(term, kinds) for term in (*left, *right)]
    except Exception:  # formulaic raises its own and Python's errors alike
        return None
    different = "Intercept" not in columns or None not in columns
    whole = len(left) == 1 and right and "" not in columns and columns[0] is not None
    return columns if whole and different else None


def _of_columns(
    formula: str, columns: Sequence[str | None], table: pd.DataFrame, context: Context
) -> Design:
    """Return the matrices of a formula whose terms are columns, the first of them the response."""
    own = {} if context is None else as_mapping(context, "context")
    names = tuple("Intercept" if name is None else name for name in columns[1:])
    check_columns(names[-1], len(names), len(table), most_cells())
    values = [None if name is None else as_floats(table[name]) for name in columns]
    y, X = np.array(values[0]), side_by_side(values[1:], len(table))
    kept: Kept = None
    flat = X.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(flat @ flat + y @ y)
    if not finite:
        gaps = table[[name for name in columns if name is not None]].isna().any(axis=1)
        kept = np.flatnonzero(~gaps.to_numpy()) if gaps.any() else None
        X, y = (X, y) if kept is None else (X[kept], y[kept])
    missing = len(table) - len(y)
    right = RightSide(formula, table, own)
    rows = Rows(len(table), kept, table.index, table, missing=missing, right=right)
    return Design(X, y, names, names.index("Intercept") if None in columns else None, rows, None)


def matrices(
    formula: str | ModelSpecs, data: pd.DataFrame, context: Context, *, responses: bool = False
) -> Design:
    """Return the model matrices of a formula, or of the specification an earlier one left."""
    import formulaic

    table = as_frame(data, data.columns).reset_index(drop=True)
    if isinstance(formula, str):
        table = _without_part_responses(table, formula) if responses else table
        text, table = formula, _used_levels(table, None)
    else:  # the levels are known; more may be declared, or stand in rows that are left out
        declared = [name for name in table if table[name].dtype.name == "category"]
        text, table = "the formula", table.astype(dict.fromkeys(declared, object))
    own = {} if context is None else as_mapping(context, "context")
    exp10 = partial(np.power, 10.0)  # formulaic's own is the tenth power of x
    known = {"np": np, "exp10": exp10, "C": _categories, **own}
    evaluate = partial(formulaic.model_matrix, context=known, na_action="drop")
    try:
        terms = formula
        if isinstance(formula, str):
            terms = expanded(formula, list(table.columns))
            check_expressions(terms, table, own)
        both = evaluate(terms, table)
        index = getattr(getattr(both, "rhs", None), "index", table.index)
        if isinstance(formula, str) and len(index) < len(table):
            fewer = _used_levels(table, index)  # no labels that only dropped rows have
            both = both if fewer is table else evaluate(terms, fewer)
    except InputError:
        raise
    except Exception as error:  # formulaic raises its own and Python's errors alike
        reason = plain_text(error)
        problem = f"{text!r:.200} cannot be evaluated: {reason:.400}"
        raise InputError("formula", problem, _remedy(reason, data)) from None
    _check_sides(both, table, text, responses)
    try:
        X, y = _arrays(both)
    except (TypeError, ValueError) as error:
        advice = "code its columns as numbers, or write C(column) for categories"
        problem = f"{text!r} makes entries that are not numbers ({error})"
        raise InputError("formula", problem, advice) from None
    X, y = _without_overflow(both.model_spec, X, y, table, evaluate)
    names = tuple(map(str, both.rhs.columns))
    intercept = names.index("Intercept") if "Intercept" in names else None
    kept = np.asarray(both.rhs.index, dtype=np.intp)
    missing = len(data) - len(kept)
    right = RightSide(formula, data, own) if isinstance(formula, str) else None
    kept_rows = kept if missing else None
    rows = Rows(len(data), kept_rows, data.index, data, missing=missing, right=right)
    return Design(np.ascontiguousarray(X), y, names, intercept, rows, both.model_spec)


def _without_part_responses(table: pd.DataFrame, formula: str) -> pd.DataFrame:
    """Return a table in which a row that lacks a column of the left side lacks all of them.

    For ``status == 2`` is false where the status is missing.
    """
    left = formula.partition("~")[0]
    used = [c for c in map(str, table) if c in table and re.search(rf"\b{re.escape(c)}\b", left)]
    whole = table[used].notna().all(axis=1)
    return table.assign(**{name: table[name].where(whole) for name in used})


def _arrays(both: ModelMatrices) -> tuple[Array, Array]:
    left = both.lhs.to_numpy(dtype=np.float64)
    return both.rhs.to_numpy(dtype=np.float64), left[:, 0] if left.shape[1] == 1 else left


def _check_sides(both: ModelMatrices, table: pd.DataFrame, formula: str, responses: bool) -> None:
    """Refuse a formula without one numeric response on its left and predictors on its right."""
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    left, right = getattr(both, "lhs", None), getattr(both, "rhs", None)
    if not isinstance(left, pd.DataFrame) or not isinstance(right, pd.DataFrame):
        raise InputError("formula", f"{formula!r} needs one left and one right side", FORM)
    response = both.lhs.model_spec.variables
    words = [v for v in response if v in table and not is_numeric_dtype(table[v])]
    if words and not responses:
        raise InputError("formula", f"the response {words} is not numeric", "code it as numbers")
    if left.shape[1] != 1 and not responses:
        problem = f"the left side of {formula!r} gives {left.shape[1]} columns"
        raise InputError("formula", problem, "use one numeric response")
    if right.shape[1] == 0:
        raise InputError("formula", f"{formula!r} has no predictors", "write 1 for a mean")


def _used_levels(table: pd.DataFrame, rows: pd.Index | None) -> pd.DataFrame:
    """Return a table whose categories are those that occur, in these rows if they are given."""
    fewer = {}
    for name, kind in table.dtypes.items():
        if kind.name == "category" and isinstance(name, str):  # no formula can name another
            column = table[name] if rows is None else table[name].loc[rows]
            used = column.cat.remove_unused_categories().cat.categories
            if len(used) < len(kind.categories):
                fewer[name] = table[name].cat.set_categories(used)
    return table.assign(**fewer) if fewer else table


def _categories(data: object, *arguments: object, **options: object) -> object:
    """Return formulaic's ``C()`` of a column or an expression, unless its labels are too many."""
    import pandas as pd
    from formulaic.transforms.contrasts import C

    column = pd.Series(getattr(data, "__wrapped__", data))
    check_columns("C()", column.nunique(), len(column), most_cells())
    return C(data, *arguments, **options)


def _remedy(reason: str, data: pd.DataFrame) -> str:
    """Return what to do about an error of formulaic's."""
    reference = re.search(r"Value `(.*?)` for `TreatmentContrasts", reason)
    if reference is None:
        return f"columns: {list(data.columns)}"
    quoted = f"write {reference[1]!r} in quotes, as labels of a file are text, or "
    return (quoted if reference[1][0] not in "'\"" else "") + "name one of the column's labels"


def _without_overflow(
    spec: ModelSpecs,
    X: Array,
    y: Array,
    table: pd.DataFrame,
    evaluate: Callable[..., ModelMatrices],
) -> tuple[Array, Array]:
    """Return the matrices, computed in floating point where whole numbers overflowed silently.

    ``I(x**9)`` of whole numbers wraps around at 2⁶³, of small integer types earlier. Otherwise the
    numbers stay: differences of long ids are exact in whole numbers only.
    """
    computed = _computations(spec, table)
    texts = [name for name in table if isinstance(name, str)]  # no formula can name another
    whole = [name for name in texts if table[name].dtype.kind in "iu" and name in computed]
    if not whole:
        return X, y
    floats = table.assign(**{name: numbers(table, name, "data") for name in whole})
    try:
        pair = _arrays(evaluate(spec, floats))
    except Exception:  # what takes whole numbers only, such as an index
        return X, y
    near = 1e-9 * float(np.abs(floats[whole].to_numpy()).max(initial=0.0))
    same = [
        a.shape == b.shape and np.allclose(a, b, 1e-6, near, equal_nan=True)
        for a, b in zip((X, y), pair, strict=True)
    ]
    return (X, y) if all(same) else pair


def _computations(spec: ModelSpecs, table: pd.DataFrame) -> str:
    """Return all that a formula computes from columns, other than categories of one column."""
    factors = [(f.expr, len(t.factors)) for side in spec for t in side.terms for f in t.factors]
    derived = [text for text, many in factors if many > 1 or text not in table]
    return " ".join(text for text in derived if not re.fullmatch(r"1|C\(\w+(, .*)?\)", text))


def formula_columns(formula: str, columns: Sequence[str], context: Context) -> tuple[str, ...]:
    """Return the columns of a table that a formula uses, in the table's order."""
    if not isinstance(formula, str) or "~" not in formula:
        raise InputError("formula", f"is {formula!r}", FORM)
    try:
        required = expanded(formula, columns).required_variables
    except InputError:
        raise
    except Exception as error:  # formulaic raises its own and Python's errors alike
        problem = f"{formula!r:.200} cannot be read: {plain_text(error):.400}"
        raise InputError("formula", problem, FORM) from None
    known = {} if context is None else as_mapping(context, "context")
    used = set(map(str, required)) - set(known)
    missing = sorted(used - set(columns))
    if missing:
        raise InputError("formula", f"uses {missing}", f"columns: {list(columns)}")
    # formulaic overlooks the arguments of some functions, such as center(x)
    return tuple(c for c in columns if c in used or re.search(rf"\b{re.escape(c)}\b", formula))


@dataclass(frozen=True, eq=False)
class Recipe:
    """How the parts of one table become rows of one design matrix."""

    names: tuple[str, ...]
    intercept: int | None
    columns: tuple[str, ...]  # what a part must have
    plain: tuple[str | None, ...] | None  # each parameter's column if that is all, None for ones
    response: str  # its column, if `plain`
    spec: ModelSpecs  # what formulaic needs otherwise, and the context
    context: Context
    kinds: Mapping[str, str]  # what each column holds

    @classmethod
    def of(cls, formula: str, sample: pd.DataFrame, context: Context) -> Recipe:
        """Return the recipe that a sample shows, all levels of all categories among its rows."""
        first = matrices(formula, _checked_table(formula, sample), context)
        if first.spec is None or len(first.X) == 0:
            raise InputError("data", "has no complete row for this formula", "check missing values")
        left, right = first.spec.lhs, first.spec.rhs
        kinds = dict(zip(sample.columns, sample.dtypes, strict=True))
        plain = [_column(term, kinds) for term in (*left.terms, *right.terms)]
        simple = len(plain) == len(first.names) + 1 and "" not in plain and plain[0] is not None
        stateful = [*left.transform_state, *right.transform_state]
        if stateful or not (simple or _row_by_row(first, sample, context)):
            raise looks_elsewhere(repr(stateful[0]) if stateful else f"something in {formula!r}")
        return cls(
            first.names,
            first.intercept,
            tuple(map(str, sample.columns)),
            tuple(plain[1:]) if simple else None,
            str(plain[0]),
            first.spec,
            context,
            check_kinds(sample, {}),
        )

    def arrays(self, chunk: Chunk, complete: bool = False) -> tuple[Array, Array, Kept]:
        """Return X, y and the rows kept, None for all, of a part of the table.

        Columns stay where they are if they can; `complete` says that no value is missing.
        """
        if self.plain is None:
            frame = as_frame(chunk, self.columns)
            check_kinds(frame, self.kinds)
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Data has categories outside")
                part = matrices(self.spec, frame, self.context)
            return part.X, part.y, part.rows.kept
        y = numbers(chunk, self.response, "y")
        own = [None if name is None else numbers(chunk, name, "X") for name in self.plain]
        columns = Columns(own, len(y))
        if complete or (columns.finite and np.isfinite(y @ y)):
            return cast(Array, columns), y, None  # it has what a total asks of a matrix
        X = columns[0 : len(y)]
        kept: Kept = None
        whole = ~(np.isnan(X).any(axis=1) | np.isnan(y))
        if not whole.all():
            kept = np.flatnonzero(whole)
            X, y = X[kept], y[kept]
        check_finite(X, "X")
        check_finite(y, "y")
        return X, y, kept

    def level_columns(self) -> list[list[str]]:
        """Return the columns behind each category of the formula."""
        columns = []
        for spec in (self.spec.lhs, self.spec.rhs):
            columns += [[c for c in self.columns if c in used] for used in _categorical(spec)]
        return columns


def _categorical(spec: Any) -> Iterator[set[str]]:
    """Yield the variables behind each category of one side of a formula."""
    for factor, variables in spec.factor_variables.items():
        state = spec.encoder_state.get(factor.expr)
        if state is not None and state[0].value == "categorical":
            yield set(map(str, variables))


def looks_elsewhere(term: str) -> InputError:
    """Return the error about a term whose value in a row depends on other rows."""
    problem = f"{term} looks at other rows than its own, and these are read in parts"
    return InputError("formula", problem, "store it as a column of the data")


def check_kinds(frame: pd.DataFrame, known: Mapping[str, str]) -> dict[str, str]:
    """Return what columns hold (numbers, categories or dates); refuse what other parts differ in.

    `known` is what those hold.
    """
    from pandas.api.types import is_numeric_dtype

    kinds = dict(known)
    for name in map(str, frame.columns):
        column = frame[name]
        kind = "numbers" if is_numeric_dtype(column) else "categories"
        kind = "dates" if column.dtype.kind in "Mm" else kind
        if column.notna().any() and kinds.setdefault(name, kind) != kind:
            problem = f"column {name!r} holds {kinds[name]} in some parts and {kind} in others"
            raise InputError("data", problem, "store it as one type")
    return kinds


def _row_by_row(first: Design, sample: pd.DataFrame, context: Context) -> bool:
    """Return whether half of the rows give what they give among all."""
    half = len(sample) // 2
    part = matrices(first.spec, sample.iloc[half:], context)
    kept = np.arange(len(sample)) if first.rows.kept is None else first.rows.kept
    pairs = (first.X, part.X), (first.y, part.y)
    return all(np.array_equal(whole[kept >= half], apart) for whole, apart in pairs)


def _column(term: Term, kinds: Mapping[str, object]) -> str | None:
    """Return the numeric column that a term is, None for the intercept, "" for anything else."""
    name = ":".join(factor.expr for factor in term.factors)
    if name == "1":
        return None
    looked_up = len(term.factors) == 1 and term.factors[0].eval_method.value == "lookup"
    return name if looked_up and is_numeric(kinds.get(name)) else ""
