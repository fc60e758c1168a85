"""NUTS against quadrature, exact moments and importance sampling, by both ways to a density."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import etafree as ef
from conftest import THETA, Case, make_case
from etafree.errors import CalibrationWarning, ConvergenceError, MissingExtraError
from etafree.foundation import terminal as terminal_module
from etafree.samplers import nuts
from etafree.samplers.importance import importance_draws
from etafree.samplers.nuts import nuts_draws
from etafree.samplers.quadrature import distribution
from etafree.samplers.variational import Normal, normal_approximation
from etafree.totals.base import Derivatives, GeneralLoss, Total

pytest.importorskip("jax")
pytest.importorskip("blackjax")

Z_LIMIT = 4.0


def one_parameter(
    name: str, eta: float, penalty: Any = None, log_prior: Any = None
) -> ef.GeneralizedPosterior:
    case = make_case(name)
    criterion = ef.Criterion(
        case.loss,
        (case.X[:, [1]], case.y),
        penalty or ef.penalties.Ridge(0.05),
        offset=case.offset + case.X[:, [0, 2]] @ THETA[[0, 2]],
    )
    return ef.GeneralizedPosterior(criterion, eta, log_prior)


def drawn(posterior: ef.GeneralizedPosterior, draws: int = 1600, seed: int = 1) -> ef.Draws:
    return nuts_draws(
        posterior, normal_approximation(posterior), draws, np.random.default_rng(seed)
    )


def z_scores(draws: ef.Draws, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Standardised errors of means and variances, from the reported effective size."""
    standard = (draws.array - mean) / np.sqrt(variance)
    square = standard**2
    second = (square.mean(axis=0) - 1) / square.std(axis=0)
    return np.concatenate([standard.mean(axis=0), second]) * np.sqrt(draws.ess)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up that is just long enough where the whitening is good."""
    monkeypatch.setattr(nuts, "WARM_UP", 100)


def test_values_and_gradients_are_those_of_the_energy(case: Case) -> None:
    weights = np.random.default_rng(0).integers(0, 3, len(case.y)).astype(float)
    criterion = case.criterion(weights=weights, weight_kind="frequency")
    penalty = ef.penalties.huberized_l1(0.1, 0.01)
    thetas = THETA + np.linspace(-0.3, 0.4, 12).reshape(4, 3)
    energy = nuts._asked(criterion.total, False, 0.1 * criterion.size, penalty)
    values, slopes = energy(thetas)
    for theta, value, slope in zip(thetas, values, slopes, strict=True):
        exact = criterion.with_penalty(penalty).derivatives(theta)
        np.testing.assert_allclose(value, exact.value, rtol=1e-12)
        np.testing.assert_allclose(slope, exact.gradient, atol=1e-12 * exact.gradient_scale.max())


@pytest.mark.parametrize(
    ("name", "eta"), [("huber", 0.05), ("logistic", 0.05), ("student_t", 1.0), ("quantile", 1.0)]
)
def test_agrees_with_quadrature_at_p_1(name: str, eta: float) -> None:
    check_one_parameter(one_parameter(name, eta))


def test_a_log_prior_and_a_nearly_kinked_penalty_count() -> None:
    posterior = one_parameter(
        "huber",
        0.05,
        ef.penalties.huberized_l1(1.0, 1e-3),
        ef.LogPrior.normal(np.array([2.0]), np.array([[0.1]])),
    )
    assert abs(check_one_parameter(posterior) - THETA[1]) > 0.1  # the prior pulls


def check_one_parameter(posterior: ef.GeneralizedPosterior) -> float:
    grid, mass = distribution(posterior, normal_approximation(posterior))
    middle, weight = 0.5 * (grid[1:] + grid[:-1]), np.diff(mass)
    mean = weight @ middle
    draws = drawn(posterior)
    exact = np.array([mean]), np.array([weight @ (middle - mean) ** 2])
    assert np.abs(z_scores(draws, *exact)).max() < Z_LIMIT
    for level in (0.025, 0.5, 0.975):
        share = np.mean(draws.array[:, 0] <= np.interp(level, mass, grid))
        assert abs(share - level) < Z_LIMIT * np.sqrt(level * (1 - level) / draws.ess)
    return float(mean)


def five_parameters(loss: ef.losses.LinearLoss, eta: float) -> ef.GeneralizedPosterior:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((200, 5))
    y = 0.5 * X @ rng.standard_normal(5) + rng.standard_t(3, 200)
    if isinstance(loss, ef.losses.Logistic):
        y = (y > 0).astype(float)
    criterion = ef.Criterion(loss, (X, y), ef.penalties.Ridge(0.1))
    return ef.GeneralizedPosterior(criterion, eta)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("eta", [0.05, 1.0])
@pytest.mark.parametrize(
    "loss", [ef.losses.Huber(1.345), ef.losses.Logistic(), ef.losses.StudentT(4.0)], ids=repr
)
def test_agrees_with_importance_sampling_at_p_5(loss: ef.losses.LinearLoss, eta: float) -> None:
    posterior = five_parameters(loss, eta)
    normal = normal_approximation(posterior)
    exact = importance_draws(posterior, normal, 40_000, np.random.default_rng(2))
    draws = nuts_draws(posterior, normal, 1200, np.random.default_rng(3))
    noise = np.sqrt(1 / draws.ess + 1 / exact.ess)
    sd = exact.array.std(axis=0)
    assert np.abs((draws.mean - exact.mean) / sd / noise).max() < Z_LIMIT
    ratio = np.log(draws.array.var(axis=0) / exact.array.var(axis=0))
    assert np.abs(ratio / (np.sqrt(2) * noise)).max() < Z_LIMIT


class Banana(Total):
    """Half the sum of t1**2 and (t2 - t1**2 + 1)**2 / 4, with its own function for JAX."""

    loss = GeneralLoss()
    weights = None
    frequency = True
    n, p = 1, 2

    def log_density_parts(self) -> Any:
        return lambda theta: 0.5 * theta[0] ** 2 + (theta[1] - theta[0] ** 2 + 1.0) ** 2 / 8

    def totals(self, thetas: np.ndarray) -> np.ndarray:
        return self.log_density_parts()(thetas.T)

    def derivatives(self, theta: np.ndarray, *, majorize: bool = False) -> Derivatives:
        off = theta[1] - theta[0] ** 2 + 1.0
        gradient = np.array([theta[0] * (1.0 - 0.5 * off), 0.25 * off])
        return Derivatives(float(self.totals(theta[None])[0]), gradient, np.eye(2), np.ones(2))

    def reweighted(self, weights: Any, frequency: bool) -> Any:
        raise AssertionError("a sampler asks for the density only")

    values = scores = cluster_totals = cluster_blocks = reweighted


class Bananas(GeneralLoss):
    def __init__(self, total: Total) -> None:
        self.total = total

    def count(self, data: Any) -> int:
        return 1

    def bind(self, data: Any, start: Any, weights: Any, frequency: bool) -> Any:
        return self.total, np.zeros(2), None


BANANA, WIDE = Banana(), Normal(np.zeros(2), np.diag([1.0, 2.5]), np.array([0.0, -1.0]))


def banana(penalty: Any = None, log_prior: Any = None, eta: float = 1.0) -> Any:
    criterion = ef.Criterion(Bananas(BANANA), data=None, penalty=penalty)
    return ef.GeneralizedPosterior(criterion, eta, log_prior)


def test_a_density_of_jax_has_its_exact_moments() -> None:
    draws = nuts_draws(banana(), WIDE, 8000, np.random.default_rng(4))
    assert np.abs(z_scores(draws, np.zeros(2), np.array([1.0, 6.0]))).max() < Z_LIMIT
    assert draws.info["divergences"] < 80


@pytest.mark.parametrize(
    ("penalty", "log_prior", "eta"),
    [
        (ef.penalties.Ridge(0.7, mu=[0.5, -1.0], Q=[[1.0, 0.3], [0.3, 0.5]]), None, 0.5),
        (ef.penalties.huberized_l1(0.5, 0.1), ef.LogPrior.normal([0.5, 0.5], np.eye(2)), 0.5),
    ],
    ids=["ridge", "kink and prior"],
)
def test_a_density_of_jax_takes_penalty_and_prior(penalty: Any, log_prior: Any, eta: float) -> None:
    posterior = banana(penalty, log_prior, eta)
    axes = np.meshgrid(np.linspace(-7, 7, 401), np.linspace(-16, 26, 801))
    points = np.stack(axes, axis=-1).reshape(-1, 2)
    log_density = -eta * posterior.criterion.values_at(points)
    if log_prior is not None:
        log_density -= 0.5 * ((points - 0.5) ** 2).sum(axis=1)
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    mean = weight @ points
    draws = nuts_draws(posterior, WIDE, 3000, np.random.default_rng(5))
    assert np.abs(z_scores(draws, mean, weight @ (points - mean) ** 2)).max() < Z_LIMIT


def test_a_total_of_its_own_is_asked_point_by_point() -> None:
    thetas = np.array([[0.3, -0.4], [1.0, 2.0]])
    values, slopes = nuts._asked(BANANA, False, 0.0, None)(thetas)
    np.testing.assert_allclose(values, BANANA.totals(thetas))
    np.testing.assert_allclose(slopes[1], BANANA.derivatives(thetas[1]).gradient)

    class Cheaper(Banana):
        def value_and_gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
            return 7.0, theta

    values, slopes = nuts._asked(Cheaper(), False, 0.0, None)(thetas)
    np.testing.assert_array_equal(values, 7.0)
    np.testing.assert_array_equal(slopes, thetas)


@pytest.mark.usefixtures("hasty")
def test_seeds_make_draws_and_posteriors_of_a_size_share_programs() -> None:
    import jax.numpy as jnp

    posterior = one_parameter("huber", 0.5)
    one = drawn(posterior, draws=50)
    program = nuts._program(None, True)
    compiled = [function._cache_size() for function in program]
    two = drawn(posterior, draws=50)
    np.testing.assert_array_equal(one.values, two.values)
    assert not np.array_equal(one.values, drawn(posterior, draws=50, seed=2).values)
    drawn(one_parameter("logistic", 2.0), draws=50)
    assert [function._cache_size() for function in program] == compiled
    assert one.values.shape == (4, 13, 1)
    assert one.values.dtype == np.float64
    assert (one.sampler, one.eta, one.names) == ("nuts", 0.5, posterior.criterion.names)
    assert one.ess > 5
    assert one.r_hat == one.info["r_hat"] < 1.1
    assert one.info["divergences"] == 0
    assert 0.5 < one.info["step_size"] < 2.5
    assert 0.65 < one.info["acceptance"] < 0.97
    assert 4 * 250 < one.info["gradients"] < 4 * 250 * 7
    assert jnp.ones(1).dtype == np.float32  # the context is left as it was
    assert not nuts._JOBS


@pytest.mark.usefixtures("hasty")
def test_chains_that_disagree_are_refused() -> None:
    y = np.concatenate([np.full(20, -30.0), np.full(20, 30.0)])
    criterion = ef.Criterion(ef.losses.StudentT(2.0), (np.ones((40, 1)), y))
    normal = Normal(np.zeros(1), np.full((1, 1), 20.0), np.full(1, 30.0))
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    with pytest.raises(ConvergenceError, match=r"NUTS disagree at eta = 1 .*larger eta"):
        nuts_draws(posterior, normal, 400, np.random.default_rng(0))


@pytest.mark.usefixtures("hasty")
def test_many_divergences_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nuts, "DIVERGENT_LIMIT", -1.0)
    with pytest.warns(CalibrationWarning, match="diverge.*add a penalty"):
        drawn(one_parameter("huber", 0.5), draws=50)


def test_an_error_in_a_prior_comes_through() -> None:
    broken = False

    def gradient(theta: np.ndarray, n: float) -> np.ndarray:
        if broken:
            raise ZeroDivisionError("in your prior")
        return -theta

    prior = ef.LogPrior(lambda t, n: -0.5 * float(t @ t), gradient, lambda t, n: -np.eye(1))
    posterior = one_parameter("huber", 0.5, log_prior=prior)
    normal = normal_approximation(posterior)
    broken = True
    with pytest.raises(ZeroDivisionError, match="in your prior"):
        nuts_draws(posterior, normal, 100, np.random.default_rng(0))
    assert not nuts._JOBS


def test_an_interrupt_is_noticed_while_a_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(nuts, "time", SimpleNamespace(sleep=interrupt))
    errors: list[BaseException] = []
    with pytest.raises(KeyboardInterrupt):
        nuts._wait((SimpleNamespace(is_ready=lambda: False),), errors)
    assert len(errors) == 1  # what the program asks from now on is answered NaN


@pytest.mark.parametrize("missing", ["jax", "blackjax"])
def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=r"the NUTS sampler.*etafree\[jax\]"):
        drawn(one_parameter("huber", 0.5))


@pytest.mark.parametrize(("terminal", "seconds"), [(True, 0.1), (True, 0.001), (False, 0.1)])
def test_progress_is_for_terminals_and_long_runs(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, seconds: float
) -> None:
    stream, now = io.StringIO(), 0.0
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(terminal_module.time, "monotonic", lambda: now)
    with terminal_module.counted(1000, "nuts") as show:
        for _ in range(100):
            now += 10 * seconds
            show(10)
    assert ("nuts" in stream.getvalue()) == (terminal and seconds == 0.1)
