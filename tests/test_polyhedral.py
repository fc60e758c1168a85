"""SLOPE, the fused lasso and non-negativity: proximal points, fits, draws, faces, coverage."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import lsq_linear, nnls

import etafree as ef
from conftest import LOSSES, checks_of, make_case, refused
from etafree.errors import ConvergenceError, EtafreeError
from etafree.optimize.proximal import proximal_minimise
from etafree.penalties import L1, Fused, NonNegative, PolyhedralPenalty, Slope
from etafree.sandwich import active_block

#: Each by the number of coefficients.
KINDS = {
    "slope": lambda q: Slope(0.1),
    "oscar": lambda q: Slope(0.1, weights=np.linspace(1.0, 0.2, q)),
    "levels": lambda q: Slope(0.1, weights=np.repeat([2.0, 1.0, 0.0], [1, q - 2, 1])),
    "fused": lambda q: Fused(0.1),
    "jumps": lambda q: Fused(0.1, mix=1.0),
    "bounded": lambda q: NonNegative(),
}


def regression(n: int, p: int, correlation: float, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    for j in range(1, p):
        X[:, j] = correlation * X[:, j - 1] + np.sqrt(1 - correlation**2) * X[:, j]
    truth = np.where(np.arange(p) < p // 3, 1.0, 0.0) - 0.7 * (np.arange(p) >= p - p // 5)
    return X, X @ truth + rng.standard_t(4, n)


@pytest.mark.parametrize("kind", KINDS)
def test_a_proximal_point_is_lower_than_its_surroundings(kind: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        q = int(rng.integers(3, 9))
        penalty, v, step = KINDS[kind](q), 2 * rng.standard_normal(q), rng.uniform(0.05, 1.0)
        z = penalty.prox(v, step)
        size = 10.0 ** rng.uniform(-5, 0, (2000, 1))
        near = np.vstack([z, z + size * rng.standard_normal((2000, q))])
        values = 0.5 * np.square(near - v).sum(axis=1) + step * penalty.value(near)
        assert values[0] <= values.min() + 1e-14


def test_fused_proximal_points_solve_the_dual() -> None:
    """Total variation: y - D'u with u the bounded least-squares fit of y by D'."""
    rng = np.random.default_rng(2)
    for _ in range(50):
        q, rate = int(rng.integers(2, 15)), rng.uniform(0.05, 2.0)
        y, jumps = rng.standard_normal(q), np.diff(np.eye(q), axis=0)
        dual = lsq_linear(jumps.T, y, bounds=(-rate, rate), tol=1e-14).x
        z = Fused(1.0, mix=1.0).prox(y, rate)
        np.testing.assert_allclose(z, y - jumps.T @ dual, atol=1e-9)
        both = Fused(1.0, mix=0.4).prox(
            y, rate
        )  # Friedman et al. (2007): first one, then the other
        first = Fused(1.0, mix=1.0).prox(y, 0.4 * rate)
        np.testing.assert_allclose(both, soft_threshold(first, 0.6 * rate), atol=1e-14)


def soft_threshold(v: np.ndarray, rate: float) -> np.ndarray:
    return np.sign(v) * np.maximum(np.abs(v) - rate, 0.0)


def test_the_sorted_norm_is_the_largest_over_orders() -> None:
    rng, weights = np.random.default_rng(3), np.array([1.0, 0.7, 0.7, 0.1])
    penalty = Slope(1.0, weights=weights)
    for theta in rng.standard_normal((20, 4)):
        largest = max(float(np.abs(theta) @ weights[list(o)]) for o in permutations(range(4)))
        assert float(penalty.value(theta)) == pytest.approx(largest, rel=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_the_penalty_is_linear_on_a_face_until_a_gap_closes(kind: str) -> None:
    rng = np.random.default_rng(4)
    for _ in range(100):
        q = int(rng.integers(3, 9))
        penalty = KINDS[kind](q)
        theta = penalty.prox(2 * rng.standard_normal(q), rng.uniform(0.05, 1.0))
        face = penalty.face(theta)
        beta = face.coordinates(theta)
        np.testing.assert_allclose(face.basis @ beta, theta, atol=1e-14)
        assert np.all(face.gaps @ beta > 0)
        assert float(penalty.value(theta)) == pytest.approx(float(face.value(beta)), abs=1e-12)
        step = rng.standard_normal(len(beta))
        fall = -(face.gaps @ step)
        reach = min([2.0, *(face.gaps @ beta / fall)[fall > 0]]) * (1 - 1e-12)
        for share in (0.3, 1.0):
            there = beta + share * reach * step
            value = float(penalty.value(face.basis @ there))
            assert value == pytest.approx(float(face.value(there)), abs=1e-9)
        if reach < 1.99:
            beyond = beta + 1.2 * reach * step
            assert float(penalty.value(face.basis @ beyond)) > float(face.value(beyond)) + 1e-9


DESIGNS = {"plain": (200, 20, 0.0), "correlated": (200, 40, 0.9), "wide": (60, 100, 0.5)}


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("kind", KINDS)
def test_fits_are_their_own_proximal_points(kind: str, design: str) -> None:
    X, y = regression(*DESIGNS[design])
    penalty = KINDS[kind](X.shape[1])
    for loss in (ef.losses.Squared(), ef.losses.Huber(1.345)):
        criterion = ef.Criterion(loss, (X, y), penalty)
        fit = proximal_minimise(criterion)
        assert fit.gap < 1e-11
        slope = criterion.total.derivatives(fit.theta).gradient
        size = criterion.strength * criterion.size
        assert criterion.penalty.subgradient_gap(fit.theta, slope, size) < 1e-9 * criterion.size
        rng = np.random.default_rng(5)
        near = fit.theta + 10.0 ** rng.uniform(-6, -1, (500, 1)) * rng.standard_normal(
            (500, criterion.p)
        )
        assert np.all(criterion.values_at(near) >= fit.value * (1 - 1e-13))
        np.testing.assert_allclose(
            fit.hessian, criterion.total.derivatives(fit.theta).hessian, rtol=1e-9, atol=1e-9
        )


CONVEX = sorted(name for name, loss in LOSSES.items() if loss.convex)


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("kind", ["slope", "fused", "bounded"])
def test_every_convex_loss_weights_and_a_free_intercept(name: str, kind: str) -> None:
    case = make_case(name)
    rng = np.random.default_rng(1)
    case.X = np.column_stack([case.X, rng.standard_normal((len(case.X), 4))])
    weights = rng.integers(0, 4, len(case.X)).astype(float)
    penalty = KINDS[kind](6).fitted_to(7, intercept=0)
    criterion = case.criterion(weights=weights, weight_kind="frequency", penalty=penalty)
    fit = proximal_minimise(criterion)
    assert fit.gap < 1e-9
    assert abs(criterion.total.derivatives(fit.theta).gradient[0]) < 1e-9 * criterion.size
    again = case.criterion(np.repeat(np.arange(len(weights)), weights.astype(int)), penalty=penalty)
    np.testing.assert_allclose(fit.theta, proximal_minimise(again).theta, atol=1e-9)
    block = active_block(criterion)
    beta = block.penalty.coordinates(fit.theta)
    np.testing.assert_allclose(ef.minimise(block).theta, beta, atol=1e-7)


def test_fits_are_those_of_other_algorithms() -> None:
    for design in DESIGNS.values():
        X, y = regression(*design)
        plain = ef.Criterion(ef.losses.Squared(), (X, y))
        lasso = proximal_minimise(plain.with_penalty(L1(0.1)))
        for same in (Fused(0.1, mix=0.0), Slope(0.1, weights=np.ones(plain.p))):
            fit = proximal_minimise(plain.with_penalty(same))
            np.testing.assert_allclose(fit.theta, lasso.theta, atol=1e-10)
            assert fit.value == pytest.approx(lasso.value, rel=1e-13)
            smooth = active_block(plain.with_penalty(same))
            assert smooth.names == active_block(plain.with_penalty(L1(0.1))).names
        bounded = proximal_minimise(plain.with_penalty(NonNegative()))
        np.testing.assert_allclose(bounded.theta, nnls(X, y)[0], atol=1e-8)
    X = np.linalg.qr(np.random.default_rng(0).standard_normal((40, 6)))[0] * np.sqrt(40)
    y = X @ [2.0, 1.9, 0.3, -0.1, 0.0, -2.0] + 0.1
    for kind in KINDS.values():  # orthogonal columns: the proximal point of least squares
        penalty = kind(6)
        fit = proximal_minimise(ef.Criterion(ef.losses.Squared(), (X, y), penalty))
        strength = penalty.strength_at(40.0)
        np.testing.assert_allclose(fit.theta, penalty.prox(X.T @ y / 40, strength), atol=1e-13)


POSTERIORS = {
    "slope, tied": (ef.losses.Squared(), Slope(0.5, weights=[1.0, 0.2]), [0.6, 0.5]),
    "slope, Huber": (ef.losses.Huber(0.7), Slope(0.2, weights=[1.0, 0.4]), [0.6, 0.0]),
    "fused": (ef.losses.Squared(), Fused(0.25), [0.6, 0.0]),
    "jumps": (ef.losses.Squared(), Fused(0.25, mix=1.0), [0.6, 0.5]),
    "bounded": (ef.losses.Huber(0.7), NonNegative(), [0.6, -0.2]),
    "bounded, corner": (ef.losses.Squared(), NonNegative(), [-0.3, -0.6]),
}


def shapes(points: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    z = (points - mean) / sd
    near = np.abs(points[:, 0] - points[:, 1]) < 0.3 * sd[0]
    return np.column_stack([z**2, z[:, 0] * z[:, 1], points[:, 1] < mean[1], near])


@pytest.mark.parametrize("eta", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("name", POSTERIORS)
def test_draws_are_those_of_the_posterior(name: str, eta: float) -> None:
    """Moments and shares against a fine grid, z-scores; the slice sampler at one rate."""
    rng = np.random.default_rng(7)
    loss, penalty, truth = POSTERIORS[name]
    X = rng.standard_normal((60, 2))
    X[:, 1] += 0.5 * X[:, 0]
    criterion = ef.Criterion(loss, (X, X @ truth + rng.standard_normal(60)), penalty)
    posterior = ef.GeneralizedPosterior(criterion, eta)
    for sampler in ("importance", "elliptical")[: 2 if eta == 1.0 else 1]:
        draws = ef.sample(posterior, draws=4000, seed=8, sampler=sampler)
        low, high = draws.array.min(axis=0), draws.array.max(axis=0)
        ends = low - 0.2 * (high - low), high + 0.2 * (high - low)
        if isinstance(penalty, NonNegative):
            assert low.min() >= 0
            ends = np.maximum(ends[0], 0.0), ends[1]
        cells = (np.arange(1000) + 0.5) / 1000  # midpoints: the density jumps at a bound
        axes = ends[0] + cells[:, None] * (ends[1] - ends[0])
        points = np.stack(np.meshgrid(*axes.T, indexing="ij"), -1).reshape(-1, 2)
        log = posterior.log_density(points)
        mass = np.exp(log - log.max())
        mass /= mass.sum()
        mean = mass @ points
        sd = np.sqrt(mass @ (points - mean) ** 2)
        assert draws.ess > 1000
        assert np.abs((draws.mean - mean) / sd).max() * np.sqrt(draws.ess) < 4
        exact = shapes(points, mean, sd)
        moments = mass @ exact
        noise = np.sqrt(mass @ (exact - moments) ** 2 / draws.ess)
        assert np.all(np.abs(shapes(draws.array, mean, sd).mean(0) - moments) < 5 * noise + 4e-3)


def test_the_posterior_of_one_bounded_parameter_by_quadrature() -> None:
    rng = np.random.default_rng(9)
    x = np.abs(rng.standard_normal((50, 1)))
    for shift in (2.0, 0.1, -1.0):
        y = shift * x[:, 0] + rng.standard_normal(50)
        posterior = ef.GeneralizedPosterior(
            ef.Criterion(ef.losses.Squared(), (x, y), NonNegative()), 0.5
        )
        grid = np.linspace(0.0, 6.0, 200_001)[1:]
        mass = np.exp(posterior.log_density(grid[:, None]) - posterior.log_density(grid[:1]))
        draws = ef.sample(posterior, seed=1)
        assert draws.sampler == "quadrature"
        assert draws.array.min() >= 0
        assert draws.mean[0] == pytest.approx(float(mass @ grid / mass.sum()), rel=5e-3)


NAMES = list("abcdef")


TRUTH = {
    "slope": np.array([3.0, -3.0, 6.0, 0.0, 0.0, 0.0]),
    "fused": np.array([4.0, 4.0, 4.0, 0.0, 0.0, 6.0]),
    "bounded": np.array([1.0, 1.5, 2.0, -0.5, -0.5, 0.8]),
}
PENALTIES = {
    "slope": Slope(0.4, weights=[2.0, 1.5, 1.0, 0.9, 0.8, 0.7]),
    "fused": Fused(0.9, mix=0.45),
    "bounded": NonNegative(),
}


def tied(kind: str, seed: int = 5, n: int = 4000) -> ef.Criterion:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6))
    y = X @ TRUTH[kind] + (0.5 + 0.5 * np.abs(X[:, 0])) * rng.standard_normal(n)
    return ef.Criterion(ef.losses.Squared(), (X, y), PENALTIES[kind], names=NAMES)


EXPECTED = {
    "slope": (("a = -b", "c"), ("d", "e", "f")),
    "fused": (("a = b = c", "f"), ("d", "e")),
    "bounded": (("a", "b", "c", "f"), ("d", "e")),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_calibrated_draws_have_ties_zeros_and_the_target(kind: str, tmp_path) -> None:
    criterion = tied(kind)
    goal = ef.target(criterion, correction="HC3")
    block = active_block(criterion)
    assert (goal.names, block.names) == EXPECTED[kind][:1] * 2
    basis = block.penalty.basis
    for eta in (0.3, 30.0):
        draws = ef.sample(ef.GeneralizedPosterior(criterion, eta), draws=1500, seed=1)
        result = ef.calibrate(draws, criterion)
        assert result.inactive == EXPECTED[kind][1]
        values = result.draws.array
        first = np.argmax(basis != 0, axis=0)
        np.testing.assert_array_equal(values, values[:, first] @ basis.T)
        image = result.map(block.penalty.coordinates(draws.array))
        np.testing.assert_allclose(np.cov(image.T), goal.covariance, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(image.mean(axis=0), goal.center, rtol=1e-9)
        np.testing.assert_allclose(result.center, basis @ goal.center, atol=1e-12)
    table = result.summary(kind="wald")
    assert list(table.index) == NAMES
    assert table.loc[list(result.inactive), ["se", "lower", "upper"]].isna().all().all()
    np.testing.assert_allclose(table["se"].dropna(), np.abs(basis[basis.any(1)]) @ goal.se)
    if kind == "slope":
        assert table.loc["b", "status"] == "a = -b"
        assert table.loc["b", "lower"] == pytest.approx(-table.loc["a", "upper"])
        np.testing.assert_array_equal(result.draws["a"], -result.draws["b"])
    assert result.test(goal.names[0]).estimate == pytest.approx(goal.center[0])
    assert set(result.bootstrap_t().index) == set(NAMES)
    assert result.skewed_draws().array.shape == values.shape
    again = ef.Calibration.load(result.save(tmp_path / "result.npz"))
    assert repr(again) == repr(result)
    same = ef.calibrate(draws, ef.target(criterion))
    np.testing.assert_allclose(same.draws.array, values, rtol=1e-12)
    part = ef.calibrate(draws, criterion, var_names=[goal.names[0]])
    assert part.names == goal.names[:1]
    result.report(tmp_path / "page.html")
    result.plot()


def test_the_check_of_selection_knows_ties() -> None:
    assert checks_of(ef.target(tied("slope")))["selection"].verdict == "ok"
    X, y = regression(300, 6, 0.0)
    near = ef.Criterion(ef.losses.Squared(), (X, y), Fused(0.001, mix=1.0), names=NAMES)
    check = checks_of(ef.target(near))["selection"]
    assert check.verdict == "warn"
    assert "from a tie" in check.advice


def test_more_coefficients_than_rows() -> None:
    X, y = regression(60, 100, 0.3)
    for penalty in (Slope(1.2), Fused(0.8)):
        criterion = ef.Criterion(ef.losses.Squared(), (X, y), penalty)
        draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=1000, seed=1)
        assert draws.ess > 100
        result = ef.calibrate(draws, criterion)
        assert 0 < result.target.p < 60
        assert result.inactive


@pytest.mark.parametrize("kind", EXPECTED)
def test_coverage_given_the_face(kind: str) -> None:
    """500 data sets whose face is clear; Monte Carlo error of a coverage 0.01.

    Columns are independent with variance one: the target is the proximal point of the truth.
    """
    penalty = PENALTIES[kind].fitted_to(6)
    target, count, hits = penalty.prox(TRUTH[kind], penalty.strength_at(4000.0)), 500, np.zeros(6)
    for seed in range(count):
        goal = ef.target(tied(kind, seed=seed))
        assert goal.names == EXPECTED[kind][0]
        assert goal.criterion is not None
        basis = goal.criterion.penalty.basis
        half = np.abs(basis) @ (goal.law().quantile(0.975) * goal.se)
        hits += np.abs(basis @ goal.center - target) <= half
    active = [name not in EXPECTED[kind][1] for name in NAMES]
    assert np.all(hits[np.logical_not(active)] == count)  # zeros are zero
    share = hits[active] / count
    assert np.all(np.abs(share - 0.95) < 4 * np.sqrt(0.95 * 0.05 / count)), share


def test_bad_input_is_refused(robust) -> None:
    def fitted(penalty: PolyhedralPenalty):
        return lambda: robust.criterion(penalty=penalty)

    refused("weights", "increase", fitted(Slope(1.0, weights=[1.0, 2.0, 3.0])))
    refused("weights", "shape (3,)", fitted(Slope(1.0, weights=[2.0, 1.0])))
    refused("weights", "negative", fitted(Slope(1.0, weights=[2.0, 1.0, -1.0])))
    refused("which", "True or False", fitted(NonNegative(which=[True, False])))
    refused("which", "True or False", fitted(Fused(1.0, which=[1, 0, 1])))
    for mix in (-0.1, 1.1, "half"):
        refused("mix", "from 0 to 1", lambda mix=mix: Fused(1.0, mix=mix))
    refused("strength", "at least zero", fitted(Slope(-1.0)))
    criterion = robust.criterion(penalty=Slope(50.0))
    refused("penalty", "every coefficient", lambda: ef.target(criterion))
    binary = make_case("logistic")
    separated = ef.Criterion(binary.loss, (np.abs(binary.X), np.ones(len(binary.X))), NonNegative())
    with pytest.raises(ConvergenceError, match="infinity"):
        proximal_minimise(separated)
    X = np.random.default_rng(0).standard_normal((5, 30))
    improper = ef.Criterion(ef.losses.Squared(), (X, -np.abs(X).sum(axis=1)), NonNegative())
    with pytest.raises(EtafreeError, match=r"improper|collinear"):
        ef.sample(ef.GeneralizedPosterior(improper, 1.0))
    block = active_block(tied("slope"))
    refused("penalty", "2 active", lambda: block.penalty.fitted_to(3))
    assert "SLOPE" in block.describe()
    assert "at least zero" in active_block(tied("bounded")).describe()
