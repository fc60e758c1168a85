"""Numerical extremes: run every case, compare with long double arithmetic, write the table.

``python docs/extremes.py`` replaces the table in docs/reliability.md. Each case is one loss under
one extreme, taken through the minimiser, its sandwich without and with the correction for leverage
that is the library's default, draws, and their calibration. What comes out is right to the stated
tolerance, or refused by an error that names the cause.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, ndtr

import etafree as ef
from etafree.errors import EtafreeError

PAGE = Path(__file__).parent / "reliability.md"
FIRST, LAST = "<!-- extremes -->", "<!-- end of extremes -->"
#: Largest error of each step: in standard errors, relative twice, in Monte Carlo errors, relative.
TOLERANCE = {"minimise": 1e-9, "HC0 CR0": 1e-9, "HC3 CR3": 1e-9, "sample": 5.0, "calibrate": 1e-9}
#: A covariance loses the square of the condition number: 1e-16 (1e6)^2 before columns are refused.
COLLINEAR = {"minimise": 1e-6, "HC0 CR0": 1e-3, "HC3 CR3": 1e-3, "sample": 5.0, "calibrate": 1e-3}
LOSSES: dict[str, Any] = {
    "Squared": ef.losses.Squared(),
    "Huber": ef.losses.Huber(1.345),
    "StudentT": ef.losses.StudentT(4.0),
    "Quantile": ef.losses.Quantile(0.3, 0.5),
    "Logistic": ef.losses.Logistic(),
    "Poisson": ef.losses.Poisson(),
    "L1": ef.losses.Squared(),
}
DRAWS = 2000

#: First and second derivative of each loss in the linear predictor, written anew.
SLOPES: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "Squared": lambda u, y: (u - y, np.ones_like(u)),
    "Huber": lambda u, y: (-np.clip(y - u, -1.345, 1.345), 1.0 * (np.abs(y - u) <= 1.345)),
    "StudentT": lambda u, y: (
        -5 * (y - u) / (4 + (y - u) ** 2),
        5 * (4 - (y - u) ** 2) / (4 + (y - u) ** 2) ** 2,
    ),
    "Quantile": lambda u, y: (
        0.7 - ndtr((2 * (y - u)).astype(float)),
        2 * np.exp(-2 * (y - u) ** 2) / np.sqrt(2 * np.pi),
    ),
    "Logistic": lambda u, y: (expit(u) - y, expit(u) * expit(-u)),
    "Poisson": lambda u, y: (np.exp(u) - y, np.exp(u)),
    "L1": lambda u, y: (u - y, np.ones_like(u)),
}


def solve(matrix: Any, right: Any) -> Any:
    """Solve a system in long double by elimination with pivots, after scaling to unit diagonal."""
    sd = np.sqrt(np.diagonal(matrix))
    a = np.column_stack([matrix / sd / sd[:, None], right.reshape(len(matrix), -1) / sd[:, None]])
    for k in range(len(a)):
        pivot = k + int(np.argmax(np.abs(a[k:, k])))
        a[[k, pivot]] = a[[pivot, k]]
        a[k] /= a[k, k]
        rest = np.arange(len(a)) != k
        a[rest] -= a[rest, k : k + 1] * a[k]
    return (a[:, len(a) :] / sd[:, None]).reshape(right.shape)


class Truth(NamedTuple):
    """Minimiser and Hessian of the coefficients that are not zero, and what each row adds."""

    theta: Any
    hessian: Any
    X: Any
    slope: Any
    curve: Any


@dataclass(frozen=True, eq=False)
class Case:
    """A loss under an extreme, with data and what is asked of them."""

    extreme: str
    value: str
    loss: str
    X: Any
    y: Any
    eta: float = 1.0
    ridge: float = 0.0
    groups: Any = None
    weights: Any = None
    steps: tuple[str, ...] = tuple(TOLERANCE)

    @cached_property
    def criterion(self) -> ef.Criterion:
        penalty: Any = ef.penalties.Ridge(self.ridge) if self.ridge else None
        if self.loss == "L1":
            penalty = ef.penalties.L1(0.3, self.weights)
        return ef.Criterion(LOSSES[self.loss], (self.X, self.y), penalty)

    @cached_property
    def draws(self) -> ef.Draws:
        return ef.sample(ef.GeneralizedPosterior(self.criterion, self.eta), DRAWS, seed=1)

    @property
    def kink(self) -> Any:
        """Strength of the L1 penalty on each coefficient."""
        weights = np.ones(self.X.shape[1]) if self.weights is None else self.weights
        return (0.3 * len(self.y) if self.loss == "L1" else 0.0) * weights

    def truth(self, near: Any) -> Truth:
        """Return the truth in long double, from a point near the minimiser."""
        active = np.flatnonzero(near) if self.loss == "L1" else np.arange(len(near))
        X, y = (np.asarray(a, dtype=np.longdouble) for a in (self.X, self.y))
        theta, block = np.asarray(near, dtype=np.longdouble), np.ix_(active, active)
        ridge, pull = self.ridge * len(y) * np.eye(len(theta)), self.kink * np.sign(theta)
        for _ in range(6 if len(theta) < 100 else 2):  # it is near already
            slope, curve = SLOPES[self.loss](X @ theta, y)
            hessian = ((X.T * curve) @ X + ridge)[block]
            theta[active] -= solve(hessian, (X.T @ slope + ridge @ theta + pull)[active])
        slope, curve = SLOPES[self.loss](X @ theta, y)
        off = np.setdiff1d(np.arange(len(theta)), active)
        slack = np.abs(X.T @ slope)[off]
        assert np.all(slack <= self.kink[off] * (1 + 1e-9)), "not the lasso's solution"
        hessian = ((X.T * curve) @ X + ridge)[block]
        return Truth(theta[active], hessian, X[:, active], slope, curve)


def sandwich(case: Case, truth: Truth, groups: Any, default: bool) -> Any:
    r"""Return the sum over groups of :math:`d_gd_g^\top` in long double.

    :math:`d_g = A^{-1}\sum_{i\in g} s_i` is HC0 or CR0. The default is HC3 or CR3, the jackknife
    with one Newton step: :math:`d_g = (A - A_g)^{-1}\sum_{i\in g}(s_i - \bar s)`, where the group
    takes its share of Hessian and penalty along (Woodbury's identity).
    """
    scores = truth.slope[:, None] * truth.X
    scores = scores - default * scores.mean(axis=0)
    curve, share = default * truth.curve, default * case.ridge * np.eye(len(truth.theta))
    inverse: dict[int, Any] = {}
    moves = []
    for label in np.unique(groups):
        mine = np.flatnonzero(groups == label)
        x, c, many = truth.X[mine], curve[mine], len(mine)
        if many not in inverse:
            left = truth.hessian - many * share
            inverse[many] = solve(left, np.eye(len(left), dtype=np.longdouble))
        spread, move = inverse[many] @ x.T, inverse[many] @ scores[mine].sum(axis=0)
        rest = np.eye(many) - c[:, None] * (x @ spread)
        moves.append(move + spread @ solve(rest, c * (x @ move)))
    return np.transpose(moves) @ np.array(moves)


def relative(covariance: Any, truth: Any) -> float:
    """Return the largest error of a covariance, in products of standard errors."""
    se = np.sqrt(np.diagonal(truth))
    return float(np.max(np.abs(covariance - truth) / se / se[:, None]))


def errors(case: Case) -> Iterator[tuple[str, float | EtafreeError]]:
    """Yield the error of every step, or how it was refused; a refused fit refuses the rest."""
    try:
        fit = ef.minimise(case.criterion)
    except EtafreeError as error:
        yield from ((step, error) for step in case.steps)
        return
    truth = case.truth(fit.theta)
    se = np.sqrt(np.diagonal(sandwich(case, truth, np.arange(len(case.y)), False)))
    kept = fit.theta[np.flatnonzero(fit.theta)] if case.loss == "L1" else fit.theta
    yield "minimise", float(np.max(np.abs(kept - truth.theta) / se))
    for step in case.steps[1:]:
        check = {"sample": _sample, "calibrate": _calibrate}.get(step, _sandwich)
        try:
            yield step, check(case, truth, step)
        except EtafreeError as error:
            yield step, error


def _sandwich(case: Case, truth: Truth, step: str) -> float:
    worst, default = 0.0, step == "HC3 CR3"
    for name, labels in zip(step.split(), (None, case.groups), strict=True):
        options: dict[str, Any] = {} if default else {"correction": name, "centered": False}
        made = ef.target(case.criterion, clusters=labels, **options)
        assert made.correction == name
        groups = np.arange(len(case.y)) if labels is None else labels
        worst = max(worst, relative(made.covariance, sandwich(case, truth, groups, default)))
    return worst


def _sample(case: Case, truth: Truth, step: str) -> float:
    r"""Return how far Stein's identities :math:`E\,g_j = 0, E\,g_j\theta_j = -1` are from holding.

    In Monte Carlo standard errors, largest entry; g is the gradient of the log density.
    """
    theta = case.draws.array
    slopes = -case.eta * (
        SLOPES[case.loss](theta @ case.X.T, case.y)[0] @ case.X
        + case.ridge * len(case.y) * theta
        + case.kink * np.sign(theta)
    )
    sd = theta.std(axis=0)
    z = (theta - theta.mean(axis=0)) / sd
    terms = np.stack([slopes * sd, slopes * sd * z])
    noise = terms.std(axis=1) / np.sqrt(case.draws.ess)
    return float(np.max(np.abs(terms.mean(axis=1) - [[0.0], [-1.0]]) / noise))


def _calibrate(case: Case, truth: Truth, step: str) -> float:
    """Return how far calibrated draws are from the sandwich, whatever eta made them."""
    made = ef.calibrate(case.draws, case.criterion)
    before = np.cov(made.original.select(made.target.names).array.T).reshape(2 * [len(truth.theta)])
    after = made.map.scale @ before @ made.map.scale.T
    return relative(after, sandwich(case, truth, np.arange(len(case.y)), True))


def data(loss: str, n: int = 60, p: int = 3) -> tuple[Any, Any, Any]:
    """Return a design with an intercept, responses that suit the loss, and clusters."""
    rng = np.random.default_rng([n, p, sorted(LOSSES).index(loss)])
    X = np.column_stack([np.ones(n), rng.standard_normal((n, p - 1))])
    u = X @ np.resize([0.4, 0.8, -0.6], p) / (1.0 if loss == "L1" else np.sqrt(max(p / 3, 1)))
    if loss == "Logistic":
        y = 1.0 * (rng.random(n) < 1 / (1 + np.exp(-u)))
    elif loss == "Poisson":
        y = 1.0 * rng.poisson(np.exp(u))
    else:
        y = u + rng.standard_t(4, n)
    return X, y, np.arange(n) % max(3 * p // 2, 12)


def cases(quick: bool = False) -> Iterator[Case]:
    """Yield every case, or a few of each extreme."""
    some: Any = slice(None, None, 2) if quick else slice(None)
    for loss in LOSSES:
        X, y, groups = data(loss)
        common: dict[str, Any] = {"loss": loss, "groups": groups}
        for eta in (1e-8, 1e-4, 1.0, 1e4, 1e8)[some]:
            yield Case("learning rate", f"{eta:.0e}", X=X, y=y, eta=eta, **common)
        for c in (1e-12, 1e-6, 1e6, 1e12)[some]:
            for which, scale in (("one column", [1.0, c, 1.0]), ("all columns", [c, c, c])):
                yield Case(
                    f"scale of {which}",
                    f"{c:.0e}",
                    X=X * scale,
                    y=y,
                    weights=np.array(scale),
                    **common,
                )
        for condition in (1e2, 1e4, 1e5, 1e6, 1e8, 1e10)[some]:
            near = X.copy()
            near[:, 2] = X[:, 1] + X[:, 2] / condition
            yield Case("nearly collinear columns", f"{condition:.0e}", X=near, y=y, **common)
        far, lever = y.copy(), X.copy()
        far[0] = lever[0, 1] = 1e15
        yield Case("response of 1e15", "y", X=X, y=far, **common)
        yield Case("covariate of 1e15", "x", X=lever, y=y, **common)
        wide, short, labels = data(loss, 20, 40)
        if loss != "L1":
            yield Case(
                "n = 20 < p = 40, ridge",
                "0.1",
                X=wide,
                y=short,
                ridge=0.1,
                loss=loss,
                groups=labels,
            )
            for ridge in (1e-8, 1.0, 1e8)[some]:
                yield Case("strength of a ridge", f"{ridge:.0e}", X=X, y=y, ridge=ridge, **common)
        yield Case("p = 1", "1", X=X[:, :1], y=y, **common)
        if not quick:
            many, long, labels = data(loss, 1000, 200)
            yield Case("p = 200", "200", X=many, y=long, loss=loss, groups=labels)


@dataclass(eq=False)
class Line:
    """What happened to all cases of one extreme in one step."""

    extreme: str
    step: str
    right: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def tolerance(self) -> float:
        """Largest error that counts as right."""
        return (COLLINEAR if "collinear" in self.extreme else TOLERANCE)[self.step]

    @property
    def wrong(self) -> list[str]:
        """Cases that are neither right nor refused."""
        return [name for name, error in self.right.items() if not error <= self.tolerance]


def said(error: EtafreeError) -> str:
    """Return the first clause of an error, numbers left out, so that it does not change."""
    text = str(error).split(";")[0].split(" (")[0].replace("|", "/")
    return f"{type(error).__name__}: {re.sub(r'[-+]?[0-9][-+0-9.e]*', '#', text):.110}"


def lines(chosen: Iterator[Case]) -> list[Line]:
    """Run cases and return the lines of the table."""
    found: dict[tuple[str, str], Line] = {}
    for case in chosen:
        for step, outcome in errors(case):
            line = found.setdefault((case.extreme, step), Line(case.extreme, step))
            name = f"{case.loss} {case.value}"
            if isinstance(outcome, EtafreeError):
                line.refused[name] = said(outcome)
            else:
                line.right[name] = outcome
    return sorted(found.values(), key=lambda line: line.extreme)


def table(found: list[Line]) -> str:
    """Return the lines as a Markdown table, refusals by message below it."""
    rows = [
        "| extreme | step | right | largest error | tolerance | refused |",
        "|---|---|---|---|---|---|",
    ]
    for x in found:
        error = f"{max(x.right.values(), default=0.0):.0e} | {x.tolerance:.0e}"
        rows.append(f"| {x.extreme} | {x.step} | {len(x.right)} | {error} | {len(x.refused)} |")
    rows += [
        "",
        "Refused, by what the error says (numbers as #):",
        "",
        "| extreme | value | loss | step | error |",
        "|---|---|---|---|---|",
    ]
    rows += [f"| {' | '.join(row[:-1])} | `{row[-1]}` |" for row in refusals(found)]
    return "\n".join(rows)


def refusals(found: list[Line]) -> list[tuple[str, ...]]:
    """Return extreme, values, losses, steps and message, what is alike in one row."""
    rows: list[tuple[str, ...]] = [
        (line.extreme, name.partition(" ")[2], name.partition(" ")[0], line.step, text)
        for line in found
        for name, text in line.refused.items()
    ]
    for place in (3, 1, 2):
        alike: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            alike.setdefault((*row[:place], *row[place + 1 :]), []).append(row[place])
        rows = [(*key[:place], ", ".join(all_), *key[place:]) for key, all_ in alike.items()]
    return rows


def main() -> int:
    warnings.simplefilter("ignore")
    with np.errstate(all="ignore"):
        found = lines(cases())
    wrong = [
        f"{x.extreme}, {x.step}: {name} {x.right[name]:.1e}" for x in found for name in x.wrong
    ]
    print("\n".join([table(found), "", *wrong]))
    if not wrong:
        before, _, rest = PAGE.read_text().partition(FIRST)
        PAGE.write_text(f"{before}{FIRST}\n{table(found)}\n{LAST}{rest.partition(LAST)[2]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
