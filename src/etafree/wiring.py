"""What calibrate() was given, sorted out: fits, draws, criteria and targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from etafree.adapters import as_fit
from etafree.axes import axis_names, in_order
from etafree.centers import find_center
from etafree.checks import left_out
from etafree.criterion import Criterion
from etafree.dependence import Dependence, find_dependence
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.fits import Fit
from etafree.influence import PointwiseArray
from etafree.jackknife import jackknife_target
from etafree.linear import PredictorTotal
from etafree.posterior import GeneralizedPosterior
from etafree.row_losses import RowLosses
from etafree.rows import Rows
from etafree.targets import Target
from etafree.validation import as_array, as_choice, as_names, as_positive

__all__ = ["estimated", "find_fit", "given_target", "jackknifed", "named", "refuse_unused"]

#: What calibrate() takes as draws.
DRAWS = (
    "draws as an array (draw, p) or (chain, draw, p), or a fit: InferenceData, DataTree, its file, "
    "a Stan fit or a NumPyro MCMC"
)


def find_fit(
    draws: Any, stored: bool, *, log_likelihood: Any, eta: float | None, names: Any, model: Any,
    prior: str | None, **more: Any,
) -> Fit | None:  # fmt: skip
    """Return draws as a fit if they come from elsewhere or with a log-likelihood, else None.

    `stored` says that the fit must bring its own losses.
    """
    if draws is None:
        raise InputError("draws", "is None", f"pass {DRAWS}")
    if callable(draws) or any(cls.__name__.endswith("Model") for cls in type(draws).__mro__):
        raise InputError("draws", "is a model, not what was drawn from it",
                         f"pass {DRAWS}; the model goes to model=")  # fmt: skip
    if prior is not None:
        as_choice(prior, "prior", ("scaled", "unscaled"))
        if model is None:
            raise InputError("prior", "is about a model's prior", "pass model=")
    elif model is not None and eta is not None and as_positive(eta, "eta") != 1:
        raise InputError("prior", f"is missing: at eta = {eta:g} the model's prior was either "
                         "multiplied by eta or not", "pass 'scaled' or 'unscaled'")  # fmt: skip
    if model is not None and not stored:
        raise InputError("model", "cannot be combined with a criterion or covariance",
                         "pass one of them")  # fmt: skip
    plain = log_likelihood is None or isinstance(log_likelihood, str) or (
        isinstance(log_likelihood, list | tuple)
        and all(isinstance(name, str) for name in log_likelihood)
    )  # fmt: skip
    chosen = log_likelihood if plain else None
    fit = as_fit(draws, model=model, eta=eta, prior=prior, log_likelihood=chosen, stored=stored,
                 **more)  # fmt: skip
    if fit is not None:
        if names is not None:
            raise InputError("names", "are the fit's own", "choose with var_names=")
        if not plain:
            raise InputError("log_likelihood", "is stored in the fit", "pass the variable's name")
        return fit
    for argument in ("var_names", "filter_vars"):
        if more[argument] is not None:
            raise InputError(argument, "is for fits of other packages", "use Draws.select()")
    if log_likelihood is None:
        return None
    if isinstance(log_likelihood, Criterion):
        return _fit_of_rows(draws, log_likelihood, stored, eta, names)
    if plain:
        raise InputError("log_likelihood", f"names {log_likelihood!r}, but these are plain draws",
                         "pass an array (draw, n), or a criterion")  # fmt: skip
    _check_alone(stored)
    made = Draws.of(draws, names, eta)
    floats = type(log_likelihood) is np.ndarray and log_likelihood.dtype.kind == "f"
    values = log_likelihood if floats else as_array(log_likelihood, "log_likelihood")
    if values.ndim == 3 and values.shape[:2] == made.values.shape[:2]:
        values = values.reshape(-1, values.shape[2])
    if values.ndim != 2 or len(values) != len(made):
        raise InputError("log_likelihood", f"has shape {values.shape} for {len(made)} draws",
                         "pass (draw, n) or (chain, draw, n)")  # fmt: skip
    made = replace(made, eta=1.0) if made.eta is None else made
    return Fit(made, None, losses=PointwiseArray(values))


def refuse_unused(
    fit: Fit | None, criterion: Any, covariance: Any, given: Mapping[str, tuple[Any, Any]]
) -> None:
    """Refuse arguments that the route makes no use of.

    `given` holds values and defaults. What belongs to other packages' fits and models, or is
    refused together with the labels that it is about, is not asked for here.
    """
    if fit is not None and fit.criterion is not None and criterion is not None:
        raise InputError("criterion", "cannot be combined with a fit that brings its model",
                         "pass its draws as an array")  # fmt: skip
    unused: tuple[str, ...] = ("latent", "log_likelihood")
    route = "a criterion"
    if covariance is not None or isinstance(criterion, Target):
        route = "a Target" if covariance is None else "covariance="
        unused += ("single_psu", "centered", "estimand")
    elif criterion is None and fit is not None:
        exact = fit.criterion is not None
        route = "a fit's model" if exact else "a pointwise log-likelihood"
        unused = () if fit.tree is not None else ("latent",)
        unused += ("estimand",)
    for argument in unused:
        value, default = given[argument]
        if value is not default and not (isinstance(value, str) and value == default):
            raise InputError(argument, f"means nothing with {route}", "leave it out")


def _check_alone(stored: bool) -> None:
    if not stored:
        raise InputError("log_likelihood", "cannot be combined with a criterion or covariance",
                         "pass one of them")  # fmt: skip


def _fit_of_rows(
    draws: Any, criterion: Criterion, stored: bool, eta: float | None, names: Any
) -> Fit:
    """Return draws with the losses of a criterion's rows, in memory or read in parts."""
    _check_alone(stored)
    if not isinstance(criterion.total, PredictorTotal):
        raise InputError("log_likelihood", f"is a criterion of {criterion.loss!r}, which has no "
                         "linear predictor", "pass it as criterion=")  # fmt: skip
    made = named(Draws.of(draws, names, eta), criterion, names is not None)
    made = replace(made, eta=1.0) if made.eta is None else made
    losses = RowLosses(criterion.total, made.array, criterion.rows, criterion.describe())
    return Fit(made, None, losses=losses)


def jackknifed(
    fit: Fit, latent: str | None, labels: Mapping[str, Any], parts: Mapping[str, Any], *,
    center: Any, single_psu: str, bandwidth: Any, correction: str | None, dof: float | None,
    centered: bool, working: str,
) -> tuple[Target, Dependence | None]:  # fmt: skip
    """Return the target of a fit that has losses only, and which observations depend."""
    for argument, value in parts.items():
        if value is not None:
            raise InputError(argument, "needs a criterion", "the jackknife has its own")
    if not centered:
        raise InputError("centered", "is False", "the jackknife centres its influences")
    if working != "draws":
        raise InputError("working", f"{working!r} needs a Hessian", "pass model= or a criterion")
    at, own = "mean" if center is None else center, fit.draws
    kind, point = find_center(at, None, own.mean, own.names)
    losses, rows = fit.losses, getattr(fit.losses, "rows", Rows(fit.losses.n))
    clusters = labels["clusters"]
    rest = {name: value for name, value in labels.items() if name != "clusters"}
    copies = isinstance(losses, RowLosses) and losses.total.copies
    dependence = find_dependence(rows, clusters, single_psu=single_psu, copies=copies, **rest)
    if latent is not None and fit.tree is not None:
        from etafree.adapters.latent import refuse_latent

        refuse_latent(fit.tree, losses, dependence)
    assert fit.draws.eta is not None
    goal = jackknife_target(
        fit.draws, losses, dependence, eta=fit.draws.eta, every=fit.every, correction=correction,
        bandwidth=bandwidth, dof=dof,
    )  # fmt: skip
    named_loss: str | None = getattr(losses, "estimand", None)
    if named_loss is not None:
        known = left_out(rows.missing, rows.original), losses.checks, goal.checks
        goal = replace(goal, estimand=named_loss, checks=tuple(chain(*known)))
    return replace(goal, center=point, center_kind=kind), dependence


def estimated(
    criterion: Criterion, posterior: GeneralizedPosterior | None, estimand: str, center: Any,
    kind: str,
) -> Criterion:  # fmt: skip
    """Return the criterion whose minimiser is the target; refuse a mix of the two."""
    unscaled = posterior is not None and posterior.log_prior is not None
    if estimand == "posterior":
        if posterior is None or posterior.log_prior is None:
            raise InputError("estimand", "'posterior' needs a posterior with a log_prior",
                             "pass the GeneralizedPosterior, or leave it out")  # fmt: skip
        return posterior.energy
    if unscaled and (kind == "scale" or (isinstance(center, str) and center == "mean")):
        argument = "kind" if kind == "scale" else "center"
        raise InputError(
            argument, "keeps the posterior's own centre, which the log prior moves away from the "
            "penalized target", "pass estimand='posterior', or center='map'",
        )  # fmt: skip
    return criterion


def named(draws: Draws, goal: Criterion | Target, asked: bool) -> Draws:
    """Return the draws under the criterion's names; refuse draws of other parameters."""
    if draws.p != goal.p:
        raise InputError("draws", f"have {draws.p} parameters, the criterion {goal.p}",
                         f"pass draws of {list(goal.names)[:8]}")  # fmt: skip
    if set(draws.names) == set(goal.names):
        return draws.select(goal.names)
    if draws.names != as_names(None, draws.p):
        raise InputError(
            "names" if asked else "draws",
            f"are of {list(draws.names)}, the criterion of {list(goal.names)}",
            "name the draws' parameters as the criterion's",
        )
    return replace(draws, names=goal.names)


def given_target(
    criterion: Any, original: Draws, center: Any, covariance: Any, dof: Any, asked: dict[str, Any]
) -> Target:
    """Return the target of a call without a criterion's sandwich."""
    for argument, value in asked.items():
        if value is not None:
            raise InputError(
                argument, "needs a criterion and cannot be combined with covariance=",
                "pass a Criterion, and no covariance",
            )  # fmt: skip
    if isinstance(criterion, Target):
        if covariance is not None or center is not None or dof is not None:
            raise InputError("criterion", "is a Target, which has its own center and covariance",
                             "leave center, covariance and dof out")  # fmt: skip
        return criterion
    if covariance is None:
        raise InputError(
            "covariance", "is missing: draws alone do not say how an estimator varies",
            "pass a criterion, or center= and covariance=",
        )  # fmt: skip
    if center is None:
        if criterion is None:
            raise InputError("center", "is missing", "pass an array, or center='mean'")
        center = "map"
    names = original.names
    if names == as_names(None, len(names)):  # made up: centre and covariance go together
        covariance = in_order(covariance, axis_names(center) or names, "covariance", (0, 1))
    kind, point = find_center(center, criterion, original.mean, names)
    return replace(Target.given(point, covariance, names, dof), center_kind=kind)
