r"""The front door, calibrate(): what was given becomes draws and a target, and the map joins them.

Arguments are sorted out by what they are: fits of other packages, draws with a criterion, with a
target or with a centre and a covariance. One that means nothing on the way that was taken is an
error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from etafree._version import __version__
from etafree.criterion import Criterion
from etafree.data.rows import Rows
from etafree.dependence import as_structure, bind
from etafree.dependence.base import Dependence, Structure
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.fits import Fit, as_fit
from etafree.foundation.arguments import (
    as_array,
    as_bool,
    as_choice,
    as_level,
    as_names,
    as_positive,
    as_rng,
    axis_names,
    in_order,
    told_seed,
)
from etafree.foundation.check import left_out
from etafree.foundation.linalg import ROOTS
from etafree.foundation.storage import made_with
from etafree.jackknife import PointwiseArray, RowLosses, jackknife_target
from etafree.map import KINDS, WORKING, move_draws
from etafree.penalties import KinkedPenalty
from etafree.posterior import GeneralizedPosterior
from etafree.result import Calibration
from etafree.sandwich import active_block, find_center, target_of
from etafree.target import Target
from etafree.totals.linear import PredictorTotal

__all__ = [
    "calibrate",
    "estimated",
    "find_fit",
    "given_target",
    "jackknifed",
    "named",
    "refuse_unused",
]

#: What calibrate() takes as draws.
DRAWS = (
    "draws as an array (draw, p) or (chain, draw, p), or a fit: InferenceData, DataTree, its file, "
    "a Stan fit or a NumPyro MCMC"
)


def find_fit(
    draws: Any,
    stored: bool,
    *,
    log_likelihood: Any,
    eta: float | None,
    names: Any,
    model: Any,
    prior: str | None,
    **more: Any,
) -> Fit | None:
    """Return draws as a fit if they come from elsewhere or with a log-likelihood, else None.

    `stored` says that the fit must bring its own losses.
    """
    if draws is None:
        raise InputError("draws", "is None", f"pass {DRAWS}")
    if callable(draws) or any(cls.__name__.endswith("Model") for cls in type(draws).__mro__):
        raise InputError(
            "draws",
            "is a model, not what was drawn from it",
            f"pass {DRAWS}; the model goes to model=",
        )
    if prior is not None:
        as_choice(prior, "prior", ("scaled", "unscaled"))
        if model is None:
            raise InputError("prior", "is about a model's prior", "pass model=")
    elif model is not None and eta is not None and as_positive(eta, "eta") != 1:
        raise InputError(
            "prior",
            f"is missing: at eta = {eta:g} the model's prior was either multiplied by eta or not",
            "pass 'scaled' or 'unscaled'",
        )
    if model is not None and not stored:
        raise InputError(
            "model", "cannot be combined with a criterion or covariance", "pass one of them"
        )
    plain = (
        log_likelihood is None
        or isinstance(log_likelihood, str)
        or (
            isinstance(log_likelihood, list | tuple)
            and all(isinstance(name, str) for name in log_likelihood)
        )
    )
    chosen = log_likelihood if plain else None
    fit = as_fit(
        draws, model=model, eta=eta, prior=prior, log_likelihood=chosen, stored=stored, **more
    )
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
        raise InputError(
            "log_likelihood",
            f"names {log_likelihood!r}, but these are plain draws",
            "pass an array (draw, n), or a criterion",
        )
    _check_alone(stored)
    made = Draws.of(draws, names, eta)
    floats = type(log_likelihood) is np.ndarray and log_likelihood.dtype.kind == "f"
    values = log_likelihood if floats else as_array(log_likelihood, "log_likelihood")
    if values.ndim == 3 and values.shape[:2] == made.values.shape[:2]:
        values = values.reshape(-1, values.shape[2])
    if values.ndim != 2 or len(values) != len(made):
        raise InputError(
            "log_likelihood",
            f"has shape {values.shape} for {len(made)} draws",
            "pass (draw, n) or (chain, draw, n)",
        )
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
        raise InputError(
            "criterion",
            "cannot be combined with a fit that brings its model",
            "pass its draws as an array",
        )
    unused: tuple[str, ...] = ("latent", "log_likelihood")
    route = "a criterion"
    if covariance is not None or isinstance(criterion, Target):
        route = "a Target" if covariance is None else "covariance="
        unused += ("centered", "estimand")
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
        raise InputError(
            "log_likelihood",
            "cannot be combined with a criterion or covariance",
            "pass one of them",
        )


def _fit_of_rows(
    draws: Any, criterion: Criterion, stored: bool, eta: float | None, names: Any
) -> Fit:
    """Return draws with the losses of a criterion's rows, in memory or read in parts."""
    _check_alone(stored)
    if not isinstance(criterion.total, PredictorTotal):
        raise InputError(
            "log_likelihood",
            f"is a criterion of {criterion.loss!r}, which has no linear predictor",
            "pass it as criterion=",
        )
    made = named(Draws.of(draws, names, eta), criterion, names is not None)
    made = replace(made, eta=1.0) if made.eta is None else made
    losses = RowLosses(criterion.total, made.array, criterion.rows, criterion.describe())
    return Fit(made, None, losses=losses)


def jackknifed(
    fit: Fit,
    latent: str | None,
    structure: Structure | None,
    parts: Mapping[str, Any],
    *,
    center: Any,
    correction: str | None,
    dof: float | None,
    centered: bool,
    working: str,
) -> tuple[Target, Dependence]:
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
    copies = isinstance(losses, RowLosses) and losses.total.copies
    dependence = bind(structure, rows, copies)
    if latent is not None and fit.tree is not None:
        from etafree.fits.conditional import refuse_latent

        refuse_latent(fit.tree, losses, dependence)
    assert fit.draws.eta is not None
    goal = jackknife_target(
        fit.draws,
        losses,
        dependence,
        eta=fit.draws.eta,
        every=fit.every,
        correction=correction,
        dof=dof,
    )
    named_loss: str | None = getattr(losses, "estimand", None)
    if named_loss is not None:
        known = left_out(rows.missing, rows.original), losses.checks, goal.checks
        goal = replace(goal, estimand=named_loss, checks=tuple(chain(*known)))
    return replace(goal, center=point, center_kind=kind), dependence


def estimated(
    criterion: Criterion,
    posterior: GeneralizedPosterior | None,
    estimand: str,
    center: Any,
    kind: str,
) -> Criterion:
    """Return the criterion whose minimiser is the target; refuse a mix of the two."""
    unscaled = posterior is not None and posterior.log_prior is not None
    if estimand == "posterior":
        if posterior is None or posterior.log_prior is None:
            raise InputError(
                "estimand",
                "'posterior' needs a posterior with a log_prior",
                "pass the GeneralizedPosterior, or leave it out",
            )
        return posterior.energy
    if unscaled and (kind == "scale" or (isinstance(center, str) and center == "mean")):
        argument = "kind" if kind == "scale" else "center"
        raise InputError(
            argument,
            "keeps the posterior's own centre, which the log prior moves away from the "
            "penalized target",
            "pass estimand='posterior', or center='map'",
        )
    return criterion


def named(draws: Draws, goal: Criterion | Target, asked: bool) -> Draws:
    """Return the draws under the criterion's names; refuse draws of other parameters."""
    if draws.p != goal.p:
        raise InputError(
            "draws",
            f"have {draws.p} parameters, the criterion {goal.p}",
            f"pass draws of {list(goal.names)[:8]}",
        )
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
                argument,
                "needs a criterion and cannot be combined with covariance=",
                "pass a Criterion, and no covariance",
            )
    if isinstance(criterion, Target):
        if covariance is not None or center is not None or dof is not None:
            raise InputError(
                "criterion",
                "is a Target, which has its own center and covariance",
                "leave center, covariance and dof out",
            )
        return criterion
    if covariance is None:
        raise InputError(
            "covariance",
            "is missing: draws alone do not say how an estimator varies",
            "pass a criterion, or center= and covariance=",
        )
    if center is None:
        if criterion is None:
            raise InputError("center", "is missing", "pass an array, or center='mean'")
        center = "map"
    names = original.names
    if names == as_names(None, len(names)):  # made up: centre and covariance go together
        covariance = in_order(covariance, axis_names(center) or names, "covariance", (0, 1))
    kind, point = find_center(center, criterion, original.mean, names)
    return replace(Target.given(point, covariance, names, dof), center_kind=kind)


ESTIMANDS = ("penalized", "posterior")


def calibrate(
    draws: Any,
    criterion: Criterion | GeneralizedPosterior | Target | None = None,
    *,
    clusters: Any = None,
    dependence: Structure | None = None,
    correction: str | None = None,
    center: Any = None,
    covariance: Any = None,
    centered: bool = True,
    hessian: Any = None,
    meat: Any = None,
    dof: float | None = None,
    estimand: str = "penalized",
    root: str = "affine",
    kind: str = "location-scale",
    working: str = "draws",
    eta: float | None = None,
    level: float = 0.95,
    names: Sequence[str] | None = None,
    model: Any = None,
    var_names: Any = None,
    filter_vars: str | None = None,
    log_likelihood: Any = None,
    latent: str | None = "auto",
    prior: str | None = None,
    model_args: Sequence[Any] = (),
    model_kwargs: Mapping[str, Any] | None = None,
    seed: Any = 0,
) -> Calibration:
    r"""Calibrate posterior draws so that their spread does not depend on the learning rate.

    Draws move by :math:`\theta\mapsto c+\Omega(\theta-m)` from their mean :math:`m` to the centre
    :math:`c` and get the sandwich covariance :math:`A^{-1}BA^{-1}`, so that intervals cover.

    >>> import numpy as np, etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> post = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), data=(X, y)), eta=0.1)
    >>> ef.calibrate(ef.sample(post, seed=2), post).interval(kind="wald").round(2)
              lower  upper
    theta[0]  -0.44   4.44

    Parameters
    ----------
    draws : Draws, array (draw, p) or (chain, draw, p), or a fit of another package
        A fit that has a pointwise log-likelihood needs nothing else.
    criterion : Criterion, GeneralizedPosterior or Target, optional
        What the draws are of.
    clusters : (n,) labels or column name, or several of them, optional
        Rows with the same label may depend on each other.

    Returns
    -------
    Calibration
        Calibrated draws, with tables, tests, plots and diagnostics.

    Other Parameters
    ----------------
    dependence : Clusters, Survey, TimeSeries or Panel, optional
        Another structure than clusters in one or several ways. Labels may be named: a column of the
        criterion's data, or a variable or coordinate along the observations of a fit's
        log-likelihood.
    correction : str, optional
        Small-sample correction, see `target`: by default HC3 for independent rows, CR3 with t
        quantiles for clusters, CR1S for several ways, cosines (EWC) with t quantiles for time. The
        jackknife has HC0, HC1 (default), CR0, CR1 (default) and CR1S.
    center : {"map", "one_step", "mean"} or (p,) array
        Default "map", the minimiser of loss plus penalty; the jackknife's is the mean.
    covariance : (p, p) array, optional
        A covariance of your own, instead of the sandwich.
    centered : bool
        Centre scores at observation level; False is the form printed in the paper.
    hessian, meat : (p, p) array or callable, optional
        Replace :math:`A` or :math:`B`, see `target`.
    dof : float, optional
        Replace the degrees of freedom of the reference t distribution.
    estimand : {"penalized", "posterior"}
        For a posterior with a log prior that eta does not multiply. "penalized": the minimiser of
        expected loss plus penalty, draws serve for shape only. "posterior": the minimiser with the
        prior as a penalty of weight 1 / eta, which moves with eta.
    root : {"affine", "paper", "cholesky"}
        Which :math:`\Omega`; only "affine" does not depend on units.
    kind : {"location-scale", "scale"}
        "scale" is the open-faced sandwich: the draws stay centred at their own mean.
    working : {"draws", "curvature"}
        Covariance that is mapped: the draws' own, or :math:`(\eta A)^{-1}`, the paper's population
        map.
    eta : float, optional
        Learning rate of the draws if they do not carry it; used by diagnostics,
        ``working="curvature"`` and the jackknife. A fit of another package is taken at 1.
    level : float
        Default level of the result's intervals.
    names : sequence of str, optional
        Parameter names for draws given as an array.
    model : pymc.Model, bambi.Model, stan.model.Model or NumPyro function, optional
        The model of a fit. PyMC, Bambi and NumPyro: exact scores and Hessian instead of the
        jackknife, on the unconstrained scale. Stan: the jackknife on the unconstrained scale.
    var_names, filter_vars : optional
        Parameters of a fit to report, with ArviZ's meaning: names, ``"~name"``, and with "like" or
        "regex" parts of names or regular expressions. The others stay in the computation.
    log_likelihood : str, list of str, array (draw, n) or Criterion, optional
        Which stored variable to use; a list or "sum" adds up. For plain draws: the pointwise
        log-likelihood itself, or a criterion (in memory or read in parts) whose losses are minus
        it: they are computed for some rows at a time.
    latent : {"auto", None}
        "auto" refuses a log-likelihood that is conditional on group effects; None takes it.
    prior : {"scaled", "unscaled"}, optional
        For a model at ``eta != 1``: whether eta multiplies its prior too.
    model_args, model_kwargs : optional
        What a NumPyro model is called with.
    seed : int, SeedSequence or Generator
        For the Student-t factors, so that the same draws give the same result.

    Raises
    ------
    InputError
        An argument cannot be used, or draws and criterion do not fit together. Also when the
        Hessian or the scores' variance is not positive definite (`NotPositiveDefiniteError`).
    ConvergenceError
        The penalized loss has no finite minimiser.
    MissingExtraError
        The fit, its model or its file needs a package that is not installed.

    See Also
    --------
    target : The centre and the sandwich covariance alone.
    sample : Draws of a generalized posterior.
    select : A learning rate instead of a calibration.

    Notes
    -----
    Fits: ArviZ InferenceData or DataTree, a netCDF file or zarr store of one, CmdStan CSV files,
    CmdStanMCMC, a pystan Fit, a NumPyro MCMC. With a stored pointwise log-likelihood that is all;
    the infinitesimal jackknife makes the target. Without criterion and log-likelihood pass
    `center` and `covariance`. Clusters given as a list, mapping or DataFrame are several ways in
    which rows may depend on each other. Intervals cover the minimiser of the expected penalized
    loss; :math:`A` is the Hessian of the penalized total loss, :math:`B` the variance of its score.
    Nothing that is given is ignored: an argument that means nothing with these draws and this
    criterion is an error.

    References
    ----------
    Tamano, S. and Tomo, Y. (2025). Location-scale calibration for generalized posterior.
    arXiv:2511.15320. Giordano, R. and Broderick, T. (2023). The Bayesian infinitesimal jackknife
    for variance. arXiv:2305.06466.

    Examples
    --------
    >>> import etafree as ef
    >>> rng = np.random.default_rng(1)
    >>> X = np.column_stack([np.ones(200), rng.standard_normal(200)])
    >>> y = X @ [1.0, 2.0] + rng.standard_t(3, 200)
    >>> criterion = ef.Criterion(ef.losses.Huber(1.345), data=(X, y), names=["one", "x"])
    >>> draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=0.1), seed=2)
    >>> result = ef.calibrate(draws, criterion)
    >>> bool(np.allclose(result.map(draws.array).mean(axis=0), result.target.center))
    True
    """
    as_choice(kind, "kind", KINDS)
    as_choice(working, "working", WORKING)
    as_choice(root, "root", ROOTS)
    as_choice(estimand, "estimand", ESTIMANDS)
    structure = as_structure(clusters, dependence)
    as_bool(centered, "centered")
    as_level(level)
    rng = as_rng(seed)
    fit = find_fit(
        draws,
        criterion is None and covariance is None,
        model=model,
        var_names=var_names,
        filter_vars=filter_vars,
        log_likelihood=log_likelihood,
        eta=eta,
        latent=latent,
        prior=prior,
        names=names,
        model_args=model_args,
        model_kwargs=model_kwargs,
    )
    refuse_unused(
        fit,
        criterion,
        covariance,
        {
            "centered": (centered, True),
            "estimand": (estimand, "penalized"),
            "latent": (latent, "auto"),
            "log_likelihood": (log_likelihood, None),
        },
    )
    if fit is not None:
        draws, eta, names = fit.draws, fit.draws.eta, None
        if fit.observations is not None and criterion is None:
            structure = structure and structure.with_labels(fit.observations.flat)
        criterion = fit.criterion if fit.criterion is not None else criterion
    posterior = criterion if isinstance(criterion, GeneralizedPosterior) else None
    if posterior is not None:
        criterion = posterior.criterion
        if eta is not None and eta != posterior.eta:
            raise InputError(
                "eta", f"is {eta} but the posterior's is {posterior.eta:g}", "leave it out"
            )
        eta = posterior.eta
    if not isinstance(criterion, Criterion | Target | None):
        raise InputError(
            "criterion",
            f"is a {type(criterion).__name__}",
            "pass a Criterion, a GeneralizedPosterior or a Target",
        )
    original = Draws.of(draws, names, eta)
    if criterion is not None:
        original = named(original, criterion, names is not None)
    source = original.source
    if posterior is None and source is not None and source.criterion is criterion:
        posterior = source
    full = original
    if isinstance(criterion, Criterion) and covariance is None:
        criterion = estimated(criterion, posterior, estimand, center, kind)
        if isinstance(criterion.penalty, KinkedPenalty):
            if kind == "scale" or center not in (None, "map"):
                raise InputError(
                    "kind" if kind == "scale" else "center",
                    "keeps a centre that a penalty with a kink moves",
                    "use center='map'",
                )
            criterion = active_block(criterion)
            original = original.select(criterion.names)
    original.covariance()  # refuses draws that cannot be rescaled, before any work
    if working == "curvature" and original.eta is None:
        raise InputError("working", "'curvature' needs the learning rate", "pass eta=")
    if isinstance(criterion, Criterion) and covariance is None:
        bound = bind(structure, criterion.rows, criterion.total.copies)
        goal = target_of(
            criterion,
            bound,
            center="map" if center is None else center,
            correction=correction,
            centered=centered,
            hessian=hessian,
            meat=meat,
            dof=dof,
            mean=original.mean,
        )
    elif fit is not None and fit.losses is not None and covariance is None and criterion is None:
        goal, bound = jackknifed(
            fit,
            latent,
            structure,
            {"hessian": hessian, "meat": meat},
            center=center,
            correction=correction,
            dof=dof,
            centered=centered,
            working=working,
        )
    else:
        bound = None
        asked = {
            "clusters": clusters,
            "dependence": dependence,
            "correction": correction,
            "hessian": hessian,
            "meat": meat,
        }
        goal = given_target(criterion, original, center, covariance, dof, asked)
    if fit is not None:
        goal = replace(goal, checks=(*fit.checks, *goal.checks))
    mapping, values = move_draws(original, goal, kind=kind, root=root, working=working, rng=rng)
    if original is not full:  # coefficients at a kink are exactly zero
        every = np.zeros_like(full.values)
        every[:, :, [full.names.index(name) for name in original.names]] = values
        values = every
    settings = {
        "kind": kind,
        "root": root,
        "working": working,
        "level": float(level),
        "seed": told_seed(seed, rng),
        "version": __version__,
        "made_with": made_with(),
    }
    return Calibration(
        replace(full, values=values),
        full,
        goal,
        mapping,
        settings,
        criterion if isinstance(criterion, Criterion) else None,
        posterior,
        bound,
        fit=fit,
    )
