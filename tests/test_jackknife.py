"""The infinitesimal jackknife against exact scores, and the noise that draws bring."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import etafree as ef
import etafree.jackknife
from conftest import checks_of, refused
from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.dependence import as_structure, bind
from etafree.diagnostics import judged
from etafree.draws import Draws
from etafree.errors import NotPositiveDefiniteError
from etafree.jackknife import (
    Curvature,
    PointwiseArray,
    RowLosses,
    _spread,
    batch_edges,
    curvature,
    find_slopes,
    jackknife_target,
    scores_by_batch,
    total_losses,
    without_noise,
)

N, G = 600, 60
CLUSTERS = np.repeat(np.arange(G), N // G)


def linear(rng, n=N, p=3, draws=4000, eta=1.0, chains=1, shocks=0.0, rho=0.0):
    """Return a criterion and exact draws of its posterior, with their losses.

    Chains are autocorrelated by `rho`, with the posterior as their stationary law.
    """
    X = np.column_stack([np.ones(n), rng.standard_normal((n, p - 1))])
    noise = rng.standard_normal(n) * np.exp(0.3 * X[:, -1])
    noise += shocks * rng.standard_normal(G)[np.arange(n) * G // n]
    y = X.sum(axis=1) + noise
    A = X.T @ X
    lower = np.linalg.cholesky(np.linalg.inv(eta * A))
    white = rng.standard_normal((chains, draws // chains, p))
    for t in range(1, white.shape[1] if rho else 0):
        white[:, t] = rho * white[:, t - 1] + np.sqrt(1 - rho**2) * white[:, t]
    values = np.linalg.solve(A, X.T @ y) + white @ lower.T
    losses = 0.5 * (y - values.reshape(-1, p) @ X.T) ** 2
    criterion = ef.Criterion(ef.losses.Squared(), data=(X, y))
    return criterion, Draws.of(values, eta=eta), PointwiseArray(-losses)


def plain_covariance(draws, losses, eta=1.0):
    """Return the raw jackknife and the closed-form noise of independent draws."""
    d = draws.array - draws.mean
    off = losses.log_likelihood.mean(axis=0) - losses.log_likelihood
    off = off - off.mean(axis=1, keepdims=True)
    many = len(d)
    influence = eta * d.T @ off / (many - 1)
    raw = influence @ influence.T
    return raw, (eta**2 * (d.T * np.square(off).sum(axis=1)) @ d / many - raw) / many


@pytest.mark.parametrize("eta", [0.3, 1.0, 20.0])
def test_sigma_points_give_hc0_exactly(eta):
    """At θ̂ ± √p L e_j, LL' = (ηA)^{-1}, covariances with a quadratic loss are exact."""
    criterion, _, _ = linear(np.random.default_rng(0), draws=8, eta=eta)
    A = criterion.derivatives(np.zeros(3)).hessian
    lower = np.linalg.cholesky(np.linalg.inv(eta * A))
    center = ef.minimise(criterion).theta
    points = np.sqrt(3) * np.vstack([lower.T, -lower.T])
    theta = center + np.tile(points, (8, 1)) * np.sqrt(47 / 48)  # divisor D
    X, y = criterion.total.X, criterion.total.y
    losses = PointwiseArray(-0.5 * (y - theta @ X.T) ** 2)
    made = jackknife_target(Draws.of(theta), losses, eta=eta, correction="HC0")
    expected = ef.target(criterion, correction="HC0")
    np.testing.assert_allclose(made.covariance, expected.covariance, rtol=1e-9)
    np.testing.assert_allclose(made.center, expected.center, rtol=1e-9)


def test_noise_of_few_draws_is_taken_off():
    """p = 50, D = 200: the raw jackknife is 1.26 times too large, batches and formula agree."""
    rng = np.random.default_rng(1)
    raw, closed, batched = [], [], []
    for _ in range(12):
        criterion, draws, losses = linear(rng, n=400, p=50, draws=200)
        true = np.diagonal(ef.target(criterion, correction="HC0").covariance)
        first, noise = plain_covariance(draws, losses)
        rows = Groups(np.arange(400), np.arange(400))
        slopes = find_slopes(draws, losses, 400, 1.0)
        parts = slopes.influences(scores_by_batch(slopes.z, losses, rows, slopes.edges))
        covariance, _ = without_noise(parts, parts.mean(axis=0), lambda x: x.T @ x)
        for made, matrix in ((raw, first), (closed, first - noise), (batched, covariance)):
            made.append(np.mean(np.diagonal(matrix) / true))
    assert 1.22 < np.mean(raw) < 1.30
    for made in (closed, batched):
        assert abs(np.mean(made) - 1) < 4 * np.std(made, ddof=1) / np.sqrt(12) < 0.08


def test_too_many_parameters_for_the_draws_say_so():
    _, draws, losses = linear(np.random.default_rng(2), n=400, p=50, draws=200)
    with pytest.raises(NotPositiveDefiniteError, match="draw more"):
        jackknife_target(draws, losses)


def bound(clusters=None, dependence=None):
    """Return what the keywords of a call mean for the rows here."""
    return bind(as_structure(clusters, dependence), Rows(N), copies=False)


#: With the known intercept Newey and West leave it out: one lag for both.
KEYWORDS = {
    "rows HC0": ({}, "HC0"),
    "rows HC1": ({}, None),
    "clusters CR0": ({"clusters": CLUSTERS}, "CR0"),
    "clusters CR1": ({"clusters": CLUSTERS}, None),
    "clusters CR1S": ({"clusters": CLUSTERS}, "CR1S"),
    "two ways": ({"clusters": {"a": CLUSTERS, "b": np.arange(N) % 50}}, None),
    "no intersection": ({"clusters": {"a": np.arange(N) % 6, "b": np.arange(N) // 6 % 5}}, None),
    "strata": ({"dependence": ef.Survey(CLUSTERS, CLUSTERS // 10)}, None),
    "cosines": ({"dependence": ef.TimeSeries(np.arange(N))}, "EWC"),
    "prewhitened cosines": ({"dependence": ef.TimeSeries(np.arange(N))}, None),
    "Bartlett": ({"dependence": ef.TimeSeries(np.arange(N), bandwidth=7)}, "Bartlett"),
    "panel": ({"dependence": ef.Panel(CLUSTERS, np.arange(N) % 10, bandwidth=7)}, "DK"),
    "units and periods": ({"dependence": ef.Panel(CLUSTERS, np.arange(N) % 10)}, None),
}
#: Defaults without shares of the Hessian.
WITHOUT_SHARES = {
    "rows HC1": "HC1",
    "clusters CR1": "CR1",
    "two ways": "CR1S",
    "no intersection": "CR1S",
    "strata": "survey",
    "prewhitened cosines": "AR-EWC",
    "units and periods": "two-way",
}


@pytest.mark.parametrize("name", sorted(KEYWORDS))
@pytest.mark.parametrize("few", [False, True], ids=["curvature", "covariance"])
def test_every_structure_is_that_of_the_sandwich(name, few, monkeypatch):
    """Exact draws of a linear model: the se are those of exact scores up to their own error."""
    if few:
        monkeypatch.setattr("etafree.jackknife.curvature", lambda *_: None)
    keywords, correction = KEYWORDS[name]
    criterion, draws, losses = linear(np.random.default_rng(3), shocks=0.8, chains=4)
    made = jackknife_target(draws, losses, bound(**keywords), correction=correction)
    same = correction or WITHOUT_SHARES.get(name)
    expected = ef.target(criterion, **keywords, correction=same)
    ratio = made.se / expected.se
    assert np.all(np.abs(ratio - 1) < 4 * made.se_error + 1e-9)
    assert np.all(made.se_error < (0.04 if few else 0.004))
    # of a sum, or of an autocorrelation, they are estimated too
    if made.laws is None and expected.laws is not None:  # laws of several ways need leverage
        assert np.all(made.dof >= expected.dof - 1e-9)
    else:
        np.testing.assert_allclose(made.dof, expected.dof, rtol=0.05 if made.laws else 1e-12)
    assert made.clusters == expected.clusters
    assert made.correction == expected.correction
    assert made.design == expected.design


def test_the_intersection_is_left_out_of_the_noise_too():
    """Two ways of 6 and 5 clusters: the sum is no variance matrix, with or without noise."""
    _, draws, losses = linear(np.random.default_rng(3), shocks=0.8)
    keywords, _ = KEYWORDS["no intersection"]
    made = jackknife_target(draws, losses, bound(**keywords))
    if "left out" not in made.design:
        pytest.fail("this design no longer needs the fallback: change the test")


def test_newey_and_west_choose_one_lag(monkeypatch):
    monkeypatch.setattr("etafree.jackknife.curvature", lambda *_: None)
    _, draws, losses = linear(np.random.default_rng(4))
    dependence = ef.TimeSeries(np.arange(N)).bind(Rows(N))
    auto = jackknife_target(draws, losses, dependence, correction="Bartlett")
    lag = int(auto.design.split(", ")[1].split()[0])
    dependence = ef.TimeSeries(np.arange(N), bandwidth=lag).bind(Rows(N))
    fixed = jackknife_target(draws, losses, dependence, correction="Bartlett")
    np.testing.assert_array_equal(auto.covariance, fixed.covariance)


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_the_told_error_is_the_error(rho, monkeypatch):
    """Over 40 posteriors the z-scores of the se have spread one, also in autocorrelated chains."""
    monkeypatch.setattr("etafree.jackknife.curvature", lambda *_: None)
    rng = np.random.default_rng(5)
    z = []
    for _ in range(40):
        criterion, draws, losses = linear(rng, n=200, draws=2000, chains=4, rho=rho)
        made = jackknife_target(draws, losses, correction="HC0")
        true = ef.target(criterion, correction="HC0").se
        z.append((made.se / true - 1) / made.se_error)
    spread = np.sqrt(np.mean(np.square(z)))
    assert 0.75 < spread < 1.3


def test_curvature_of_the_total_loss_replaces_the_noisy_covariance():
    """Errors fall from 2 % to a tenth of that, and the told error with them."""
    rng = np.random.default_rng(6)
    z, error = [], []
    for _ in range(20):
        criterion, draws, losses = linear(rng, n=300, draws=2000)
        made = jackknife_target(draws, losses, correction="HC0")
        off = made.se / ef.target(criterion, correction="HC0").se - 1
        z.append(off / made.se_error)
        error.append(np.abs(off))
    assert np.median(error) < 0.003
    assert 0.6 < np.sqrt(np.median(np.square(z))) / 0.674 < 1.5


def test_curvature_is_exact_for_a_quadratic_and_refused_where_draws_disagree():
    rng = np.random.default_rng(7)
    z = rng.standard_normal((2000, 3))
    z = (z - z.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(z.T))).T
    M = np.eye(3) + 0.02 * np.array([[1.0, 0.5, 0.0], [0.5, -1.0, 0.3], [0.0, 0.3, 0.5]])
    energy = 3 + z @ [1.0, 2.0, 0.0] + 0.5 * np.einsum("di,ij,dj->d", z, M, z)
    edges = np.arange(0, 2001, 50)
    made = curvature(z, energy, edges, 2000.0)
    np.testing.assert_allclose(made.matrix, M, atol=1e-10)
    assert np.abs(made.changes).max() < 1e-9
    assert made.agrees
    assert not curvature(z, 1.5 * energy, edges, 2000.0).agrees  # a wrong eta, a prior
    assert curvature(z, energy, edges, 70.0) is None  # too few draws
    assert not curvature(z, -energy, edges, 2000.0).agrees


@pytest.mark.parametrize(("told", "verdict"), [(1.0, "fail"), (0.25, "ok"), (0.05, "warn")])
def test_a_forgotten_eta_is_noticed(told: float, verdict: str) -> None:
    """Draws of a posterior at eta = 0.25 with its untempered log-likelihood."""
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(300), rng.standard_normal(300)])
    y = X @ [1.0, 0.5] + rng.standard_normal(300)
    V = np.linalg.inv(X.T @ X)
    draws = rng.multivariate_normal(V @ X.T @ y, V / 0.25, size=4000)
    losses = 0.5 * (y - draws @ X.T) ** 2
    made = ef.calibrate(draws, log_likelihood=-losses, eta=told)
    found = made.diagnostics().loc["draws against log-likelihood"]
    assert found["verdict"] == verdict
    if verdict != "ok":
        assert "eta about 0.25" in found["advice"]


def test_an_informative_prior_counts_as_in_the_posterior_mean():
    """Squared loss with prior precision P: the posterior mean is ridge's, se with A = X'X + P."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal((200, 2))
    y = X.sum(axis=1) + rng.standard_normal(200)
    P = 100 * np.eye(2)
    lower = np.linalg.cholesky(np.linalg.inv(X.T @ X + P))
    theta = np.linalg.solve(X.T @ X + P, X.T @ y) + rng.standard_normal((20000, 2)) @ lower.T
    made = jackknife_target(Draws.of(theta), PointwiseArray(-0.5 * (y - theta @ X.T) ** 2))
    penalty = ef.penalties.Ridge(0.5)
    criterion = ef.Criterion(ef.losses.Squared(), data=(X, y), penalty=penalty)
    expected = ef.target(criterion, correction="HC1")
    np.testing.assert_allclose(np.abs(made.se / expected.se - 1) < 4 * made.se_error, True)
    assert np.all(np.abs(made.se / expected.se - 1) < 0.05)


def test_eta_scales_out():
    """Tempered fits of the same data have the same target."""
    made = []
    for eta in (0.1, 1.0, 10.0):
        _, draws, losses = linear(np.random.default_rng(9), eta=eta)
        made.append(jackknife_target(draws, losses, eta=eta).se)
    np.testing.assert_allclose(made[0], made[1], rtol=0.02)
    np.testing.assert_allclose(made[2], made[1], rtol=0.02)
    _, draws, losses = linear(np.random.default_rng(9), eta=10.0)
    wrong = jackknife_target(draws, losses, eta=1.0).se  # falls back: the draws disagree
    assert np.all(wrong < 0.2 * made[2])


def test_nuisance_parameters_stay_in_the_computation():
    """Slopes over all parameters make the reported se more exact than slopes over some."""
    criterion, draws, losses = linear(np.random.default_rng(10), p=5)
    some = draws.select(draws.names[:2])
    alone = jackknife_target(some, losses, correction="HC0")
    together = jackknife_target(some, losses, every=draws, correction="HC0")
    true = ef.target(criterion, correction="HC0").se[:2]
    assert np.all(np.abs(together.se / true - 1) < 4 * together.se_error + 1e-9)
    assert np.all(np.abs(alone.se / true - 1) < 4 * alone.se_error)
    assert np.all(together.se_error < 0.2 * alone.se_error)


def test_collinear_nuisance_parameters_are_not_used():
    _, draws, losses = linear(np.random.default_rng(11))
    values = np.concatenate([draws.values, 2 * draws.values[..., :1]], axis=2)
    every = Draws.of(values, [*draws.names, "twice"])
    made = jackknife_target(draws, losses, every=every)
    np.testing.assert_array_equal(made.se, jackknife_target(draws, losses).se)


def test_blocks_and_batches_do_not_matter(monkeypatch):
    """Reading a few draws at a time gives the same sums."""
    _, draws, losses = linear(np.random.default_rng(12), draws=400, chains=2)
    rows = Groups(CLUSTERS, np.arange(G))
    edges = batch_edges(draws, G * 3)
    whole = scores_by_batch(draws.array, losses, rows, edges)
    totals = total_losses(losses, 400)
    monkeypatch.setattr("etafree.jackknife.READ_NUMBERS", 7 * N)
    np.testing.assert_allclose(scores_by_batch(draws.array, losses, rows, edges), whole, atol=1e-9)
    np.testing.assert_allclose(total_losses(losses, 400), totals)
    monkeypatch.setattr("etafree.jackknife.HELD", 10 * G * 3)
    few = batch_edges(draws, G * 3)
    assert len(few) - 1 == 10
    assert set(few) >= {0, 200, 400}  # no batch runs over two chains
    some = scores_by_batch(draws.array, losses, rows, few)
    np.testing.assert_allclose(some.mean(axis=0), whole.mean(axis=0), atol=1e-9)


def _same(one, two):
    np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-8)
    np.testing.assert_allclose(one.se_error, two.se_error, rtol=1e-6)
    assert one.dof.tolist() == two.dof.tolist()
    assert (one.design, one.correction) == (two.design, two.correction)
    values = [[found.value for found in target.findings] for target in (one, two)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


@pytest.mark.parametrize("name", ["rows HC0", "rows HC1", "clusters CR1", "two ways", "strata"])
@pytest.mark.parametrize("few", [False, True], ids=["curvature", "covariance"])
def test_rows_of_a_criterion_give_what_stored_losses_give(name, few, monkeypatch):
    """All parameters in the computation, two of them reported (HC1 counts them: all there)."""
    if few:
        monkeypatch.setattr("etafree.jackknife.curvature", lambda *_: None)
    keywords, correction = KEYWORDS.get(name, ({}, name.removeprefix("rows ")))
    criterion, every, losses = linear(np.random.default_rng(25), draws=800, chains=2)
    rows = RowLosses(criterion.total, every.array, criterion.rows)
    dependence = bound(**keywords)
    groups = Groups(CLUSTERS, np.arange(G))
    edges = np.array([0, 300, 800])
    scores = [scores_by_batch(every.array, some, groups, edges) for some in (rows, losses)]
    np.testing.assert_allclose(*scores, rtol=0, atol=1e-9)
    order = [2, 0, 1] if name == "rows HC1" else [2, 0]
    draws = every.select([every.names[j] for j in order])
    _same(
        *(
            jackknife_target(draws, some, dependence, every=every, correction=correction, eta=0.8)
            for some in (rows, losses)
        )
    )


@pytest.mark.parametrize("correction", ["HC0", "HC1", "CR0", "CR1", "CR1S"])
def test_frequencies_are_copies_of_rows_in_the_jackknife(correction):
    rng = np.random.default_rng(26)
    w = rng.integers(0, 4, N)
    one, every, losses = linear(rng, draws=800)
    X, y = one.total.X, one.total.y
    weighted = ef.Criterion(ef.losses.Squared(), (X, y), weights=w, weight_kind="frequency")
    copied = PointwiseArray(np.repeat(losses.log_likelihood, w, axis=1))
    rows = RowLosses(weighted.total, every.array, weighted.rows)
    pairs = ((rows, CLUSTERS), (copied, np.repeat(CLUSTERS, w)))
    _same(
        *(
            jackknife_target(
                every,
                some,
                correction=correction,
                dependence=None
                if "H" in correction
                else ef.Clusters(labels).bind(Rows(len(labels))),
            )
            for some, labels in pairs
        )
    )


def test_scores_of_batches_are_their_formula():
    """K/(D - 1) times the batch's products of deviations, less the group's share of the total."""
    rng = np.random.default_rng(21)
    z, losses = 3.0 + rng.standard_normal((60, 2)), rng.standard_normal((60, 7))
    groups = Groups(np.array([0, 0, 1, 2, 2, 2, 1]), np.arange(3))
    edges = np.array([0, 10, 25, 60])
    found = scores_by_batch(z, PointwiseArray(-losses), groups, edges)
    member = np.eye(3)[groups.codes]
    products = (z - z.mean(axis=0))[:, None, :] * ((losses - losses.mean(axis=0)) @ member)[
        ..., None
    ]
    share = member.mean(axis=0)[:, None]
    for k, (first, last) in enumerate(pairwise(edges)):
        part = 3 / 59 * products[first:last].sum(axis=0)
        np.testing.assert_allclose(found[k], part - share * part.sum(axis=0), atol=1e-12)
    whole = np.cov(z.T, (losses @ member).T)[2:, :2]
    np.testing.assert_allclose(found.mean(axis=0), whole - share * whole.sum(axis=0), atol=1e-12)


def test_batches_are_parts_of_chains():
    rng = np.random.default_rng(22)

    def edges(chains, length, size=1, ess=None):
        draws = Draws.of(rng.standard_normal((chains, length, 1)))
        return batch_edges(
            replace(draws, info={"ess": float(ess or chains * length)}), size
        ).tolist()

    assert edges(4, 1000) == list(range(0, 4001, 100))  # forty of them
    assert edges(4, 1000, ess=200) == list(range(0, 4001, 200))  # of ten effective draws each
    assert edges(4, 1000, ess=20) == list(range(0, 4001, 500))  # eight at least
    assert edges(4, 1000, size=1 << 26) == list(range(0, 4001, 500))  # or they hold too much
    assert edges(4, 1000, size=1 << 22) == list(range(0, 4001, 250))
    assert len(edges(3, 1000, ess=20)) == 10  # as many of every chain
    assert edges(1, 1000, ess=30)[:3] == [0, 125, 250]
    assert edges(1, 5) == [0, 2, 5]  # two draws at least
    refused("draws", "draw more", lambda: edges(1, 3))


def test_changes_of_the_curvature_are_those_of_a_weighted_regression():
    """K times the derivative of the coefficients in the weight of a batch."""
    rng = np.random.default_rng(23)
    z = rng.standard_normal((400, 2)) + np.array([1.0, -2.0])
    energy = 0.5 * np.square(z - z.mean(axis=0)).sum(axis=1) + 0.1 * z[:, 0] ** 3
    edges = np.array([0, 150, 250, 400])
    made = curvature(z, energy, edges, 400.0)
    c = z - z.mean(axis=0)
    design = np.column_stack([np.ones(400), c, c[:, 0] ** 2, c[:, 0] * c[:, 1], c[:, 1] ** 2])

    def second(weights):
        root = np.sqrt(weights)
        b = np.linalg.lstsq(design * root[:, None], energy * root, rcond=None)[0]
        return np.array([[2 * b[3], b[4]], [b[4], 2 * b[5]]])

    np.testing.assert_allclose(made.matrix, second(np.ones(400)), atol=1e-9)
    np.testing.assert_allclose(made.eigenvalues, np.linalg.eigvalsh(made.matrix), atol=1e-12)
    for k in range(3):
        inside = (np.arange(400) >= edges[k]) & (np.arange(400) < edges[k + 1])
        slope = (second(1 + 1e-5 * inside) - second(1 - 1e-5 * inside)) / 2e-5
        np.testing.assert_allclose(made.changes[k], 3 * slope, atol=1e-6)
    # coefficients of a quadratic in two parameters are six; eight draws for each
    assert curvature(z, energy, edges, 47.0) is None
    assert curvature(z, energy, edges, 48.0) is not None


def test_curvatures_agree_within_the_noise_of_a_covariance():
    z = np.random.default_rng(24).standard_normal((400, 2))
    edges = np.array([0, 200, 400])
    room = 3 * np.sqrt(2 / 400)
    for off, agrees in ((0.9, True), (1.1, False)):
        for sign in (-1, 1):
            energy = 0.5 * np.square(z) @ [np.exp(sign * off * room), 1.0]
            assert curvature(z, energy, edges, 400.0).agrees is agrees
    # curvatures of a thousandth and a thousand do not make up for each other
    assert not curvature(z, 0.5 * np.square(z) @ [1e-3, 1e3], edges, 400.0).agrees


def test_noise_that_is_taken_off_is_the_variance_of_a_mean():
    """For the square of a mean: less s²/K, and the delta method's error of the root."""
    values = np.array([2.0, 3.0, 2.5, 4.0, 3.5])
    mean, noise = values.mean(), values.var(ddof=1) / 5
    covariance, error = without_noise(values[:, None, None], np.array([[mean]]), lambda x: x.T @ x)
    assert covariance[0, 0] == pytest.approx(mean**2 - noise)
    assert error[0] == pytest.approx(mean * np.sqrt(noise) / (mean**2 - noise))


def test_checks_have_their_formulas():
    _, draws, losses = linear(np.random.default_rng(14), n=150, draws=1500)
    draws = replace(draws, info={"ess": 800.0})
    made = jackknife_target(draws, losses, eta=0.5)
    found = checks_of(made, draws)
    assert found["jackknife: eta n"].value == 75.0
    assert found["jackknife: needed over effective"].value == pytest.approx(1000 / 800)
    assert found["jackknife: Monte Carlo error of se"].value == made.se_error.max()
    # The draws are those of eta = 1: twice as narrow in variance as eta = 0.5 makes them.
    off = found["draws against log-likelihood"]
    assert off.value == pytest.approx(np.log(2.0), abs=0.15)


def test_draws_are_held_against_the_curvature_of_their_log_likelihood():
    """Wider in a direction: its variance ratio; narrower: the one in the middle."""
    draws = replace(
        Draws.of(np.random.default_rng(27).standard_normal((50, 3))), info={"ess": 300.0}
    )

    def agreement(*eigenvalues):
        values = np.array(eigenvalues)
        found = _spread(Curvature(np.diag(values), values, values, False), 0.5)
        return judged(found, draws)

    wide = agreement(0.2, 0.4, 5.0)
    assert wide.value == pytest.approx(np.log(5.0))
    assert wide.threshold == pytest.approx(0.25 + 3 * np.sqrt(3 / 300))
    assert wide.verdict == "fail"
    assert "up to 5 times" in wide.advice
    assert "eta about 1.2," in wide.advice  # 0.5 over the one in the middle
    narrow = agreement(0.05, 0.25, 1.1)
    assert narrow.value == pytest.approx(np.log(4.0))
    assert narrow.threshold == pytest.approx(np.log(2.0))
    assert "eta about 2" in narrow.advice
    assert agreement(0.9, 0.95, 1.0).verdict == "ok"


def test_a_hundred_observations_at_eta_one_are_enough():
    for n, verdict in ((100, "ok"), (99, "warn")):
        _, draws, losses = linear(np.random.default_rng(28), n=n, draws=1500)
        found = checks_of(jackknife_target(draws, losses), draws)
        assert found["jackknife: eta n"].verdict == verdict
        assert found["jackknife: Monte Carlo error of se"].threshold == 0.05


def test_large_offsets_of_the_losses_do_not_cost_digits():
    _, draws, losses = linear(np.random.default_rng(13), draws=1000)
    far = PointwiseArray(losses.log_likelihood - 1e6 * np.arange(N))
    made, moved = (jackknife_target(draws, x).se for x in (losses, far))
    np.testing.assert_allclose(moved, made, rtol=1e-6)


def test_checks_say_what_is_thin():
    _, draws, losses = linear(np.random.default_rng(14), n=60, draws=400)
    found = checks_of(jackknife_target(draws, losses, eta=0.5), draws)
    assert found["jackknife: needed over effective"].verdict == "warn"
    assert found["jackknife: eta n"].verdict == "warn"
    _, draws, losses = linear(np.random.default_rng(14))
    found = checks_of(jackknife_target(draws, losses), draws)
    assert {c.verdict for name, c in found.items() if "jackknife" in name} == {"ok"}
    assert found["draws against log-likelihood"].verdict == "ok"


def test_calibrate_takes_draws_and_a_log_likelihood():
    criterion, draws, losses = linear(np.random.default_rng(15), chains=4)
    shaped = losses.log_likelihood.reshape(4, 1000, N)
    for given in (losses.log_likelihood, shaped):
        result = ef.calibrate(draws, log_likelihood=given, clusters=CLUSTERS)
        np.testing.assert_allclose(result.draws.mean, draws.mean, atol=0.02)
        expected = ef.target(criterion, clusters=CLUSTERS, correction="CR1").se
        np.testing.assert_allclose(result.summary()["se"], expected, rtol=0.01)
    assert "se_error" in result.summary()
    assert "Monte Carlo error of se: 0." in result.details()
    assert "infinitesimal jackknife, 60 clusters, CR1" in result.details()
    assert result.diagnostics().loc["jackknife: Monte Carlo error of se", "verdict"] == "ok"


def test_the_error_survives_saving(tmp_path):
    _, draws, losses = linear(np.random.default_rng(16))
    result = ef.calibrate(draws, log_likelihood=losses.log_likelihood)
    loaded = ef.Calibration.load(result.save(tmp_path / "r"))
    np.testing.assert_array_equal(loaded.target.se_error, result.target.se_error)
    assert loaded.target.describe() == result.target.describe()
    assert loaded.summary().equals(result.summary())


@pytest.fixture(scope="module")
def small():
    _, draws, losses = linear(np.random.default_rng(17), draws=1000)
    return draws, losses.log_likelihood


def spoil(array, value):
    out = array.copy()
    out[3, 5] = value
    return out


BAD = {
    "CR3": (
        "correction",
        "contribution to the Hessian",
        {"correction": "CR3", "clusters": CLUSTERS},
    ),
    "HC2": ("correction", "contribution to the Hessian", {"correction": "HC2"}),
    "CR1 without clusters": ("correction", "need clusters=", {"correction": "CR1"}),
    "clusters short": ("clusters", "has 10 entries for 600 rows", {"clusters": np.arange(10)}),
    "few clusters": ("clusters", "are 3 for 3 parameters", {"clusters": np.arange(N) % 3}),
    "center": ("center", "'map' needs scores", {"center": "map"}),
    "curvature": ("map", "needs a Hessian", {"map": ef.Map(working="curvature")}),
    "eta": ("eta", "must be a finite number above zero", {"eta": -1.0}),
    "var_names": ("var_names", "use Draws.select()", {"var_names": ["a"]}),
    "model": ("model", "is a int", {"model": 3}),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_options_are_refused(small, name):
    draws, stored = small
    argument, fragment, options = BAD[name]
    refused(argument, fragment, lambda: ef.calibrate(draws, log_likelihood=stored, **options))


def test_bad_log_likelihoods_are_refused(small):
    draws, stored = small
    for array, fragment in (
        (spoil(stored, np.nan), "is not finite at 1 observation, the first at position 5"),
        (spoil(stored, -np.inf), "is not finite at 1 observation"),
        (stored[:-1], "has shape (999, 600) for 1000 draws"),
        (stored.sum(axis=1), "has shape (1000,)"),
        (stored[:, :3], "has 3 observations for 3 parameters"),
    ):
        refused(
            "log_likelihood",
            fragment,
            lambda array=array: ef.calibrate(draws, log_likelihood=array),
        )
    refused("log_likelihood", "plain draws", lambda: ef.calibrate(draws, log_likelihood="y"))
    bad = PointwiseArray(spoil(stored, -np.inf))
    refused(
        "log_likelihood",
        "is not finite at 1 observation, the first at position 5",
        lambda: jackknife_target(draws, bad),
    )
    refused(
        "log_likelihood",
        "does not have the posterior's",
        lambda: jackknife_target(
            draws.select(draws.names), PointwiseArray(np.vstack([stored, stored]))
        ),
    )


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_the_stored_log_likelihood_is_not_copied(small, kind, monkeypatch):
    draws, stored = small
    many = np.tile(stored.astype(kind), (1, 20))
    monkeypatch.setattr(etafree.jackknife, "READ_NUMBERS", many.size // 30)
    ef.calibrate(draws, log_likelihood=stored)
    tracemalloc.start()
    try:
        made = ef.calibrate(draws, log_likelihood=many)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.target.center.shape == (3,)
    assert peak < 0.3 * 8 * many.size


def test_parameters_that_no_observation_moves_are_named(small):
    draws, stored = small
    idle = np.random.default_rng(0).standard_normal((1000, 1))
    both = Draws.of(np.hstack([draws.array, idle]), ["a", "b", "c", "idle"])
    refused(
        "log_likelihood",
        "moves ['idle'] by no more than the noise",
        lambda: ef.calibrate(both, log_likelihood=stored),
    )


def test_constant_and_collinear_draws_are_named(small):
    draws, stored = small
    array = draws.array
    still = Draws.of(np.hstack([array, np.ones((1000, 1))]), ["a", "b", "c", "one"])
    refused("draws", "['one'] are constant", lambda: ef.calibrate(still, log_likelihood=stored))
    total = Draws.of(np.hstack([array, array[:, :2].sum(axis=1, keepdims=True)]))
    refused(
        "draws",
        "of ['theta[0]', 'theta[1]', 'theta[3]']",
        lambda: ef.calibrate(total, log_likelihood=stored),
        kind=(NotPositiveDefiniteError, ef.errors.InputError),
    )


@pytest.fixture(scope="module")
def randhie():
    """Return Poisson visits to doctors, their criterion and 4,000 draws of its posterior."""
    import statsmodels.api as sm

    data = sm.datasets.randhie.load_pandas()
    X = sm.add_constant(data.exog).to_numpy()
    y = data.endog.to_numpy().astype(float)
    criterion = ef.Criterion(ef.losses.Poisson(), data=(X, y))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), draws=4000, seed=1)
    return X, y, criterion, draws


def test_overdispersed_counts_get_the_robust_se_of_statsmodels(randhie):
    """The naive sd of a Poisson fit to randhie is off by 2 to 3; from 4,000 draws within 5 %."""
    import statsmodels.api as sm

    X, y, _, draws = randhie
    eta = draws.array @ X.T
    stored = y * eta - np.exp(eta)
    model = sm.GLM(y, X, family=sm.families.Poisson())
    robust = model.fit(cov_type="HC1").bse
    result = ef.calibrate(draws, log_likelihood=stored)
    table = result.summary()
    np.testing.assert_allclose(table["se"], robust, rtol=0.05)
    np.testing.assert_allclose(table["se"], robust, rtol=0.01)  # what it reaches in fact
    assert np.all(robust > 1.8 * table["sd_before"])
    people = np.arange(len(y)) // 5  # neighbouring rows are years of a person
    options = {"cov_type": "cluster", "cov_kwds": {"groups": people, "use_correction": True}}
    clustered = model.fit(**options).bse
    result = ef.calibrate(draws, log_likelihood=stored, clusters=people, correction="CR1S")
    np.testing.assert_allclose(result.summary()["se"], clustered, rtol=0.05)
