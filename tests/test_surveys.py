"""Survey practice: R's survey package to eight digits, and what no package computes by hand.

The data are the samples of Californian schools that come with that package (data(api)); numbers
are those of survey 4.1.1, printed with twelve digits by, for example,

    m <- svyglm(api00 ~ ell + meals + mobility, design, control = list(epsilon = 1e-14))
    sqrt(diag(vcov(m))); degf(design)

with the design that stands above each table of numbers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused
from etafree.dependence.replicates import column_rank
from etafree.dependence.survey import StratumDeviations, TwoStages

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
MODELS = {
    "linear": ("api00 ~ ell + meals + mobility", ef.losses.Squared()),
    "short": ("api00 ~ ell + meals", ef.losses.Squared()),
    "logistic": ("wide ~ ell + meals", ef.losses.Logistic()),
    "Poisson": ("enroll ~ ell + meals", ef.losses.Poisson()),
}


def read(name: str) -> pd.DataFrame:
    table = pd.read_csv(GUIDES / f"{name}.csv")
    return table.assign(wide=(table["schwide"] == "Yes").astype(float), one=1.0)


STRAT, CLUS1, CLUS2 = (read(name) for name in ("apistrat", "apiclus1", "apiclus2"))


def fit(data: pd.DataFrame, model: str = "linear", weights: object = "pw") -> ef.Criterion:
    formula, loss = MODELS[model]
    return ef.Criterion.from_formula(formula, data, loss, weights=weights, weight_kind="sampling")


def agrees(made: ef.Target, se: str, dof: int, rtol: float = 1e-8) -> None:
    """Compare with standard errors and degrees of freedom of R."""
    np.testing.assert_allclose(made.se, np.array(se.split(), float), rtol=rtol)
    np.testing.assert_allclose(made.dof, dof)


def classical(criterion: ef.Criterion, design: ef.Survey) -> ef.Target:
    return ef.target(criterion, dependence=design, correction="survey")


# --- designs of one and of two stages -------------------------------------------------------------

# dstrat <- svydesign(id=~1, strata=~stype, weights=~pw, data=apistrat, fpc=~fpc)
# dclus1 <- svydesign(id=~dnum, weights=~pw, data=apiclus1, fpc=~fpc)
# dclus2 <- svydesign(id=~dnum+snum, fpc=~fpc1+fpc2, data=apiclus2)
# logistic: svyglm(as.numeric(sch.wide == "Yes") ~ ell + meals, family=quasibinomial)
# Poisson: svyglm(enroll ~ ell + meals, family=quasipoisson)
DESIGNS = {
    "dstrat": (STRAT, ef.Survey(strata="stype", fpc="fpc"), 197),
    "dclus1": (CLUS1, ef.Survey("dnum", fpc="fpc"), 14),
    "dclus2": (CLUS2, ef.Survey(("dnum", "snum"), fpc=("fpc1", "fpc2")), 39),
}


@pytest.mark.parametrize(
    ("name", "model", "se"),
    [
        ("dstrat", "linear", "10.0777359499 0.391973403223 0.283946506417 0.393218362023"),
        ("dstrat", "logistic", "0.31553040926 0.0131470688837 0.00865013777294"),
        ("dstrat", "Poisson", "0.0752221639694 0.00258106810213 0.00216607098164"),
        ("dclus1", "linear", "21.3899712652 0.324003944965 0.278083043761 0.444918419151"),
        ("dclus1", "logistic", "0.509914804507 0.0124426727779 0.00882544484087"),
        ("dclus1", "Poisson", "0.158370701976 0.00502849962046 0.00175937269406"),
        ("dclus2", "linear", "30.2338302726 1.37984365326 1.0830020888 0.610313816609"),
        ("dclus2", "logistic", "0.631657588101 0.0218898350392 0.0163454907014"),
    ],
)
def test_designs_agree_with_r(name: str, model: str, se: str) -> None:
    """R's weights of a Poisson fit are those of the last iteration but one."""
    data, design, dof = DESIGNS[name]
    agrees(classical(fit(data, model), design), se, dof, 1e-8 if model == "linear" else 1e-7)


def test_coefficients_agree_with_r() -> None:
    for (data, _, _), coefficients in zip(
        DESIGNS.values(),
        (
            "820.887315906 -0.480586612172 -3.14153530998 0.22571321023",
            "819.279051139 -0.516721779683 -3.1232042649 -0.168919682187",
            "811.490722502 -2.05916418238 -1.77718133392 0.325251748819",
        ),
        strict=True,
    ):
        theirs = np.array(coefficients.split(), float)
        np.testing.assert_allclose(ef.minimise(fit(data)).theta, theirs, rtol=1e-10)


def test_the_second_stage_counts_as_far_as_the_first_was_sampled() -> None:
    """svydesign(id=~dnum+snum, weights=~pw), then with fpc=~fpc1+I(fpc2*0+Inf)."""
    two = ef.Survey(("dnum", "snum"))
    none = "30.8795377481 1.40753969606 1.10526858138 0.530481612716"
    agrees(classical(fit(CLUS2), two), none, 39)
    infinite = replace(two, fpc=("fpc1", None), lonely="certainty")
    se = "30.2950909012 1.38346895449 1.08490359724 0.624207539769"
    made = classical(fit(CLUS2), infinite)
    agrees(made, se, 39)
    assert made.design == "40 PSUs in 1 strata, 126 units inside, finite population"
    agrees(classical(fit(CLUS2), replace(infinite, fpc="fpc1")), se, 39)
    whole = ef.target(fit(CLUS2), dependence=two)
    one = ef.target(fit(CLUS2), dependence=ef.Survey("dnum"))
    np.testing.assert_array_equal(whole.covariance, one.covariance)


def inside() -> pd.DataFrame:
    """Return districts with eight schools or more, the first of each a stratum of its own.

    sub <- subset(apiclus1, dnum %in% names(which(table(apiclus1$dnum) >= 8)))
    sub$k <- ave(sub$pw, sub$dnum, FUN=seq_along); sub$n <- ave(sub$pw, sub$dnum, FUN=length)
    sub$inside <- ifelse(sub$k==1, "a", ifelse(sub$k <= sub$n/2, "b", "c")); sub$f1 <- 30
    sub$f2 <- 40; svydesign(id=~dnum+k, strata=~I(dnum*0+1)+inside, fpc=~f1+f2, weights=~pw)
    """
    size = CLUS1.groupby("dnum")["pw"].transform("size")
    sub = CLUS1[size >= 8].assign(n=size, f1=30.0, f2=40.0)
    sub["k"] = sub.groupby("dnum").cumcount() + 1
    sub["inside"] = np.where(sub["k"] == 1, "a", np.where(sub["k"] <= sub["n"] / 2, "b", "c"))
    return sub


# options(survey.lonely.psu="adjust"), then "certainty" (the same as "remove") and "average"
@pytest.mark.parametrize(
    ("lonely", "plain", "finite", "stages"),
    [
        (
            "center",
            "9.27904918549 0.292553649535 0.190778003826 0.347279753551",
            "6.56127860202 0.206866669447 0.134900420207 0.245563868705",
            "17.0422842482 0.34711996227 0.259389372452",
        ),
        (
            "certainty",
            "9.27903680965 0.292553629969 0.190768040693 0.3472746469",
            "6.56126985098 0.206866655612 0.134893375207 0.245560257757",
            "16.9476984337 0.345150945315 0.257686960168",
        ),
        (
            "average",
            "9.60471558932 0.302821776453 0.197463682058 0.359463410188",
            "6.79155952457 0.214127331621 0.139627908621 0.254179014932",
            "17.1500258886 0.360469975875 0.264220469567",
        ),
    ],
)
def test_lonely_units_agree_with_r(lonely: str, plain: str, finite: str, stages: str) -> None:
    """svydesign(id=~1, strata=~dnum, weights=~pw), then fpc=~I(2 * schools of the district)."""
    half = CLUS1.groupby("dnum")["pw"].transform("size") * 2.0
    alone = ef.Survey(strata="dnum", lonely=lonely)
    agrees(classical(fit(CLUS1), alone), plain, 168)
    agrees(classical(fit(CLUS1), replace(alone, fpc=half)), finite, 168)
    two = ef.Survey(("dnum", "k"), (None, "inside"), ("f1", "f2"), lonely)
    agrees(classical(fit(inside(), "short"), two), stages, 8)
    for criterion, design in ((fit(CLUS1), alone), (fit(inside(), "short"), two)):
        made = ef.target(criterion, dependence=design)
        assert made.correction == "survey-CR3"
        assert np.all(made.dof > 1)
        assert np.all((made.inflation > 0.5) & (made.inflation < 3))


def test_lonely_units_that_nothing_is_known_about_are_refused() -> None:
    two = ef.Survey(("dnum", "snum"), fpc=("fpc1", None))
    for lonely in ("error", "average"):
        design = replace(two, lonely=lonely)
        refused(
            "strata",
            "single second-stage unit in 15",
            lambda design=design: ef.target(fit(CLUS2), dependence=design),
        )
    every = ef.Survey(strata=np.arange(183), lonely="average")
    refused("strata", "single PSU in 0, 1", lambda: ef.target(fit(CLUS1), dependence=every))


def test_the_form_of_two_stages_is_its_matrix() -> None:
    outer = StratumDeviations(np.array([0, 0, 0, 1]), np.array([3, 1]), np.array([0.5, 0.2]))
    strata, psu = np.array([0, 0, 1, 1, 1, 2, 3, 3, 4]), np.array([0, 0, 1, 1, 1, 1, 2, 2, 3])
    sampled, scale = np.array([0.1, 0.0, 0.3, 0.5, 0.0]), np.array([0.5, 0.5, 0.5, 0.5, 0.2])
    inner = StratumDeviations(strata, np.bincount(strata), sampled, scale)
    form = TwoStages(outer, inner, psu)
    sums = (psu == np.arange(4)[:, None]).astype(float)
    M = sums.T @ outer.times(np.eye(4)) @ sums + inner.times(np.eye(9))
    rng = np.random.default_rng(0)
    columns, x, y = rng.standard_normal((9, 2)), rng.random(9), rng.random(9)
    np.testing.assert_allclose(form.times(columns), M @ columns, atol=1e-12)
    np.testing.assert_allclose(form.diagonal, np.diagonal(M), atol=1e-12)
    assert form.hadamard(x, y) == pytest.approx(x @ np.square(M) @ y, rel=1e-12)
    columns -= columns.mean(axis=0)  # where the grand mean is zero the form is the matrix
    extra = sums @ columns
    np.testing.assert_allclose(extra.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(form.square(columns), columns.T @ M @ columns, atol=1e-12)


def test_units_inside_psus_take_the_leverage_of_their_psu() -> None:
    """Totals of corrected units are the corrected totals: one stage is what is left at f = 0."""
    data = CLUS2.assign(many=1e12)
    two = ef.Survey(("dnum", "snum"), fpc=("many", "fpc2"))
    made = ef.target(fit(data), dependence=two)
    one = ef.target(fit(data), dependence=ef.Survey("dnum"))
    np.testing.assert_allclose(made.covariance, one.covariance, rtol=1e-8)
    np.testing.assert_allclose(made.dof, one.dof, rtol=1e-8)
    np.testing.assert_allclose(made.inflation, one.inflation, rtol=1e-8)


def test_a_census_of_psus_has_the_second_stage_alone() -> None:
    """Then PSUs are strata of their units: the same variance and laws, but for leverage."""
    data = inside().assign(f1=9.0)
    two = classical(fit(data, "short"), ef.Survey(("dnum", "k"), fpc=("f1", "f2")))
    one = classical(fit(data, "short"), ef.Survey("k", "dnum", fpc="f2"))
    np.testing.assert_allclose(two.covariance, one.covariance, rtol=1e-10)


# --- calibrated weights ---------------------------------------------------------------------------

POPULATION = np.array([6194.0, 755.0, 1018.0, 3914069.0])
STYPE, WIDE = {"E": 4421, "H": 755, "M": 1018}, {"No": 1072, "Yes": 5122}


def auxiliaries(data: pd.DataFrame) -> np.ndarray:
    columns = [data["one"], data["stype"] == "H", data["stype"] == "M", data["api99"]]
    return np.column_stack(columns).astype(float)


def regression_weights(data: pd.DataFrame, X: np.ndarray, totals: np.ndarray) -> np.ndarray:
    w = data["pw"].to_numpy()
    return w * (1 + X @ np.linalg.solve((X.T * w) @ X, totals - X.T @ w))


def exponential_weights(data: pd.DataFrame, X: np.ndarray, totals: np.ndarray) -> np.ndarray:
    steps, w = np.zeros(X.shape[1]), data["pw"].to_numpy()
    for _ in range(30):
        w = data["pw"].to_numpy() * np.exp(X @ steps)
        steps += np.linalg.solve((X.T * w) @ X, totals - X.T @ w)
    return w


def test_calibrated_weights_agree_with_r() -> None:
    """calibrate(dclus1, ~stype+api99, pop), with calfun="raking", epsilon=1e-13; of dstrat.

    pop <- c(`(Intercept)`=6194, stypeH=755, stypeM=1018, api99=3914069)
    """
    design = ef.Survey("dnum", fpc="fpc", calibrated=["stype", "api99"], base_weights="pw")
    X = auxiliaries(CLUS1)
    linear = regression_weights(CLUS1, X, POPULATION)
    np.testing.assert_allclose(linear[:2], [51.6327425949, 27.0383583151], rtol=1e-10)
    se = "16.1895009527 0.327988850399 0.295370903963 0.468790845713"
    made = classical(fit(CLUS1, weights=linear), design)
    agrees(made, se, 14)
    assert made.design == "15 PSUs in 1 strata, finite population, calibrated weights"
    se = "0.532231518542 0.0164129324181 0.0107007273551"
    agrees(classical(fit(CLUS1, "logistic", linear), design), se, 14, 1e-6)
    raked = exponential_weights(CLUS1, X, POPULATION)
    np.testing.assert_allclose(raked[:2], [49.2163861374, 26.7212671665], rtol=1e-10)
    se = "16.2076023084 0.316936792551 0.289507936705 0.496568717765"
    agrees(classical(fit(CLUS1, weights=raked), design), se, 14)
    matrix = replace(design, calibrated=X, base_weights=CLUS1["pw"])  # the same space
    agrees(classical(fit(CLUS1, weights=raked), matrix), se, 14)
    strata = replace(design, psu=None, strata="stype")
    weights = regression_weights(STRAT, auxiliaries(STRAT), POPULATION)
    se = "8.98978534584 0.390886134852 0.277543365068 0.39096692131"
    agrees(classical(fit(STRAT, weights=weights), strata), se, 197)


def test_calibration_goes_through_two_stages() -> None:
    """calibrate(dclus2, ~api99, c(`(Intercept)`=6194, api99=3914069))."""
    X = CLUS2[["one", "api99"]].to_numpy()
    weights = regression_weights(CLUS2, X, POPULATION[[0, 3]])
    two = DESIGNS["dclus2"][1]
    design = replace(two, calibrated=CLUS2[["one", "api99"]], base_weights="pw")
    se = "23.4943189624 1.29306926444 0.918269967526 0.629105678403"
    agrees(classical(fit(CLUS2, weights=weights), design), se, 39)


def test_post_strata_and_margins_agree_with_r() -> None:
    """postStratify(dclus1, ~stype, pop.types); rake(dclus1, list(~stype, ~sch.wide), ...).

    Raked with control=list(epsilon=1e-9, maxit=500). R's residuals on margins are not weighted.
    """
    factor = CLUS1["stype"].map(STYPE) / CLUS1.groupby("stype")["pw"].transform("sum")
    post = ef.Survey("dnum", fpc="fpc", calibrated="stype")
    for design in (post, replace(post, base_weights="pw")):  # weights change by cells only
        se = "21.9917967318 0.300286347571 0.301868046221 0.405358453264"
        agrees(classical(fit(CLUS1, weights=CLUS1["pw"] * factor), design), se, 14)
        se = "0.214440628076 0.00633053194329 0.00171452244543"
        agrees(classical(fit(CLUS1, "Poisson", CLUS1["pw"] * factor), design), se, 14)
    raked = CLUS1["pw"].copy()
    for _ in range(100):
        for name, margin in {"stype": STYPE, "schwide": WIDE}.items():
            raked *= CLUS1[name].map(margin) / raked.groupby(CLUS1[name]).transform("sum")
    design = replace(post, calibrated=["stype", "schwide"], base_weights="one")
    se = "21.0669196049 0.292045412716 0.300721709047 0.400720186906"
    agrees(classical(fit(CLUS1, weights=raked), design), se, 14)
    by_leverage = ef.target(fit(CLUS1, weights=raked), dependence=design)
    assert np.all(by_leverage.se > classical(fit(CLUS1, weights=raked), design).se)


def test_a_total_that_was_calibrated_to_has_no_variance_left() -> None:
    """The mean of a calibrated variable is known: its scores are what the regression explains."""
    weights = regression_weights(CLUS1, auxiliaries(CLUS1), POPULATION)
    data = CLUS1[["one"]].to_numpy(), CLUS1["api99"].to_numpy(float)
    mean = ef.Criterion(ef.losses.Squared(), data, weights=weights, weight_kind="sampling")
    made = ef.target(mean, dependence=ef.Survey(CLUS1["dnum"]), correction="survey")
    assert made.center[0] == pytest.approx(POPULATION[3] / POPULATION[0], rel=1e-10)
    design = ef.Survey(CLUS1["dnum"], calibrated=auxiliaries(CLUS1)[:, :1])
    assert classical(mean, design).se[0] == pytest.approx(made.se[0], rel=1e-8)
    known = replace(design, calibrated=auxiliaries(CLUS1))
    assert classical(mean, known).se[0] < 1e-8 * made.se[0]


# --- replicate weights ----------------------------------------------------------------------------


# as.svrepdesign of svydesign(id=~dnum, weights=~pw, data=apiclus1), of dclus1 and of dstrat
@pytest.mark.parametrize(
    ("name", "model", "se"),
    [
        ("JK1", "linear", "23.2090312048 0.355290639817 0.300445006212 0.54371118661"),
        ("JK1", "logistic", "0.540724526484 0.0137249573775 0.00970580098057"),
        ("JK1", "Poisson", "0.167550523416 0.00613040234686 0.002698624022"),
        ("dclus1", "linear", "22.9779365217 0.351752974798 0.297453444742 0.538297399051"),
        ("dstrat", "linear", "10.5190385849 0.406032280757 0.29385681871 0.451473923504"),
        ("dstrat", "logistic", "0.32335128871 0.0138283199039 0.00896394009566"),
        ("dstrat", "Poisson", "0.0757896467882 0.00263966066234 0.00219681737908"),
    ],
)
def test_jackknife_replicates_agree_with_r(name: str, model: str, se: str) -> None:
    data, design, dof = {**DESIGNS, "JK1": (CLUS1, ef.Survey("dnum"), 14)}[name]
    criterion = fit(data, model)
    replicates = design.replicates(criterion, "JKn" if name == "dstrat" else "JK1")
    agrees(ef.target(criterion, dependence=replicates), se, dof)


def test_deviations_are_from_the_mean_or_from_the_estimate() -> None:
    """as.svrepdesign(dstrat, mse=TRUE)."""
    criterion = fit(STRAT)
    replicates = replace(DESIGNS["dstrat"][1].replicates(criterion), mse=True)
    se = "10.5190615862 0.406032452105 0.293857219622 0.451486764111"
    agrees(ef.target(criterion, dependence=replicates), se, 197)


# s2 <- apistrat[1:176,]; s2$h <- rep(1:22, each=8); s2$c <- rep(rep(1:2, each=4), 22)
# h32 <- matrix(1,1,1); while(nrow(h32) <= 22) h32 <- rbind(cbind(h32,h32), cbind(h32,-h32))
# as.svrepdesign(svydesign(id=~c, strata=~h, weights=~pw, data=s2, nest=TRUE), type="BRR",
#   hadamard.matrix=h32), then type="Fay", fay.rho=0.3; the same with mse=TRUE
@pytest.mark.parametrize(
    ("kind", "linear", "mse", "logistic"),
    [
        (
            "BRR",
            "10.52381487 0.4318562621 0.278080126656 0.564497402841",
            "10.6243921834 0.432050752739 0.278261695657 0.577918857691",
            "0.296551418565 0.0143126499193 0.00796459539929",
        ),
        (
            "Fay",
            "9.91667143098 0.42266277616 0.272215432969 0.468203219978",
            "9.95201797779 0.422747356412 0.272275492474 0.473649613502",
            "0.293962368086 0.0135357820622 0.00755734064391",
        ),
    ],
)
def test_balanced_replicates_agree_with_r(kind: str, linear: str, mse: str, logistic: str) -> None:
    stratum = (np.arange(176) // 8 + 1).astype(str)  # in R's order of labels
    data = STRAT[:176].assign(h=stratum, c=np.arange(176) // 4 % 2)
    rho = 0.3 if kind == "Fay" else None
    for model, se in {"linear": linear, "logistic": logistic}.items():
        criterion = fit(data, model)
        replicates = ef.Survey("c", "h").replicates(criterion, kind, rho=rho)
        agrees(ef.target(criterion, dependence=replicates), se, 22)
        if model == "linear":
            agrees(ef.target(criterion, dependence=replace(replicates, mse=True)), mse, 22)


def test_bootstrap_replicates_agree_with_r_in_every_form() -> None:
    """svrepdesign(repweights=reps, weights=~pw, type="bootstrap", combined.weights=FALSE).

    g <- as.integer(factor(apiclus1$dnum))
    reps <- sapply(1:40, function(r) ((g*(r+3)*7 + r*r*5 + g*g*3) %% 11) %% 4)
    """
    g = np.unique(CLUS1["dnum"], return_inverse=True)[1] + 1
    reps = np.column_stack(
        [(g * (r + 3) * 7 + r * r * 5 + g * g * 3) % 11 % 4 for r in range(1, 41)]
    )
    names = [f"rep{r}" for r in range(40)]
    columns = pd.DataFrame(reps, CLUS1.index, names)
    criterion = fit(pd.concat([CLUS1, columns], axis=1))
    se = "14.3092306318 0.196273563283 0.233417866133 0.366158166877"
    for weights in (reps, columns[::-1], names, "^rep[0-9]+$"):
        given = ef.ReplicateWeights(weights, "bootstrap", combined=False)
        agrees(ef.target(criterion, dependence=given), se, 10)
    combined = ef.ReplicateWeights(reps * CLUS1["pw"].to_numpy()[:, None], "bootstrap", mse=True)
    se = "14.3160563119 0.196549303976 0.233750997866 0.387655929754"
    made = ef.target(criterion, dependence=combined)
    agrees(made, se, 10)
    assert made.describe() == (
        "sandwich, 40 bootstrap replicates, refits, t with 10 degrees of freedom"
    )
    assert ef.target(criterion, dependence=replace(combined, dof=14.0)).dof.tolist() == [14.0] * 4


def test_survival_after_cardiac_arrest() -> None:
    """svyratio(~alive, ~arrests, scdrep) of example(svrepdesign), as log(ratio) of a Poisson fit.

    svyglm(alive ~ offset(log(arrests)), scdrep, family=quasipoisson): se 0.0628485554027.
    """
    arrests, alive = np.array([120, 78, 185, 228, 670, 530.0]), [25, 24, 30, 49, 80, 70]
    half = np.array(
        [[1, 0, 1, 0, 1, 0], [1, 0, 0, 1, 0, 1], [0, 1, 1, 0, 0, 1], [0, 1, 0, 1, 1, 0]]
    )
    data, loss = (np.ones((6, 1)), np.array(alive, float)), ef.losses.Poisson()
    criterion = ef.Criterion(loss, data, offset=np.log(arrests))
    made = ef.target(criterion, dependence=ef.ReplicateWeights(2.0 * half.T, "BRR"))
    assert np.exp(made.center[0]) == pytest.approx(0.1535063500828272, rel=1e-10)
    agrees(made, "0.0628485554027", 3)


def test_jackknife_factors_follow_from_strata() -> None:
    criterion = fit(STRAT)
    replicates = ef.Survey(strata="stype").replicates(criterion)
    found = replace(replicates, rscales=None, strata="stype")
    same = [ef.target(criterion, dependence=each).covariance for each in (replicates, found)]
    np.testing.assert_allclose(*same, rtol=1e-12)
    refused(
        "strata",
        "replicate 0 leaves out",
        lambda: ef.target(
            criterion, dependence=replace(found, weights=np.asarray(found.weights) + 1.0)
        ),
    )


def test_a_penalty_and_a_plug_in_are_refitted_too() -> None:
    """The jackknife of a ridge by hand: every replicate has its own size."""
    X, y = STRAT[["one", "ell", "meals"]].to_numpy(float)[::8], STRAT["api00"].to_numpy(float)[::8]
    left = 1.0 - np.eye(len(y))
    ridge = ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.Ridge(0.7))
    made = ef.target(ridge, dependence=ef.ReplicateWeights(left, "JK1"))
    refits = np.array([ef.minimise(ridge.reweighted(w)).theta for w in left])
    deviations = refits - refits.mean(axis=0)
    by_hand = (len(y) - 1) / len(y) * deviations.T @ deviations
    np.testing.assert_allclose(made.covariance, by_hand, rtol=1e-8)
    A = made.hessian
    np.testing.assert_allclose(made.meat, A @ by_hand @ A, rtol=1e-8)
    huber = ef.Criterion(ef.losses.Huber(scale="mad"), (X, y))
    jackknife = ef.target(huber, dependence=ef.ReplicateWeights(left, "JK1"))
    np.testing.assert_allclose(jackknife.se, ef.target(huber).se, rtol=0.1)


def test_refits_of_a_loss_in_jax_are_those_of_the_same_loss_here() -> None:
    pytest.importorskip("jax")
    data = CLUS1[["one", "ell"]].to_numpy(float), CLUS1["api00"].to_numpy(float) / 100
    weights = {"weights": CLUS1["pw"].to_numpy(), "weight_kind": "sampling"}
    plain = ef.Criterion(ef.losses.Squared(), data, **weights)

    def half_square(theta, row):
        x, y = row
        return 0.5 * (y - x @ theta) ** 2

    written = ef.Criterion(ef.JaxLoss(half_square), data, start=np.zeros(2), **weights)
    replicates = ef.Survey(CLUS1["dnum"]).replicates(plain, "JK1")
    ours, theirs = (ef.target(c, dependence=replicates) for c in (written, plain))
    np.testing.assert_allclose(ours.covariance, theirs.covariance, rtol=1e-6)


def test_rao_and_wus_bootstrap_has_the_variance_of_the_design() -> None:
    """For a mean its expectation is the classical formula, with the finite population."""
    data, weights = (STRAT[["one"]].to_numpy(), STRAT["api00"].to_numpy(float)), STRAT["pw"]
    criterion = ef.Criterion(ef.losses.Squared(), data, weights=weights, weight_kind="sampling")
    design = ef.Survey(strata=STRAT["stype"], fpc=STRAT["fpc"])
    boot = ef.target(criterion, dependence=design.replicates(criterion, "bootstrap", count=2000))
    np.testing.assert_allclose(boot.se, classical(criterion, design).se, rtol=0.08)
    factors = np.asarray(design.replicates(criterion, "bootstrap", count=50, seed=1).weights)
    factors = factors / STRAT["pw"].to_numpy()[:, None]
    sums = pd.DataFrame(factors).groupby(STRAT["stype"]).sum()
    np.testing.assert_allclose(sums, np.array([[100.0], [50.0], [50.0]]) * np.ones(50), rtol=1e-12)
    assert factors.min() >= 0


def test_draws_are_calibrated_to_refits() -> None:
    criterion = fit(CLUS1, weights=CLUS1["pw"] / CLUS1["pw"].mean())
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 0.1), draws=500, seed=1)
    replicates = ef.Survey("dnum").replicates(criterion, "JK1")
    result = ef.calibrate(draws, criterion, dependence=replicates)
    agrees(result.target, "23.2090312048 0.355290639817 0.300445006212 0.54371118661", 14)
    assert len(result.summary()) == 4
    assert isinstance(result.flags(), str)


def test_the_rank_of_columns_is_that_of_an_orthogonal_decomposition() -> None:
    rng = np.random.default_rng(0)
    a = rng.random((30, 4))
    both = np.column_stack([a, a @ [1, 2, 0, 1.0], rng.random(30), a[:, 0] + 1e-9])
    assert column_rank(both) == 5
    assert column_rank(np.column_stack([a[:, 0], a[:, 0] * (1 + 1e-4 * rng.random(30))])) == 2


# --- what is refused ------------------------------------------------------------------------------


def test_what_means_nothing_is_refused() -> None:
    criterion, ones = fit(CLUS1), np.ones((183, 5))

    def using(design, criterion=criterion, **options):
        return lambda: ef.target(criterion, dependence=design, **options)

    def weights(*given, **options):
        return lambda: ef.target(criterion, dependence=ef.ReplicateWeights(*given, **options))

    refused("kind", "'jk9'", weights(ones, "jk9"))
    refused("rho", "None for kind 'Fay'", weights(ones, "Fay"))
    refused("rho", "less than one", weights(ones, "Fay", rho=1.0))
    refused("rho", "only then", weights(ones, "BRR", rho=0.5))
    refused("rscales", "JKn", weights(ones, "JKn"))
    refused("rscales", "(3,) for 5", weights(ones, "JKn", rscales=np.ones(3)))
    refused("strata", "JKn", weights(ones, "JK1", strata="stype"))
    refused("weights", "negative", weights(-ones, "JK1"))
    refused("weights", "180 entries for 183 rows", weights(ones[:180], "JK1"))
    refused("weights", "no column name", weights("rep", "JK1"))
    refused("weights", "not a valid pattern", weights("(", "JK1"))
    refused("dependence", "3 replicate weights for 4 parameters", weights(ones[:, :3], "JK1"))
    refused("correction", "fitted again", using(ef.ReplicateWeights(ones, "JK1"), correction="HC3"))
    refused("fpc", "one stage only", lambda: ef.Survey("dnum", fpc=("fpc", "fpc")))
    refused("base_weights", "calibrated=", lambda: ef.Survey("dnum", base_weights="pw"))
    calibrated = ef.Survey("dnum", calibrated="stype")
    domain = fit(CLUS1, weights=CLUS1["pw"] * (CLUS1["stype"] == "E"))
    refused("calibrated", "interactions", using(calibrated, domain))
    refused("calibrated", "calibrate each", lambda: calibrated.replicates(criterion))
    refused("base_weights", "negative", using(replace(calibrated, base_weights=-CLUS1["pw"])))
    alone = ef.Survey(strata="dnum", lonely="center")
    refused("lonely", "single PSU", lambda: alone.replicates(criterion))
    refused(
        "kind", "not allow strata", lambda: ef.Survey("dnum", "stype").replicates(criterion, "JK1")
    )
    refused("kind", "two PSUs", lambda: ef.Survey("dnum").replicates(criterion, "BRR"))
    parts = ef.Criterion.from_parts(ef.losses.Squared(), [CLUS1], "api00 ~ ell")
    refused("weights", "read in parts", using(ef.ReplicateWeights(["pw", "fpc"], "JK1"), parts))
    refused("calibrated", "read in parts", using(calibrated, parts))
    separated = np.where(np.arange(183)[:, None] % 6 == np.arange(6), 1.0, 0.0)
    separated[:, 0] = CLUS1["ell"] == CLUS1["ell"].iloc[0]
    with pytest.raises(ef.errors.ConvergenceError, match="1 of 6 replicates"):
        weights(separated, "JK1")()


def test_draws_with_log_likelihoods_need_a_criterion() -> None:
    rng = np.random.default_rng(0)
    y = rng.standard_normal(40)
    draws = rng.standard_normal((400, 1)) / np.sqrt(40)
    log_likelihood = -0.5 * (y - draws) ** 2
    given = ef.ReplicateWeights(1 - np.eye(40), "JK1")
    for argument, design in (
        ("dependence", given),
        ("calibrated", ef.Survey(calibrated=np.ones(40))),
    ):
        refused(
            argument,
            "criterion",
            lambda design=design: ef.calibrate(
                draws, log_likelihood=log_likelihood, dependence=design
            ),
        )


def test_two_stages_in_draws_and_in_parts_are_those_of_rows(tmp_path) -> None:
    CLUS2.to_parquet(tmp_path / "schools.parquet")
    formula, loss = MODELS["short"]
    options = {"weights": "pw", "weight_kind": "sampling"}
    path = tmp_path / "schools.parquet"
    parts = ef.Criterion.from_parquet(loss, path, formula, batch=50, **options)
    design = DESIGNS["dclus2"][1]
    for correction in ("survey", "survey-CR3"):
        pair = [
            ef.target(criterion, dependence=design, correction=correction)
            for criterion in (parts, fit(CLUS2, "short"))
        ]
        np.testing.assert_allclose(pair[0].covariance, pair[1].covariance, rtol=1e-8)
        np.testing.assert_allclose(pair[0].dof, pair[1].dof, rtol=1e-6)


def test_replicates_of_pairs_and_equations_are_their_jackknife() -> None:
    """Leaving out a unit is linear in both, so that refits are what HC3 has in one step."""
    rng = np.random.default_rng(2)
    z = rng.standard_normal(40)
    x = z + rng.standard_normal(40)
    y = x + rng.standard_normal(40)
    pairs = ef.Criterion(ef.PairwiseDifference(ef.losses.Squared()), (x[:, None], y))
    one = np.ones(40)
    data = {"X": np.column_stack([one, x]), "Z": np.column_stack([one, z]), "y": y}
    moments = ef.Moments(lambda b, row: row["Z"] * (row["y"] - row["X"] @ b))
    jackknife = ef.ReplicateWeights(40 / 39 * (1 - np.eye(40)), "JK1", mse=True)
    for criterion in (pairs, ef.Criterion(moments, data, start=np.zeros(2))):
        refits = ef.target(criterion, dependence=jackknife).covariance
        leaving = ef.target(criterion, correction="HC3").covariance
        np.testing.assert_allclose(refits, 39 / 40 * leaving, rtol=1e-6)
