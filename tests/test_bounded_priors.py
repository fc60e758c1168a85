"""Log priors with bounded support: half-normal, gamma and beta priors of some parameters."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, stats

import etafree as ef
from conftest import refused
from etafree.errors import InputError
from etafree.learning_rates import METHODS

RNG = np.random.default_rng(7)
N = 30
X = np.column_stack([np.ones(N), RNG.standard_normal(N)])
Y = X @ [0.25, 0.4] + RNG.standard_normal(N)
TWO = ef.Criterion(ef.losses.Huber(), (X, Y), names=["a", "b"])
ONE = ef.Criterion(ef.losses.Huber(), (X[:, 1:], Y), names=["b"])


def half_normal(scale: float) -> ef.LogPrior:
    """Return it for the last parameter, with a function that fails at negative values."""

    def value(t: np.ndarray, n: float) -> float:
        assert t[-1] > 0
        return -0.5 * float(t[-1] / scale) ** 2

    def gradient(t: np.ndarray, n: float) -> np.ndarray:
        return -np.eye(len(t))[-1] * t[-1] / scale**2

    def hessian(t: np.ndarray, n: float) -> np.ndarray:
        return -np.diag(np.eye(len(t))[-1]) / scale**2

    return ef.LogPrior(value, gradient, hessian, "half-normal", {"b": (0.0, np.inf)})


def density(law: object, support: object) -> ef.LogPrior:
    """Return a law of the last parameter by its logarithm, with differences as derivatives."""

    def value(t: np.ndarray, n: float) -> float:
        return float(law.logpdf(t[-1]))

    def gradient(t: np.ndarray, n: float) -> np.ndarray:
        step = 1e-6
        slope = float(law.logpdf(t[-1] + step) - law.logpdf(t[-1] - step)) / (2 * step)
        return slope * np.eye(len(t))[-1]

    def hessian(t: np.ndarray, n: float) -> np.ndarray:
        return np.zeros((len(t), len(t)))

    return ef.LogPrior(value, gradient, hessian, "law", support)


PRIORS = {
    "half-normal": half_normal(2.0),
    "gamma": density(stats.gamma(2.0, scale=1.0), {"b": (0.0, np.inf)}),
    "beta": density(stats.beta(2.0, 1.5), {"b": (0.0, 1.0)}),
}


def exact(posterior: ef.GeneralizedPosterior) -> np.ndarray:
    """Return expectations of the last parameter by Simpson's rule on a fine grid."""
    low, high = posterior.bounds[-1]
    b = np.linspace(low + 1e-9, min(high, 6.0) - 1e-9, 2001)
    if posterior.criterion.p == 1:
        mass = np.exp(posterior.log_density(b[:, None]))
    else:
        a = np.linspace(-4.0, 4.0, 161)
        points = np.stack(np.meshgrid(a, b[::5], indexing="ij"), axis=-1)
        logs = posterior.log_density(points.reshape(-1, 2)).reshape(points.shape[:2])
        b = b[::5]
        mass = integrate.simpson(np.exp(logs - logs.max()), x=a, axis=0)
    mass = mass / integrate.simpson(mass, x=b)
    return np.array([integrate.simpson(mass * f, x=b) for f in moments(b)])


def moments(b: np.ndarray) -> list[np.ndarray]:
    return [b, b**2, (b < 0.2).astype(float)]


@pytest.mark.parametrize("name", PRIORS)
def test_one_parameter_has_the_moments_of_quadrature(name: str) -> None:
    posterior = ef.GeneralizedPosterior(ONE, 0.3, PRIORS[name])
    goal = exact(posterior)
    for sampler in ("quadrature", "importance", "elliptical"):
        draws = ef.sample(posterior, 2000, seed=1, sampler=sampler)
        assert draws.array.min() > 0
        for value, f in zip(goal[:2], moments(draws.array[:, 0])[:2], strict=True):
            se = f.std() / np.sqrt(draws.info["ess"])
            assert abs(f.mean() - value) < (1e-4 if sampler == "quadrature" else 4 * se)


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("sampler", ["importance", "elliptical", "auto"])
def test_two_parameters_one_with_bounds(name: str, sampler: str) -> None:
    posterior = ef.GeneralizedPosterior(TWO, 0.3, PRIORS[name])
    draws = ef.sample(posterior, 2000, seed=2, sampler=sampler)
    for value, f in zip(exact(posterior), moments(draws.array[:, 1]), strict=True):
        se = f.std() / np.sqrt(draws.info["ess"])
        assert abs(f.mean() - value) < 4 * se + 1e-3


def test_bounds_far_away_change_nothing() -> None:
    plain = ef.LogPrior.normal(np.zeros(2), np.eye(2))
    wide = ef.LogPrior(plain.value, plain.gradient, plain.hessian, support=[(-99, 99), (-99, 99)])
    one, other = (ef.GeneralizedPosterior(TWO, 1.0, prior) for prior in (plain, wide))
    points = RNG.standard_normal((20, 2))
    np.testing.assert_array_equal(one.log_density(points), other.log_density(points))
    np.testing.assert_array_equal(one.gradient(points[0]), other.gradient(points[0]))
    np.testing.assert_array_equal(one.hessian(points[0]), other.hessian(points[0]))


def test_calibrated_draws_have_the_target_and_a_check_sees_bounds_that_are_near() -> None:
    prior = half_normal(100.0)
    near = ef.GeneralizedPosterior(TWO, 0.3, prior)
    result = ef.calibrate(ef.sample(near, seed=1), near)
    goal = ef.target(TWO)
    np.testing.assert_allclose(result.center, goal.center, rtol=1e-12)
    np.testing.assert_allclose(result.target.covariance, goal.covariance, rtol=1e-12)
    verdicts = {}
    for eta in (0.3, 100.0):
        posterior = ef.GeneralizedPosterior(TWO, eta, prior)
        table = ef.calibrate(ef.sample(posterior, seed=1), posterior).diagnostics()
        verdicts[eta] = table["verdict"]["unscaled prior"]
    assert verdicts == {0.3: "warn", 100.0: "ok"}


def test_the_minimiser_with_the_prior_is_found_between_the_bounds() -> None:
    posterior = ef.GeneralizedPosterior(TWO, 1.0, PRIORS["half-normal"])
    theta = ef.minimise(posterior.energy).theta
    assert np.max(np.abs(posterior.gradient(theta))) < 1e-9


def test_adjusted_posteriors_keep_the_bounds() -> None:
    posterior = ef.GeneralizedPosterior(TWO, 1.0, PRIORS["half-normal"])
    draws = ef.sample(posterior.adjusted(ef.target(TWO)), seed=1)
    assert draws.array[:, 1].min() > 0


def test_a_minimiser_outside_the_support_is_refused_with_advice() -> None:
    negative = ef.Criterion(ef.losses.Huber(), (-X, Y), names=["a", "b"])
    posterior = ef.GeneralizedPosterior(negative, 1.0, PRIORS["half-normal"])
    refused("log_prior", "widen its support=", lambda: ef.sample(posterior))


def between(low: float, high: float) -> ef.GeneralizedPosterior:
    normal = ef.LogPrior.normal(np.zeros(2), 9 * np.eye(2))
    prior = replace(normal, name="normal between bounds", support={"b": (low, high)})
    return ef.GeneralizedPosterior(TWO, 1.0, prior)


@pytest.mark.parametrize("method", METHODS)
def test_every_learning_rate_knows_bounds_or_refuses_before_any_work(method: str) -> None:
    b = float(ef.minimise(TWO).theta[1])
    refused(
        "log_prior",
        "widen its support=",
        lambda: ef.select(between(b + 0.05, b + 1.0), method, seed=1),
    )
    wide = between(b - 0.15, np.inf)  # a resample in five has its minimiser below
    options: dict[str, object] = {"gpc": {"resamples": 60, "draws": 400}}.get(method, {})
    if method == "kl_to_bayes":
        other = ef.Criterion(ef.losses.Squared(), (X, Y), names=["a", "b"])
        options = {"reference": replace(wide, criterion=other)}
    if method == "holmes_walker":  # averages over a normal prior in closed form
        squared = ef.Criterion(ef.losses.Squared(), (X, Y), names=["a", "b"])
        within = ef.GeneralizedPosterior(squared, 1.0, half_normal(2.0))
        refused("log_prior", "LogPrior.normal", lambda: ef.select(within, method, seed=1))
        return
    if method == "safebayes":  # where few rows have their minimiser outside
        with pytest.raises(ef.errors.ConvergenceError, match=r"first \d+ rows have no posterior"):
            ef.select(between(b - 0.02, b + 0.02), method, seed=1)
        wide = between(-np.inf, b + 10.0)
    assert 0.05 < ef.select(wide, method, seed=1, **options).eta < 20


def test_bootstrap_posteriors_that_bounds_exclude_are_counted() -> None:
    b = float(ef.minimise(TWO).theta[1])
    made = ef.select(between(b - 0.15, np.inf), "gpc", seed=1, resamples=60, draws=400)
    assert 0 < made.diagnostics["failed_posteriors"] < 30
    assert made.status == "noisy"


def test_too_few_proposals_between_bounds_are_distrusted() -> None:
    """Fewer than 25 of 1,000 are too few for a Pareto law."""
    b = float(ef.minimise(TWO).theta[1])
    drawn = ef.sample(between(b - 0.0005, b + 0.0005), 1000, seed=2, sampler="importance")
    assert np.all(np.abs(drawn["b"] - b) < 0.0005)
    assert len(np.unique(drawn["b"])) < 25
    assert drawn.info["pareto_k"] == np.inf


@pytest.mark.parametrize("width", [0.01, 0.05])
def test_narrow_bounds_are_met_by_the_slice_sampler(width: float) -> None:
    b = float(ef.minimise(TWO).theta[1])
    posterior = between(b - width, b + width)
    drawn = ef.sample(posterior, 1000, seed=2)
    assert np.all(np.abs(drawn["b"] - b) < width)
    mean, square, _ = exact(posterior)
    spread = np.sqrt(square - mean**2)
    assert abs(drawn["b"].mean() - mean) < 4.5 * spread / np.sqrt(drawn.ess)
    assert drawn["b"].std() == pytest.approx(spread, rel=0.15)


def test_nuts_refuses_bounds() -> None:
    posterior = ef.GeneralizedPosterior(TWO, 1.0, PRIORS["half-normal"])
    refused("sampler", "use sampler='auto'", lambda: ef.sample(posterior, sampler="nuts"))


BAD = [{"c": (0.0, 1.0)}, {"b": (1.0, 0.0)}, {"b": 3.0}, [(0.0, 1.0)], "ab", {"b": (np.nan, 1.0)}]


@pytest.mark.parametrize("support", BAD)
def test_bad_supports_are_refused(support: object) -> None:
    flat = ef.LogPrior.normal(np.zeros(2), np.eye(2))
    prior = ef.LogPrior(flat.value, flat.gradient, flat.hessian, "flat", support)
    with pytest.raises(InputError, match="support"):
        ef.GeneralizedPosterior(TWO, 1.0, prior)


def test_a_prior_of_positive_numbers_without_support_is_told_of_it() -> None:
    prior = half_normal(1.0)
    loose = ef.LogPrior(prior.value, prior.gradient, prior.hessian)
    refused("log_prior", "support=", lambda: ef.GeneralizedPosterior(ONE, 1.0, loose))
