"""Learning-rate methods: published check values, what they share, and how they fail."""

from __future__ import annotations

import importlib
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, optimize, stats

import etafree as ef
from conftest import make_case, refused
from etafree.errors import ConvergenceError
from etafree.learning_rates import METHODS, NormalInverseGamma, select
from etafree.learning_rates.gpc import gpc_limit, weighted_chi_square_quantile
from etafree.learning_rates.holmes_walker import LIKELIHOODS, simulated
from etafree.learning_rates.kl_to_bayes import gaussian_rate
from etafree.learning_rates.matsubara import score_matching_rate
from etafree.learning_rates.safebayes import prequential_losses
from etafree.resampling import bootstrap

J, K = np.diag([1.0, 4.0]), 2 * np.eye(2)
BOOTSTRAPPED = ("gpc", "matsubara")
COVERAGE_SEEKING = ("magnitude", "lyddon", "onizuka", *BOOTSTRAPPED)


def with_information(copies: int = 1) -> ef.Criterion:
    """Four rows with J = diag(1, 4) and K = 2 I, repeated: halves of x along each axis."""
    a, b = np.sqrt(2.0), np.sqrt(8.0)
    X = np.array([[a, 0.0], [a, 0.0], [0.0, b], [0.0, b]])
    y = np.sqrt([2.0, 2.0, 0.5, 0.5]) * [1, -1, 1, -1]
    return ef.Criterion(ef.losses.Squared(), (np.tile(X, (copies, 1)), np.tile(y, copies)))


def with_variance(s: float, n: int = 400, p: int = 3) -> ef.Criterion:
    """Least squares whose residuals are exactly +s and -s at every x: K = s^2 J."""
    X = np.random.default_rng(0).standard_normal((n // 2, p)) * np.arange(1, p + 1)
    y = X.sum(axis=1)
    return ef.Criterion(ef.losses.Squared(), (np.vstack([X, X]), np.r_[y + s, y - s]))


def mean_of(y, prior: float = 1.0) -> ef.GeneralizedPosterior:
    y = np.asarray(y, dtype=float)
    criterion = ef.Criterion(ef.losses.Squared(), (np.ones((len(y), 1)), y))
    return ef.GeneralizedPosterior(criterion, 1.0, ef.LogPrior.normal([0.0], [[prior]]))


def heteroscedastic(n: int = 1000) -> ef.Criterion:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((n, 3)) * [1.0, 0.3, 2.0]
    y = X.sum(axis=1) + np.linalg.norm(X, axis=1) * rng.standard_normal(n)
    return ef.Criterion(ef.losses.Squared(), (X, y), names=["a", "b", "c"])


# ---------------------------------------------------------------- published check values


def test_magnitude_and_lyddon_of_given_information() -> None:
    criterion = with_information()
    made = select(criterion, "magnitude")
    np.testing.assert_allclose(made.information.J, J, atol=1e-12)
    np.testing.assert_allclose(made.information.K, K, atol=1e-12)
    assert made.eta == pytest.approx(0.8, rel=1e-10)
    assert made.scalar_adequacy == pytest.approx(4.0, rel=1e-10)
    assert select(criterion, "lyddon").eta == pytest.approx(1.7, rel=1e-10)


def test_onizuka_of_given_information() -> None:
    """tr J / tr K with the sandwich as weight, Fisher information matching with the posterior."""
    criterion = with_information()
    assert select(criterion, "onizuka").eta == pytest.approx(1.25, rel=1e-10)
    assert select(criterion, "onizuka", weight="posterior").eta == pytest.approx(1.7, rel=1e-10)
    only_first = select(criterion, "onizuka", weight=np.diag([1.0, 1e-9])).eta
    assert only_first == pytest.approx(0.5, rel=1e-6)  # J / K of the first parameter


@pytest.mark.parametrize("weight", ["sandwich", "posterior", "own"])
def test_onizuka_minimises_the_divergence_of_scores(weight: str) -> None:
    """The mean square of their difference over points with the weight's covariance, by a search."""
    criterion = heteroscedastic(300)
    info = select(criterion, "magnitude").information
    sandwich = np.linalg.inv(info.hessian) @ info.meat @ np.linalg.inv(info.hessian)
    own = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.4], [0.0, -0.4, 0.5]])
    laws = {"sandwich": sandwich, "posterior": np.linalg.inv(info.hessian), "own": own}
    points = np.linalg.cholesky(laws[weight])  # columns: their outer products sum to the covariance
    wanted = np.linalg.solve(sandwich, points)

    def divergence(eta: float) -> float:
        return float(np.square(eta * info.hessian @ points - wanted).sum())

    made = select(criterion, "onizuka", weight=own if weight == "own" else weight)
    best = optimize.minimize_scalar(divergence, bracket=(0.5 * made.eta, 2 * made.eta)).x
    assert made.eta == pytest.approx(best, rel=1e-6)
    lyddon = select(criterion, "lyddon").eta
    if weight == "posterior":
        assert made.eta == pytest.approx(lyddon, rel=1e-10)
    elif weight == "sandwich":
        assert made.eta < lyddon
        assert made.eta == pytest.approx(np.trace(info.J) / np.trace(info.K), rel=1e-10)


def test_gpc_of_normal_posteriors() -> None:
    assert gpc_limit(J, K) == pytest.approx(0.72278, abs=5e-6)
    for region, resamples in (("draws", 1500), ("laplace", 4000)):
        made = select(with_information(100), "gpc", region=region, resamples=resamples, seed=3)
        assert made.diagnostics["normal_limit"] == pytest.approx(0.72278, abs=5e-6)
        assert made.status == "converged"
        assert 0 < made.mc_error < 0.08
        assert abs(made.eta - 0.72278) < 4 * made.mc_error


def test_gpc_of_data_with_variance_four() -> None:
    y = stats.norm.ppf((np.arange(400) + 0.5) / 400)
    y *= 2.0 / y.std()
    flat = ef.Criterion(ef.losses.Squared(), (np.ones((400, 1)), y))
    for source in (flat, ef.GeneralizedPosterior(flat, 1.0, ef.LogPrior.normal([0.0], [[1e4]]))):
        made = select(source, "gpc", region="laplace", resamples=4000, seed=1)
        assert abs(made.eta - 0.25) < 4 * made.mc_error
        assert made.mc_error < 0.02
    made = select(flat, "gpc", seed=1)
    assert made.diagnostics["region"] == "draws"  # by default
    assert abs(made.eta - 0.25) < 4 * made.mc_error


def test_matsubara_of_three_minimisers() -> None:
    theta = np.array([[-0.5], [0.0], [0.5]])
    assert score_matching_rate(4 * theta, np.full(3, 4.0), -theta)[0] == pytest.approx(1.25)
    y = np.array([-2.0, 1.0, 0.0, 1.0])  # mean zero: the same derivatives from a criterion
    from etafree.optimize.many import batch

    here = batch(mean_of(y).criterion, theta)
    eta, _ = score_matching_rate(here.gradients, here.hessians[:, 0, 0], -theta)
    assert eta == pytest.approx(1.25, rel=1e-12)


@pytest.mark.parametrize(
    ("y", "losses", "eta"),
    [((1, 1), (1.375, 1.5556, 1.72), 1.0), ((3, -3), (15.375, 13.3333, 11.88), 0.25)],
)
def test_safebayes_of_two_observations(y, losses, eta: float) -> None:
    made = select(mean_of(y), "safebayes", grid=[1.0, 0.5, 0.25])
    np.testing.assert_allclose(made.trace["loss"], losses, atol=5e-5)
    np.testing.assert_array_equal(made.trace["eta"], [1.0, 0.5, 0.25])
    assert made.eta == eta
    assert made.status == "boundary"
    assert made.mc_error == 0


def test_safebayes_ties_go_to_the_largest() -> None:
    """Version I with y = 0: every posterior mean is zero, every loss the same."""
    made = select(mean_of(np.zeros(6)), "safebayes", version="I", grid=[0.25, 1.0, 0.5])
    assert made.eta == 1.0


@pytest.mark.parametrize(("prior", "eta"), [(1.0, 0.632456), (1e-12, 0.5), (1e12, 1.0)])
def test_holmes_walker_of_two_observations(prior: float, eta: float) -> None:
    made = select(mean_of([-2.0, 2.0], prior), "holmes_walker")
    assert made.eta == pytest.approx(eta, abs=1e-6)
    assert made.mc_error == 0


def test_kl_between_normals() -> None:
    A, P = np.diag([2.0, 5.0]), np.eye(2)
    assert gaussian_rate(A, P) == pytest.approx(0.35, rel=1e-12)
    assert gaussian_rate(A, P, direction="reverse") == pytest.approx(0.285714, abs=1e-6)
    assert gaussian_rate(A, P, np.ones(2), "reverse") == pytest.approx(2 / 14, rel=1e-12)


# ---------------------------------------------------------------- what methods share


@pytest.mark.parametrize("method", COVERAGE_SEEKING)
@pytest.mark.parametrize("s", [0.5, 2.0])
def test_error_variance_s_squared_gives_its_inverse(method: str, s: float) -> None:
    made = select(with_variance(s), method, seed=2)
    error = 4 * made.mc_error if method in BOOTSTRAPPED else 1e-9
    # the bootstrap's own variance differs from its limit by terms of order p / n
    slack = 0.02 / s**2 if method in BOOTSTRAPPED else 0.0
    assert abs(made.eta - s**-2) < error + slack
    assert made.scalar_adequacy == pytest.approx(1.0, rel=1e-9)
    assert made.status == "converged"


@pytest.mark.parametrize("method", COVERAGE_SEEKING)
def test_reparametrisation(method: str) -> None:
    """Magnitude and the ellipsoid do not know the parameters' units; the others do."""
    base = heteroscedastic(300)
    X, y = base.total.X, base.total.y
    turn = np.array([[1.0, 0.3, 0.0], [0.0, 100.0, 2.0], [0.5, 0.0, 0.01]])
    turned = ef.Criterion(ef.losses.Squared(), (X @ turn, y))
    option = {"region": "laplace"} if method == "gpc" else {}  # draws are other ones
    one, two = (select(c, method, seed=5, **option) for c in (base, turned))
    same = abs(one.eta / two.eta - 1) < 1e-5
    assert same == (not one.units_matter)
    assert one.units_matter == (method in ("lyddon", "matsubara", "onizuka"))
    assert two.scalar_adequacy == pytest.approx(one.scalar_adequacy, rel=1e-7)


def test_gpc_regions_from_draws_do_not_know_units() -> None:
    base = heteroscedastic(100)
    units = ef.Criterion(ef.losses.Squared(), (base.total.X * [1.0, 64.0, 0.125], base.total.y))
    one, two = (select(c, "gpc", seed=5, resamples=200).eta for c in (base, units))
    assert one == pytest.approx(two, rel=2e-3)


@pytest.mark.parametrize("method", COVERAGE_SEEKING)
def test_clusters_are_honoured(method: str) -> None:
    """Every row copied four times, copies in one cluster: a quarter of the learning rate."""
    base = with_variance(2.0, n=200, p=2)
    X, y = np.repeat(base.total.X, 4, axis=0), np.repeat(base.total.y, 4)
    copied, labels = ef.Criterion(ef.losses.Squared(), (X, y)), np.repeat(np.arange(200), 4)
    one = select(base, method, seed=2)
    four = select(copied, method, clusters=labels, seed=2)
    naive = select(copied, method, seed=2)
    tolerance = 1e-5 if method != "matsubara" else 1e-7  # bisection stops at 1e-6
    assert four.eta == pytest.approx(one.eta / 4, rel=tolerance)  # the same clusters are drawn
    assert naive.eta > 3 * four.eta


def test_cluster_sums_make_k() -> None:
    case = make_case("huber", n=200)
    labels = np.arange(200) // 4
    made = select(case.criterion(), "magnitude", clusters=labels).information
    wanted = ef.target(case.criterion(), clusters=labels, correction="CR0")
    np.testing.assert_allclose(made.meat, wanted.meat, rtol=1e-10)
    np.testing.assert_allclose(made.hessian, wanted.hessian, rtol=1e-10)


def test_scalar_adequacy_recommends_calibration() -> None:
    made = select(heteroscedastic(), "magnitude")
    assert made.scalar_adequacy > 2
    text = repr(made)
    assert "ef.calibrate" in text
    assert all(f"{name} {c:.3f}" in text for name, c in made.predicted_coverage.items())
    wide = ef.target(heteroscedastic(), correction="HC0")
    sd = np.sqrt(np.diag(np.linalg.inv(wide.hessian)) / made.eta)
    wanted = 2 * stats.norm.cdf(stats.norm.ppf(0.975) * sd / wide.se) - 1
    np.testing.assert_allclose(list(made.predicted_coverage.values()), wanted, rtol=1e-9)
    assert wanted.max() > 0.96
    assert wanted.min() < 0.94
    assert "ef.calibrate" not in repr(select(with_variance(2.0), "magnitude"))


def test_results_say_what_they_aim_at() -> None:
    posterior = mean_of(np.random.default_rng(0).standard_normal(40))
    huber = ef.Criterion(
        ef.losses.Huber(), (posterior.criterion.total.X, posterior.criterion.total.y)
    )
    aims = {
        "magnitude": "coverage",
        "gpc": "coverage",
        "matsubara": "coverage",
        "onizuka": "coverage",
        "lyddon": "information",
        "holmes_walker": "information",
        "safebayes": "prediction",
        "kl_to_bayes": "reference",
    }
    assert set(aims) == set(METHODS)
    for method, aim in aims.items():
        source = huber if method == "kl_to_bayes" else posterior
        options = {"reference": posterior} if method == "kl_to_bayes" else {}
        made = select(source, method, seed=1, **options)
        assert made.aim == aim
        assert ("not coverage" in repr(made)) == (aim != "coverage")
        assert f"by {method}" in repr(made)
        assert set(made.trace) >= {"eta"}


def test_the_same_seed_gives_the_same_answer() -> None:
    seeds = np.random.SeedSequence(7)
    options = {"gpc": {}, "matsubara": {}, "safebayes": {"permute": True}}
    for method, chosen in options.items():
        one, two = (
            select(mean_of([1, -2, 3, 0.5]), method, seed=seeds, **chosen).eta for _ in range(2)
        )
        assert one == two


@pytest.mark.parametrize("method", ["gpc", "matsubara", "holmes_walker", "kl_to_bayes"])
def test_monte_carlo_errors_are_the_spread_over_seeds(method: str) -> None:
    rng = np.random.default_rng(8)
    X, y = np.ones((60, 1)), rng.poisson(3.0, 60).astype(float)
    prior = ef.LogPrior.normal([1.0], [[0.1]])
    source = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Poisson(), (X, y)), 1.0, prior)
    options = {
        "gpc": {"resamples": 200, "draws": 200},
        "matsubara": {"resamples": 200},
        "holmes_walker": {"simulations": 50},
        "kl_to_bayes": {"draws": 400},
    }[method]
    if method == "kl_to_bayes":  # two columns: importance draws, not stratified ones
        X = np.column_stack([X, rng.standard_normal(60)])
        source = ef.Criterion(ef.losses.Poisson(), (X, y))
        other = ef.Criterion(ef.losses.NegativeBinomial(0.2), (X, y))
        options["reference"] = ef.GeneralizedPosterior(other, 1.0)
    made = [select(source, method, seed=seed, **options) for seed in range(40)]
    spread = np.std([one.eta for one in made], ddof=1)
    stated = np.sqrt(np.mean([one.mc_error**2 for one in made]))
    assert 0.6 < spread / stated < 1.6  # the spread itself is known to 11 %


# ---------------------------------------------------------------- single methods


@pytest.mark.parametrize("weights", [[3.0], [1.0, 1.0, 1.0], [1.0, 5.0], [1e-6, 0.4, 1.0]])
def test_quantiles_of_weighted_chi_squares(weights) -> None:
    weights = np.array(weights)
    made = weighted_chi_square_quantile(weights, 0.95)
    if np.ptp(weights) == 0:
        assert made == pytest.approx(weights[0] * stats.chi2.ppf(0.95, len(weights)), rel=1e-9)
    z = np.random.default_rng(0).standard_normal((200_000, len(weights)))
    below = np.mean(np.square(z) @ weights <= made)
    assert abs(below - 0.95) < 4.5 * np.sqrt(0.95 * 0.05 / 200_000)


def test_gpc_calibrates_one_functional() -> None:
    criterion = heteroscedastic()
    info = select(criterion, "magnitude").information
    sandwich = np.diag(np.linalg.inv(info.hessian) @ info.meat @ np.linalg.inv(info.hessian))
    wanted = np.diag(np.linalg.inv(info.hessian)) / sandwich
    for j, name in enumerate("abc"):
        made = select(criterion, "gpc", functional=name, seed=1)
        assert abs(made.eta / wanted[j] - 1) < 4 * made.mc_error / made.eta + 0.02
        contrast = select(criterion, "gpc", functional=2.0 * np.eye(3)[j], seed=1)
        assert contrast.eta == pytest.approx(made.eta, rel=1e-5)


def test_robbins_monro_takes_the_papers_steps() -> None:
    criterion = with_variance(2.0)
    made = select(criterion, "gpc", solver="robbins-monro", seed=1)
    etas, covered = made.trace["eta"], made.trace["coverage"]
    assert etas[0] == 1.0
    steps = (1.0 + np.arange(len(etas) - 1)) ** -0.51 * (covered[:-1] - 0.95)
    np.testing.assert_allclose(np.diff(etas), steps, atol=1e-12)
    assert made.status == "converged"
    assert abs(covered[-1] - 0.95) <= 0.005
    root = select(criterion, "gpc", seed=1)
    assert abs(made.eta - root.eta) < 2 * root.mc_error
    short = select(criterion, "gpc", solver="robbins-monro", seed=1, max_iter=3)
    assert short.status == "max_iter"
    assert len(short.trace["eta"]) == 3


def test_gpc_regions_from_draws_agree_where_posteriors_are_normal() -> None:
    y = 2.0 * stats.norm.ppf((np.arange(100) + 0.5) / 100)
    posterior = ef.GeneralizedPosterior(
        ef.Criterion(ef.losses.Huber(50.0), (np.ones((100, 1)), y)),
        1.0,
        ef.LogPrior.normal([0.0], [[4.0]]),
    )
    options = {"resamples": 200, "seed": 1}
    laplace = select(posterior, "gpc", region="laplace", **options)
    for functional in (None, "theta[0]"):
        drawn = select(posterior, "gpc", draws=1000, functional=functional, **options)
        assert drawn.eta == pytest.approx(laplace.eta, rel=0.05)
        assert drawn.diagnostics["ess_share"] > 0.5
        assert drawn.diagnostics["failed_posteriors"] == 0


def test_gpc_knows_a_prior_that_pulls() -> None:
    """Normal data and prior: the posterior of bootstrap data is known, and so is its coverage."""
    y = stats.norm.ppf((np.arange(400) + 0.5) / 400)
    criterion = ef.Criterion(ef.losses.Squared(), (np.ones((400, 1)), y))
    prior = ef.LogPrior.normal([0.1], [[0.005]])
    source = ef.GeneralizedPosterior(criterion, 1.0, prior)
    made = select(source, "gpc", region="laplace", resamples=4000, seed=1)
    drawn = select(source, "gpc", seed=1)
    sd = y.std() / 20

    def coverage(eta):  # the bootstrap mean is N(0, sd^2), the posterior mean linear in it
        precision = 400 * eta + 200
        centre, spread = 20 / precision, 400 * eta * sd / precision
        half = 1.959964 / np.sqrt(precision)
        return np.diff(stats.norm.cdf([-half, half], centre, spread))[0]

    grid = np.geomspace(0.2, 5, 2001)
    wanted = grid[np.flatnonzero([coverage(eta) >= 0.95 for eta in grid])[-1]]
    assert abs(made.eta - wanted) < 4 * made.mc_error + 0.02 * wanted
    assert abs(drawn.eta - wanted) < 4 * drawn.mc_error + 0.02 * wanted
    flat = select(criterion, "gpc", region="laplace", resamples=4000, seed=1).eta
    assert abs(wanted - flat) > 6 * made.mc_error  # the prior matters


def test_gpc_regions_from_draws_in_two_dimensions() -> None:
    criterion = with_information(15)
    options = {"resamples": 60, "seed": 1}
    laplace = select(criterion, "gpc", region="laplace", **options)
    drawn = select(criterion, "gpc", draws=800, **options)
    assert drawn.eta == pytest.approx(laplace.eta, rel=0.1)


def test_gpc_takes_normal_regions_where_draws_cost_too_much() -> None:
    y = np.random.default_rng(0).standard_normal(30)
    criterion = ef.Criterion(ef.losses.Squared(), (np.ones((30, 1)), y))
    made = select(criterion, "gpc", seed=1, resamples=100, draws=10**6)
    assert made.diagnostics["region"] == "laplace"


def test_gpc_draws_where_posteriors_are_not_normal() -> None:
    """A gamma posterior of bootstrap data, whose intervals are known.

    The posterior of a log rate given counts with sum S is that of log(Gamma(eta S)/(eta n)).
    """
    y = np.repeat([0.0, 1.0, 3.0, 7.0], [8, 6, 4, 2])
    criterion = ef.Criterion(ef.losses.Poisson(), (np.ones((20, 1)), y))
    made = select(criterion, "gpc", functional="theta[0]", seed=1, draws=1000)
    sums = np.random.default_rng(2).choice(y, (100_000, 20)).sum(axis=1)
    rank = stats.gamma.cdf(y.mean(), made.eta * sums, scale=1 / (made.eta * 20))
    assert abs(np.mean(np.abs(rank - 0.5) <= 0.475) - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 1000)


def test_matsubara_uses_the_bootstraps_minimisers_and_the_prior() -> None:
    posterior = mean_of(np.random.default_rng(1).standard_normal(50) + 3.0, prior=0.5)
    made = select(posterior, "matsubara", seed=4, resamples=200)
    theta = bootstrap(posterior.criterion, draws=200, seed=4).array[:, 0]
    slope = 50 * (theta - posterior.criterion.total.y.mean())
    wanted = (slope @ (-theta / 0.5) + 50 * 200) / (slope @ slope)
    assert made.eta == pytest.approx(wanted, rel=1e-9)
    flat = select(posterior.criterion, "matsubara", seed=4, resamples=200)
    assert flat.eta == pytest.approx(50 * 200 / (slope @ slope), rel=1e-9)


def prefix_losses(X, y, eta, prior, version):
    """Normal-inverse-gamma predictions from the batch posterior of every prefix."""
    out = []
    for i in range(len(y)):
        V0 = np.linalg.inv(prior.covariance)
        V = np.linalg.inv(V0 + eta * X[:i].T @ X[:i])
        m = V @ (V0 @ prior.mean + eta * X[:i].T @ y[:i])
        a = prior.shape + eta * i / 2
        b = prior.rate + 0.5 * (
            prior.mean @ V0 @ prior.mean + eta * y[:i] @ y[:i] - m @ np.linalg.inv(V) @ m
        )
        r, q = y[i] - X[i] @ m, X[i] @ V @ X[i]
        if version == "I":
            out.append(-stats.norm.logpdf(r, scale=np.sqrt(b / (a - 1))))
            continue
        law = stats.invgamma(a, scale=b)

        def inner(v, r=r, q=q, law=law):
            return (0.5 * np.log(2 * np.pi * v) + (r * r + v * q) / (2 * v)) * law.pdf(v)

        ends = law.ppf([1e-13, 0.5, 0.99, 0.999999]), np.inf
        parts = [*ends[0], ends[1]]
        out.append(sum(integrate.quad(inner, lo, hi, limit=200)[0] for lo, hi in pairwise(parts)))
    return np.array(out)


@pytest.mark.parametrize("version", ["R", "I"])
def test_conjugate_regression_predicts_like_every_prefixs_posterior(version: str) -> None:
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((8, 2)), 2 * rng.standard_normal(8)
    prior = NormalInverseGamma([0.5, 0.0], [[2.0, 0.3], [0.3, 1.0]], shape=2.5, rate=1.5)
    made = prequential_losses(
        X, y, np.array([1.0, 0.3]), prior.mean, prior.covariance, version, prior
    )
    for k, eta in enumerate((1.0, 0.3)):
        np.testing.assert_allclose(made[:, k], prefix_losses(X, y, eta, prior, version), rtol=1e-5)
    criterion = ef.Criterion(ef.losses.Squared(), (X, y))
    chosen = select(criterion, "safebayes", conjugate=prior, version=version, grid=[1.0, 0.3])
    np.testing.assert_allclose(chosen.trace["loss"], made.sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("version", ["R", "I"])
@pytest.mark.parametrize("strength", [0.0, 0.4])
def test_safebayes_by_draws_agrees_with_the_closed_form(
    version: str, strength: float, monkeypatch
) -> None:
    """Huber's loss with a huge threshold is the squared loss; a ridge adds to every row's."""
    module = importlib.import_module("etafree.learning_rates.safebayes")
    monkeypatch.setattr(module, "ROWS", 7)  # weights are carried from block to block
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal(60), rng.standard_normal(60) + 1.0
    prior = ef.LogPrior.normal([0.0], [[1.0]])
    criterion = ef.Criterion(ef.losses.Huber(1e6), (x[:, None], y), ef.penalties.Ridge(strength))
    grid = np.array([1.0, 0.25, 0.0625])
    made = select(
        ef.GeneralizedPosterior(criterion, 1.0, prior),
        "safebayes",
        version=version,
        grid=grid,
        draws=400,
        seed=1,
    )
    wanted = np.zeros(3)
    for k, eta in enumerate(grid):
        for i in range(60):
            precision = 1.0 + eta * (x[:i] @ x[:i] + strength * i)
            mean = eta * x[:i] @ y[:i] / precision
            spread = x[i] ** 2 / precision if version == "R" else 0.0
            wanted[k] += 0.5 * ((y[i] - x[i] * mean) ** 2 + spread)
    np.testing.assert_allclose(made.trace["loss"], wanted, rtol=0.03)
    assert made.diagnostics["computed"] == "draws"


def test_safebayes_without_a_prior_trains_first_and_knows_the_order() -> None:
    rng = np.random.default_rng(5)
    X = np.column_stack([np.ones(40), rng.standard_normal(40)])
    criterion = ef.Criterion(ef.losses.Huber(), (X, rng.standard_normal(40)))
    made = select(criterion, "safebayes", grid=[1.0, 0.5], draws=100, seed=1)
    assert made.diagnostics["start"] == 20
    posterior = mean_of(rng.standard_normal(30))
    given = select(posterior, "safebayes", seed=1)
    mixed = select(posterior, "safebayes", seed=1, permute=True)
    assert not np.allclose(given.trace["loss"], mixed.trace["loss"])
    assert mixed.diagnostics["permuted"]
    refused("start", "leave rows", lambda: select(criterion, "safebayes", start=0))
    refused("start", "leave rows", lambda: select(criterion, "safebayes", start=40))


def test_safebayes_of_a_loss_of_your_own() -> None:
    pytest.importorskip("jax")
    rng = np.random.default_rng(5)
    y = rng.standard_normal(24)
    mine = ef.Criterion(
        ef.JaxLoss(lambda theta, row: 0.5 * (row["y"] - theta) ** 2), {"y": y}, start=0.0
    )
    plain = ef.Criterion(ef.losses.Huber(1e6), (np.ones((24, 1)), y))
    one, two = (select(c, "safebayes", grid=[1.0, 0.5], draws=100, seed=1) for c in (mine, plain))
    np.testing.assert_allclose(one.trace["loss"], two.trace["loss"], rtol=0.05)


def test_safebayes_says_when_noise_hides_the_best() -> None:
    rng = np.random.default_rng(6)
    criterion = ef.Criterion(ef.losses.Huber(), (np.ones((40, 1)), rng.standard_normal(40)))
    grid = [1.0, 0.9, 0.8, 0.7]
    made = select(criterion, "safebayes", version="I", grid=grid, draws=100, seed=1)
    assert made.mc_error > 0
    assert made.status in ("noisy", "boundary")


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_simulated_responses_follow_the_likelihood(kind) -> None:
    """Scores have mean zero, and variance equal to the mean curvature."""
    options = {"NegativeBinomial": {"dispersion": 0.7}, "StudentT": {"df": 5.0, "scale": 1.5}}
    loss = kind(**options.get(kind.__name__, {}))
    u = np.array([-0.4, 0.3, 0.8])
    y = np.column_stack([np.zeros(3), [1.0, 4.0, 9.0]]) if loss.takes_trials else np.zeros(3)
    made, mass = simulated(loss, u, y, 40_000, np.random.default_rng(0))
    assert mass.sum() == pytest.approx(1.0)
    slopes = np.array([loss.first(u, one) for one in made[:40_000]])
    bends = np.array([loss.second(u, one) for one in made[:40_000]])
    if kind is ef.losses.Squared:
        np.testing.assert_allclose(mass @ slopes, 0.0, atol=1e-10)
        np.testing.assert_allclose(mass @ slopes**2, 1.0, rtol=1e-10)
        return
    for gap in (slopes, slopes**2 - bends):
        assert np.all(np.abs(gap.mean(axis=0)) < 4.5 * gap.std(axis=0) / np.sqrt(len(gap)))


def test_holmes_walker_of_counts() -> None:
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(1500), 0.5 * rng.standard_normal(1500)])
    mean = np.exp(X @ [1.0, 0.5])
    prior = ef.LogPrior.normal([1.0, 0.5], 1e-4 * np.eye(2))
    etas = []
    for y in (rng.poisson(mean), rng.poisson(mean * rng.gamma(2.0, 0.5, 1500))):
        criterion = ef.Criterion(ef.losses.Poisson(), (X, y.astype(float)))
        made = select(ef.GeneralizedPosterior(criterion, 1.0, prior), "holmes_walker", seed=1)
        assert 0 < made.mc_error < 0.01
        assert made.units_matter
        etas.append(made.eta)
    assert abs(etas[0] - 1) < 0.1
    assert etas[1] < 0.75  # variance mu + mu^2 / 2


def lognormal_squares(loss, middle: float, sd: float, y: np.ndarray) -> np.ndarray:
    """E{l'(u, y)^2} by quadrature with more nodes than a prior of this width needs."""
    nodes, mass = np.polynomial.hermite_e.hermegauss(100)
    slopes = loss.first(middle + sd * nodes[:, None], y)
    return mass / mass.sum() @ slopes**2


@pytest.mark.parametrize("loss", [ef.losses.Poisson(), ef.losses.Gamma()], ids=repr)
def test_holmes_walker_averages_over_the_prior_exactly(loss: ef.losses.LinearLoss) -> None:
    y = np.array([1.0, 2.0, 4.0, 7.0])
    prior = ef.LogPrior.normal([0.5], [[0.64]])
    posterior = ef.GeneralizedPosterior(ef.Criterion(loss, (np.ones((4, 1)), y)), 1.0, prior)
    made = select(posterior, "holmes_walker", simulations=20, seed=1)
    observed = lognormal_squares(loss, 0.5, 0.8, y).mean()
    assert made.diagnostics["observed_gain"] == pytest.approx(observed, rel=1e-10)


def test_holmes_walker_survives_a_wide_prior() -> None:
    """Then the square of the exponential is all there is: of its factor 1, or of y^2 for gamma."""
    y = np.array([1.0, 2.0, 4.0, 7.0])
    for variance in (1e2, 1e4, 1e6):
        prior = ef.LogPrior.normal([0.0], [[variance]])
        counts = ef.Criterion(ef.losses.Poisson(), (np.ones((4, 1)), y))
        made = select(ef.GeneralizedPosterior(counts, 1.0, prior), "holmes_walker", seed=1)
        assert made.eta == pytest.approx(1.0, abs=1e-12)
        sizes = ef.Criterion(ef.losses.Gamma(), (np.ones((4, 1)), y))
        made = select(ef.GeneralizedPosterior(sizes, 1.0, prior), "holmes_walker", seed=1)
        limit = np.sqrt(2 * y.mean() ** 2 / np.mean(y**2))  # E y^2 = 2 mu^2 under the model
        assert abs(made.eta - limit) < 4.5 * made.mc_error


def test_holmes_walker_refuses_bare_losses_and_improper_priors() -> None:
    for name in ("huber", "pseudo_huber", "quantile", "normal_laplace"):
        criterion = make_case(name).criterion()
        label = type(criterion.loss).__name__
        refused("loss", f"{label} is a loss", lambda c=criterion: select(c, "holmes_walker"))
    poisson = make_case("poisson").criterion()
    refused("log_prior", "averages over the prior", lambda: select(poisson, "holmes_walker"))
    quartic = ef.LogPrior(
        lambda t, n: -(t**4).sum(), lambda t, n: -4 * t**3, lambda t, n: np.diag(-12 * t**2)
    )
    posterior = ef.GeneralizedPosterior(poisson, 1.0, quartic)
    refused("log_prior", "averages over the prior", lambda: select(posterior, "holmes_walker"))


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_kl_finds_the_references_own_rate_when_losses_coincide(direction: str) -> None:
    """Huber's loss with a huge threshold is the squared loss, by another name."""
    base = with_variance(2.0, n=60)
    data = base.total.X, base.total.y
    huber = ef.Criterion(ef.losses.Huber(1e6), data)
    reference = ef.GeneralizedPosterior(base, 0.25)
    exact = select(huber, "kl_to_bayes", reference=reference, direction=direction)
    assert exact.diagnostics["computed"] == "normal"
    assert exact.eta == pytest.approx(0.25, rel=1e-8)
    drawn = select(
        huber,
        "kl_to_bayes",
        reference=reference,
        direction=direction,
        approximation="draws",
        seed=3,
    )
    assert drawn.diagnostics["computed"] == "draws"
    assert drawn.status == "converged"
    assert abs(drawn.eta - 0.25) < 4.5 * drawn.mc_error + 1e-4
    assert drawn.mc_error < 0.02


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_kl_by_draws_is_the_minimum_by_quadrature(direction: str) -> None:
    rng = np.random.default_rng(5)
    X, y = np.ones((15, 1)), rng.standard_normal(15)
    huber = ef.Criterion(ef.losses.Huber(0.5), (X, y))
    prior = ef.LogPrior.normal([0.0], [[1.0]])
    reference = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), (X, y)), 0.5, prior)
    source = ef.GeneralizedPosterior(huber, 1.0, prior)
    made = select(
        source, "kl_to_bayes", reference=reference, direction=direction, draws=8000, seed=1
    )
    grid = np.linspace(-6, 6, 4001)[:, None]
    step = grid[1, 0] - grid[0, 0]

    def density(posterior):
        log = posterior.log_density(grid)
        log -= log.max()
        return log - np.log(np.exp(log).sum() * step)

    q = density(reference)

    def divergence(eta):
        p = density(ef.GeneralizedPosterior(huber, eta, prior))
        one, two = (p, q) if direction == "forward" else (q, p)
        return float((np.exp(one) * (one - two)).sum() * step)

    etas = np.geomspace(made.eta / 2, made.eta * 2, 201)
    best = etas[int(np.argmin([divergence(eta) for eta in etas]))]
    assert made.eta == pytest.approx(best, rel=0.03)


def test_kl_on_a_window_ignores_later_rows() -> None:
    rng = np.random.default_rng(5)
    X, y = np.ones((60, 1)), rng.standard_normal(60)
    late = np.r_[y[:30], y[30:] + 100]
    etas = []
    for response in (y, late):
        huber = ef.Criterion(ef.losses.Huber(), (X, response))
        reference = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), (X, response)), 1.0)
        etas.append(select(huber, "kl_to_bayes", reference=reference, window=30, seed=1).eta)
    assert etas[0] == pytest.approx(etas[1], rel=1e-9)


# ---------------------------------------------------------------- failures are data


def test_failed_minimisers_show() -> None:
    rng = np.random.default_rng(3)
    x = np.linspace(-2, 2, 24)
    y = (x + 0.8 * rng.standard_normal(24) > 0).astype(float)
    criterion = ef.Criterion(ef.losses.Logistic(), (np.column_stack([np.ones(24), x]), y))
    for method in BOOTSTRAPPED:
        made = select(criterion, method, seed=1, resamples=100)
        assert made.diagnostics["failed_minimisers"] > 0
        assert made.status == "noisy"
        assert "noisy" in repr(made)


def test_a_prior_that_no_learning_rate_overcomes_shows() -> None:
    """At the limits of the search coverage is not nominal: the end is returned, and named."""
    y = np.random.default_rng(0).standard_normal(30)
    criterion = ef.Criterion(ef.losses.Squared(), (np.ones((30, 1)), y))
    far = ef.GeneralizedPosterior(criterion, 1.0, ef.LogPrior.normal([1e9], [[1e-6]]))
    assert select(far, "gpc", seed=1, resamples=100).status == "boundary"
    against = ef.GeneralizedPosterior(criterion, 1.0, ef.LogPrior.normal([0.0], [[1e-5]]))
    made = select(against, "matsubara", seed=1, resamples=100)
    assert made.eta < 0
    assert made.status == "boundary"
    assert np.isnan(made.predicted_coverage["theta[0]"])


def test_few_resamples_are_noisy() -> None:
    made = select(with_variance(2.0), "gpc", functional="theta[0]", seed=1, resamples=20)
    assert made.status == "noisy"
    assert made.mc_error > 0.15 * made.eta


def test_no_minimiser_at_all_is_an_error() -> None:
    x = np.linspace(-1, 1, 20)
    criterion = ef.Criterion(ef.losses.Logistic(), (x[:, None], (x > 0).astype(float)))
    for method in COVERAGE_SEEKING:
        with pytest.raises(ConvergenceError, match="separated"):
            select(criterion, method)


def test_a_loss_that_is_not_convex_says_which_minimum() -> None:
    made = select(make_case("student_t").criterion(), "gpc", seed=1, resamples=200)
    assert made.diagnostics["minimum"] == "local"
    assert made.eta > 0


@pytest.mark.parametrize("method", METHODS)
def test_bad_input_is_refused(method: str) -> None:
    criterion = make_case("squared", n=40).criterion()
    kinked = make_case("squared", n=40).criterion(penalty=ef.penalties.L1(0.1))
    refused("source", "is a ndarray", lambda: select(np.ones(3), method))
    refused("penalty", "L1 has a kink", lambda: select(kinked, method))
    refused("typo", f"is not an option of {method}", lambda: select(criterion, method, typo=1))
    refused("seed", "is 'x'", lambda: select(criterion, method, seed="x"))
    refused("clusters", "only one cluster", lambda: select(criterion, method, clusters=[1] * 40))


@pytest.mark.parametrize(
    ("method", "argument", "value", "fragment"),
    [
        ("gpc", "level", 1.5, "between 0 and 1"),
        ("gpc", "resamples", 3, "at least 20"),
        ("gpc", "functional", "nobody", "not a parameter"),
        ("gpc", "functional", [0.0, 0.0, 0.0], "is zero"),
        ("gpc", "functional", [1.0], "shape"),
        ("gpc", "region", "box", "choose one of"),
        ("gpc", "solver", "newton", "choose one of"),
        ("gpc", "start", -1.0, "above zero"),
        ("matsubara", "resamples", "many", "whole number"),
        ("onizuka", "weight", "prior", "choose one of"),
        ("onizuka", "weight", [[1.0]], "1 x 1 for 3"),
        ("onizuka", "weight", -np.eye(3), "eigenvalue"),
        ("safebayes", "version", "Q", "choose one of"),
        ("safebayes", "grid", [1.0], "two or more"),
        ("safebayes", "grid", [1.0, -0.5], "two or more"),
        ("safebayes", "permute", "yes", "True or False"),
        ("safebayes", "conjugate", 1.0, "NormalInverseGamma"),
        ("holmes_walker", "simulations", 0, "at least 1"),
        ("kl_to_bayes", "reference", None, "another loss"),
        ("kl_to_bayes", "direction", "up", "choose one of"),
        ("kl_to_bayes", "approximation", "none", "choose one of"),
    ],
)
def test_bad_options_are_refused(method: str, argument: str, value, fragment: str) -> None:
    criterion = make_case("squared", n=40).criterion()
    refused(argument, fragment, lambda: select(criterion, method, **{argument: value}))


def test_references_that_do_not_fit_are_refused() -> None:
    criterion = make_case("huber", n=40).criterion()
    same = ef.GeneralizedPosterior(criterion, 1.0)
    refused("reference", "the same loss", lambda: select(criterion, "kl_to_bayes", reference=same))
    other = ef.GeneralizedPosterior(make_case("squared", n=50).criterion(), 1.0)
    refused("reference", "50 rows", lambda: select(criterion, "kl_to_bayes", reference=other))
    fits = ef.GeneralizedPosterior(make_case("squared", n=40).criterion(), 1.0)
    refused(
        "window", "is 41 of 40", lambda: select(criterion, "kl_to_bayes", reference=fits, window=41)
    )


def test_safebayes_refuses_what_has_no_sequence() -> None:
    x, y = np.arange(12.0)[:, None], np.arange(12.0) ** 2
    pairs = ef.Criterion(ef.PairwiseDifference(ef.losses.Squared()), (x, y))
    refused("loss", "over pairs", lambda: select(pairs, "safebayes"))
    weighted = ef.Criterion(
        ef.losses.Squared(), (x, y), weights=np.arange(12.0), weight_kind="sampling"
    )
    refused("weights", "sequence", lambda: select(weighted, "safebayes"))
    prior = NormalInverseGamma([0.0], [[1.0]], 1.0, 1.0)
    huber = ef.Criterion(ef.losses.Huber(), (x, y))
    refused("conjugate", "squared loss", lambda: select(huber, "safebayes", conjugate=prior))
    squared = ef.Criterion(ef.losses.Squared(), (x, y))
    refused(
        "conjugate", "infinite", lambda: select(squared, "safebayes", conjugate=prior, version="I")
    )


def test_a_prefix_is_what_weights_of_zero_make_of_it() -> None:
    """Rows that are left out and rows of weight zero give the same criterion, labels included."""
    criterion = make_case("huber", n=60).criterion()
    rows = np.arange(60)[::3]
    part, zeros = criterion.subset(rows), criterion.reweighted(np.isin(np.arange(60), rows) * 1.0)
    assert part.n == 20
    np.testing.assert_allclose(ef.minimise(part).theta, ef.minimise(zeros).theta, atol=1e-10)
    labels = np.arange(60) // 6
    np.testing.assert_array_equal(part.rows.align(labels, "clusters"), labels[rows])


@pytest.mark.parametrize(
    ("status", "error", "told", "reason"),
    [
        ("boundary", 0.0, {}, "end of what was searched"),
        ("max_iter", 0.0, {}, "ran out"),
        ("noisy", 0.3, {"failed_minimisers": 2}, "Monte Carlo error is 0.3"),
        ("noisy", 0.01, {"failed_minimisers": 2}, "2 bootstrap minimisers failed"),
        ("noisy", 0.01, {"ess_share": 0.02}, "only 2.0% of reweighted draws"),
    ],
)
def test_a_rate_says_why_it_did_not_converge(status, error, told, reason) -> None:
    rate = ef.LearningRate(1.0, status, error, {}, told, "gpc", "coverage", None)
    assert any(f"status is {status!r}" in note and reason in note for note in rate.notes)
