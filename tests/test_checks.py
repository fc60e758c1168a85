"""No check can take a result down: what cannot be computed is unknown, with the reason."""

from __future__ import annotations

import inspect
from string import Formatter

import numpy as np
import pytest

import etafree as ef
from conftest import checks_of
from etafree import diagnostics
from etafree.diagnostics import ADVICE, THRESHOLDS, judge
from etafree.foundation import check as checks
from etafree.foundation.check import Check, run_checks


def functions_that_check(module):
    """Return the functions of a module that compute checks, by their return type."""
    return [
        name
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and name not in ("judge", "run_checks", "unknown", "_spread")
        and "Check" in str(inspect.signature(function).return_annotation)
        and not str(inspect.signature(function).return_annotation).startswith("list")
    ]


def clustered():
    rng, school = np.random.default_rng(1), np.repeat(np.arange(12), 5)
    X = np.column_stack([np.ones(60), rng.standard_normal(60)])
    y = X @ [1.0, 2.0] + rng.standard_t(3, 60)
    return ef.Criterion(ef.losses.StudentT(3.0, scale=1.0), data=(X, y)), school


def every_kind_of_result():
    """Yield results that between them run every check."""
    criterion, school = clustered()
    prior = ef.LogPrior.normal(np.zeros(2), 100.0 * np.eye(2))
    post = ef.GeneralizedPosterior(criterion, eta=0.5, log_prior=prior)
    draws = ef.sample(post, draws=400, seed=1)
    yield lambda: ef.calibrate(draws, post, clusters=school)
    yield lambda: ef.calibrate(draws, post)
    plug_in = ef.Criterion(ef.losses.Huber(), data=(criterion.total.X, criterion.total.y))
    yield lambda: ef.calibrate(draws.values, plug_in, eta=0.5)
    lasso = ef.Criterion(
        ef.losses.Squared(),
        data=(criterion.total.X, criterion.total.y),
        penalty=ef.penalties.L1(0.01),
    )
    yield lambda: ef.calibrate(draws.values, lasso, eta=0.5)
    modal = ef.losses.Modal(1.0, target="mode")
    kernel = ef.Criterion(modal, data=(criterion.total.X, criterion.total.y))
    yield lambda: ef.calibrate(draws.values, kernel, eta=0.5)
    rows = -0.5 * np.square(criterion.total.y - draws.array @ criterion.total.X.T)
    yield lambda: ef.calibrate(draws.values, log_likelihood=rows)


def use(made, folder):
    """Do everything with a result that looks at its checks."""
    assert "diagnostics: " in repr(made)
    assert made._repr_html_()
    assert made.flags()
    assert len(made.diagnostics()) == len(made.checks)
    made.report(folder / "page.html", force=True)
    assert made.to_arviz()["posterior"].attrs["calibration_diagnostics"] == made.flags()
    again = ef.Calibration.load(made.save(folder / "result.npz"))
    assert [c.verdict for c in again.checks] == [c.verdict for c in made.checks]


PLACES = [(diagnostics, name) for name in functions_that_check(diagnostics)]


def test_the_search_finds_the_checks():
    found = {name for _, name in PLACES}
    assert found >= {
        "rival_mode",
        "shape",
        "implied_coverage",
        "fine_clusters",
        "newton_offset",
        "fragile_selection",
        "jackknife_error",
        "judged",
        "prior_weight",
        "smoothing_bias",
    }


def test_every_check_may_raise_and_every_result_stands(monkeypatch, tmp_path):
    def broken(*args, **kwargs):
        raise ValueError("this check is\nbroken")

    for module, name in PLACES:
        monkeypatch.setattr(module, name, broken)
    names = set()
    for calibrated in every_kind_of_result():
        made = calibrated()
        use(made, tmp_path)
        assert {c.verdict for c in made.checks} <= {"unknown"}, made.diagnostics()
        for one in made.checks:
            assert one.advice == "could not be computed: ValueError: this check is broken"
        names |= {c.name for c in made.checks}
    assert names >= {
        "rival mode",
        "shape",
        "implied coverage",
        "neighbouring clusters",
        "curvature noise",
        "serial dependence",
        "unscaled prior",
        "selection",
        "smoothing bias",
        "jackknife",
    }


@pytest.mark.parametrize("name", functions_that_check(diagnostics))
def test_one_check_may_raise_and_the_others_are_as_before(name, monkeypatch):
    def broken(*args, **kwargs):
        raise np.linalg.LinAlgError

    makers = list(every_kind_of_result())[:3]
    before = [maker().checks for maker in makers]
    monkeypatch.setattr(diagnostics, name, broken)
    for maker, known in zip(makers, before, strict=True):
        kept = {c.name: c for c in known}
        for one in maker().checks:
            if one.verdict == "unknown":
                assert one.advice == "could not be computed: LinAlgError"
            else:
                assert one == kept[one.name]


def test_a_value_that_is_not_a_number_is_unknown_and_not_a_warning():
    (made,) = run_checks([("offset", lambda: judge("Newton offset", np.nan))])
    assert made[2:5] == (0.1, "above", "unknown")
    assert "not a number" in made.advice


def test_thresholds_have_a_side_and_room():
    for name, (warn, fail, below) in THRESHOLDS.items():
        step = -1e-3 if below else 1e-3
        known = {"value": warn + step, "percent": 100 * min(warn + step, 1.0)}
        fields = {key for _, key, *_ in Formatter().parse(ADVICE[name]) if key}
        details = dict.fromkeys(fields - known.keys(), 1.0)
        assert judge(name, warn)[3:] == ("below" if below else "above", "ok", ""), name
        assert judge(name, warn + step, details).verdict == "warn", name
        said = judge(name, warn + step, details).advice
        assert said == ADVICE[name].format(**details, **known)
        if np.isfinite(fail):
            assert judge(name, fail + step, details).verdict == "fail", name
    assert ADVICE.keys() == THRESHOLDS.keys()
    room = judge("shape", 0.015, room=0.01)
    assert room[2:5] == (0.02, "above", "ok")


def test_what_fails_on_the_way_is_said_and_takes_nothing_down():
    failed = checks.find("quadrature", lambda: 1 / 0)
    goal = ef.Target([0.0], [[1.0]], findings=(failed,))
    made = checks_of(goal)["quadrature"]
    assert made.verdict == "unknown"
    assert made.advice == "could not be computed: ZeroDivisionError: division by zero"
    (again,) = run_checks([("ratio", lambda: judge("shape", 1 / 0))])
    assert again[3:] == ("above", "unknown", made.advice)


def test_a_check_does_not_swallow_an_interruption():
    def stopped():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_checks([("slow", stopped)])


def test_verdicts_have_an_order():
    assert checks.VERDICTS == ("fail", "unknown", "warn", "ok")
    assert all(isinstance(c, Check) for c in run_checks([("none", lambda: ())]))


def noise_of(criterion, **clusters):
    target = ef.target(criterion, **clusters)
    groups = target.dependence.clusters
    (check,) = diagnostics.curvature_noise(criterion, target, groups)
    return check


def mean_and_spread(theta, row):
    jnp = pytest.importorskip("jax.numpy")
    z = (row["y"] - row["X"] @ theta["mean"]) * jnp.exp(-(row["X"] @ theta["spread"]))
    return 0.5 * z**2 + row["X"] @ theta["spread"]


def test_the_design_is_no_noise_of_the_curvature():
    """Hessians of a row differ with x however it was drawn; only a response makes them noisy."""
    pytest.importorskip("jax")
    rng, loss, flagged = np.random.default_rng(3), ef.JaxLoss(mean_and_spread), []
    start = {"mean": np.zeros(2), "spread": np.zeros(2)}
    for k in range(20):
        n = 500
        X = np.column_stack([np.ones(n), rng.lognormal(size=n) if k % 2 else rng.random(n) < 0.05])
        mean = np.exp(0.3 * np.minimum(X[:, 1], 3.0))
        counts = rng.negative_binomial(1.5, 1.5 / (1.5 + mean)).astype(float)
        flagged.append(noise_of(ef.Criterion(ef.losses.NegativeBinomial(1 / 1.5), (X, counts))))
        x = np.column_stack([np.ones(n), rng.standard_normal(n)])
        y = x.sum(axis=1) + np.exp(0.3 * x[:, 1]) * rng.standard_normal(n)
        flagged.append(noise_of(ef.Criterion(loss, {"X": x, "y": y}, start=start)))
        group = np.repeat(np.arange(50), rng.multinomial(n, rng.dirichlet(np.ones(50))))
        flagged.append(noise_of(ef.Criterion(loss, {"X": x, "y": y}, start=start), clusters=group))
    assert sum(check.verdict != "ok" for check in flagged) <= 1


def test_the_curvature_of_modal_regression_is_noisy():
    rng, verdicts = np.random.default_rng(4), []
    for _ in range(10):
        X = np.column_stack([np.ones(1000), rng.standard_normal(1000)])
        y = X.sum(axis=1) + rng.gamma(3.0, 1.0, 1000)
        criterion = ef.Criterion(ef.losses.Modal(0.6), (X, y), ef.penalties.Ridge(0.05))
        verdicts.append(noise_of(criterion).verdict)
    assert verdicts.count("ok") <= 1


def test_curvature_noise_is_that_of_its_formula():
    """By rows and by clusters, of a loss of a linear predictor and of the same one in JAX."""
    jnp = pytest.importorskip("jax.numpy")
    rng, n = np.random.default_rng(5), 200
    X = np.column_stack([np.ones(n), rng.standard_normal(n)])
    y = X.sum(axis=1) + rng.standard_t(2, n)
    group = rng.integers(0, 30, n)
    loss = ef.losses.StudentT(1.0, scale=0.3)

    def written(theta, row):
        return jnp.log1p(((row["y"] - row["X"] @ theta) / 0.3) ** 2)

    linear = ef.Criterion(loss, (X, y))
    start = ef.minimise(linear).theta
    own = ef.Criterion(ef.JaxLoss(written), {"X": X, "y": y}, start=start)
    for criterion, clusters in [(linear, {}), (linear, {"clusters": group}), (own, {})]:
        u = X @ ef.minimise(criterion).theta
        slope, bend = loss.first(u, y), loss.second(u, y)
        inverse = np.linalg.inv((X.T * bend) @ X)
        lower = []
        for v in (inverse / np.sqrt(np.diagonal(inverse))).T:
            z = X @ v
            h, score = bend * z**2, slope * z
            m = (h.sum() / (z**2).sum()) * z**2 if criterion is linear else np.full(n, h.mean())
            if clusters:
                h, score, m = (np.bincount(group, part, 30) for part in (h, score, m))
            b = score**2 * h.sum() / (score**2).sum()
            terms = (h - m) * (h - b), (h - m) ** 2
            lower.append(min(t.sum() - np.sqrt((t**2).sum()) for t in terms))
        expected = np.sqrt(max(*lower, 0.0))
        assert expected > 0.01
        assert noise_of(criterion, **clusters).value == pytest.approx(expected, rel=1e-6)
