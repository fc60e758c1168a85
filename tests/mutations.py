"""Small changes of numerical code, each of which should make a test fail.

`mutants_of` reads a module and yields every change of an operator, a number, an index, an axis, a
transpose, a function, a condition or a statement that an engineer could make by mistake. What only
decides about errors is left alone: annotations, assertions, texts, what is raised, and conditions
whose only consequence is an error.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Found = Iterator[tuple[str, ast.AST]]

OTHER_OPERATOR = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
AT_EQUALITY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITE = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OTHER_FUNCTION = {
    "add": "subtract",
    "all": "any",
    "any": "all",
    "argmax": "argmin",
    "argmin": "argmax",
    "max": "min",
    "maximum": "minimum",
    "mean": "sum",
    "median": "mean",
    "min": "max",
    "minimum": "maximum",
    "sum": "mean",
    "zeros": "ones",
}
#: Functions of one array whose first argument is an answer of the same kind.
DROPPED = {"abs", "exp", "log", "maximum", "minimum", "rint", "sign", "sqrt", "square", "swapaxes"}
#: Numbers beyond these are tolerances and sizes, twice which are as good.
SMALLEST, LARGEST = 1e-6, 1e4
#: Annotations of what has a sign.
NUMERIC = ("Array", "tuple[Array", "float", "int", "Any")
CHECKS = ("check", "_check", "as_", "degrees_of_freedom")


@dataclass(frozen=True)
class Mutant:
    """A change of one expression or statement of a module.

    Its name has the line in it; `change`, what stands there before and after, has not.
    """

    module: str
    function: str
    name: str
    lines: frozenset[int]
    change: str
    tree: ast.Module
    old: ast.AST
    new: ast.AST

    def code(self, path: Path) -> object:
        """Return the compiled module with the change in it."""
        tree = _Exchange(self.old, self.new).visit(self.tree)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Exchange(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self.old:
            return ast.copy_location(self.new, self.old)
        return self.generic_visit(node)


def mutants_of(path: Path, module: str) -> list[Mutant]:
    """Return all changes of a module, in its order, each with a name of its own."""
    tree = ast.parse(path.read_text())
    seen: Counter[str] = Counter()
    out = []
    for function, statement, around, old, operator, new in _walk(tree, (), None, tree, ""):
        name = f"{module}:{old.lineno}:{operator}"
        seen[name] += 1
        if seen[name] > 1:
            name += f":{seen[name]}"
        lines = frozenset((statement.lineno, *range(old.lineno, old.end_lineno + 1)))
        where = ".".join(function)
        change = f"{module}.{where}: {_shown(around, old, new)}"
        out.append(Mutant(module, where, name, lines, change, tree, old, new))
    return out


def _shown(around: ast.AST, old: ast.AST, new: ast.AST) -> str:
    """Return a change in one line, that of a number with the expression around it."""
    if isinstance(old, ast.Constant) or isinstance(getattr(old, "operand", None), ast.Constant):
        before = ast.unparse(around)
        after = ast.unparse(_Exchange(old, new).visit(around))
        _Exchange(new, old).visit(around)
    else:
        before, after = ast.unparse(old), ast.unparse(new)
    return " ".join(f"{before} -> {after}".split())


def _walk(node: ast.AST, function: tuple[str, ...], statement, around: ast.AST, returns: str):
    """Yield (function, statement, surroundings, node, operator, changed node) below a node."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or _is_guard(node):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = (*function, node.name)
        returns = ast.unparse(node.returns) if getattr(node, "returns", None) else ""
    if isinstance(node, ast.stmt):
        statement = node
    if not isinstance(node, ast.UnaryOp | ast.Tuple | ast.Slice | ast.keyword | ast.Constant):
        around = node
    if function:
        for operator, new in _changes(node, returns):
            yield function, statement, around, node, operator, new
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_comment", "bases"):
            continue
        if isinstance(node, ast.keyword) and node.arg in ("strict", "dtype", "copy"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                # A default is at work wherever the function is called.
                at = _first(node.body) if isinstance(node, ast.FunctionDef) else statement
                yield from _walk(child, function, at, around, returns)
                whole = isinstance(child, ast.BoolOp | ast.Call | ast.Name)
                if field == "test" and function and whole:
                    yield function, at, around, child, "condition", ast.UnaryOp(ast.Not(), child)


def _first(body: list[ast.stmt]) -> ast.stmt:
    """Return the first statement of a function after its docstring."""
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return body[1] if documented and len(body) > 1 else body[0]


def _is_guard(node: ast.AST) -> bool:
    """Tell conditions that refuse, and bare calls that check."""
    if isinstance(node, ast.If):
        refuses = isinstance(node.body[-1], ast.Raise) or all(map(_is_guard, node.body))
        return refuses and not node.orelse
    if isinstance(node, ast.For):
        return isinstance(node.body[-1], ast.Raise)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = ast.unparse(node.value.func).rpartition(".")[2]
        return called.startswith(CHECKS) or called == "warn"
    return False


def _changes(node: ast.AST, returns: str) -> Found:
    """Yield a name and the changed node for each change of this very node."""
    match node:
        case ast.BinOp(op=ast.MatMult()):
            yield "order", ast.BinOp(node.right, ast.MatMult(), node.left)
        case ast.BinOp() | ast.BoolOp() if type(node.op) in OTHER_OPERATOR:
            yield "operator", _with(node, op=OTHER_OPERATOR[type(node.op)]())
        case ast.AugAssign():
            if type(node.op) in OTHER_OPERATOR:
                yield "operator", _with(node, op=OTHER_OPERATOR[type(node.op)]())
            yield "removed", ast.Pass()
        case ast.Assign(targets=[ast.Subscript()]) | ast.Expr(value=ast.Call()):
            yield "removed", ast.Pass()
        case ast.Compare(ops=[only]):
            if type(only) in AT_EQUALITY:
                yield "equality", _with(node, ops=[AT_EQUALITY[type(only)]()])
            yield "opposite", _with(node, ops=[OPPOSITE[type(only)]()])
        case ast.UnaryOp():
            yield "sign", node.operand
        case ast.Attribute(attr="T"):
            yield "transpose", node.value
        case ast.Constant(value=bool()):
            yield "number", ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            if node.value == 0 or SMALLEST <= node.value <= LARGEST:
                more = node.value + 1 if isinstance(node.value, int) else (2 * node.value or 1.0)
                yield "number", ast.Constant(more)
        case ast.keyword(arg="axis", value=ast.Constant(value=0 | 1)):
            yield "axis", ast.keyword("axis", ast.Constant(1 - node.value.value))
        case ast.Call():
            yield from _other_calls(node)
        case ast.Return(value=ast.Tuple(elts=[first, *others])) if returns.startswith(NUMERIC[1]):
            negative = ast.UnaryOp(ast.USub(), first)
            yield "return", ast.Return(ast.Tuple([negative, *others], ast.Load()))
        case ast.Return(value=value) if returns.startswith(NUMERIC) and not _is_none(value):
            yield "return", ast.Return(ast.UnaryOp(ast.USub(), value))
        case ast.Return(value=value) if returns == "bool":
            yield "return", ast.Return(ast.UnaryOp(ast.Not(), value))


def _other_calls(node: ast.Call) -> Found:
    if not isinstance(node.func, ast.Attribute):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("min", "max"):
            yield "function", _with(node, func=ast.Name(OTHER_FUNCTION[name], ast.Load()))
        if name == "abs":
            yield "dropped", node.args[0]
        return
    attr = node.func.attr
    of_module = isinstance(node.func.value, ast.Name) and node.func.value.id in ("np", "jnp")
    if attr == "at":  # np.add.at
        yield "function", _with(node, func=_renamed(node.func, "subtract"))
    if attr in OTHER_FUNCTION:
        yield "function", _with(node, func=_with(node.func, attr=OTHER_FUNCTION[attr]))
    if attr in DROPPED and of_module and "out" not in {k.arg for k in node.keywords}:
        yield "dropped", node.args[0]
    if attr in ("transpose", "cumsum") and not of_module:
        yield "transpose", node.func.value
    if attr == "where" and of_module:
        yield "first", node.args[1]
        yield "second", node.args[2]


def _renamed(func: ast.Attribute, name: str) -> ast.Attribute:
    return _with(func, value=_with(func.value, attr=name))


def _is_none(value: ast.expr | None) -> bool:
    return value is None or isinstance(value, ast.Tuple) or ast.unparse(value) == "None"


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """Return a copy of a node with other fields; what lies below is shared."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
