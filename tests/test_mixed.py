"""The random-intercept model, its three posteriors and the Gibbs sampler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from benchmarks.gibbs import reference_gibbs
from conftest import refused
from etafree.data.groups import Groups
from etafree.dependence.clusters import influences, point_of
from etafree.paper.random_intercept import (
    Design,
    _median_variance,
    pseudo_true,
    robust_variances,
    whiten,
)
from etafree.samplers.gibbs import fill_noise, gibbs_chains, update_latents
from etafree.samplers.quadrature import distribution
from etafree.samplers.variational import normal_approximation

ETAS = (0.01, 0.1, 1.0, 100.0)


def paper_model(seed: int = 0) -> ef.RandomIntercept:
    return Design().model(np.random.default_rng(seed))


def exact_moments(posterior: ef.GeneralizedPosterior) -> tuple[float, float]:
    grid, mass = distribution(posterior, normal_approximation(posterior))
    middle, weight = 0.5 * (grid[1:] + grid[:-1]), np.diff(mass)
    mean = float(weight @ middle)
    return mean, float(np.sqrt(weight @ (middle - mean) ** 2))


def test_whitening_is_the_symmetric_root_for_groups_of_any_size() -> None:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat([3, 7, 9, 11], [1, 2, 5, 12]))
    groups = Groups.of(labels, 20)
    X = rng.standard_normal((20, 3))
    made = whiten(X, groups, 1.7, 0.6)
    for label in np.unique(labels):
        rows = labels == label
        sigma = 1.7 + 0.6 * np.eye(rows.sum())
        value, vector = np.linalg.eigh(sigma)
        root = (vector * value**-0.5) @ vector.T
        np.testing.assert_allclose(made[rows], root @ X[rows], rtol=1e-10)


def by_simulation(design: Design, seed: int) -> tuple[float, float]:
    """Return the paper's approximation, a mean of fits to large data sets, and its error."""
    large = replace(design, groups=5000)
    estimates = []
    for stream in np.random.SeedSequence(seed).spawn(60):
        x, y, codes = large.simulate(np.random.default_rng(stream))
        data = tuple(whiten(part, codes, large.tau2, large.sigma2) for part in (x, y))
        penalty = ef.penalties.Ridge(large.strength)
        criterion = ef.Criterion(ef.losses.Huber(large.c), data, penalty)
        estimates.append(ef.minimise(criterion).theta[0])
    return float(np.mean(estimates)), float(np.std(estimates, ddof=1) / np.sqrt(60))


def test_the_pseudo_true_slope_has_its_closed_form_and_agrees_with_simulation() -> None:
    exact = pseudo_true(Design())
    assert exact == pytest.approx(0.816328133353674, abs=1e-12)
    mean, error = by_simulation(Design(), seed=3)
    assert abs(mean - exact) < 3 * error
    odd = Design(size=3, share=0.25, tau2=0.5, c=1.5, strength=0.1, beta=-1.0)
    mean, error = by_simulation(odd, seed=4)
    assert abs(mean - pseudo_true(odd)) < 3 * error


def test_robust_variances_survive_contamination() -> None:
    """10 % of errors with N(0, 10^2) added: the moment estimate of sigma2 is off tenfold."""
    clean, dirty, naive = [], [], []
    for seed in range(30):
        for share, out in ((0.0, clean), (0.1, dirty)):
            design = Design(share=share, groups=200)
            x, y, groups = design.simulate(np.random.default_rng(seed))
            out.append(robust_variances(y - 2 * x[:, 0], groups))
            if share:
                residual = (y - 2 * x[:, 0]).reshape(-1, 5)
                naive.append(residual.var(axis=1, ddof=1).mean())
    assert np.mean(clean, axis=0) == pytest.approx([2.0, 1.0], rel=0.1)
    tau2, sigma2 = np.mean(dirty, axis=0)
    assert 1.6 < tau2 < 2.6
    assert 1.0 < sigma2 < 1.6
    assert np.mean(naive) > 8


def test_estimated_variances_are_on_record_and_given_ones_are_not() -> None:
    x, y, groups = Design().simulate(np.random.default_rng(1))
    model = ef.RandomIntercept(x, y, groups.codes)
    assert set(model.target().plug_ins) == {"tau2", "sigma2"}
    draws = model.sample(1.0, draws=200, seed=1)
    assert "estimated with it: tau2 = " in model.calibrate(draws).details()
    told = model.calibrate(draws).target.covariance
    np.testing.assert_allclose(ef.calibrate(draws, model.criterion).target.covariance, told)
    np.testing.assert_allclose(ef.target(model.criterion).covariance, told)
    assert paper_model().target().plug_ins == {}


def skewed_data(seed: int, count: int = 400, size: int = 5):
    """Return X, y and groups with exponential errors and intercepts, a covariate of groups too."""
    rng = np.random.default_rng([seed, 3])
    g = np.repeat(np.arange(count), size)
    X = np.column_stack(
        [np.ones(len(g)), rng.standard_normal(len(g)), rng.exponential(size=count)[g]]
    )
    y = (
        X @ [1.0, 0.5, 0.3]
        + 1.5 * rng.exponential(size=count)[g]
        + 2 * rng.exponential(size=len(g))
    )
    return X, y, g


def without_nuisance(criterion: ef.Criterion) -> ef.Criterion:
    return replace(criterion, total=replace(criterion.total, nuisance=()))


def test_variances_are_medians_within_and_between_groups_of_any_size() -> None:
    rng = np.random.default_rng(4)
    g = rng.permutation(np.repeat(np.arange(9), [1, 1, 2, 2, 3, 4, 5, 6, 9]))
    r = rng.standard_t(3, len(g))
    pieces = [r[g == k] for k in range(9)]
    scale = {m: np.sqrt(1 + _median_variance(np.array(m - 1.0))) for m in range(2, 10)}
    off = [
        (piece[j] - np.median(np.delete(piece, j))) / scale[len(piece)]
        for piece in pieces
        for j in range(len(piece))
        if len(piece) > 1
    ]
    tau2, sigma2 = robust_variances(r, Groups.of(g, len(g)))
    assert sigma2 == pytest.approx((np.median(np.abs(off)) / 0.6744897501960817) ** 2, rel=1e-12)
    medians = np.array([np.median(piece) for piece in pieces])
    spread = (np.median(np.abs(medians - np.median(medians))) / 0.6744897501960817) ** 2
    noise = np.median([float(_median_variance(np.array(float(len(p))))) for p in pieces])
    assert tau2 == pytest.approx(max(0.0, spread - sigma2 * noise), rel=1e-12)


def test_the_gradient_moves_with_estimated_variances_as_refitted_data_say() -> None:
    X, y, g = skewed_data(0, 40)
    model = ef.RandomIntercept(X, y, g, c=1.345)
    total, theta = model.criterion.total, ef.minimise(model.criterion).theta
    (estimate,) = total.nuisance

    def gradient(tau2, sigma2):
        moved = [whiten(part, model.groups, tau2, sigma2) for part in (X, y)]
        loss = ef.losses.PseudoHuber(1.345)
        return ef.Criterion(loss, tuple(moved)).gradient(theta)

    smooth = total.with_loss(ef.losses.PseudoHuber(1.345))
    assert smooth.nuisance == (estimate,)  # it is of the rows, not of the loss
    h, values = 1e-5, np.array([model.tau2, model.sigma2])
    numeric = [(gradient(*(values + e)) - gradient(*(values - e))) / (2 * h) for e in h * np.eye(2)]
    np.testing.assert_allclose(estimate.slope(smooth, theta), np.array(numeric).T, rtol=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_estimates_of_resampled_groups_move_by_their_influences(seed) -> None:
    """Groups drawn with replacement, variances and coefficients estimated again."""
    X, y, g = skewed_data(seed)
    count, size = 400, 5
    model = ef.RandomIntercept(X, y, g)
    (estimate,) = model.criterion.total.nuisance
    per_row = estimate.influence()
    per_group = np.column_stack([np.bincount(g, column) for column in per_row.T])
    both, plain = (
        ef.target(c, correction="CR0") for c in (model.criterion, without_nuisance(model.criterion))
    )
    joint, alone = (influences(point_of(t), model.groups, "CR0") for t in (both, plain))
    rng, moved, values = np.random.default_rng(5), [], []
    predicted, held, by_influence = [], [], []
    for _ in range(80):
        w = rng.multinomial(count, np.full(count, 1 / count)) - 1
        rows = (np.repeat(np.arange(count), w + 1)[:, None] * size + np.arange(size)).ravel()
        again = ef.RandomIntercept(X[rows], y[rows], g)
        moved.append(ef.minimise(again.criterion).theta - both.center)
        values.append([again.tau2, again.sigma2])
        predicted.append(w @ joint)
        held.append(w @ alone)
        by_influence.append(w @ per_group)
    moved, values, by_influence = (np.array(a) for a in (moved, values, by_influence))
    for k in range(2):
        assert np.corrcoef(values[:, k], by_influence[:, k])[0, 1] > 0.8
    left, before = (np.std(moved - np.array(part), axis=0) for part in (predicted, held))
    assert left[0] < 0.65 * before[0]  # of the intercept
    assert np.all(left < 0.3 * moved.std(axis=0))  # of second order
    assert both.stacked == ("tau2", "sigma2")
    assert both.se[0] != plain.se[0]


def test_a_variance_at_its_boundary_does_not_vary() -> None:
    rng = np.random.default_rng(2)
    x, g = rng.standard_normal((100, 1)), np.repeat(np.arange(25), 4)
    for seed in range(20):
        y = x[:, 0] + np.random.default_rng([seed, 1]).standard_normal(100)
        model = ef.RandomIntercept(x, y, g)
        influence = model.criterion.total.nuisance[0].influence()
        assert (model.tau2 == 0) == (not influence[:, 0].any())
        assert influence[:, 1].any()
        assert np.isfinite(model.target().covariance).all()


def test_a_formula_names_parameters_and_drops_missing_rows() -> None:
    x, y, groups = Design().simulate(np.random.default_rng(2))
    table = pd.DataFrame({"y": y, "x": x[:, 0], "school": groups.codes})
    table.loc[4, "x"] = np.nan
    model = ef.RandomIntercept.from_formula(
        "y ~ x", table, "school", tau2=2.0, sigma2=1.0, penalty=ef.penalties.Ridge(0.3)
    )
    assert model.criterion.names == ("Intercept", "x")
    assert model.criterion.n == 499
    assert model.criterion.penalty.Q[0, 0] == 0
    made = model.calibrate(model.sample(0.5, draws=300, seed=1))
    assert made.target.clusters == 100


def test_random_numbers_are_normal_and_independent() -> None:
    from scipy import stats

    n = 400_001
    one, two, unit = (np.empty(n, np.float32) for _ in range(3))
    fill_noise(np.uint64(12345), np.empty(n + (n + 1) // 2, np.uint64), one, two, unit)
    assert stats.kstest(unit, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(unit, one**2 + two**2)[0, 1]) < 0.008
    assert np.abs(np.concatenate([one, two])).max() > 4.5
    for z in (one, two):
        assert stats.kstest(z, "norm").pvalue > 1e-3
        assert abs(np.corrcoef(z[1:], z[:-1])[0, 1]) < 0.008
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.008
    assert abs(np.corrcoef(one**2, two**2)[0, 1]) < 0.008


@pytest.mark.parametrize("eta", ETAS)
@pytest.mark.parametrize("scaled", [False, True])
def test_gibbs_draws_agree_with_the_exact_normal_laplace_posterior(
    eta: float, scaled: bool
) -> None:
    model = paper_model()
    mean, sd = exact_moments(model.posterior(eta, "appendix", scaled=scaled))
    draws = model.sample(
        eta, "appendix", draws=40_000, seed=int(1000 * eta) + scaled, chains=8, scaled=scaled
    )
    ess = draws.ess
    standard = (draws.array[:, 0] - mean) / sd
    assert abs(standard.mean()) * np.sqrt(ess) < 4
    from arviz_stats.base.array import array_stats

    squares = (draws.values - mean) ** 2 / sd**2
    square_ess = float(np.min(array_stats.ess(squares, chain_axis=0, draw_axis=1)))
    assert abs(squares.mean() - 1) / (squares.std() / np.sqrt(square_ess)) < 4
    assert draws.r_hat < 1.01


def test_gibbs_agrees_with_another_sampler_of_the_same_density_at_p_5() -> None:
    rng = np.random.default_rng(5)
    groups = np.repeat(np.arange(40), 5)
    X = rng.standard_normal((200, 5))
    y = X.sum(axis=1) + rng.standard_normal(40)[groups] + rng.standard_t(2, 200)
    model = ef.RandomIntercept(
        X, y, groups, c=1.0, tau2=1.0, sigma2=1.0, penalty=ef.penalties.Ridge(0.2, mu=np.ones(5))
    )
    for eta in (0.2, 2.0):
        draws = model.sample(eta, "appendix", draws=40_000, seed=6, chains=8)
        other = ef.sample(model.posterior(eta, "appendix"), draws=20_000, seed=7)
        sd = other.array.std(axis=0)
        noise = np.sqrt(1 / draws.ess + 1 / other.ess)
        assert np.abs((draws.mean - other.mean) / sd / noise).max() < 4
        ratio = draws.array.std(axis=0) / sd
        assert np.abs(np.log(ratio)).max() < 4 * noise


def test_gibbs_agrees_with_a_plain_loop_over_observations() -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal(12)
    y = x + rng.standard_t(2, 12)
    slow = reference_gibbs(x, y, 0.7, 1.0, 2.0, 2500, rng)[100:]
    fast = gibbs_chains(
        x[None, :, None],
        y[None],
        np.zeros(4, np.intp),
        np.full(4, 0.7),
        1.0,
        np.full((4, 1, 1), 2.0),
        np.zeros((4, 1)),
        draws=10_000,
        burn_in=100,
        seed=np.random.SeedSequence(1),
    )
    noise = fast.std() * np.sqrt(3 / len(slow))
    assert abs(slow.mean() - fast.mean()) < 4 * noise
    assert abs(np.log(slow.std() / fast.std())) < 0.12


@pytest.mark.parametrize("kappa", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("size", [0.0, 1e-9, 0.5, 30.0])
def test_the_latent_scale_has_its_conditional_distribution(kappa: float, size: float) -> None:
    """omega given |t| = a: 1/omega is inverse Gaussian (kappa/a, kappa^2); at a = 0, a gamma."""
    from scipy import stats

    n = 20_000
    z, noise, unit, space = (np.empty(n, np.float32) for _ in range(4))
    fill_noise(np.uint64(99), np.empty(n + (n + 1) // 2, np.uint64), z, noise, unit)
    # with eta = 1 and r = 0 the shift is N(0, v), v = omega / (1 + omega): recover omega from z = 1
    t, zero, one = np.full(n, size, np.float32), np.zeros(n), np.ones(n, np.float32)
    update_latents(zero, zero, 0.0, zero, t, z, one, unit, space, 1.0, kappa, False)
    t = t.astype(float)
    v = t**2
    omega = v / (1 - v)
    if size == 0.0:
        law = stats.gamma(0.5, scale=2 / kappa**2)
        assert stats.kstest(omega, law.cdf).pvalue > 1e-3
    else:
        law = stats.invgauss(1 / (kappa * max(size, 1e-12)), scale=kappa**2)
        assert stats.kstest(1 / omega, law.cdf).pvalue > 1e-3


def test_chains_do_not_depend_on_threads_and_seeds_make_them() -> None:
    import numba

    model = paper_model()
    before = numba.get_num_threads()
    try:
        made = []
        for threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
            numba.set_num_threads(threads)
            made.append(model.sample(1.0, "published", draws=200, seed=4).values)
    finally:
        numba.set_num_threads(before)
    np.testing.assert_array_equal(made[0], made[1])
    other = model.sample(1.0, "published", draws=200, seed=5).values
    assert not np.array_equal(made[0], other)


def test_the_three_posteriors_are_three() -> None:
    """Bias of the posterior mean at eta = 0.11: about 0, -0.34 (scaled) and -0.75 (unscaled)."""
    truth = pseudo_true(Design())
    models = [paper_model(seed) for seed in range(40)]

    def bias(kind: str, eta: float, **options: bool) -> float:
        means = [exact_moments(m.posterior(eta, kind, **options))[0] for m in models]
        return float(np.mean(means)) - truth

    assert abs(bias("huber", 0.11)) < 0.03
    assert bias("appendix", 0.11, scaled=True) == pytest.approx(-0.34, abs=0.03)
    assert bias("appendix", 0.11) == pytest.approx(-0.75, abs=0.03)
    assert bias("appendix", 100.0) == pytest.approx(1.16, abs=0.06)


def test_bad_models_are_refused() -> None:
    x, y, groups = Design(groups=10).simulate(np.random.default_rng(0))
    g = groups.codes

    def build(**options):
        return ef.RandomIntercept(x, y, **{"groups": g, "tau2": 1.0, "sigma2": 1.0, **options})

    refused("tau2", "at least zero", lambda: build(tau2=-1.0))
    refused("sigma2", "above zero", lambda: build(sigma2=-1.0))
    refused("sigma2", "above zero", lambda: build(sigma2=0.0))
    refused("tau2", "go together", lambda: build(sigma2=None))
    refused("c", "above zero", lambda: build(c=0.0))
    refused("groups", "missing labels", lambda: build(groups=[None, *g[1:]]))
    refused("groups", "entries for 50 rows", lambda: build(groups=g[1:]))
    refused("groups", "two or more", lambda: build(groups=np.arange(50), tau2=None, sigma2=None))
    refused("kind", "no density", lambda: build().posterior(1.0, "published"))
    refused("kind", "choose", lambda: build().sample(1.0, "other"))
    flat = np.column_stack([x, x])
    with pytest.raises(ef.errors.InputError, match="collinear"):
        ef.RandomIntercept(flat, y, g, tau2=1.0, sigma2=1.0).target()
