"""Bad posteriors, samplers and fits: improper, collinear or separated ones are refused."""

import numpy as np
import pytest

import etafree as ef
from conftest import refused
from etafree import losses, penalties
from etafree.errors import ConvergenceError

N, P = 40, 3
RNG = np.random.default_rng(20)
X = np.column_stack([np.ones(N), RNG.standard_normal((N, P - 1))])
Y = X @ [1.0, 2.0, -1.0] + RNG.standard_normal(N)
ONES = np.ones(N)


def criterion(loss=None, X=X, y=Y, penalty=None, **options):
    return ef.Criterion(loss or losses.Squared(), (X, y), penalty, **options)


CRITERION = criterion(names=["a", "b", "c"])
POSTERIOR = ef.GeneralizedPosterior(CRITERION, eta=1.0)


def prior(value=0.0, gradient=None, hessian=None):
    gradient = np.zeros(P) if gradient is None else gradient
    hessian = np.zeros((P, P)) if hessian is None else hessian
    return ef.LogPrior(lambda t, n: value, lambda t, n: gradient, lambda t, n: hessian)


def posterior(log_prior=None, of=CRITERION, eta=1.0):
    return ef.GeneralizedPosterior(of, eta, log_prior)


STUDENT = criterion(losses.StudentT(df=4.0))
POSTERIORS = [
    ("criterion", "is a str", lambda: posterior(of="criterion")),
    ("log_prior", "ef.LogPrior", lambda: posterior(lambda t: 0.0)),
    ("log_prior", "its value: has 1 entries that are NaN", lambda: posterior(prior(np.nan))),
    ("log_prior", "its gradient: has shape (2,)", lambda: posterior(prior(gradient=np.zeros(2)))),
    ("log_prior", "its Hessian: has shape (3,)", lambda: posterior(prior(hessian=np.zeros(P)))),
    ("eta", "improper", lambda: posterior(of=STUDENT, eta=1e-3)),
    ("posterior", "ef.GeneralizedPosterior", lambda: ef.sample(CRITERION)),
    ("sampler", "'quadrature' is for one", lambda: ef.sample(POSTERIOR, sampler="quadrature")),
    ("draws", "cannot be checked", lambda: ef.sample(POSTERIOR, draws=0)),
    ("draws", "whole number", lambda: ef.sample(POSTERIOR, draws=10.0)),
    ("draws", "whole number", lambda: ef.sample(POSTERIOR, draws=True)),
    ("draws", "whole number", lambda: ef.sample(POSTERIOR, draws="100")),
    ("seed", "pass an int", lambda: ef.sample(POSTERIOR, seed="abc")),
    ("seed", "pass an int", lambda: ef.sample(POSTERIOR, seed=-1)),
    ("seed", "pass an int", lambda: ef.sample(POSTERIOR, seed=1.5)),
    ("sampler", "'importance', 'elliptical'", lambda: ef.sample(POSTERIOR, sampler="gibbs")),
]


@pytest.mark.parametrize(("argument", "fragment", "call"), POSTERIORS)
def test_posteriors_and_samplers_refuse_what_they_cannot_use(argument, fragment, call):
    refused(argument, fragment, call)


def test_an_improper_posterior_is_proper_again_under_a_penalty_or_a_larger_rate():
    assert ef.GeneralizedPosterior(STUDENT, eta=0.1).eta == 0.1
    penalized = criterion(losses.StudentT(df=4.0), penalty=penalties.Ridge(0.1))
    assert ef.GeneralizedPosterior(penalized, eta=1e-3).eta == 1e-3


LOSSES = [
    losses.Squared(),
    losses.Huber(),
    losses.Huber(scale="mad"),
    losses.StudentT(),
    losses.Quantile(0.3, 0.5),
]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_collinear_columns_are_named(loss, noise):
    column = X[:, 1] - X[:, 2] + noise * np.random.default_rng(3).standard_normal(N)
    wide = criterion(loss, X=np.column_stack([X, column]), names=["one", "u", "v", "sum"])
    for call in (ef.minimise, ef.target, lambda c: ef.sample(posterior(of=c))):
        refused("X", "['u', 'v', 'sum'] are collinear", lambda call=call: call(wide))


def test_more_columns_than_rows_and_columns_of_zeros_are_refused():
    wide = criterion(X=np.random.default_rng(5).random((3, 5)), y=Y[:3])
    refused("X", "n = 3, p = 5", lambda: ef.minimise(wide))
    zero = criterion(X=np.column_stack([X, 0 * ONES]), names=["a", "b", "c", "none"])
    refused("X", "column 'none' is zero", lambda: ef.minimise(zero))


DOSE = np.linspace(-1, 1, N)
SLOPE, STEP = np.column_stack([ONES, DOSE]), np.column_stack([ONES, DOSE > 0])
COUNTS = np.random.default_rng(4).poisson(3, N) * (DOSE <= 0)
SEPARATED = {
    "logistic": (losses.Logistic(), SLOPE, DOSE > 0),
    "logistic in small units": (losses.Logistic(), SLOPE * [1, 1e-3], DOSE > 0),
    "logistic in one group only": (losses.Logistic(), STEP, (DOSE > 0) | (np.arange(N) % 3 == 0)),
    "logistic with trials": (losses.Logistic(), STEP, np.where(DOSE > 0, 4, np.arange(N) % 4)),
    "counts": (losses.Poisson(), STEP, COUNTS),
    "dispersed counts": (losses.NegativeBinomial(0.5), STEP, COUNTS),
}


@pytest.mark.parametrize("which", SEPARATED)
def test_separated_data_have_no_finite_minimiser_and_the_column_is_named(which):
    loss, columns, response = SEPARATED[which]
    trials = 4 * ONES if "trials" in which else None
    separated = criterion(loss, columns, response, trials=trials, names=["one", "dose"])
    for call in (ef.minimise, ef.target, lambda c: ef.sample(posterior(of=c))):
        with pytest.raises(ConvergenceError, match=r"'dose' runs off to infinity.*Ridge"):
            call(separated)
    penalized = separated.with_penalty(penalties.Ridge(0.1))
    assert np.isfinite(ef.minimise(penalized).theta).all()
