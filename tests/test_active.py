"""Calibration under penalties with kinks: the active block, zeros without intervals, draws."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from conftest import checks_of, refused
from etafree.optimize import minimise
from etafree.sandwich import active_block

NAMES = [f"x{j}" for j in range(1, 7)]
BETA = np.array([1.5, -1.0, 0.0, 0.0, 0.8, 0.0])


def sparse(n: int = 400, seed: int = 0, **options) -> ef.Criterion:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6))
    y = X @ BETA + (0.5 + np.abs(X[:, 0])) * rng.standard_normal(n)
    penalty = options.pop("penalty", ef.penalties.L1(0.2))
    loss = options.pop("loss", ef.losses.Squared())
    return ef.Criterion(loss, (X, y), penalty, names=NAMES, **options)


PENALTIES = {
    "l1": ef.penalties.L1(0.2),
    "elastic net": ef.penalties.ElasticNet(0.25, 0.8),
    "groups": ef.penalties.GroupL1(0.2, groups=["a", "a", "b", "b", "c", "d"]),
}


@pytest.mark.parametrize("kind", PENALTIES)
@pytest.mark.parametrize("loss", [ef.losses.Squared(), ef.losses.Huber(1.345)])
def test_the_active_block_solves_its_own_equations(kind: str, loss) -> None:
    criterion = sparse(penalty=PENALTIES[kind], loss=loss)
    fit = minimise(criterion)
    block = active_block(criterion)
    chosen = [criterion.names.index(name) for name in block.names]
    assert np.all(fit.theta[[j for j in range(6) if j not in chosen]] == 0)
    np.testing.assert_allclose(minimise(block).theta, fit.theta[chosen], atol=1e-8)
    t = ef.target(criterion, correction="HC0")
    X = criterion.total.X[:, chosen]
    scores = criterion.total.scores(fit.theta)[:, chosen]
    scores -= scores.mean(axis=0)
    A = block.hessian(fit.theta[chosen])
    inverse = np.linalg.inv(A)
    np.testing.assert_allclose(t.covariance, inverse @ scores.T @ scores @ inverse, rtol=1e-6)
    assert X.shape[1] == t.p


def test_zeros_are_exact_and_say_that_they_have_no_interval(tmp_path) -> None:
    criterion = sparse()
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=1000, seed=1)
    made = ef.calibrate(draws, criterion)
    assert made.inactive == ("x3", "x4", "x6")
    assert made.target.names == ("x1", "x2", "x5")
    for name in made.inactive:
        assert np.all(made.draws[name] == 0.0)
        assert made.draws[name].std() == 0
    table = made.summary()
    assert table.loc["x3", "status"] == "no interval"
    assert table.loc["x3", "estimate"] == 0.0
    assert table.loc[list(made.inactive), ["se", "lower", "upper", "ratio"]].isna().all().all()
    assert made.interval().loc["x4"].isna().all()
    assert made.interval(kind="wald").loc["x1"].notna().all()
    assert "no interval: x3, x4, x6" in repr(made)
    assert "no interval" in made._repr_html_()
    assert made.center[2] == 0.0
    assert made.region().names == ("x1", "x2", "x5")
    refused("contrast", "x3", lambda: made.test("x3 = 0"))
    refused("var_names", "x3", lambda: made.plot(["x3"]))
    made.plot()
    assert float(made.of(lambda t: t["x1"] + t["x3"]).estimate) == pytest.approx(made.center[0])
    again = ef.Calibration.load(made.save(tmp_path / "made.npz"))
    assert again.inactive == made.inactive
    assert repr(again) == repr(made)


def test_calibrated_draws_do_not_depend_on_eta() -> None:
    criterion = sparse()
    expected = ef.target(criterion, correction="HC3").covariance
    for eta in (0.1, 1.0, 10.0):
        draws = ef.sample(ef.GeneralizedPosterior(criterion, eta), draws=2000, seed=1)
        made = ef.calibrate(draws, criterion)
        mapped = made.map(draws.select(made.target.names).array)
        np.testing.assert_allclose(np.cov(mapped.T), expected, rtol=1e-8, atol=1e-12)


def test_fragile_selections_are_flagged() -> None:
    strong = ef.target(sparse())
    assert checks_of(strong)["selection"].verdict == "ok"
    smooth = ef.target(sparse(penalty=ef.penalties.Ridge(0.01)))
    assert "selection" not in checks_of(smooth)
    weak = ef.target(sparse(penalty=ef.penalties.L1(0.01)))
    assert checks_of(weak)["selection"].verdict == "warn"


def test_clusters_weights_offsets_and_intercepts_go_through() -> None:
    import pandas as pd

    rng = np.random.default_rng(3)
    n, group = 300, np.arange(300) // 10
    table = pd.DataFrame(rng.standard_normal((n, 4)), columns=list("abcd"))
    table["y"] = 3.0 + table["a"] + rng.standard_normal(30)[group] + rng.standard_normal(n)
    table["group"], table["w"] = group, rng.uniform(0.5, 2.0, n)
    criterion = ef.Criterion.from_formula(
        "y ~ a + b + c + d",
        table,
        ef.losses.Huber(1.345),
        ef.penalties.L1(0.2),
        weights="w",
        weight_kind="sampling",
        offset=np.full(n, 0.5),
    )
    made = ef.target(criterion, clusters="group")
    assert made.names == ("Intercept", "a")
    assert abs(made.center[0] - 2.5) < 0.6  # not shrunk
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=500, seed=1)
    result = ef.calibrate(draws, criterion, clusters="group")
    assert {"selection", "implied coverage", "shape"} <= set(result.diagnostics().index)


@pytest.mark.parametrize("strength", [0.05, 0.6, 2.0])
@pytest.mark.parametrize("eta", [0.05, 1.0])
def test_the_posterior_keeps_its_kink_at_p_1(strength: float, eta: float) -> None:
    """Mean, variance and mass below zero of the draws against a fine grid, z-scores."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((40, 1))
    y = 0.4 * x[:, 0] + rng.standard_normal(40)
    criterion = ef.Criterion(ef.losses.Squared(), (x, y), ef.penalties.L1(strength))
    posterior = ef.GeneralizedPosterior(criterion, eta)
    grid = np.linspace(-8, 8, 400_001)
    density = np.exp(posterior.log_density(grid[:, None]) - posterior.log_density(np.zeros(1)))
    density /= density.sum()
    mean = density @ grid
    sd = np.sqrt(density @ (grid - mean) ** 2)
    for sampler in ("quadrature", "importance", "elliptical"):
        draws = ef.sample(posterior, draws=8000, seed=6, sampler=sampler)
        z = (draws.array[:, 0] - mean) / sd
        ess = draws.ess
        fourth = np.sqrt(density @ (((grid - mean) / sd) ** 2 - 1) ** 2)
        assert abs(z.mean()) * np.sqrt(ess) < 4
        assert abs((z**2).mean() - 1) / fourth * np.sqrt(ess) < 5
        below = density[grid < 0].sum()
        noise = np.sqrt(below * (1 - below) / ess) + 1e-3
        assert abs((draws.array < 0).mean() - below) < 4.5 * noise


KINKED = {
    "L1": (ef.losses.Squared(), ef.penalties.L1(0.3)),
    "Huber and L1": (ef.losses.Huber(0.7), ef.penalties.L1(0.15)),
    "elastic net": (ef.losses.Squared(), ef.penalties.ElasticNet(0.4, mix=0.6)),
    "group, active": (ef.losses.Squared(), ef.penalties.GroupL1(0.2, groups=[0, 0])),
    "group, inactive": (ef.losses.Squared(), ef.penalties.GroupL1(0.8, groups=[0, 0])),
}


def second_moments(points: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    z = (points - mean) / sd
    return np.column_stack([z**2, z[:, 0] * z[:, 1], points[:, 1] < 0])


@pytest.mark.parametrize("eta", [0.02, 0.5, 50.0])
@pytest.mark.parametrize("name", KINKED)
def test_the_posterior_keeps_its_kink_at_p_2(name: str, eta: float) -> None:
    """Moments and quadrants against a fine grid; the slice sampler where it has a chance."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((60, 2))
    X[:, 1] += 0.5 * X[:, 0]
    y = X @ [0.6, 0.0] + rng.standard_normal(60)
    posterior = ef.GeneralizedPosterior(ef.Criterion(KINKED[name][0], (X, y), KINKED[name][1]), eta)
    for sampler in ("importance", "elliptical")[: 2 if eta < 10 else 1]:
        draws = ef.sample(posterior, draws=8000, seed=8, sampler=sampler)
        low, high = draws.array.min(axis=0), draws.array.max(axis=0)
        axes = np.linspace(low - 0.2 * (high - low), high + 0.2 * (high - low), 900, axis=1)
        points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
        log = np.concatenate([posterior.log_density(part) for part in np.split(points, 20)])
        mass = np.exp(log - log.max())
        mass /= mass.sum()
        mean = mass @ points
        sd = np.sqrt(mass @ (points - mean) ** 2)
        ess = draws.ess
        assert ess > 1500
        assert np.abs((draws.mean - mean) / sd).max() * np.sqrt(ess) < 4
        exact, found = (second_moments(x, mean, sd) for x in (points, draws.array))
        truth = mass @ exact
        noise = np.sqrt(mass @ (exact - truth) ** 2 / ess)
        assert (np.abs(found.mean(axis=0) - truth) < 5 * noise + 2e-3).all()


def test_a_normal_law_times_kinks_has_the_density_it_says() -> None:
    """Even weights for least squares: the proposal is the posterior but for its wider tails."""
    rng = np.random.default_rng(9)
    X = rng.standard_normal((400, 8))
    X[:, 1] = X[:, 0] + 0.02 * rng.standard_normal(400)  # collinear
    y = X @ [1.0, 0.0, -1.0, 0, 0, 0, 0, 0] + rng.standard_normal(400)
    for eta in (0.01, 1.0, 100.0):
        criterion = ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.L1(0.1))
        draws = ef.sample(ef.GeneralizedPosterior(criterion, eta), draws=2000, seed=1)
        assert draws.sampler == "importance"
        assert draws.info["pareto_k"] < 0.3
        assert draws.ess > 500


def test_coverage_of_the_soft_thresholds() -> None:
    """Independent covariates: the target is the soft threshold; 300 data sets, fixed seeds."""
    truth = np.sign(BETA) * np.maximum(np.abs(BETA) - 0.2, 0)
    hits, there = np.zeros(6), np.zeros(6)
    for seed in range(300):
        t = ef.target(sparse(seed=seed))
        for name, low, high in zip(
            t.names, t.center - 1.96 * t.se, t.center + 1.96 * t.se, strict=True
        ):
            j = NAMES.index(name)
            there[j] += 1
            hits[j] += low <= truth[j] <= high
    for j in (0, 1, 4):
        assert there[j] == 300
        assert abs(hits[j] / 300 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 300)


def test_bad_use_of_kinks_is_refused() -> None:
    criterion = sparse()
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=300, seed=1)
    refused("center", "center='map'", lambda: ef.calibrate(draws, criterion, center="mean"))
    refused("map", "center='map'", lambda: ef.calibrate(draws, criterion, map=ef.Map(kind="scale")))
    refused(
        "penalty", "every coefficient", lambda: ef.target(sparse(penalty=ef.penalties.L1(50.0)))
    )
    prior = ef.LogPrior.normal(np.zeros(6), np.eye(6))
    refused("log_prior", "kink", lambda: ef.GeneralizedPosterior(criterion, 1.0, prior))
