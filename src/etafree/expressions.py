"""What a formula asks for, known before anything is computed: its terms, functions and columns.

Formulas are R's, the functions inside them Python's. Where the two differ in silence (``I(x^2)`` is
an exclusive or of bits, ``offset()`` a column like others) the formula is refused, and so is one
whose terms or columns no memory holds.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from etafree.claims import memory
from etafree.errors import InputError

__all__ = ["check_columns", "check_expressions", "expanded"]

#: Products of terms that a formula may ask for, and columns and cells of its matrix.
PRODUCTS, COLUMNS, CELLS = 100_000, 20_000, 1 << 31
#: Bytes of a cell.
NUMBER = 8
#: Arguments, with their place, that say how many columns a function makes.
WIDTHS = {"bs": {"df": 1, "degree": 3}, "cs": {"df": 1}, "cr": {"df": 1}, "cc": {"df": 1},
          "poly": {"degree": 1}, "hashed": {"levels": 1}}  # fmt: skip
#: Functions whose numbers are lengths of what they return.
ALLOCATE = {"arange", "empty", "eye", "full", "geomspace", "identity", "linspace", "logspace",
            "ones", "range", "repeat", "tile", "zeros"}  # fmt: skip
#: Operators that work on the bits of whole numbers, and on truth values as words do.
BITS: dict[type[Any], str] = {
    ast.BitXor: "^", ast.BitOr: "|", ast.BitAnd: "&", ast.Invert: "~", ast.LShift: "<<",
    ast.RShift: ">>",
}  # fmt: skip


def expanded(formula: str, columns: Sequence[Any]) -> Any:
    """Return the terms of a formula, or refuse one that makes too many.

    Examples
    --------
    >>> [str(term) for term in expanded("y ~ (x + z)**2", ["x", "y", "z"]).rhs]
    ['1', 'x', 'z', 'x:z']
    >>> expanded("y ~ (x + z)**40", ["x", "y", "z"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    etafree.errors.InputError: formula: 'y ~ (x + z)**40' multiplies out to about 1.1e+12 terms; ...
    """
    import formulaic
    from formulaic.parser import DefaultFormulaParser

    known = {"__formulaic_variables_available__": list(map(str, columns))}
    tree = DefaultFormulaParser().get_ast(formula, context=dict(known))
    products = _products(tree, len(columns))
    if products > PRODUCTS:
        raise InputError("formula", f"{formula!r:.200} multiplies out to about {products:.2g} "
                         "terms", "name the interactions that you need")  # fmt: skip
    return formulaic.Formula(formula, _context=known)


def _products(tree: Any, columns: int) -> float:
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
            waiting += [(node, True), *((part, False) for part in node.args)]
            continue
        parts = [terms[id(part)] for part in node.args]
        symbol = node.operator.symbol
        if symbol in ("**", "^"):
            made = _power(parts[0], _exponent(node.args[1]))
        elif symbol == ".":
            made = float(columns)
        elif symbol in ("*", ":"):
            made = math.prod(parts) + (sum(parts) if symbol == "*" else 0.0)
        else:
            made = sum(parts)
        most, terms[id(node)] = max(most, made), made
    return most


def _exponent(node: Any) -> str:
    """Return the exponent of a power; of a tower or a sum the largest number in it."""
    if not hasattr(node, "operator"):
        return str(getattr(node, "token", ""))
    return max(map(_exponent, node.args), key=lambda text: (text.isdecimal(), len(text), text))


def _power(terms: float, exponent: str) -> float:
    """Return how many products a power takes, each of which has as many factors."""
    if not exponent.isdecimal():
        return 1.0  # refused by formulaic
    many = float(exponent[:18])
    return math.inf if many > 1 and terms > math.exp(700 / many) else max(terms**many, many)


def check_expressions(terms: Any, data: Any, context: Mapping[str, Any] | None) -> None:
    """Refuse terms that mean something else in Python, or whose columns no memory holds."""
    total = 0.0
    for side in (getattr(terms, "lhs", ()), getattr(terms, "rhs", ())):
        for term in side if hasattr(side, "__iter__") else ():
            wide = [_width(str(factor.expr), data, context or {}) for factor in term.factors]
            total += math.prod(wide)
            check_columns(str(term), math.prod(wide), len(data), total)


def check_columns(term: str, columns: float, rows: int, total: float = 0.0) -> None:
    """Refuse a term whose columns, with those before it, no memory holds."""
    total = max(total, columns)
    cells = min(CELLS, memory()[1] // NUMBER)
    if total > COLUMNS or total * rows > cells:
        raise InputError(
            "formula", f"{term!r:.80} makes {columns:,.0f} columns of {rows:,} rows, and with the "
            f"terms before it {total:,.0f}", f"a formula may make {COLUMNS:,} columns and "
            f"{cells:,} cells here",
        )  # fmt: skip


def _width(factor: str, data: Any, context: Mapping[str, Any]) -> float:
    """Return how many columns a factor makes, its expression checked."""
    if factor in data:
        if data[factor].dtype.kind == "M":  # formulaic's error does not name the column
            raise InputError(
                "formula",
                f"takes the dates of {factor!r} for numbers",
                f"store days since a start, or write C({factor}) for categories",
            )
        return _levels(data[factor])
    quoted = re.findall(r"`([^`]*)`", factor)
    names = {f"_quoted_{k}": name for k, name in enumerate(quoted)}
    for place, name in names.items():
        factor = factor.replace(f"`{name}`", place, 1)
    try:
        body = ast.parse(factor.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 1.0  # refused by formulaic
    wide = 1.0
    for node in ast.walk(body):
        told = factor if len(factor) < 80 else ast.unparse(node)
        _check_bits(node, told, data, names)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            value = _constant(node, context)
            if value is not None and abs(value) > 1e300:
                raise InputError("formula", f"{told!r} has a number beyond 1e300")
        if isinstance(node, ast.Call):
            wide = max(wide, _columns_of(node, told, data, names, context))
    return wide


def _columns_of(
    call: ast.Call, told: str, data: Any, names: Mapping[str, str], context: Mapping[str, Any]
) -> float:
    """Return how many columns a function makes; refuse ``offset()`` and endless vectors."""
    function = ast.unparse(call.func).rpartition(".")[2]
    if function in context:
        return 1.0
    if function == "offset":
        raise InputError("formula", f"has {told!r}, which would be a column with a coefficient",
                         "leave it out and pass offset=, a column's name or an array")  # fmt: skip
    numbers = [_constant(argument, context) for argument in call.args]
    keywords = {word.arg: _constant(word.value, context) for word in call.keywords}
    if function in ALLOCATE:
        size = max((abs(v) for v in (*numbers, *keywords.values()) if v is not None), default=0.0)
        if size > COLUMNS and not (function in ("linspace", "geomspace") and size in numbers[:2]):
            raise InputError("formula", f"{told!r} makes a vector of {size:,.0f} numbers")
    found = [keywords.get(word, numbers[k] if k < len(numbers) else None)
             for word, k in WIDTHS.get(function, {}).items()]  # fmt: skip
    wide = max((value for value in found if value is not None), default=1.0)
    if function == "C" and call.args and isinstance(call.args[0], ast.Name):
        name = names.get(call.args[0].id, call.args[0].id)
        wide = float(data[name].nunique()) if name in data else wide
    return max(wide, 1.0)


def _levels(column: Any) -> float:
    """Return how many columns a column of a table makes: one, or one for each of its labels."""
    if column.dtype.kind in "iufc":
        return 1.0
    try:
        return float(max(column.nunique(), 1))
    except TypeError:  # lists and the like, which are refused later
        return 1.0


def _check_bits(node: ast.AST, told: str, data: Any, names: Mapping[str, str]) -> None:
    """Refuse operators on bits, unless it is truth values that they combine."""
    symbol = BITS.get(type(getattr(node, "op", None)))
    if symbol is not None and not _is_truth(node, data, names):
        advice = "write ** for a power" if symbol == "^" else "combine truth values only, (x > 0)"
        raise InputError("formula", f"{told!r} has {symbol!r}, which works on the bits of numbers "
                         "in Python", advice)  # fmt: skip


def _is_truth(node: ast.AST, data: Any, names: Mapping[str, str]) -> bool:
    """Return whether an expression is true or false in every row, as far as its form tells."""
    if isinstance(node, ast.BinOp):
        known = isinstance(node.op, ast.BitXor | ast.BitOr | ast.BitAnd)
        return known and all(_is_truth(part, data, names) for part in (node.left, node.right))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) or (
            isinstance(node.op, ast.Invert) and _is_truth(node.operand, data, names)
        )
    if isinstance(node, ast.Name):
        name = names.get(node.id, node.id)
        return name in data and str(data[name].dtype) in ("bool", "boolean")
    if isinstance(node, ast.Call):
        function = ast.unparse(node.func).rpartition(".")[2]
        return function.startswith(("is", "logical_", "not")) or function in ("between", "bool")
    return isinstance(node, ast.Compare) or (
        isinstance(node, ast.Constant) and isinstance(node.value, bool)
    )


def _constant(node: ast.AST, context: Mapping[str, Any]) -> float | None:
    """Return the size of a number that is written out, or named in the context; None if neither."""
    if isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in context):
        value = node.value if isinstance(node, ast.Constant) else context[node.id]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if abs(value) < 1e300 else math.inf
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _constant(node.operand, context)
        return -value if value is not None and isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        pair = [_constant(part, context) for part in (node.left, node.right)]
        return None if None in pair else _computed(node.op, *pair)  # type: ignore[arg-type]
    return None


def _computed(operator: ast.operator, a: float, b: float) -> float | None:
    try:
        if isinstance(operator, ast.Pow):
            value = a**b
            return value if isinstance(value, float) else None
        if isinstance(operator, ast.Mult):
            return a * b
        if isinstance(operator, ast.Div | ast.FloorDiv):
            return a / b
        return a + b if isinstance(operator, ast.Add) else a - b
    except OverflowError:
        return math.inf
    except ZeroDivisionError:
        return None
