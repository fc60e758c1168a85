"""Random intercepts and slopes: whitening, components, their influences, the target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused
from etafree.data.groups import Groups
from etafree.paper.random_effects import Frames, Working, _effects, squared_slope
from etafree.paper.random_intercept import whiten

D = np.array([[1.7, 0.4], [0.4, 0.6]])


def slopes_data(seed: int, sizes: np.ndarray, share: float = 0.0, skew: bool = False):
    """Return X with an intercept, two covariates and one of groups, y and shuffled groups."""
    rng = np.random.default_rng([seed, 11])
    count = len(sizes)
    g = rng.permutation(np.repeat(np.arange(count), sizes))
    n = len(g)
    level = rng.standard_normal(count)[g]
    X = np.column_stack([np.ones(n), rng.standard_normal((n, 2)), level])
    b = rng.multivariate_normal([0.0, 0.0], D, count)
    error = 2 * (rng.exponential(size=n) - 1) if skew else rng.standard_normal(n)
    error += (rng.random(n) < share) * rng.normal(0.0, 10.0, n)
    y = X @ [1.0, 2.0, -1.0, 0.5] + np.sum(X[:, :2] * b[g], axis=1) + error
    return X, y, g


def test_whitening_is_the_symmetric_root_for_groups_of_any_size() -> None:
    """Groups of one row, fewer rows than effects, and a slope that is constant in its group."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat([3, 7, 8, 9, 11], [1, 2, 3, 5, 12]))
    groups, Z = Groups.of(labels, 23), rng.standard_normal((23, 3))
    Z[:, 0] = 1.0
    Z[labels == 9, 1] = 2.0
    A = rng.standard_normal((3, 3))
    for cov in (A @ A.T, np.diag([1.0, 0.0, 2.0]), np.zeros((3, 3))):
        X = rng.standard_normal((23, 4))
        made = Working.of(Frames.of(Z, groups), cov, 0.6).whiten(X)
        for label in np.unique(labels):
            rows = labels == label
            V = Z[rows] @ cov @ Z[rows].T + 0.6 * np.eye(rows.sum())
            value, vector = np.linalg.eigh(V)
            root = (vector * value**-0.5) @ vector.T
            np.testing.assert_allclose(made[rows], root @ X[rows], rtol=1e-9, atol=1e-11)


def test_whitening_moves_with_the_covariance_as_differences_say() -> None:
    rng = np.random.default_rng(1)
    groups, Z = Groups.of(np.arange(30) % 7, 30), rng.standard_normal((30, 2))
    frames, rows = Frames.of(Z, groups), rng.standard_normal((30, 3))
    for E in (np.diag([1.0, 0.0]), np.array([[0.0, 1.0], [1.0, 0.0]])):
        up, down = (Working.of(frames, D + h * E, 0.8).whiten(rows) for h in (1e-5, -1e-5))
        made = Working.of(frames, D, 0.8).slope(rows, E)
        np.testing.assert_allclose(made, (up - down) / 2e-5, rtol=1e-6, atol=1e-9)


def test_a_column_of_ones_is_the_random_intercept() -> None:
    X, y, g = slopes_data(0, np.array([1, 1, 2, 3, 5, 8, 12] * 4), share=0.1)
    ones = np.ones((len(y), 1))
    made = ef.RandomEffects(X, y, g, ones, c=1.0, D=[[1.4]], sigma2=0.7)
    known = ef.RandomIntercept(X, y, g, c=1.0, tau2=1.4, sigma2=0.7)
    np.testing.assert_allclose(
        made.criterion.total.X, whiten(X, known.groups, 1.4, 0.7), rtol=1e-10, atol=1e-12
    )
    for correction in ("CR0", "CR3"):
        one, two = (m.target(correction=correction) for m in (made, known))
        np.testing.assert_allclose(one.center, two.center, rtol=1e-8)
        np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-7)
    a, b = (m.sample(0.5, "appendix", draws=100, seed=3).array for m in (made, known))
    np.testing.assert_allclose(a, b, rtol=1e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_without_clipping_it_is_maximum_likelihood(seed: int) -> None:
    """Coefficients and components of statsmodels' MixedLM, groups of 1 to 12 rows."""
    import statsmodels.api as sm

    sizes = np.random.default_rng(seed).integers(1, 13, 60)
    X, y, g = slopes_data(seed, sizes)
    Z = X[:, :2] * [1.0, 3.0]
    theirs = sm.MixedLM(y, X, groups=g, exog_re=Z).fit(reml=False, method=["lbfgs", "bfgs"])
    cov, scale = np.asarray(theirs.cov_re), float(theirs.scale)
    given = ef.RandomEffects(X, y, g, Z, c=1e4, D=cov, sigma2=scale)
    np.testing.assert_allclose(ef.minimise(given.criterion).theta, theirs.fe_params, atol=1e-6)
    made = ef.RandomEffects(X, y, g, Z, c=1e4)
    np.testing.assert_allclose(made.D, cov, rtol=1e-3, atol=1e-4)  # their optimiser's precision
    assert made.sigma2 == pytest.approx(scale, rel=1e-4)
    np.testing.assert_allclose(ef.minimise(made.criterion).theta, theirs.fe_params, atol=1e-4)

    def likelihood(cov: np.ndarray, scale: float) -> float:
        total = 0.0
        for k in np.unique(g):
            r = y[g == k] - X[g == k] @ ef.minimise(made.criterion).theta
            V = Z[g == k] @ cov @ Z[g == k].T + scale * np.eye(len(r))
            total -= 0.5 * (np.linalg.slogdet(V)[1] + r @ np.linalg.solve(V, r))
        return float(total)

    best = likelihood(made.D, made.sigma2)
    assert best >= likelihood(cov, scale) - 1e-9
    for h in (0.02, -0.02):
        assert likelihood(made.D * (1 + h), made.sigma2) < best
        assert likelihood(made.D, made.sigma2 * (1 + h)) < best


def test_clipped_effects_are_least_in_every_group() -> None:
    from scipy.optimize import minimize

    rng = np.random.default_rng(3)
    g = np.repeat(np.arange(6), [1, 2, 3, 5, 8, 12])
    Z, rho = np.column_stack([np.ones(31), rng.standard_normal(31)]), 3 * rng.standard_t(2, 31)
    factor = np.array([[2.0, 0.0], [0.5, 1.0]])
    u = _effects(Frames.of(Z, Groups.of(g, 31)), Z, rho, factor, 1.345)
    for k in range(6):
        rows = g == k

        def loss(v: np.ndarray, rows: np.ndarray = rows) -> float:
            e = np.abs(rho[rows] - Z[rows] @ factor @ v)
            return float(
                np.sum(np.where(e <= 1.345, e**2 / 2, 1.345 * e - 1.345**2 / 2)) + v @ v / 2
            )

        best = minimize(loss, u[k], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
        assert loss(u[k]) <= best.fun + 1e-10
        np.testing.assert_allclose(u[k], best.x, atol=1e-5)


def test_moments_of_huber_s_slope() -> None:
    from scipy import integrate, stats

    for c in (0.5, 1.345, 3.0):
        a, kappa = squared_slope(c)
        assert a == pytest.approx(stats.norm.cdf(c) - stats.norm.cdf(-c), rel=1e-12)
        inner = integrate.quad(lambda x: x * x * stats.norm.pdf(x), -c, c)[0]
        assert kappa == pytest.approx(inner + 2 * c * c * stats.norm.sf(c), rel=1e-9)


def test_components_are_near_the_truth_and_survive_outliers() -> None:
    """Means over 20 data sets: normal errors, then 10 % with N(0, 10^2) added."""
    sizes = 2 + np.arange(100) % 11
    for share, spread in ((0.0, 0.25), (0.1, 0.7)):
        made = [
            ef.RandomEffects(X, y, g, X[:, :2])
            for X, y, g in (slopes_data(seed, sizes, share) for seed in range(20))
        ]
        cov = np.mean([m.D for m in made], axis=0)
        assert np.abs(np.diag(cov) / np.diag(D) - 1).max() < spread
        assert 0.85 < np.mean([m.sigma2 for m in made]) < (1.15 if share == 0 else 2.2)
    raw = [slopes_data(seed, sizes, 0.1) for seed in range(5)]
    plain = np.mean([ef.RandomEffects(X, y, g, X[:, :2], c=1e4).sigma2 for X, y, g in raw])
    assert plain > 6  # what maximum likelihood makes of them


def test_components_and_coefficients_move_by_their_influences_as_a_group_leaves() -> None:
    """Every group left out, everything estimated again; skewed errors, so that D matters."""
    sizes = 2 + np.arange(50) % 6
    X, y, g = slopes_data(4, sizes, skew=True)
    model = ef.RandomEffects(X, y, g, X[:, :2])
    (estimate,) = model.criterion.total.nuisance
    per_row = estimate.influence()
    per_group = np.column_stack([np.bincount(g, column) for column in per_row.T])
    values = np.array(list(estimate.values.values()))
    np.testing.assert_allclose(per_group.sum(axis=0), 0.0, atol=1e-6)
    total, theta = model.criterion.total, ef.minimise(model.criterion).theta
    held = total.scores(theta)
    stacked = held + per_row @ estimate.slope(total, theta).T
    A = np.linalg.inv(model.criterion.hessian(theta))
    by_joint, by_held = (
        -np.column_stack([np.bincount(g, column) for column in part.T]) @ A
        for part in (stacked, held)
    )
    left, moved = [], []
    for k in range(50):
        rows = g != k
        again = ef.RandomEffects(X[rows], y[rows], g[rows], X[rows, :2])
        left.append([*again.D[np.tril_indices(2)], again.sigma2] - values)
        moved.append(ef.minimise(again.criterion).theta - theta)
    left, moved = np.array(left), np.array(moved)
    for k in range(4):
        assert np.corrcoef(left[:, k], -per_group[:, k])[0, 1] > 0.95
        assert 0.8 < left[:, k].std() / per_group[:, k].std() < 1.3
    error = [np.std(moved + part, axis=0) for part in (by_joint, by_held)]
    assert np.all(error[0] < 0.35 * moved.std(axis=0))
    assert error[0][0] < 0.9 * error[1][0]  # of the intercept
    joint = model.target(correction="CR0")
    np.testing.assert_allclose(joint.covariance, by_joint.T @ by_joint, rtol=1e-6)
    bare = replace(model.criterion, total=replace(total, nuisance=()))
    np.testing.assert_allclose(
        ef.target(bare, correction="CR0").covariance, by_held.T @ by_held, rtol=1e-6
    )


def test_influences_of_likelihood_components_are_derivatives_in_weights_of_groups() -> None:
    """A group copied into every 200th repetition of the data is a small weight on it."""
    sizes = 2 + np.arange(20) % 5
    X, y, g = slopes_data(6, sizes)
    model = ef.RandomEffects(X, y, g, X[:, :2], c=1e4)
    (estimate,) = model.criterion.total.nuisance
    per_group = np.column_stack([np.bincount(g, column) for column in estimate.influence().T])
    values, many = np.array(list(estimate.values.values())), 40
    for k in (0, 7):
        rows = np.concatenate([np.tile(np.arange(len(y)), many), np.flatnonzero(g == k)])
        labels = np.concatenate([g + 20 * j for j in range(many)] + [np.full((g == k).sum(), -1)])
        again = ef.RandomEffects(X[rows], y[rows], labels, X[rows, :2], c=1e4)
        change = many * (np.array([*again.D[np.tril_indices(2)], again.sigma2]) - values)
        assert np.abs(change - per_group[k]).max() < 0.08 * np.abs(per_group[k]).max()


def stacked_equations(theta: np.ndarray, X: np.ndarray, y: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Every group's terms (G, 8) of the equations of 4 coefficients, D by rows, and sigma2.

    As the module's header states them, group by group.
    """
    c, s2, out = 1.345, theta[-1], []
    cov = np.array([[theta[4], theta[5]], [theta[5], theta[6]]])
    a, kappa = squared_slope(c)
    root = np.linalg.cholesky(cov / s2)
    for k in np.unique(g):
        x, z = X[g == k], X[g == k, :2]
        rest, size = y[g == k] - x @ theta[:4], len(x)
        values, vectors = np.linalg.eigh(s2 * np.eye(size) + z @ cov @ z.T)
        whitener = vectors / np.sqrt(values) @ vectors.T
        beta = -(whitener @ x).T @ np.clip(whitener @ rest, -c, c)
        columns, u, scaled = z @ root, np.zeros(2), rest / np.sqrt(s2)
        for _ in range(500):  # reweighted least squares, which always descends
            w = c / np.maximum(np.abs(scaled - columns @ u), c)
            inner = np.eye(2) + columns.T @ (w[:, None] * columns)
            u = np.linalg.solve(inner, columns.T @ (w * scaled))
        psi = np.clip(scaled - columns @ u, -c, c)
        s, S, delta = z.T @ psi, z.T @ z, cov / s2
        B = np.linalg.inv(np.eye(2) + a * delta @ S)
        excess = np.outer(s, s) - B.T @ (kappa * S + a * a * S @ delta @ S) @ B
        spread = S @ B @ (delta + kappa * delta @ S @ delta) @ B.T
        square = kappa * size - 2 * a * kappa * np.trace(S @ B @ delta) + a * a * np.trace(spread)
        out.append([*beta, *excess[np.tril_indices(2)], psi @ psi - square])
    return np.array(out)


def test_the_target_is_the_sandwich_of_the_stacked_equations() -> None:
    X, y, g = slopes_data(8, 1 + np.arange(24) % 7, share=0.1)
    model = ef.RandomEffects(X, y, g, X[:, :2])
    theta = [*ef.minimise(model.criterion).theta, *model.D[np.tril_indices(2)], model.sigma2]
    assert np.linalg.eigvalsh(model.D)[0] > 0.05
    terms, h = stacked_equations(np.array(theta), X, y, g), 1e-6
    np.testing.assert_allclose(terms.sum(axis=0), 0.0, atol=1e-6)
    slopes = [
        (stacked_equations(theta + step, X, y, g) - stacked_equations(theta - step, X, y, g)) / 2
        for step in h * np.eye(8)
    ]
    influence = -np.linalg.solve(np.sum(slopes, axis=1).T / h, terms.T).T
    made = model.target(correction="CR0")
    np.testing.assert_allclose(made.covariance, (influence.T @ influence)[:4, :4], rtol=1e-5)
    (components,) = model.criterion.total.nuisance
    per_group = np.column_stack([np.bincount(g, column) for column in components.influence().T])
    np.testing.assert_allclose(per_group, influence[:, 4:], rtol=1e-5, atol=1e-5)


def test_a_covariance_on_its_boundary_moves_along_its_rank() -> None:
    rng = np.random.default_rng(5)
    g = np.repeat(np.arange(30), 4)
    seen = set()
    for seed in range(12):
        x = rng.standard_normal(120)
        X = np.column_stack([np.ones(120), x])
        y = (
            np.random.default_rng([seed, 2]).standard_normal(120)
            + (seed % 2) * rng.standard_normal(30)[g]
        )
        model = ef.RandomEffects(X, y, g, X)
        rank = np.linalg.matrix_rank(model.D, tol=1e-6)
        influence = model.criterion.total.nuisance[0].influence()
        seen.add(int(rank))
        if rank == 0:
            assert not influence[:, :3].any()
        if rank == 1:  # det D stays zero: its derivative is the adjugate
            (a, b), (_, d) = model.D
            det = d * influence[:, 0] - 2 * b * influence[:, 1] + a * influence[:, 2]
            assert np.abs(det).max() < 1e-6 * max(1.0, np.abs(influence).max())
        assert np.isfinite(model.target().covariance).all()
    assert len(seen) > 1


def test_formulas_name_effects_and_drop_missing_rows() -> None:
    X, y, g = slopes_data(2, np.full(40, 5))
    table = pd.DataFrame({"y": y, "x": X[:, 1], "v": X[:, 2], "school": g})
    table.loc[4, "x"] = np.nan
    model = ef.RandomEffects.from_formula(
        "y ~ x + v", table, "school", "1 + x", penalty=ef.penalties.Ridge(0.1)
    )
    assert model.criterion.names == ("Intercept", "x", "v")
    assert model.criterion.n == 199
    assert model.criterion.penalty.Q[0, 0] == 0
    names = ("D[Intercept, Intercept]", "D[x, Intercept]", "D[x, x]", "sigma2")
    assert model.target().stacked == names
    made = model.calibrate(model.sample(0.5, draws=300, seed=1))
    assert made.target.clusters == 40
    assert "sigma2 = " in made.details()
    assert "40 groups" in repr(model)
    table.loc[7, "v"] = np.nan
    make = ef.RandomEffects.from_formula
    refused("random", "missing values in 1 rows", lambda: make("y ~ x", table, "school", "1 + v"))
    refused("random", "is None", lambda: make("y ~ x", table, "school", None))


def test_bad_models_are_refused() -> None:
    X, y, g = slopes_data(3, np.full(20, 4))
    good = {"Z": X[:, :2], "D": D, "sigma2": 1.0}

    def build(**options):
        return ef.RandomEffects(X, y, g, **{**good, **options})

    refused("D", "go together", lambda: build(sigma2=None))
    refused("D", "negative eigenvalue", lambda: build(D=[[1.0, 2.0], [2.0, 1.0]]))
    refused("D", "not symmetric", lambda: build(D=[[1.0, 0.5], [0.0, 1.0]]))
    refused("D", "shape", lambda: build(D=[[1.0]]))
    refused("sigma2", "above zero", lambda: build(sigma2=0.0))
    refused("Z", "for 80 rows", lambda: build(Z=X[1:, :2]))
    refused("Z", "only zeros", lambda: build(Z=X[:, :2] * [1.0, 0.0]))
    refused("c", "above zero", lambda: build(c=0.0))
    refused("groups", "entries for 80 rows", lambda: ef.RandomEffects(X, y, g[1:], X[:, :2]))
    alone, Z = np.arange(80), X[:, :1]  # errors and effects cannot be told apart
    refused("groups", "two or more", lambda: ef.RandomEffects(X, y, alone, Z))
    few = np.random.default_rng(0).standard_normal((6, 3))  # three effects of three pairs
    refused(
        "Z",
        "not determine",
        lambda: ef.RandomEffects(few[:, :1], few[:, 1], [0, 0, 1, 1, 2, 2], few),
    )


def test_a_correlation_of_minus_one_is_reached_along_its_rank() -> None:
    rng = np.random.default_rng(4)
    sizes = np.r_[rng.integers(1, 9, 29), 40]
    rng.shuffle(sizes)
    g = rng.permutation(np.repeat(np.arange(30), sizes))
    x, t = 3 * rng.standard_normal(len(g)) + 10, rng.random(len(g))
    X, Z = np.column_stack([np.ones(len(g)), x, t]), np.column_stack([np.ones(len(g)), x])
    b = rng.multivariate_normal([0, 0], [[4, -0.2], [-0.2, 0.1]], 30)
    y = X @ [1, 0.5, -1] + np.sum(Z * b[g], axis=1) + rng.standard_normal(len(g))
    kept = g != 5  # safe steps come nearer and nearer to the boundary, ever more slowly
    model = ef.RandomEffects(X[kept], y[kept], g[kept], Z=Z[kept])
    (components,) = model.criterion.total.nuisance
    assert components.state.factor.shape == (2, 1)
    assert np.abs(components.state.equations()).max() < 1e-6
    null = np.linalg.svd(components.state.factor)[0][:, 1]
    assert null @ components.state.excess @ null < 0
    assert model.D[0, 1] == pytest.approx(-np.sqrt(model.D[0, 0] * model.D[1, 1]), rel=1e-9)
