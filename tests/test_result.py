"""What a user reads off a calibration: tables, intervals, regions, tests, plots, files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr

import etafree as ef
from conftest import Case, make_case
from etafree.errors import InputError


@pytest.fixture
def result(robust: Case) -> ef.Calibration:
    criterion = ef.Criterion(
        ef.losses.Huber(1.345, scale="mad"),
        (robust.X, robust.y),
        ef.penalties.Ridge(0.1),
        names=["one", "dose", "age"],
    )
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 0.5), draws=2000, seed=1)
    return ef.calibrate(draws, criterion, clusters=np.arange(300) // 6)


def test_the_summary_holds_before_after_and_their_ratio(result: ef.Calibration) -> None:
    table = result.summary()
    assert list(table.index) == ["one", "dose", "age"]
    np.testing.assert_allclose(table["estimate"], result.center)
    np.testing.assert_allclose(table["se"], np.sqrt(np.diagonal(result.target.covariance)))
    width = table["upper"] - table["lower"]
    before = table["upper_before"] - table["lower_before"]
    np.testing.assert_allclose(table["ratio"], width / before)
    np.testing.assert_array_equal(table["dof"], result.target.dof)
    assert np.all((table["dof"] > 30) & (table["dof"] < 49))
    narrow = result.summary(level=0.5)
    assert np.all(narrow["upper"] - narrow["lower"] < width)


def test_wald_and_draws_intervals_agree_up_to_noise_and_wald_uses_t(result: ef.Calibration) -> None:
    from scipy.special import stdtrit

    wald = result.interval(kind="wald")
    t = result.target
    half = stdtrit(t.dof, 0.975) * t.se / np.sqrt(t.inflation)
    np.testing.assert_allclose(wald["upper"] - result.center, half, rtol=1e-12)
    gap = np.abs(result.interval() - wald).to_numpy() / result.target.se[:, None]
    assert gap.max() < 0.3
    assert np.all(result.interval(level=0.99, kind="wald")["upper"] > wald["upper"])


def test_the_joint_region_is_hotellings(result: ef.Calibration) -> None:
    from scipy.stats import f

    region, (dof, _) = result.region(0.9), result.target.joint_law(np.eye(3))
    assert 30 < dof < 49
    expected = 3 * dof / (dof - 2) * f(3, dof - 2).ppf(0.9)
    assert region.radius_squared == pytest.approx(expected, rel=1e-8)
    np.testing.assert_allclose(region.covariance, result.target.covariance, rtol=0.1, atol=1e-3)
    assert region.contains(result.center)
    assert not region.contains(result.center + 10 * result.target.se)
    outline = region.boundary(0, 2)
    d = outline - result.center[[0, 2]]
    block = region.covariance[np.ix_([0, 2], [0, 2])]
    distance = np.einsum("ij,jk,ik->i", d, np.linalg.inv(block), d)
    np.testing.assert_allclose(distance, region.radius_squared, rtol=1e-8)


def test_normal_regions_and_tests_use_the_chi_square() -> None:
    from scipy.stats import chi2

    rng = np.random.default_rng(2)
    made = ef.calibrate(rng.standard_normal((500, 2)), center=[1.0, 2.0], covariance=np.eye(2))
    assert made.region(0.95).radius_squared == pytest.approx(chi2(2).ppf(0.95), rel=1e-9)
    outcome = made.test(np.eye(2))
    assert outcome.p_value == pytest.approx(chi2(2).sf(5.0), rel=1e-9)
    assert outcome.statistic == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("contrast", "value", "rows"),
    [
        ("dose - age = 0.25", 0.0, [[0, 1, -1]]),
        ("dose", 0.25, [[0, 1, 0]]),
        (["dose", "age"], 0.0, [[0, 1, 0], [0, 0, 1]]),
        ({"dose": 1, "age": -2}, 0.0, [[0, 1, -2]]),
        ([[0, 1, 0], [0, 0, 1]], [1.0, 2.0], [[0, 1, 0], [0, 0, 1]]),
    ],
)
def test_contrasts_come_in_many_forms(
    result: ef.Calibration, contrast: object, value: object, rows: list[list[float]]
) -> None:
    from scipy.stats import f

    R = np.array(rows, dtype=float)
    right = 0.25 if contrast == "dose - age = 0.25" else value
    d = R @ result.center - right
    dof, unbiased = result.target.joint_law(R)
    covariance = unbiased @ R @ result.target.covariance @ R.T @ unbiased.T
    wald = d @ np.linalg.solve(covariance, d)
    q = len(R)
    outcome = result.test(contrast, value)
    assert 30 < dof < 49
    assert outcome.dof == (q, dof - q + 1)
    expected = wald * (dof - q + 1) / (dof * q)
    assert outcome.statistic == pytest.approx(expected, rel=1e-9)
    assert outcome.p_value == pytest.approx(f(q, dof - q + 1).sf(expected), rel=1e-8, abs=1e-14)
    assert "F(" in repr(outcome)


def test_a_single_contrast_agrees_with_the_t_test_of_statsmodels() -> None:
    import statsmodels.api as sm

    case = make_case("squared")
    groups = np.arange(120) // 6
    criterion = ef.Criterion(ef.losses.Squared(), (case.X, case.y))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=200, seed=3)
    ours = ef.calibrate(draws, criterion, clusters=groups, correction="CR1S").test([[0, 1, -1]])
    fit = sm.OLS(case.y, case.X).fit(
        cov_type="cluster", cov_kwds={"groups": groups, "df_correction": True}, use_t=True
    )
    theirs = fit.t_test([[0, 1, -1]])
    assert ours.p_value == pytest.approx(float(theirs.pvalue), rel=1e-7)


def test_cr2_uses_its_own_degrees_of_freedom_for_every_contrast(robust: Case) -> None:
    criterion = robust.criterion(names=["one", "dose", "age"])
    groups = np.random.default_rng(4).integers(0, 15, 300)
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=4000, seed=4)
    made = ef.calibrate(draws, criterion, clusters=groups, correction="CR2")
    assert len(set(made.summary()["dof"].round(6))) == 3
    contrast = made.test("dose - age = 0")
    assert contrast.dof[1] == pytest.approx(made.target.dof_of(np.array([0.0, 1.0, -1.0])))
    wald, drawn = made.interval(kind="wald"), made.interval()
    assert np.all(np.abs((drawn - wald).to_numpy()) < 0.35 * made.target.se[:, None])


def test_functionals_map_centre_and_draws(result: ef.Calibration) -> None:
    ratio = result.of(lambda t: t["dose"] / t["age"], name="dose / age")
    assert ratio.name == "dose / age"
    assert float(ratio.estimate) == pytest.approx(result.center[1] / result.center[2])
    low, high = ratio.interval(0.9)
    assert low < ratio.estimate < high
    np.testing.assert_allclose(ratio.draws, result.draws["dose"] / result.draws["age"])
    both = result.of(lambda t: np.stack([t["dose"], t["age"]], axis=-1))
    assert both.draws.shape == (2000, 2)
    with pytest.raises(InputError, match="'weight'"):
        result.of(lambda t: t["weight"])


def test_the_repr_names_the_estimand_the_target_and_the_plug_ins(result: ef.Calibration) -> None:
    text, details = repr(result), repr(result.details())
    for part in (
        "95 % intervals for 3 parameters, 50 clusters, t with 32.6 to 46.3 degrees of freedom",
        "the posterior was ",
        "minimiser of the expected Huber loss plus the ridge penalty",
        "not the parameter of the process",
        "diagnostics:",
        "dose",
        "ratio",
        "details()",
    ):
        assert part in text
    for part in (
        "50 clusters, CR3, t with 32.6 to 46.3",
        "scale =",
        "eta = 0.5",
        "centre: the minimiser of loss plus penalty (MAP)",
        "map: location-scale, root affine, from the draws",
        "effective scale: 300",
    ):
        assert part in details
        assert part not in text.splitlines()[0]
    page = result._repr_html_()
    assert "<table" in page
    assert "Huber" in page


def test_html_escapes_names(robust: Case) -> None:
    rng = np.random.default_rng(5)
    made = ef.calibrate(
        ef.Draws.of(rng.standard_normal((50, 1)), ["<script>x</script>"]),
        center=[0.0],
        covariance=[[1.0]],
    )
    assert "<script>" not in made._repr_html_()
    assert "&lt;script&gt;" in made._repr_html_()


def test_a_saved_calibration_reads_back_the_same(result: ef.Calibration, tmp_path: Path) -> None:
    path = result.save(tmp_path / "fit with spaces é")
    back = ef.Calibration.load(path)
    np.testing.assert_array_equal(back.draws.values, result.draws.values)
    np.testing.assert_array_equal(back.original.values, result.original.values)
    pd.testing.assert_frame_equal(back.diagnostics(), result.diagnostics())
    assert repr(back) == repr(result)
    assert str(back.paper()) == str(result.paper())
    cr2 = ef.calibrate(
        result.original, result.criterion, clusters=np.arange(300) // 6, correction="CR2"
    )
    again = ef.Calibration.load(cr2.save(tmp_path / "cr2.npz"))
    assert again.test("dose - age = 0").dof == pytest.approx(cr2.test("dose - age = 0").dof)


def test_a_failed_save_leaves_the_old_file_and_no_scraps(
    result: ef.Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = result.save(tmp_path / "fit")
    old = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("numpy.savez", fail)
    with pytest.raises(InputError, match="disk full"):
        result.save(path)
    assert path.read_bytes() == old
    assert [f.name for f in tmp_path.iterdir()] == ["fit.npz"]


def test_the_plot_shows_every_parameter_before_and_after(
    result: ef.Calibration, tmp_path: Path
) -> None:
    figure = result.plot()
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["one", "dose", "age"]
    labels = [t.get_text() for t in figure.legends[0].get_texts()]
    assert labels == ["before calibration at η = 0.5", "calibrated"]
    figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    assert len(result.plot(var_names=["dose"]).axes) == 1
    with pytest.raises(InputError, match="'weight'"):
        result.plot(var_names=["weight"])


class TestDiagnostics:
    """Each check fires where it should and rests where it should."""

    @staticmethod
    def verdicts(result: ef.Calibration) -> dict[str, str]:
        return dict(result.diagnostics()["verdict"])

    def test_a_good_fit_passes_all(self) -> None:
        case = make_case("huber", n=600)
        criterion = case.criterion()
        posterior = ef.GeneralizedPosterior(criterion, 1.0)
        made = ef.calibrate(ef.sample(posterior, seed=1), posterior)
        assert set(self.verdicts(made).values()) == {"ok"}
        assert "all ok" in repr(made)

    def test_a_wrong_eta_or_a_forgotten_penalty_shows_in_the_curvature(self, robust: Case) -> None:
        criterion = robust.criterion(penalty=ef.penalties.Ridge(2.0))
        draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), seed=2).array
        assert (
            self.verdicts(ef.calibrate(draws, criterion, eta=1.0))["draws against curvature"]
            == "ok"
        )
        wrong_eta = self.verdicts(ef.calibrate(draws, criterion, eta=2.0))
        assert wrong_eta["draws against curvature"] == "warn"
        no_penalty = self.verdicts(ef.calibrate(draws, robust.criterion(), eta=1.0))
        assert no_penalty["draws against curvature"] == "warn"

    def test_an_unscaled_prior_is_flagged_when_it_is_not_weak(self, robust: Case) -> None:
        criterion = robust.criterion()
        strong = ef.LogPrior.from_penalty(ef.penalties.Ridge(0.5), 3)
        weak = ef.LogPrior.normal(np.zeros(3), 1e4 * np.eye(3))
        for prior, verdict in ((strong, "warn"), (weak, "ok")):
            posterior = ef.GeneralizedPosterior(criterion, 0.5, prior)
            made = ef.calibrate(ef.sample(posterior, seed=3), posterior)
            assert self.verdicts(made)["unscaled prior"] == verdict
            np.testing.assert_allclose(made.center, ef.minimise(criterion).theta)

    def test_clusters_that_carry_an_estimate_are_named(self, robust: Case) -> None:
        draws = ef.sample(ef.GeneralizedPosterior(robust.criterion(), 1.0), seed=4)
        groups = np.where(np.arange(300) < 150, "giant", (np.arange(300) // 10).astype(str))
        made = ef.calibrate(draws, robust.criterion(), clusters=groups, correction="CR1")
        table = made.diagnostics()
        assert table.loc["implied coverage", "verdict"] == "warn"
        assert table.loc["implied coverage", "warns"] == "below"
        assert "clusters giant (" in table.loc["implied coverage", "advice"]

    def test_serial_dependence_is_seen_in_the_order_of_rows(self) -> None:
        rng = np.random.default_rng(5)
        e = np.zeros(500)
        for t in range(1, 500):
            e[t] = 0.7 * e[t - 1] + rng.standard_normal()
        X = np.ones((500, 1))
        for response, verdict in ((e, "warn"), (rng.permutation(e), "ok")):
            criterion = ef.Criterion(ef.losses.Squared(), (X, response))
            made = ef.calibrate(
                ef.sample(ef.GeneralizedPosterior(criterion, 1.0), seed=6), criterion
            )
            assert self.verdicts(made)["serial dependence"] == verdict

    def test_noisy_curvature_is_seen_in_a_narrow_quantile_bandwidth(self) -> None:
        case = make_case("quantile", n=200)
        for bandwidth, verdicts in ((0.005, {"warn", "fail"}), (0.8, {"ok"})):
            criterion = ef.Criterion(ef.losses.Quantile(0.5, bandwidth), (case.X, case.y))
            target = ef.target(criterion)
            rng = np.random.default_rng(7)
            made = ef.calibrate(
                rng.multivariate_normal(target.center, target.covariance, 2000), criterion
            )
            assert self.verdicts(made)["curvature noise"] in verdicts

    def test_a_rival_mode_is_seen(self) -> None:
        rng = np.random.default_rng(8)
        for share, verdict in ((0.5, "warn"), (0.97, "ok")):
            n = 200
            near = round(share * n)
            y = np.r_[rng.normal(0, 0.5, near), rng.normal(20, 0.5, n - near)]
            criterion = ef.Criterion(ef.losses.StudentT(2.0, scale=0.5), (np.ones((n, 1)), y))
            draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), seed=9)
            assert self.verdicts(ef.calibrate(draws, criterion))["rival mode"] == verdict

    def test_too_few_effective_draws_are_flagged(self, robust: Case) -> None:
        draws = ef.sample(ef.GeneralizedPosterior(robust.criterion(), 1.0), draws=100, seed=10)
        table = ef.calibrate(draws, robust.criterion()).diagnostics()
        assert table.loc["draws: needed over effective", "verdict"] == "warn"

    def test_quantiles_of_many_parameters_need_no_more_draws_than_those_of_few(self) -> None:
        """The covariance of mapped draws is exact, so only their number counts."""
        rng = np.random.default_rng(11)

        def calibrated(p: int) -> ef.Calibration:
            drawn = ef.Draws.of(rng.standard_normal((600, p)))
            known = replace(drawn, info={"ess": 600.0})
            return ef.calibrate(known, center=np.zeros(p), covariance=np.eye(p))

        errors = []
        for p in (2, 150):
            made = [calibrated(p) for _ in range(600 // p)]
            assert {self.verdicts(m)["draws: needed over effective"] for m in made} == {"ok"}
            limits = np.array([np.quantile(m.draws.array, [0.025, 0.975], axis=0) for m in made])
            covered = ndtr(limits[:, 1]) - ndtr(limits[:, 0])
            errors.append(np.sqrt(np.mean((covered - 0.95) ** 2)))
        assert max(errors) < 0.01
        assert 0.8 < errors[1] / errors[0] < 1.25
        assert self.verdicts(calibrated(400))["draws: needed over effective"] == "warn"

    def test_heteroscedastic_independent_rows_are_not_called_dependent(self) -> None:
        fired = 0
        for seed in range(40):
            rng = np.random.default_rng(seed)
            x = np.sort(rng.lognormal(size=400))
            X = np.column_stack([np.ones(400), x])
            y = X.sum(axis=1) + x * rng.standard_normal(400)
            criterion = ef.Criterion(ef.losses.Squared(), (X, y))
            made = ef.calibrate(rng.standard_normal((200, 2)), criterion)
            fired += self.verdicts(made)["serial dependence"] == "warn"
        assert fired <= 2

    def test_diagnostics_of_frequency_weights_are_those_of_repetition(self) -> None:
        case = make_case("quantile", n=150)
        counts = np.full(150, 4)
        draws = np.random.default_rng(0).standard_normal((500, 3))
        weighted = case.criterion(weights=counts, weight_kind="frequency")
        repeated = case.criterion(np.repeat(np.arange(150), counts))
        one = ef.calibrate(draws, weighted).diagnostics().loc["curvature noise", "value"]
        two = ef.calibrate(draws, repeated).diagnostics().loc["curvature noise", "value"]
        assert one == pytest.approx(two, rel=1e-9)

    def test_sticky_chains_given_as_arrays_are_seen(self) -> None:
        rng = np.random.default_rng(11)
        chain = np.zeros((2, 1000, 1))
        for t in range(1, 1000):
            chain[:, t] = 0.99 * chain[:, t - 1] + rng.standard_normal((2, 1))
        table = ef.calibrate(chain, center=[0.0], covariance=[[1.0]]).diagnostics()
        assert table.loc["draws: needed over effective", "verdict"] == "warn"
        assert table.loc["draws: R-hat", "verdict"] in ("warn", "fail")

    def test_draws_remember_an_unscaled_prior_and_targets_their_clusters(
        self, robust: Case
    ) -> None:
        criterion = robust.criterion()
        strong = ef.LogPrior.from_penalty(ef.penalties.Ridge(0.5), 3)
        draws = ef.sample(ef.GeneralizedPosterior(criterion, 0.5, strong), seed=3)
        assert self.verdicts(ef.calibrate(draws, criterion))["unscaled prior"] == "warn"
        goal = ef.target(criterion, clusters=np.arange(300) // 15)
        assert self.verdicts(ef.calibrate(draws, goal))["implied coverage"] == "ok"

    def test_advice_stands_in_the_repr(self, robust: Case) -> None:
        draws = ef.sample(ef.GeneralizedPosterior(robust.criterion(), 1.0), seed=4)
        groups = np.where(np.arange(300) < 150, "giant", (np.arange(300) // 10).astype(str))
        text = repr(ef.calibrate(draws, robust.criterion(), clusters=groups, correction="CR1"))
        assert "implied coverage: the 95 % interval for" in text


def test_small_conveniences(robust: Case, tmp_path: Path) -> None:
    table = pd.DataFrame(robust.X[:, 1:], columns=["a", "b"]).assign(
        y=robust.y, school=np.arange(300) // 6
    )
    criterion = ef.Criterion.from_formula(
        "y ~ a + half(b)", table, ef.losses.Huber(), context={"half": lambda v: v / 2}
    )
    assert criterion.with_penalty(ef.penalties.Ridge(1.0)).penalty.Q[0, 0] == 0.0
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=200, seed=1)
    made = ef.calibrate(draws, criterion, clusters="school", level=0.8)
    assert made.target.clusters == 50
    made.save(tmp_path / "r")
    assert ef.Calibration.load(tmp_path / "r").settings["level"] == 0.8
    wide = made.of(lambda t: t["a"]).interval(0.95)
    assert np.ptp(wide) > np.ptp(made.of(lambda t: t["a"]).interval())
    assert made.region().boundary("a", "half(b)").shape == (200, 2)
    assert list(made.draws.to_frame().columns) == list(criterion.names)
    own = ef.calibrate(draws, criterion, covariance=np.eye(3))
    assert own.target.center_kind == "map"


class TestAsInStatsmodels:
    """What a fit of statsmodels has under the same names."""

    NAMES = ("Intercept", "x", "z")

    def pair(self, correction: str) -> tuple[ef.Calibration, object]:
        import statsmodels.api as sm

        case, groups = make_case("squared"), np.arange(120) // 6
        X = pd.DataFrame(case.X, columns=list(self.NAMES))
        criterion = ef.Criterion(ef.losses.Squared(), (X, case.y))
        draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=200, seed=3)
        ols = sm.OLS(case.y, X)
        if correction == "HC1":
            ours = ef.calibrate(draws, criterion, correction="HC1")
            return ours, ols.fit(cov_type="HC1", use_t=False)
        fit = ols.fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
        return ef.calibrate(draws, criterion, clusters=groups, correction=correction), fit

    @pytest.mark.parametrize("correction", ["HC1", "CR1S"])
    def test_the_numbers_are_those_of_least_squares(self, correction: str) -> None:
        ours, theirs = self.pair(correction)
        for name in ("params", "bse", "tvalues", "pvalues"):
            one, other = getattr(ours, name), getattr(theirs, name)
            assert isinstance(one, pd.Series)
            pd.testing.assert_series_equal(one, other, check_names=False, rtol=1e-8, atol=1e-14)
        pd.testing.assert_frame_equal(ours.cov_params(), theirs.cov_params(), rtol=1e-8)
        for alpha in (0.05, 0.3):
            limits = ours.conf_int(alpha)
            assert list(limits.columns) == ["lower", "upper"]
            np.testing.assert_allclose(limits, theirs.conf_int(alpha), rtol=1e-7)

    @pytest.mark.parametrize("correction", ["CR1", "CR2", "CR3"])
    def test_p_values_are_those_of_tests_and_of_limits(self, correction: str) -> None:
        ours, _ = self.pair(correction)
        for name, p_value in ours.pvalues.items():
            assert p_value == pytest.approx(ours.test(f"{name} = 0").p_value, rel=1e-8)
            limits = ours.conf_int(p_value).loc[name]
            assert np.abs(limits).min() == pytest.approx(0.0, abs=1e-8)
        np.testing.assert_array_equal(ours.tvalues, ours.params / ours.bse)
        table = ours.summary(kind="wald")
        np.testing.assert_array_equal(table[["lower", "upper"]], ours.conf_int())
        for column, values in (("t", ours.tvalues), ("p", ours.pvalues), ("se", ours.bse)):
            np.testing.assert_array_equal(table[column], values)

    def test_a_coefficient_at_zero_has_an_estimate_and_nothing_else(self) -> None:
        case = make_case("squared")
        X = np.column_stack([case.X, np.random.default_rng(0).standard_normal(120)])
        names = [*self.NAMES, "noise"]
        criterion = ef.Criterion(
            ef.losses.Squared(), (X, case.y), ef.penalties.L1(0.5), names=names
        )
        draws = np.random.default_rng(1).standard_normal((500, 4))
        ours = ef.calibrate(ef.Draws.of(draws, names), criterion)
        assert "noise" in ours.inactive
        assert ours.params["noise"] == 0.0
        for values in (ours.bse, ours.tvalues, ours.pvalues, ours.conf_int(), ours.cov_params()):
            assert list(values.index) == names
            assert np.isnan(values.loc["noise"]).all()

    def test_alpha_is_refused_by_name(self) -> None:
        with pytest.raises(InputError, match="alpha: "):
            self.pair("HC1")[0].conf_int(1.5)


class TestHypotheses:
    """Texts become rows whatever characters names have; alternatives have sides."""

    NAMES = ("x", "z", "x:z", "C(g)[T.b]", "theta[0]", "a b", "x.1", "2")

    def result(self, dof: float = 9.0) -> ef.Calibration:
        p = len(self.NAMES)
        root = np.random.default_rng(0).standard_normal((p, p))
        target = ef.Target(np.arange(1.0, p + 1), root @ root.T, self.NAMES, dof=dof)
        return ef.calibrate(np.random.default_rng(1).standard_normal((50, p)), target)

    @pytest.mark.parametrize(
        ("texts", "rows", "right"),
        [
            ("x:z = 0", [{2: 1}], [0]),
            ("x + x:z = 2*z", [{0: 1, 2: 1, 1: -2}], [0]),
            ("C(g)[T.b] = theta[0]", [{3: 1, 4: -1}], [0]),
            ("2*x + z = 1", [{0: 2, 1: 1}], [1]),
            ("-(x - z)/2 = 3 - 2*z", [{0: -0.5, 1: 2.5}], [3]),
            ("a b = .5", [{5: 1}], [0.5]),
            ("x.1 - 1e1*theta[0]=0", [{6: 1, 4: -10}], [0]),
            ("`2` = 2", [{7: 1}], [2]),
            ("x = z, x:z = 1", [{0: 1, 1: -1}, {2: 1}], [0, 1]),
            (["x = 0", "z = 0"], [{0: 1}, {1: 1}], [0, 0]),
            (["x", "z = 3"], [{0: 1}, {1: 1}], [0, 3]),
            ("x - 3", [{0: 1}], [3]),
        ],
    )
    def test_equations_are_read(
        self, texts: object, rows: list[dict[int, float]], right: list[float]
    ) -> None:
        matrix = np.zeros((len(rows), len(self.NAMES)))
        for row, weights in zip(matrix, rows, strict=True):
            row[list(weights)] = list(weights.values())
        ours, theirs = self.result().test(texts), self.result().test(matrix, right)
        np.testing.assert_allclose(ours.estimate, theirs.estimate, rtol=1e-12)
        assert ours.p_value == pytest.approx(theirs.p_value, rel=1e-9)
        assert ours.dof == theirs.dof

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("x:w = 0", "cannot be read"),
            ("w:x = 0", "cannot be read"),
            ("w = x", "names 'w'"),
            ("xx = 0", "names 'xx'"),
            ("theta[1] = 0", "cannot be read"),
            ("`w` = 0", "names 'w'"),
            ("x = z = 0", "two equal signs"),
            ("x * z = 0", "cannot be read"),
            ("x / z = 1", "cannot be read"),
            ("x / 0 = 1", "cannot be read"),
            ("x ** 2 = 1", "cannot be read"),
            ("x = 1e999", "finite"),
            ("x =", "cannot be read"),
            ("(" * 500, "cannot be read"),
            ("x = True", "cannot be read"),
            ("__import__('os')", "cannot be read"),
        ],
    )
    def test_what_is_no_linear_equation_is_refused(self, text: str, problem: str) -> None:
        with pytest.raises(InputError, match=problem):
            self.result().test(text)

    @pytest.mark.parametrize("dof", [9.0, np.inf])
    def test_one_sided_p_values_are_those_of_the_t_ratio(self, dof: float) -> None:
        from scipy.stats import norm, t

        made, law = self.result(dof), norm if np.isinf(dof) else t(dof)
        for value in (0.0, 9.0):
            both = made.test("z", value)
            assert both.t == pytest.approx((2.0 - value) / made.bse["z"])
            assert both.p_value == pytest.approx(2 * law.sf(abs(both.t[0])), rel=1e-9)
            for side, expected in (("greater", law.sf), ("less", law.cdf)):
                one = made.test("z", value, alternative=side)
                assert one.p_value == pytest.approx(expected(both.t[0]), rel=1e-9)
                assert repr(one).endswith(f"{side})")
        with pytest.raises(InputError, match="one at a time"):
            made.test(["x", "z"], alternative="less")
        with pytest.raises(InputError, match="'two-sided', 'greater', 'less'"):
            made.test("x", alternative="larger")

    def test_several_hypotheses_are_those_of_statsmodels(self) -> None:
        ours, theirs = TestAsInStatsmodels().pair("CR1S")
        for text, q in (("x = 0, z = 0", 2), ("x = z", 1), ("2*x + z = 1", 1)):
            one, other = ours.test(text), theirs.wald_test(text, use_f=True, scalar=True)
            hotelling = (19 - q + 1) / 19  # which statsmodels leaves out
            assert one.statistic == pytest.approx(hotelling * float(other.statistic), rel=1e-8)
            if q == 1:
                assert one.p_value == pytest.approx(float(other.pvalue), rel=1e-8)
        assert ours.test("2*x + z = 1").p_value == pytest.approx(
            float(theirs.t_test("2*x + z = 1").pvalue), rel=1e-8
        )


class TestFunctionals:
    """The delta method is exact for what is linear, and the draws agree with it."""

    def test_a_linear_function_has_the_test_of_its_contrast(self, result: ef.Calibration) -> None:
        difference = result.of(lambda t: t["dose"] - t["age"])
        for value, side in ((0.0, "two-sided"), (0.25, "greater")):
            one = difference.test(value, side)
            other = result.test("dose - age", value, side)
            assert one.p_value == pytest.approx(other.p_value, rel=1e-7)
            assert one.se == pytest.approx(other.se, rel=1e-9)
        several = result.of(lambda t: np.stack([t["dose"], t["age"]], axis=-1))
        joint = several.test([0.1, 0.2])
        assert joint.p_value == pytest.approx(
            result.test(["dose = 0.1", "age = 0.2"]).p_value, rel=1e-7, abs=1e-14
        )
        np.testing.assert_allclose(several.se, result.bse[["dose", "age"]], rtol=1e-9)
        wald = result.interval(0.9, kind="wald").loc[["dose", "age"]].to_numpy().T
        np.testing.assert_allclose(several.interval(0.9, kind="wald"), wald, rtol=1e-8)

    def test_the_delta_method_has_the_derivative(self, result: ef.Calibration) -> None:
        ratio = result.of(lambda t: t["dose"] / t["age"], "dose / age")
        _, dose, age = result.center
        slope = np.array([0.0, 1 / age, -dose / age**2])
        np.testing.assert_allclose(ratio.slope, slope, rtol=1e-5, atol=1e-8)
        assert ratio.se == pytest.approx(
            np.sqrt(slope @ result.target.covariance @ slope), rel=1e-5
        )
        assert repr(ratio).startswith("Functional(dose / age: estimate ")

    def test_p_values_of_draws_go_with_their_limits(self, result: ef.Calibration) -> None:
        ratio = result.of(lambda t: t["dose"] / t["age"])
        low, high = ratio.interval(0.9)
        assert ratio.p_value(low) == pytest.approx(0.1, abs=0.002)
        assert ratio.p_value(high, "less") == pytest.approx(0.05, abs=0.001)
        assert ratio.p_value(high, "greater") == pytest.approx(0.95, abs=0.001)
        assert ratio.p_value(1e9) == pytest.approx(2 / 2001)
        near = ratio.estimate + 2 * ratio.se
        assert abs(ratio.p_value(near) - ratio.test(near).p_value) < 0.04
        with pytest.raises(InputError, match="row of zeros"):
            result.of(lambda t: 0.0 * t["dose"]).test()
        with pytest.raises(InputError, match="one per value"):
            ratio.test([1.0, 2.0])

    def test_what_a_file_holds_is_enough(self, result: ef.Calibration, tmp_path: Path) -> None:
        back = ef.Calibration.load(result.save(tmp_path / "result.npz"))
        one, other = (r.of(lambda t: t["dose"] / t["age"]).test(1.0) for r in (result, back))
        assert one.p_value == pytest.approx(other.p_value, rel=1e-12)


class TestOtherDependence:
    """What with_dependence() returns is what calibrate() would have."""

    LABELS = np.arange(300) // 10

    def same(self, one: ef.Calibration, other: ef.Calibration) -> None:
        np.testing.assert_array_equal(one.draws.values, other.draws.values)
        np.testing.assert_array_equal(one.target.covariance, other.target.covariance)
        assert one.target.describe() == other.target.describe()

    def test_clusters_corrections_and_independent_rows(self, result: ef.Calibration) -> None:
        before = result.draws.values.copy()
        for choice in (
            {"clusters": self.LABELS},
            {"clusters": self.LABELS, "correction": "CR2"},
            {"dependence": ef.TimeSeries(np.arange(300))},
            {"correction": "HC1"},
            {},
        ):
            fresh = ef.calibrate(result.original, result.criterion, **choice)
            self.same(result.with_dependence(**choice), fresh)
        np.testing.assert_array_equal(result.draws.values, before)
        with pytest.raises(InputError, match="clusters="):
            result.with_dependence(correction="CR3")

    def test_choices_are_kept(self, robust: Case) -> None:
        post = ef.GeneralizedPosterior(robust.criterion(names=["one", "dose", "age"]), 0.5)
        draws = ef.sample(post, draws=300, seed=1)
        choices = {"map": "cholesky", "level": 0.8, "seed": 7, "var_names": ["dose"]}
        one = ef.calibrate(draws, post, **choices).with_dependence(clusters=self.LABELS)
        self.same(one, ef.calibrate(draws, post, clusters=self.LABELS, **choices))
        assert one.settings["level"] == 0.8
        assert one.names == ("dose",)

    def test_files_and_given_covariances_are_refused(
        self, result: ef.Calibration, tmp_path: Path
    ) -> None:
        loaded = ef.Calibration.load(result.save(tmp_path / "result.npz"))
        given = ef.calibrate(result.original, result.target)
        for made in (loaded, given):
            with pytest.raises(InputError, match="needs the criterion or the fit"):
                made.with_dependence(clusters=self.LABELS)


class TestSelection:
    """var_names and filter_vars choose rows as ArviZ chooses variables."""

    NAMES = ("Intercept", "x", "x:z", "b[0]", "b[1]", "C(g)[T.u]", "C(g)[T.v]")

    def result(self) -> ef.Calibration:
        target = ef.Target(np.arange(7.0), np.eye(7), self.NAMES)
        return ef.calibrate(np.random.default_rng(0).standard_normal((60, 7)), target)

    @pytest.mark.parametrize(
        ("asked", "how", "places"),
        [
            (None, None, range(7)),
            ("x", None, [1]),
            (["b", "x"], None, [3, 4, 1]),
            ("C(g)", None, [5, 6]),
            ("~b", None, [0, 1, 2, 5, 6]),
            (["b", "~b[0]"], None, [4]),
            ("x", "like", [1, 2]),
            (["b", "x"], "like", [1, 2, 3, 4]),
            ("~C(", "like", [0, 1, 2, 3, 4]),
            (["^b$", "z"], "regex", [2, 3, 4]),
            (np.array(["x", "x:z"]), None, [1, 2]),
        ],
    )
    def test_rows_of_every_table(self, asked: object, how: str | None, places: object) -> None:
        made, expected = self.result(), [self.NAMES[j] for j in places]
        for table in (
            made.summary(var_names=asked, filter_vars=how),
            made.interval(var_names=asked, filter_vars=how),
            made.conf_int(0.1, asked, how),
        ):
            assert list(table.index) == expected
        axes = made.plot(asked, filter_vars=how).axes
        assert [ax.get_title(loc="left") for ax in axes] == expected
        if asked is not None:
            assert list(made.draws.select(asked, how).names) == expected

    def test_variables_are_those_that_arviz_chooses(self) -> None:
        import xarray as xr

        from etafree.fits.arviz import chosen_names

        data = xr.Dataset(dict.fromkeys(("alpha", "beta", "alphabet", "sigma"), 0.0))
        names = [*data.data_vars]
        for asked, how in (
            (["sigma", "alpha"], None),
            ("~alpha", None),
            ("alpha", "like"),
            (["^al", "ma$"], "regex"),
            ("~eta", "like"),
        ):
            target = ef.Target(np.zeros(4), np.eye(4), names)
            draws = np.random.default_rng(0).standard_normal((20, 4))
            ours = ef.calibrate(draws, target).summary(var_names=asked, filter_vars=how)
            assert list(ours.index) == chosen_names(data, asked, how)

    @pytest.mark.parametrize(
        ("asked", "how", "argument", "problem"),
        [
            ("w", None, "var_names", "'w' is not a parameter"),
            ("w", "like", "var_names", "'w' is not a parameter"),
            ("[", "regex", "var_names", "not a valid regular expression"),
            (["x", "x"], None, "var_names", "twice"),
            ([], None, "var_names", "list of names"),
            ([1], None, "var_names", "list of names"),
            (["x", "~x"], None, "var_names", "leaves no parameter"),
            ("x", "glob", "filter_vars", "'like', 'regex'"),
            (None, "like", "filter_vars", "pass var_names= too"),
        ],
    )
    def test_what_chooses_nothing_is_refused(
        self, asked: object, how: str | None, argument: str, problem: str
    ) -> None:
        for ask in (self.result().summary, self.result().plot):
            with pytest.raises(InputError, match=problem) as error:
                ask(var_names=asked, filter_vars=how)
            assert error.value.argument == argument

    def test_calibrate_takes_the_same_names(self, robust: Case) -> None:
        criterion = robust.criterion(names=["one", "b[x]", "b[z]"])
        draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=100, seed=1)
        for asked, expected in (("b", ("b[x]", "b[z]")), ("~b[x]", ("one", "b[z]"))):
            assert ef.calibrate(draws, criterion, var_names=asked).names == expected


def test_a_saved_result_says_that_it_has_no_data(result: ef.Calibration, tmp_path: Path) -> None:
    loaded = ef.Calibration.load(result.save(tmp_path / "saved.npz"))
    asked = (
        loaded.cluster_table,
        loaded.corrections,
        loaded.coverage_check,
        loaded.bootstrap_t,
        lambda: loaded.wild_bootstrap("dose"),
        loaded.tic,
        loaded.predict,
        loaded.comparisons,
        loaded.group_effects,
        lambda: loaded.plot(kind="eta"),
        lambda: loaded.plot(kind="clusters"),
    )
    for call in asked:
        with pytest.raises(InputError, match="a saved result has no data and no model"):
            call()


def test_hypotheses_are_written_as_in_statsmodels(result: ef.Calibration) -> None:
    both = result.test("(dose = age), (one = 2*(dose + 1))")
    assert both.p_value == result.test(["dose = age", "one - 2*dose = 2"]).p_value
    for text in ("dose > 0", "dose >= 1", "dose != age"):
        with pytest.raises(InputError, match="is an inequality; write 'a = 0' and alternative="):
            result.test(text)
    assert isinstance(result.of(lambda t: t["dose"]).p_value(), float)
    assert result.of(lambda t: np.column_stack([t["dose"], t["age"]])).p_value().shape == (2,)


def test_names_come_with_the_centre_or_the_covariance() -> None:
    draws = np.random.default_rng(0).standard_normal((500, 2))
    named = pd.DataFrame(np.diag([1.0, 4.0]), index=["a", "b"], columns=["a", "b"])
    centre = pd.Series([1.0, 2.0], index=["b", "a"])
    assert ef.calibrate(draws, center=[1, 2], covariance=named).names == ("a", "b")
    result = ef.calibrate(draws, center=centre, covariance=named)
    assert result.params.to_dict() == {"b": 1.0, "a": 2.0}
    assert result.bse.to_dict() == {"b": 2.0, "a": 1.0}
    with pytest.raises(InputError, match="draws: are a dict, which does not say what chains are"):
        ef.calibrate({"a": draws[:, 0]}, center=[0], covariance=np.eye(1))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (ef.losses.Logistic(), "the expected logistic loss"),
        (ef.losses.NegativeBinomial(1.0), "the expected negative-binomial loss"),
        (ef.losses.StudentT(4.0), "the expected Student-t loss"),
        (ef.losses.PseudoHuber(1.0), "the expected pseudo-Huber loss"),
        (ef.losses.Poisson(), "the expected Poisson loss"),
    ],
)
def test_losses_have_names_in_words(loss: ef.losses.Loss, words: str) -> None:
    assert loss.describe() == words
