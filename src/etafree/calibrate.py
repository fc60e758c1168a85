r"""The main entry point, calibrate(): arguments become draws and a target, and the map joins them.

Arguments are sorted by what they are: fits of other packages, draws with a criterion, with a
target or with a centre and a covariance. An argument that does not apply on the route taken is an
error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from etafree._version import __version__
from etafree.criterion import Criterion
from etafree.data.rows import Rows
from etafree.dependence import as_structure, bind
from etafree.dependence.base import Structure
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.fits import Fit, as_fit, lined_up
from etafree.foundation.arguments import (
    Array,
    as_array,
    as_level,
    as_names,
    as_pandas,
    as_rng,
    axis_names,
    in_order,
    told_seed,
)
from etafree.foundation.check import missing_rows
from etafree.foundation.storage import made_with
from etafree.jackknife import PointwiseArray, RowLosses, jackknife_target
from etafree.map import Map, as_map, move_draws
from etafree.penalties import ActivePenalty, KinkedPenalty
from etafree.posterior import GeneralizedPosterior
from etafree.result import Calibration
from etafree.sandwich import active_block, find_center, names_of, target_of
from etafree.target import Target
from etafree.totals.linear import is_linear

#: What calibrate() takes as draws.
DRAWS = (
    "draws as an array (draw, p) or (chain, draw, p), or a fit: InferenceData, DataTree, its file, "
    "a Stan fit or a NumPyro MCMC"
)


def calibrate(
    draws: object,
    of: Criterion | GeneralizedPosterior | Target | None = None,
    *,
    model: object = None,
    log_likelihood: object = None,
    clusters: object = None,
    dependence: Structure | None = None,
    correction: str | None = None,
    center: object = None,
    covariance: object = None,
    map: str | Map = "affine",
    eta: float | None = None,
    var_names: object = None,
    level: float = 0.95,
    seed: object = 0,
) -> Calibration:
    r"""Calibrate posterior draws so that their spread does not depend on the learning rate.

    Draws move by :math:`\theta\mapsto c+\Omega(\theta-m)` from their mean :math:`m` to the centre
    :math:`c` and get the sandwich covariance :math:`A^{-1}BA^{-1}`, so that intervals cover.

    >>> import numpy as np, etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> post = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), data=(X, y)), eta=0.1)
    >>> ef.calibrate(ef.sample(post, seed=2), post).interval(kind="wald").round(2)
              lower  upper
    theta[0]  -1.44   5.44

    Parameters
    ----------
    draws : Draws, array (draw, p) or (chain, draw, p), or a fit of another package
        A fit with a pointwise log-likelihood needs nothing else. A fit that needs options is read
        first by `from_arviz`, `from_bambi`, `from_numpyro`, `from_pymc` or `from_stan`.
    of : Criterion, GeneralizedPosterior or Target, optional
        What the draws were drawn from, or a target; `target` makes one with your own choices.
    model : pymc.Model, bambi.Model, stan.model.Model or NumPyro function, optional
        The model of a fit. For PyMC, Bambi and NumPyro it gives exact scores and an exact Hessian
        instead of the jackknife, and for Stan the jackknife, all on the unconstrained scale.
    clusters : (n,) labels or column name, or several of them, optional
        Rows with the same label may depend on each other. By default the clusters, if any, that
        were given with the criterion's data.

    Returns
    -------
    Calibration
        Calibrated draws, with tables, tests, plots and diagnostics.

    Other Parameters
    ----------------
    log_likelihood : str, list of str, array (draw, n) or Criterion, optional
        Which stored variable of a fit to use; a list of names, or "sum" for all, adds them up. For
        plain draws: the pointwise log-likelihood itself, or a criterion (in memory or read in
        parts) whose losses are its negative, computed block by block.
    dependence : Clusters, Survey, ReplicateWeights, TimeSeries or Panel, optional
        A structure other than clusters. Labels may be names: of a column of the criterion's data,
        or of a variable or coordinate along the observations of a fit's log-likelihood.
    correction : str, optional
        Small-sample correction, see `target`: by default HC3 for independent rows, CR3 for one-way
        and multiway clusters, and their counterparts for surveys, series and panels, all with t
        quantiles. The jackknife has HC0, HC1 (default), CR0, CR1 (default) and CR1S.
    center : {"map", "one_step", "mean"} or (p,) array
        By default "map", the minimiser of loss plus penalty; for the jackknife the mean.
    covariance : (p, p) array, optional
        A covariance of your own, instead of the sandwich.
    map : {"affine", "paper", "cholesky", "shaby"} or Map
        Which :math:`\Omega`; only "affine" does not depend on units. `Map` also offers the
        open-faced sandwich and the paper's population map.
    eta : float, optional
        Learning rate of the draws if they do not record it; used by diagnostics, by a map from the
        curvature and by the jackknife. For a fit of another package the default is 1.
    var_names : str or list of str, optional
        Parameters to report; for fits, with the same meaning as in ArviZ. The others stay in the
        computation. With more parameters than rows or clusters only the joint distribution of a
        few can be estimated, and these must be named.
    level : float
        Default level of the result's intervals.
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
    target : Only the centre and the sandwich covariance, with all expert options.
    sample : Draws from a generalized posterior.
    select : Choose a learning rate instead of calibrating.

    Notes
    -----
    Fits are ArviZ InferenceData or DataTree, a netCDF file or zarr store of one, CmdStan CSV files,
    CmdStanMCMC, a pystan Fit or a NumPyro MCMC. If a pointwise log-likelihood is stored, nothing
    else is needed: the target is computed by the infinitesimal jackknife. Without criterion and
    log-likelihood, pass `center` and `covariance`. With a log prior that eta does not multiply, the
    target is the minimiser without it; ``of=posterior.energy`` includes the prior as a penalty of
    weight 1 / eta, so that the target depends on eta. Clusters given as a list, mapping or
    DataFrame are multiway clusters. Intervals cover the minimiser of the expected penalized loss;
    :math:`A` is the Hessian of the penalized total loss, :math:`B` the variance of its score. No
    argument is ignored: one that does not apply to these draws and this criterion is an error.

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
    rng, level = as_rng(seed), as_level(level)
    settings: dict[str, object] = {"level": level, "seed": told_seed(seed, rng)}
    how, structure = as_map(map), as_structure(clusters, dependence)
    own = of is None and covariance is None  # the draws must bring their losses
    some, var_names = _reported(draws, of, model, covariance, var_names)
    fit = _as_fit(draws, of, own, eta, model=model, var_names=var_names, losses=log_likelihood)
    goal, posterior = _goal(of)
    if fit is not None:
        draws, eta = fit.draws, None
        if goal is None:
            structure, goal = lined_up(structure, fit), fit.criterion
    full = _named_as(_drawn(draws, eta, goal, posterior), goal, center, covariance)
    choices = {"center": center, "map": how, "var_names": some, "level": level, "seed": seed}
    again = _repeated(full, fit, of, covariance, choices)
    source = full.source
    if source is not None and (goal is source.criterion or goal is source.energy):
        posterior = source
    if isinstance(goal, Criterion) and covariance is None:
        _check_centre(goal, posterior, center, how)
        criterion = active_block(goal)
        every = _on_face(full, criterion)
        original = every if some is None else every.select(names_of(criterion, some))
        _movable(original, how)
        target = target_of(
            criterion,
            bind(structure, criterion.rows, criterion.total.copies),
            center="map" if center is None else center,
            correction=correction,
            mean=every.mean,
            var_names=some,
        )
        if target.names != every.names:  # some of them
            full = original = every.select(target.names)
    elif own and fit is not None:
        original = _movable(full, how)
        target = _jackknifed(fit, structure, center=center, correction=correction, how=how)
    else:
        original = _movable(_on_face(full, goal), how)
        unused = {"clusters": clusters, "dependence": dependence, "correction": correction}
        target = _given(goal, original, center, covariance, unused)
    if fit is not None:
        target = replace(target, findings=(*fit.findings, *target.findings))
    mapping, values = move_draws(original, target, how, rng)
    values, basis = _all_coefficients(values, original, full, target)
    settings |= {**asdict(how), "version": __version__, "made_with": made_with()}
    moved = replace(full, values=values)
    return Calibration(
        moved, full, target, mapping, settings, posterior, fit=fit, again=again, face=basis
    )


def _reported(
    draws: object, of: object, model: object, covariance: object, var_names: object
) -> tuple[object, object]:
    """Return the parameters of a criterion to report, and those of a fit."""
    if not (isinstance(of, Criterion | GeneralizedPosterior) and _is_plain(draws, model)):
        return None, var_names
    if covariance is not None and var_names is not None:
        raise InputError("var_names", "cannot be combined with covariance=", "use Draws.select()")
    return var_names, None


def _repeated(
    draws: Draws,
    fit: Fit | None,
    of: Criterion | GeneralizedPosterior | Target | None,
    covariance: object,
    choices: dict[str, Any],
) -> Callable[..., Calibration] | None:
    """Return the same call of calibrate() but for the dependence; none if a target is given."""
    if covariance is not None or isinstance(of, Target):
        return None
    if isinstance(choices["seed"], np.random.Generator):  # its state moves on
        choices["seed"] = 0
    choices["center"] = deepcopy(choices["center"])
    return partial(calibrate, draws if fit is None else fit, of, **choices)


def _movable(draws: Draws, how: Map) -> Draws:
    """Return the draws; refuse those that cannot be rescaled, before any work."""
    draws.covariance()
    if how.working == "curvature" and draws.eta is None:
        raise InputError("map", "from the curvature needs the learning rate", "pass eta=")
    return draws


def _goal(of: object) -> tuple[Criterion | Target | None, GeneralizedPosterior | None]:
    """Return what the draws are of, and the posterior where that is known."""
    if isinstance(of, GeneralizedPosterior):
        return of.criterion, of
    if not isinstance(of, Criterion | Target | None):
        raise InputError(
            "of",
            f"is a {type(of).__name__}",
            "pass a Criterion, a GeneralizedPosterior or a Target",
        )
    return of, None


def _as_fit(
    draws: object,
    of: object,
    own: bool,
    eta: float | None,
    *,
    model: object,
    var_names: object,
    losses: object,
) -> Fit | None:
    """Return draws as a fit if they come from elsewhere or with a log-likelihood, else None.

    `own` says that the fit must bring its own losses.
    """
    _check_kind(draws)
    if not own:
        _refuse_given(
            {"model": model, "log_likelihood": losses},
            "cannot be combined with a criterion or covariance",
            "pass one of them",
        )
    if isinstance(draws, Fit):
        _refuse_given(
            {"model": model, "var_names": var_names, "eta": eta, "log_likelihood": losses},
            "belongs to the fit",
            "pass it to the function that read the fit",
        )
        fit: Fit | None = draws
    else:
        several = losses if isinstance(losses, list | tuple) else (losses,)
        named = all(isinstance(name, str | None) for name in several)
        chosen = losses if named else None
        options = {"var_names": var_names, "log_likelihood": chosen, "eta": eta}
        fit = None if _is_plain(draws, model) else as_fit(draws, model, **options, losses=own)
        if fit is None:
            fit = _with_losses(draws, losses, named, eta, var_names)
        elif not named:
            raise InputError("log_likelihood", "is stored in the fit", "pass the variable's name")
    if fit is not None and fit.criterion is not None and isinstance(of, Criterion):
        raise InputError(
            "of", "cannot be combined with a fit that has a model", "leave one of them out"
        )
    return fit


def _is_plain(draws: object, model: object) -> bool:
    """Return whether draws need no adapter."""
    return type(draws) in (Draws, np.ndarray) and model is None


def _check_kind(draws: object) -> None:
    """Refuse nothing, and models, as draws."""
    if draws is None:
        raise InputError("draws", "is None", f"pass {DRAWS}")
    if callable(draws) or any(cls.__name__.endswith("Model") for cls in type(draws).__mro__):
        raise InputError(
            "draws", "is a model, not draws from it", f"pass {DRAWS}; pass the model as model="
        )


def _refuse_given(given: Mapping[str, object], problem: str, advice: str) -> None:
    """Refuse the first argument that was given, for a reason that holds for all."""
    for argument, value in given.items():
        if value is not None:
            raise InputError(argument, problem, advice)


def _with_losses(
    draws: object, losses: Any, named: bool, eta: float | None, var_names: object
) -> Fit | None:
    """Return plain draws with minus the log-likelihood of each row, given or a criterion's."""
    if var_names is not None:
        raise InputError("var_names", "is for a criterion or a fit", "use Draws.select()")
    if losses is None:
        return None
    if named:
        raise InputError(
            "log_likelihood",
            f"names {losses!r}, but these are plain draws",
            "pass an array (draw, n), or a criterion",
        )
    own = Draws.of(draws, None, eta)
    own = replace(own, eta=1.0) if own.eta is None else own
    if isinstance(losses, Criterion):
        if not is_linear(losses.total):
            raise InputError(
                "log_likelihood",
                f"is a criterion of {losses.loss!r}, which has no linear predictor",
                "pass it as of=",
            )
        own = _named(own, losses)
        return Fit(
            own, None, losses=RowLosses(losses.total, own.array, losses.rows, losses.describe())
        )
    floats = type(losses) is np.ndarray and losses.dtype.kind == "f"
    values: Array = losses if floats else as_array(losses, "log_likelihood")
    if values.ndim == 3 and values.shape[:2] == own.values.shape[:2]:
        values = values.reshape(-1, values.shape[2])
    if values.ndim != 2 or len(values) != len(own):
        raise InputError(
            "log_likelihood",
            f"has shape {values.shape} for {len(own)} draws",
            "pass (draw, n) or (chain, draw, n)",
        )
    return Fit(own, None, losses=PointwiseArray(values))


def _drawn(
    draws: object,
    eta: float | None,
    goal: Criterion | Target | None,
    posterior: GeneralizedPosterior | None,
) -> Draws:
    """Return checked draws under the names of what they are of, with their learning rate."""
    if posterior is not None:
        if eta is not None and eta != posterior.eta:
            raise InputError(
                "eta", f"is {eta} but the posterior's is {posterior.eta:g}", "leave it out"
            )
        eta = posterior.eta
    checked = Draws.of(draws, None, eta)
    if goal is None or (isinstance(goal, Target) and _is_active(goal, checked)):
        return checked
    some = isinstance(goal, Target) and set(goal.names) < set(checked.names)
    if some and isinstance(draws, Draws):  # of all parameters, a target of some
        return checked.select(goal.names)
    return _named(checked, goal)


def _named_as(draws: Draws, goal: object, center: object, covariance: object) -> Draws:
    """Return draws without names under those of a centre or covariance of the user's own."""
    if goal is None and covariance is not None and draws.names == as_names(None, draws.p):
        for names in map(axis_names, map(as_pandas, (center, covariance))):
            if names is not None and len(names) == draws.p:
                return replace(draws, names=as_names(names, draws.p))
    return draws


def _face(goal: Criterion | Target | None) -> ActivePenalty | None:
    """Return the penalty on a face, with its basis, if it is what a criterion or target is of."""
    criterion = goal.criterion if isinstance(goal, Target) else goal
    penalty = None if criterion is None else criterion.penalty
    return penalty if isinstance(penalty, ActivePenalty) else None


def _is_active(goal: Target, draws: Draws) -> bool:
    """Return whether a target leaves out parameters that a kink sets to zero, or ties."""
    face = _face(goal)
    return face is not None and draws.p == len(face.basis) > goal.p


def _on_face(draws: Draws, goal: Criterion | Target | None) -> Draws:
    """Return the draws of a face's coordinates: each draw's nearest point on the face."""
    face = _face(goal)
    if goal is None or face is None or draws.p != len(face.basis) or draws.p == goal.p:
        return draws
    values = face.coordinates(draws.values)
    return replace(draws, values=values, names=goal.names, source=None)


def _all_coefficients(
    values: Array, moved: Draws, full: Draws, target: Target
) -> tuple[Array, Array | None]:
    """Return the draws of all coefficients from those of a face, and its basis if it has ties."""
    face = None if moved is full else _face(target)
    if face is None:
        return values, None
    tied = not set(target.names) <= set(full.names)
    return values @ face.basis.T, face.basis if tied else None  # zeros and ties are exact


def _named(draws: Draws, goal: Criterion | Target) -> Draws:
    """Return the draws under the names of what they are of; refuse draws of other parameters."""
    if draws.p != goal.p:
        raise InputError(
            "draws",
            f"have {draws.p} parameters, the criterion {goal.p}",
            f"pass draws of {list(goal.names)[:8]}",
        )
    if draws.names == goal.names:
        return draws
    if set(draws.names) == set(goal.names):
        return draws.select(goal.names)
    if draws.names != as_names(None, draws.p):
        raise InputError(
            "draws",
            f"are of {list(draws.names)}, the criterion of {list(goal.names)}",
            "name the draws' parameters as the criterion's",
        )
    return replace(draws, names=goal.names)


def _check_centre(
    criterion: Criterion, posterior: GeneralizedPosterior | None, center: object, how: Map
) -> None:
    """Refuse to keep the draws' own centre where it is not the target's."""
    own = how.kind == "scale" or (isinstance(center, str) and center == "mean")
    argument = "map" if how.kind == "scale" else "center"
    if own and posterior is not None and posterior.energy is not criterion:
        raise InputError(
            argument,
            "keeps the posterior's centre, which the log prior shifts away from the "
            "penalized target",
            "pass of=posterior.energy, whose target contains the prior, or center='map'",
        )
    at_map = center is None or (isinstance(center, str) and center == "map")
    kept = how.kind == "scale" or not at_map
    if kept and isinstance(criterion.penalty, KinkedPenalty):
        raise InputError(
            argument, "keeps a centre that a penalty with a kink shifts", "use center='map'"
        )


def _jackknifed(
    fit: Fit, structure: Structure | None, *, center: object, correction: str | None, how: Map
) -> Target:
    """Return the target of a fit that has losses only."""
    losses, own = fit.losses, fit.draws
    if losses is None:
        from etafree.fits.observations import HOW

        raise InputError("log_likelihood", "is not stored in this fit", HOW)
    if how.working != "draws":
        raise InputError("map", "from the curvature needs a Hessian", "pass model= or a criterion")
    kind, point, _ = find_center("mean" if center is None else center, None, own.mean, own.names)
    rows = getattr(losses, "rows", Rows(losses.n))
    copies = isinstance(losses, RowLosses) and losses.total.copies
    dependence = bind(structure, rows, copies)
    if not fit.conditional and fit.tree is not None:
        from etafree.fits.conditional import refuse_latent

        refuse_latent(fit.tree, losses, dependence)
    assert own.eta is not None
    goal = jackknife_target(
        own, losses, dependence, eta=own.eta, every=fit.every, correction=correction
    )
    named_loss: str | None = getattr(losses, "estimand", None)
    if named_loss is not None:
        known = missing_rows(rows.missing, rows.original), losses.findings, goal.findings
        goal = replace(goal, estimand=named_loss, findings=tuple(chain(*known)))
    return replace(goal, center=point, center_kind=kind)


def _given(
    goal: Criterion | Target | None,
    original: Draws,
    center: object,
    covariance: Any,
    unused: Mapping[str, object],
) -> Target:
    """Return the target of a call without a criterion's sandwich."""
    problem = "needs a criterion and cannot be combined with a covariance"
    _refuse_given(unused, problem, "pass a Criterion, and no covariance")
    if isinstance(goal, Target):
        if covariance is not None or center is not None:
            raise InputError(
                "of",
                "is a Target, which has its own center and covariance",
                "leave center and covariance out",
            )
        return goal
    if covariance is None:
        raise InputError(
            "covariance",
            "is missing: draws alone do not say how an estimator varies",
            "pass a criterion, or center= and covariance=",
        )
    if center is None:
        if goal is None:
            raise InputError("center", "is missing", "pass an array, or center='mean'")
        center = "map"
    names = original.names
    if names == as_names(None, len(names)):  # default names: centre and covariance go together
        covariance = in_order(covariance, axis_names(center) or names, "covariance", (0, 1))
    kind, point, _ = find_center(center, goal, original.mean, names)
    return Target(point, covariance, names, center_kind=kind)
