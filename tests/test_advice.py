"""Advice in errors and checks works when it is followed, and names nothing that is in use."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import etafree as ef
from etafree.errors import InputError

RNG = np.random.default_rng(11)
N = 60
BASE = np.column_stack([np.ones(N), RNG.standard_normal((N, 2))])
Y = BASE @ [1.0, 2.0, -1.0] + RNG.standard_normal(N)
FINE = np.arange(N) // 3


@dataclass(frozen=True)
class Situation:
    """A call of `target`, or of the jackknife, that can be changed as advice says."""

    X: Any
    loss: Any = field(default_factory=ef.losses.Squared)
    y: Any = field(default_factory=lambda: Y)
    penalty: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    route: str = "target"

    @property
    def names(self) -> list[str]:
        return [f"x{j}" for j in range(self.X.shape[1])]

    def criterion(self) -> ef.Criterion:
        return ef.Criterion(self.loss, (self.X, self.y), self.penalty, names=self.names)

    def arguments(self) -> dict[str, Any]:
        """Return the options as arguments, with times and strata in a structure."""
        rest = dict(self.options)
        time, units, strata = (rest.pop(key, None) for key in ("time", "units", "strata"))
        bandwidth = rest.pop("bandwidth", None)
        if time is not None and units is None:
            return {**rest, "dependence": ef.TimeSeries(time, bandwidth)}
        if time is not None:
            return {**rest, "dependence": ef.Panel(units, time, bandwidth)}
        if strata is not None:
            return {**rest, "dependence": ef.Survey(rest.pop("clusters"), strata)}
        return rest

    def run(self) -> Any:
        if self.route == "target":
            return ef.target(self.criterion(), **self.arguments())
        rng = np.random.default_rng(0)
        gram = np.linalg.inv(self.X.T @ self.X)
        middle = gram @ self.X.T @ self.y * (len(self.X) > self.X.shape[1])  # else no residuals
        theta = rng.multivariate_normal(middle, gram, size=4000)
        likelihood = -0.5 * (self.y - theta @ self.X.T) ** 2
        kept = self.options.get("kept", self.names)
        options = {key: value for key, value in self.arguments().items() if key != "kept"}
        draws = ef.Draws.of(theta, self.names, 1.0).select(kept)
        return ef.calibrate(draws, log_likelihood=likelihood, **options)

    def having(self, **changes: Any) -> Situation:
        return replace(self, options={**self.options, **changes})

    def columns(self, kept: Any) -> Situation:
        return replace(self, X=self.X[:, kept])

    def rows(self, kept: Any) -> Situation:
        per_row = ("clusters", "time", "units", "strata")
        options = {
            key: np.asarray(value)[kept] if key in per_row else value
            for key, value in self.options.items()
        }
        return replace(self, X=self.X[kept], y=self.y[kept], options=options)


# --- what advice can say, and what a reader does about it ----------------------------------------


def fit_fewer(s: Situation, match: re.Match[str]) -> Situation:
    more = {"bandwidth": int(match[2])} if match[2] else {}
    return s.columns(np.arange(int(match[1]))).having(**more)


def finer(s: Situation, match: re.Match[str]) -> Situation:
    clusters = s.options["clusters"]
    ways = len(clusters) if isinstance(clusters, list) else 0
    return s.having(clusters=[FINE, np.arange(N) % 20][:ways] if ways else FINE)


def penalize(s: Situation, match: re.Match[str]) -> Situation:
    return replace(s, penalty=ef.penalties.Ridge(0.1))


def named_in(error: InputError) -> list[int]:
    return [int(j) for j in re.findall(r"'x(\d+)'", str(error))]


def drop_columns(s: Situation, match: re.Match[str], error: InputError) -> Situation:
    """Drop the columns that the error names, with the rows that nothing else is in."""
    lost = named_in(error)
    row = re.search(r"row (\d+)", str(error))
    cluster = re.search(r"cluster (\d+) alone", str(error))
    if row is not None:
        fits = np.arange(len(s.X)) == int(row[1])
        lost = lost or [j for j in range(s.X.shape[1]) if np.all(s.X[~fits, j] == 0)]
    elif cluster is not None:
        fits = s.options["clusters"] == int(cluster[1])
    else:
        fits = np.any(s.X[:, lost] != 0, axis=1) if lost else np.zeros(len(s.X), dtype=bool)
    kept = [j for j in range(s.X.shape[1]) if j not in lost]
    return s.rows(~fits).columns(kept)


def correct(s: Situation, match: re.Match[str]) -> Situation:
    return s.having(correction=match[1], bandwidth=None)


def more_cosines(s: Situation, match: re.Match[str]) -> Situation:
    return s.having(bandwidth=int(match[1]))


def report_fewer(s: Situation, match: re.Match[str]) -> Situation:
    assert not match[1] or int(match[1]) >= 1
    return s.having(kept=s.names[-1:])


#: Every piece of advice, with what follows it; a piece is what stands between "or" and commas.
FOLLOWED: dict[str, Callable[..., Situation] | None] = {
    r"fit at most (\d+) parameters?(?: with bandwidth=(\d+))?": fit_fewer,
    r"fit fewer parameters": lambda s, match: s.columns([0, 1]),
    r"use finer clusters": finer,
    r"add a penalty": penalize,
    r"drop one of them": lambda s, match: s.columns(np.arange(s.X.shape[1] - 1)),
    r"drop the row with its column": drop_columns,
    r"drop the cluster's rows with these columns": drop_columns,
    r"drop these columns with the rows or clusters": drop_columns,
    r"correction='([\w-]+)'": correct,
    r"bandwidth= of (\d+) or more": more_cosines,
    r"report fewer parameters .*: at most (\d+)": report_fewer,
    r"report fewer parameters .*?()(?=, or)": report_fewer,
    r"the HC corrections are for independent observations: drop clusters=": lambda s, match: (
        s.having(clusters=None)
    ),
    r"the CR corrections need clusters=": lambda s, match: s.having(clusters=FINE),
    r"for this structure choose from ([\w-]+)": correct,
    r"repeat the rows": None,
    r"draw more": None,
    r"pass model=": None,
}


def dummy(rows: Any) -> np.ndarray:
    return np.column_stack([BASE, np.isin(np.arange(N), rows).astype(float)])


SAVED_BY_FEW = np.column_stack([BASE, RNG.standard_normal((N, 3))])
#: A loss without a row's share of the Hessian.
MODE = ef.losses.Modal(3.0, target="mode")
PAIRS = {"X": BASE[:, 1:], "loss": ef.Wilcoxon("mad")}
SITUATIONS: dict[str, Situation] = {
    "one cluster": Situation(BASE, options={"clusters": np.zeros(N)}),
    "as many clusters as parameters": Situation(BASE, options={"clusters": np.arange(N) % 3}),
    "fewer clusters than parameters": Situation(
        SAVED_BY_FEW, options={"clusters": np.arange(N) % 4}
    ),
    "the same with a penalty": Situation(
        SAVED_BY_FEW, penalty=ef.penalties.Ridge(0.5), options={"clusters": np.arange(N) % 4}
    ),
    "a row with a dummy": Situation(dummy([7])),
    "the same, HC2": Situation(dummy([7]), options={"correction": "HC2"}),
    "the same, HC1": Situation(dummy([7]), options={"correction": "HC1"}),
    "the same, HC0": Situation(dummy([7]), options={"correction": "HC0"}),
    "a row with a dummy, Huber": Situation(dummy([7]), loss=ef.losses.Huber()),
    "fewer rows than parameters": Situation(
        RNG.standard_normal((6, 8)), y=Y[:6], penalty=ef.penalties.Ridge(0.5)
    ),
    "the same with HC0": Situation(
        RNG.standard_normal((6, 8)),
        y=Y[:6],
        penalty=ef.penalties.Ridge(0.5),
        options={"correction": "HC0"},
    ),
    "a design that is singular": Situation(np.column_stack([BASE, BASE[:, 1] + BASE[:, 2]])),
    "a singular design with a penalty": Situation(
        np.column_stack([BASE, BASE[:, 1] + BASE[:, 2]]), penalty=ef.penalties.Ridge(0.1)
    ),
    "two ways of few clusters": Situation(
        SAVED_BY_FEW, options={"clusters": [np.arange(N) % 2, np.arange(N) // 30]}
    ),
    "few periods": Situation(BASE[:9], y=Y[:9], options={"time": np.arange(9)}),
    "fewer periods than parameters": Situation(
        SAVED_BY_FEW[:5], y=Y[:5], penalty=ef.penalties.Ridge(0.5), options={"time": np.arange(5)}
    ),
    "few periods of a panel": Situation(
        BASE,
        options={
            "time": np.arange(N) // 5,
            "units": np.arange(N) % 5,
            "bandwidth": 2,
            "correction": "EWC",
        },
    ),
    "few cosines": Situation(BASE, options={"time": np.arange(N), "bandwidth": 2}),
    "an HC correction for clusters": Situation(
        BASE, options={"clusters": FINE, "correction": "HC1"}
    ),
    "a CR correction without clusters": Situation(BASE, options={"correction": "CR1"}),
    "a CR correction for a series": Situation(
        BASE, options={"time": np.arange(N), "correction": "CR1"}
    ),
    "leverage of a mode": Situation(BASE, loss=MODE, options={"correction": "HC3"}),
    "leverage of a mode, clusters": Situation(
        BASE, loss=MODE, options={"clusters": FINE, "correction": "CR3"}
    ),
    "leverage over pairs, a series": Situation(
        **PAIRS, options={"time": np.arange(N), "correction": "CR3"}
    ),
    "jackknife, few clusters": Situation(
        BASE, route="jackknife", options={"clusters": np.arange(N) % 3}
    ),
    "jackknife, few rows": Situation(np.eye(3), y=np.arange(3.0), route="jackknife"),
    "jackknife with CR3": Situation(
        BASE, route="jackknife", options={"clusters": FINE, "correction": "CR3"}
    ),
    "jackknife with HC3": Situation(BASE, route="jackknife", options={"correction": "HC3"}),
}


@pytest.mark.filterwarnings("ignore::etafree.errors.CalibrationWarning")
@pytest.mark.parametrize("what", SITUATIONS)
def test_advice_that_is_followed_leads_on(what):
    situation = SITUATIONS[what]
    with pytest.raises(InputError) as info:
        situation.run()
    error, followed = info.value, 0
    assert error.advice, "no advice"
    for pattern, follow in FOLLOWED.items():
        for match in re.finditer(pattern, error.advice):
            followed += 1
            if follow is drop_columns:
                drop_columns(situation, match, error).run()
            elif follow is not None:
                follow(situation, match).run()
    assert followed, f"advice that nobody can follow: {error.advice}"


# --- checks --------------------------------------------------------------------------------------

LOPSIDED = np.concatenate([np.zeros(30), 1 + np.arange(30) // 3]).astype(int)
IN_USE: dict[str, dict[str, Any]] = {
    **{f"{c}": {"clusters": LOPSIDED, "correction": c} for c in ("CR0", "CR1", "CR2", "CR3")},
    "several ways": {"clusters": [LOPSIDED, np.arange(N) % 12]},
    "survey": {"dependence": ef.Survey(FINE, np.arange(N) // 30)},
    "map": {"map": ef.Map(kind="scale")},
    "center": {"center": "mean"},
    "center and map": {"center": "mean", "map": ef.Map(kind="scale")},
}


def calibrated(**options: Any) -> ef.Calibration:
    X = BASE * np.where(LOPSIDED == 0, 3.0, 1.0)[:, None]
    criterion = ef.Criterion(ef.losses.PseudoHuber(), (X, Y), names=["a", "b", "c"])
    draws = np.random.default_rng(1).standard_normal((500, 3)) * 0.2 + [5.0, 2.0, -1.0]
    return ef.calibrate(draws, criterion, eta=1.0, **options)


@pytest.mark.parametrize("what", IN_USE)
def test_checks_advise_nothing_that_is_in_use_and_what_they_advise_works(what):
    options = IN_USE[what]
    result = calibrated(**options)
    for check in result.checks:
        for argument, value in re.findall(r"(correction|center|map)='([\w-]+)'", check.advice):
            if check.name == "shape":  # names an argument of interval()
                continue
            used = {
                "correction": result.target.correction,
                "center": result.target.center_kind,
                "map": "affine" if result.settings["kind"] == "location-scale" else "scale",
            }[argument]
            assert value != used, (check.name, check.advice)
            calibrated(**{**options, argument: value})
        if "wild_bootstrap()" in check.advice:
            result.wild_bootstrap("a", draws=99)
        if "cluster_table()" in check.advice:
            result.cluster_table()
        assert check.verdict == "ok" or check.advice


def test_the_advice_about_the_centre_is_enough():
    for what in ("map", "center", "center and map"):
        options, seen = dict(IN_USE[what]), []
        for _ in range(2):
            offset = next(c for c in calibrated(**options).checks if c.name == "Newton offset")
            seen.append(offset.verdict)
            found = re.search(r"(center|map)='([\w-]+)'", offset.advice)
            if found:
                options[found[1]] = found[2]
        last = next(c for c in calibrated(**options).checks if c.name == "Newton offset")
        assert seen[0] == "warn"
        assert last.verdict == "ok"


def test_a_posterior_without_a_learning_rate_is_not_told_to_change_it():
    from etafree.q_posterior import QPosterior

    criterion = ef.Criterion(ef.losses.Squared(), (BASE, Y))
    assert "eta" not in QPosterior(criterion).remedy
    assert "eta" in ef.GeneralizedPosterior(criterion, 1.0).remedy
