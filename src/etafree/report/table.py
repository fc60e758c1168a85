"""Results side by side: a row per parameter, a column per result, for a paper or a page."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from etafree.errors import InputError
from etafree.foundation.arguments import as_names
from etafree.foundation.terminal import plain
from etafree.report.page import shown
from etafree.target import Target

if TYPE_CHECKING:
    import pandas as pd

    from etafree.result import Calibration

#: What a column is made of.
Result: TypeAlias = "Calibration | Target"
#: What LaTeX and Markdown take for markup.
LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
MARKDOWN = {c: f"\\{c}" for c in "\\`*_|<>$"}
NOTE = "Standard errors in parentheses."


@dataclass(frozen=True, eq=False)
class ResultTable:
    r"""Estimates of several results with their standard errors beneath; what `table` returns.

    Printed as text, shown as HTML in a notebook, written by `to_markdown`, `to_latex`, `to_html`.

    Attributes
    ----------
    estimates, se : DataFrame
        A row per parameter, a column per result; NaN where a result does not have the parameter.
    footer : DataFrame
        Rows, clusters and correction of each result, as text.

    See Also
    --------
    table : What returns it.

    Examples
    --------
    >>> import etafree as ef
    >>> one = ef.Target([0.5, 12.0], np.diag([0.01, 4.0]), names=["x_1", "size"])
    >>> two = ef.Target([0.25], [[0.0225]], names=["x_1"])
    >>> both = ef.table({"long": one, "short": two})
    >>> both
                  long   short
    x_1          0.50    0.25
                (0.10)  (0.15)
    size        12.0
                (2.0)
    correction   given   given
    Standard errors in parentheses.
    >>> print(both.to_markdown().splitlines()[2])
    | x\_1 | 0.50 | 0.25 |
    >>> r"x\_1 & 0.50" in both.to_latex(), "<td>" in both.to_html()
    (True, True)
    """

    estimates: pd.DataFrame
    se: pd.DataFrame
    footer: pd.DataFrame

    def to_markdown(self) -> str:
        """Return the table in Markdown; names are escaped."""
        head, *rest = [
            f"| {' | '.join(_escaped(cell.text, MARKDOWN) for cell in line)} |"
            for line in (self._header(), *self._body(), *self._facts())
        ]
        rule = f"|{'|'.join([':--', *['--:'] * self.estimates.shape[1]])}|"
        return plain("\n".join([head, rule, *rest, "", NOTE]))

    def to_latex(self) -> str:
        """Return a ``tabular`` with the rules of the package booktabs; names are escaped.

        Decimal points stand below each other.
        """

        def row(line: list[_Cell]) -> str:
            return " & ".join(_escaped(c.text, LATEX) + _phantom(c.room) for c in line) + r" \\"

        columns = self.estimates.shape[1]
        lines = [f"\\begin{{tabular}}{{l{'r' * columns}}}", r"\toprule", row(self._header())]
        lines += [r"\midrule", *map(row, self._body()), r"\midrule", *map(row, self._facts())]
        lines += [r"\bottomrule", f"\\multicolumn{{{columns + 1}}}{{l}}{{{NOTE}}}"]
        return plain("\n".join([*lines, r"\end{tabular}"]))

    def to_html(self) -> str:
        """Return a ``table`` element; names are escaped, decimal points stand below each other."""

        def row(line: list[_Cell], kind: str = "td") -> str:
            first, *rest = (html.escape(cell.text) + _hidden(cell.room) for cell in line)
            inside = "".join(f"<{kind}>{cell}</{kind}>" for cell in rest)
            return f'<tr><th style="text-align:left">{first}</th>{inside}</tr>'

        parts = (
            f'<caption style="caption-side:bottom">{NOTE}</caption>',
            f"<thead>{row(self._header(), 'th')}</thead>",
            f"<tbody>{''.join(map(row, self._body()))}</tbody>",
            f"<tfoot>{''.join(map(row, self._facts()))}</tfoot>",
        )
        style = "text-align:right;font-variant-numeric:tabular-nums"
        return plain(f'<table style="{style}">{"".join(parts)}</table>')

    def _header(self) -> list[_Cell]:
        return [_Cell(text) for text in ("", *self.estimates.columns)]

    def _facts(self) -> list[list[_Cell]]:
        rows = zip(self.footer.index, self.footer.to_numpy().tolist(), strict=True)
        return [[_Cell(text) for text in (name, *row)] for name, row in rows]

    def _body(self) -> list[list[_Cell]]:
        """Return two lines per parameter, with the room that their decimal points leave."""
        columns = [
            _aligned([text for pair in zip(*numbers, strict=True) for text in _texts(*pair)])
            for numbers in zip(self.estimates.to_numpy().T, self.se.to_numpy().T, strict=True)
        ]
        names = [_Cell(text) for name in self.estimates.index for text in (str(name), "")]
        return [list(line) for line in zip(names, *columns, strict=True)]

    def __repr__(self) -> str:
        lines = [
            [plain(cell.text) + " " * len(cell.room) for cell in line]
            for line in (self._header(), *self._body(), *self._facts())
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
            for line in lines
        ]
        return "\n".join([*texts, NOTE])

    def _repr_html_(self) -> str:
        return self.to_html()


class _Cell(NamedTuple):
    """A text, and what it lacks behind its decimal point compared with others of its column."""

    text: str
    room: str = ""


def _texts(estimate: float, se: float) -> tuple[str, str]:
    """Return an estimate, and its standard error in parentheses, to two digits of the latter."""
    if np.isnan(estimate):
        return "", ""
    if np.isnan(se):  # exactly zero under a penalty
        return f"{estimate:.4g}", "(–)"
    return shown(estimate, se), f"({shown(se, se)})"


def _aligned(texts: Sequence[str]) -> list[_Cell]:
    """Return cells of a column with the room that brings their decimal points together."""
    decimals = [len(text.rstrip(")").partition(".")[2]) for text in texts]
    most, closed = max(decimals, default=0), any(text.endswith(")") for text in texts)
    cells = []
    for text, own in zip(texts, decimals, strict=True):
        room = "." * (own == 0 < most) + "0" * (most - own)
        room += ")" * (closed and not text.endswith(")"))
        cells.append(_Cell(text, room if text else ""))
    return cells


def _escaped(text: str, marks: Mapping[str, str]) -> str:
    return "".join(marks.get(character, character) for character in text)


def _phantom(room: str) -> str:
    return f"\\phantom{{{room}}}" if room else ""


def _hidden(room: str) -> str:
    return f'<span style="visibility:hidden">{room}</span>' if room else ""


def table(results: object, names: Sequence[str] | Mapping[str, str] | None = None) -> ResultTable:
    """Return several results side by side: estimates, standard errors beneath, what they rest on.

    Parameters
    ----------
    results : mapping or sequence of Calibration or Target
        A mapping names its columns; those of a sequence are (1), (2), ...
    names : sequence of str, or mapping, optional
        Parameters to show, in this order; a mapping also says what to call them. All by default.

    Returns
    -------
    ResultTable
        With ``to_markdown()``, ``to_latex()`` and ``to_html()``.

    Raises
    ------
    InputError
        Something is no result, or no result has a parameter of `names`.

    See Also
    --------
    Calibration.summary : One result with all its numbers.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.column_stack([np.ones(40), np.arange(40.0)]), np.arange(40) % 7
    >>> criterion = ef.Criterion(ef.losses.Squared(), data=(X, y), names=["one", "x"])
    >>> kinds = {kind: ef.target(criterion, correction=kind) for kind in ("HC0", "HC3")}
    >>> ef.table(kinds, names={"x": "slope"})
                    HC0      HC3
    slope        0.012    0.012
                (0.026)  (0.027)
    rows             40       40
    correction      HC0      HC3
    Standard errors in parentheses.
    """
    import pandas as pd

    columns = _columns(results)
    estimates, errors = {}, {}
    for column, result in columns.items():
        estimates[column], errors[column] = _numbers(result)
    known = list(dict.fromkeys(name for each in estimates.values() for name in each))
    chosen = dict(zip(known, known, strict=True)) if names is None else _chosen(names, known)

    def frame(values: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
        rows = [[values[c].get(name, np.nan) for c in columns] for name in chosen]
        return pd.DataFrame(rows, list(chosen.values()), list(columns), dtype=np.float64)

    facts: dict[str, Callable[[Target], object]] = {
        "rows": lambda t: t.n,
        "clusters": lambda t: t.clusters,
        "correction": lambda t: t.correction,
    }
    targets = [_target(result) for result in columns.values()]
    texts = {name: [str(fact(t) or "") for t in targets] for name, fact in facts.items()}
    stated = {name: row for name, row in texts.items() if any(row)}
    footer = pd.DataFrame.from_dict(stated, orient="index", columns=list(columns))
    return ResultTable(frame(estimates), frame(errors), footer)


def _columns(results: object) -> dict[str, Result]:
    """Return the results by the names of their columns."""
    single = isinstance(results, Target) or hasattr(results, "target")
    if isinstance(results, Mapping):
        columns = {str(name): result for name, result in results.items()}
    elif single or not isinstance(results, Sequence):
        columns = {"(1)": results}
    else:
        columns = {f"({k})": result for k, result in enumerate(results, 1)}
    if not columns:
        raise InputError("results", "are empty", "pass what ef.calibrate returned")
    for name, result in columns.items():
        if not isinstance(getattr(result, "target", result), Target):
            problem = f"has a {type(result).__name__} in {name!r}"
            raise InputError("results", problem, "pass what ef.calibrate or ef.target returned")
    return columns


def _target(result: Result) -> Target:
    return result if isinstance(result, Target) else result.target


def _numbers(result: Result) -> tuple[dict[str, float], dict[str, float]]:
    """Return estimates and standard errors by parameter."""
    if isinstance(result, Target):
        pairs = zip(result.names, result.center, result.se, strict=True)
        rows = [(name, float(value), float(error)) for name, value, error in pairs]
    else:
        summary = result.summary()
        numbers = summary[["estimate", "se"]].to_numpy(dtype=np.float64)
        named = zip(summary.index, numbers, strict=True)
        rows = [(str(name), float(value), float(error)) for name, (value, error) in named]
    return {name: value for name, value, _ in rows}, {name: error for name, _, error in rows}


def _chosen(names: Sequence[str] | Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Return the parameters to show with what they are called."""
    given = as_names(list(names) if isinstance(names, Mapping) else names, None)
    for name in given:
        if name not in known:
            raise InputError("names", f"has {name!r}", f"choose from {list(known)}")
    labels = names if isinstance(names, Mapping) else {}
    return {name: str(labels.get(name, name)) for name in given}
