"""Numerical extremes: run every case, compare with long double arithmetic, write the table.

``python docs/extremes.py`` replaces the table in docs/reliability.md. Each case is one loss under
one extreme, taken through four steps: the minimiser, its sandwich, draws and their calibration.
What comes out is right to the stated tolerance, or refused by an error that names the cause.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

import etafree as ef
from etafree.errors import EtafreeError

PAGE = Path(__file__).parent / "reliability.md"
FIRST, LAST = "<!-- extremes -->", "<!-- end of extremes -->"
#: Largest error of each step: in standard errors, relative, in Monte Carlo errors, relative.
TOLERANCE = {"minimise": 1e-9, "sandwich": 1e-9, "sample": 5.0, "calibrate": 1e-9}
#: A covariance loses the square of the condition number: 1e-16 (1e6)^2 before columns are refused.
COLLINEAR = {"minimise": 1e-6, "sandwich": 1e-3, "sample": 5.0, "calibrate": 1e-3}
LOSSES: dict[str, Any] = {
    "Squared": ef.losses.Squared(), "Huber": ef.losses.Huber(1.345),
    "StudentT": ef.losses.StudentT(4.0), "Quantile": ef.losses.Quantile(0.3, 0.5),
    "Logistic": ef.losses.Logistic(), "Poisson": ef.losses.Poisson(), "L1": ef.losses.Squared(),
}  # fmt: skip
DRAWS = 2000


def _logistic(u: Any, y: Any) -> tuple[Any, Any]:
    mean = 1 / (1 + np.exp(-u))
    return mean - y, mean * (1 - mean)


def _quantile(u: Any, y: Any) -> tuple[Any, Any]:
    z = (y - u) / 0.5
    return 0.7 - ndtr(z.astype(float)), np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi) / 0.5


def _student(u: Any, y: Any) -> tuple[Any, Any]:
    r = y - u
    return -5 * r / (4 + r * r), 5 * (4 - r * r) / (4 + r * r) ** 2


#: First and second derivative of each loss in the linear predictor, written anew.
SLOPES: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "Squared": lambda u, y: (u - y, np.ones_like(u)),
    "Huber": lambda u, y: (-np.clip(y - u, -1.345, 1.345), 1.0 * (np.abs(y - u) <= 1.345)),
    "StudentT": _student, "Quantile": _quantile, "Logistic": _logistic,
    "Poisson": lambda u, y: (np.exp(u) - y, np.exp(u)),
    "L1": lambda u, y: (u - y, np.ones_like(u)),
}  # fmt: skip


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
    known: dict[str, Any] = field(default_factory=dict)

    def criterion(self) -> ef.Criterion:
        penalty: Any = ef.penalties.Ridge(self.ridge) if self.ridge else None
        if self.loss == "L1":
            penalty = ef.penalties.L1(0.3, self.weights)
        return ef.Criterion(LOSSES[self.loss], (self.X, self.y), penalty)

    def truth(self, near: Any) -> tuple[Any, Any, Any]:
        """Return minimiser, Hessian and scores in long double, from a point near it."""
        active = np.flatnonzero(near) if self.loss == "L1" else np.arange(len(near))
        X, y = (np.asarray(a, dtype=np.longdouble) for a in (self.X, self.y))
        theta, n = np.asarray(near, dtype=np.longdouble), len(y)
        pull = np.zeros_like(theta)
        if self.loss == "L1":
            pull = 0.3 * n * np.sign(theta) * (1.0 if self.weights is None else self.weights)
        ridge = self.ridge * n * np.eye(len(theta))
        for _ in range(6 if len(theta) < 100 else 2):  # it is near already
            slope, curve = SLOPES[self.loss](X @ theta, y)
            hessian = (X.T * curve) @ X + ridge
            gradient = X.T @ slope + ridge @ theta + pull
            block = np.ix_(active, active)
            theta[active] -= solve(hessian[block], gradient[active])
        if len(active) < len(theta):
            limit = (
                0.3 * n * np.broadcast_to(1.0 if self.weights is None else self.weights, pull.shape)
            )
            slack = np.abs(X.T @ SLOPES["L1"](X @ theta, y)[0])
            off = np.setdiff1d(np.arange(len(theta)), active)
            assert np.all(slack[off] <= limit[off] * (1 + 1e-9)), "not the lasso's solution"
        slope, curve = SLOPES[self.loss](X @ theta, y)
        hessian = ((X.T * curve) @ X + ridge)[np.ix_(active, active)]
        return theta[active], hessian, X[:, active] * slope[:, None]


def sandwich(case: Case, hessian: Any, scores: Any, clustered: bool) -> Any:
    if clustered:
        scores = np.stack([scores[case.groups == g].sum(axis=0) for g in np.unique(case.groups)])
    return solve(hessian, solve(hessian, scores.T @ scores).T)


def errors(case: Case) -> Iterator[tuple[str, float | EtafreeError]]:
    """Yield the error of every step, or how it was refused; a refused fit refuses the rest."""
    try:
        criterion = case.criterion()
        fit = ef.minimise(criterion)
        theta, hessian, scores = case.truth(fit.theta)
        truth = sandwich(case, hessian, scores, False)
        se = np.sqrt(np.diagonal(truth))
        kept = fit.theta[np.flatnonzero(fit.theta)] if case.loss == "L1" else fit.theta
        yield "minimise", float(np.max(np.abs(kept - theta) / se))
    except EtafreeError as error:
        for step in case.steps:
            yield step, error
        return
    for step, check in (("sandwich", _sandwich), ("sample", _sample), ("calibrate", _calibrate)):
        if step in case.steps:
            try:
                yield step, check(case, criterion, hessian, scores)
            except EtafreeError as error:
                yield step, error


def _sandwich(case: Case, criterion: ef.Criterion, hessian: Any, scores: Any) -> float:
    worst = 0.0
    for name, labels in (("HC0", None), ("CR0", case.groups)):
        truth = sandwich(case, hessian, scores, labels is not None)
        options: dict[str, Any] = {"clusters": labels, "correction": name, "centered": False}
        if case.loss == "L1":  # the active block is calibrate's business
            draws = np.random.default_rng(0).standard_normal((200, criterion.p))
            draws = draws / np.linalg.norm(case.X, axis=0)
            covariance = ef.calibrate(draws, criterion, **options).target.covariance
        else:
            covariance = ef.target(criterion, **options).covariance
        se = np.sqrt(np.diagonal(truth))
        worst = max(worst, float(np.max(np.abs(covariance - truth) / se / se[:, None])))
    return worst


def _sample(case: Case, criterion: ef.Criterion, hessian: Any, scores: Any) -> float:
    r"""Return how far Stein's identities :math:`E\,g_j = 0, E\,g_j\theta_j = -1` are from holding.

    In Monte Carlo standard errors, largest entry; g is the gradient of the log density.
    """
    posterior = ef.GeneralizedPosterior(criterion, case.eta)
    draws = case.known["draws"] = ef.sample(posterior, DRAWS, seed=1)
    theta = draws.array
    pull = 0.3 * len(case.y) * (1.0 if case.weights is None else case.weights) * np.sign(theta)
    slopes = -case.eta * (
        SLOPES[case.loss](theta @ case.X.T, case.y)[0] @ case.X
        + case.ridge * len(case.y) * theta + (pull if case.loss == "L1" else 0.0)
    )  # fmt: skip
    sd = theta.std(axis=0)
    z = (theta - theta.mean(axis=0)) / sd
    terms = np.stack([slopes * sd, slopes * sd * z])
    wanted = np.stack([np.zeros_like(sd), -np.ones_like(sd)])
    noise = terms.std(axis=1) / np.sqrt(draws.effective_size())
    return float(np.max(np.abs(terms.mean(axis=1) - wanted) / noise))


def _calibrate(case: Case, criterion: ef.Criterion, hessian: Any, scores: Any) -> float:
    """Return how far calibrated draws are from the sandwich, whatever eta made them."""
    if "draws" not in case.known:
        case.known["draws"] = ef.sample(ef.GeneralizedPosterior(criterion, case.eta), DRAWS, seed=1)
    made = ef.calibrate(case.known["draws"], criterion, correction="HC0", centered=False)
    truth = sandwich(case, hessian, scores, False)
    se = np.sqrt(np.diagonal(truth))
    before = np.cov(made.original.select(made.target.names).array.T).reshape(len(se), len(se))
    after = made.map.scale @ before @ made.map.scale.T
    return float(np.max(np.abs(after - truth) / se / se[:, None]))


# --- the cases ----------------------------------------------------------------------------------


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
            scale = np.array([1.0, c, 1.0])
            yield Case("scale of one column", f"{c:.0e}", X=X * scale, y=y, weights=scale, **common)
            scale = np.full(3, c)
            yield Case(
                "scale of all columns", f"{c:.0e}", X=X * scale, y=y, weights=scale, **common
            )
        for condition in (1e2, 1e4, 1e5, 1e6, 1e8, 1e10)[some]:
            near = X.copy()
            near[:, 2] = X[:, 1] + X[:, 2] / condition
            yield Case("nearly collinear columns", f"{condition:.0e}", X=near, y=y, **common)
        far = y.copy()
        far[0] = 1e15
        yield Case("response of 1e15", "y", X=X, y=far, **common)
        lever = X.copy()
        lever[0, 1] = 1e15
        yield Case("covariate of 1e15", "x", X=lever, y=y, **common)
        wide, short, labels = data(loss, 20, 40)
        if loss != "L1":
            yield Case("n = 20 < p = 40, ridge", "0.1", X=wide, y=short, ridge=0.1, loss=loss,
                       groups=labels)  # fmt: skip
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
    def worst(self) -> float:
        return max(self.right.values(), default=0.0)

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
    rows = ["| extreme | step | right | largest error | tolerance | refused |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    rows += [
        f"| {x.extreme} | {x.step} | {len(x.right)} | {x.worst:.0e} | {x.tolerance:.0e} | "
        f"{len(x.refused)} |" for x in found
    ]  # fmt: skip
    rows += ["", "Refused, by what the error says (numbers as #):", "",
             "| extreme | value | loss | step | error |", "|---|---|---|---|---|"]  # fmt: skip
    rows += [f"| {' | '.join(row[:-1])} | `{row[-1]}` |" for row in refusals(found)]
    return "\n".join(rows)


def refusals(found: list[Line]) -> list[tuple[str, str, str, str, str]]:
    """Return extreme, values, losses, steps and message, what is alike in one row."""
    steps: dict[tuple[str, str, str, str], list[str]] = {}
    for line in found:
        for name, text in line.refused.items():
            loss, _, value = name.partition(" ")
            steps.setdefault((line.extreme, text, loss, value), []).append(line.step)
    values: dict[tuple[str, str, str, str], list[str]] = {}
    for (extreme, text, loss, value), which in steps.items():
        values.setdefault((extreme, text, loss, ", ".join(which)), []).append(value)
    losses: dict[tuple[str, str, str, str], list[str]] = {}
    for (extreme, text, loss, which), at in values.items():
        losses.setdefault((extreme, ", ".join(at), which, text), []).append(loss)
    return [(e, at, ", ".join(of), which, text) for (e, at, which, text), of in losses.items()]


def main() -> int:
    warnings.simplefilter("ignore")
    with np.errstate(all="ignore"):
        found = lines(cases())
    wrong = [
        f"{x.extreme}, {x.step}: {name} {x.right[name]:.1e}" for x in found for name in x.wrong
    ]
    text = PAGE.read_text() if PAGE.exists() else f"# Reliability\n\n{FIRST}\n{LAST}\n"
    before, _, rest = text.partition(FIRST)
    after = rest.partition(LAST)[2]
    print("\n".join([table(found), "", *wrong]))
    if not wrong:
        PAGE.write_text(f"{before}{FIRST}\n{table(found)}\n{LAST}{after}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
