"""The front door: calibrate()."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from etafree._version import __version__
from etafree.active import active_block
from etafree.calibration import WORKING, LocationScaleMap, student_factors, working_covariance
from etafree.centers import find_center
from etafree.criterion import Criterion
from etafree.dependence import find_dependence
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.linalg import ROOTS, transport
from etafree.penalties import KinkedPenalty
from etafree.posterior import GeneralizedPosterior
from etafree.result import Calibration
from etafree.sandwich import target_of
from etafree.targets import Target
from etafree.validation import as_choice, as_level, as_names, as_rng

__all__ = ["calibrate"]

KINDS = ("location-scale", "scale")
ESTIMANDS = ("penalized", "posterior")


def calibrate(
    draws: Any,
    criterion: Criterion | GeneralizedPosterior | Target | None = None,
    *,
    clusters: Any = None,
    strata: Any = None,
    fpc: Any = None,
    single_psu: str = "error",
    time: Any = None,
    units: Any = None,
    bandwidth: Any = None,
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
    seed: Any = 0,
) -> Calibration:
    r"""Calibrate posterior draws so that their spread does not depend on the learning rate.

    Every draw goes through :math:`\theta\mapsto c+\Omega(\theta-m)`, where :math:`m` is the draws'
    mean, :math:`c` the centre and :math:`\Omega` takes the draws' covariance to the sandwich
    covariance :math:`A^{-1}BA^{-1}` of the penalized estimator. Intervals then cover the minimiser
    of the expected penalized loss.

    Parameters
    ----------
    draws : Draws or array (draw, p) or (chain, draw, p)
    criterion : Criterion, GeneralizedPosterior or Target, optional
        What the draws are of. Without it pass `center` and `covariance`.
    clusters : (n,) labels or column name, or several of them, optional
        Rows with the same label may depend on each other; with a list, mapping or DataFrame, rows
        that share a label in any of several ways.
    strata, fpc, single_psu : optional
        A survey design, `clusters` being its primary sampling units; see `target`.
    time, units, bandwidth : optional
        Dependence in time, of one series or of a panel's units; see `target`.
    correction : str, optional
        Small-sample correction, see `target`: by default HC3 for independent rows, CR3 with t
        quantiles for clusters, CR1S for several ways, cosines (EWC) with t quantiles for time.
    center : {"map", "one_step", "mean"} or (p,) array
        Default "map", the minimiser of loss plus penalty.
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
        Learning rate of the draws if they do not carry it; used by diagnostics and
        ``working="curvature"``.
    level : float
        Default level of the result's intervals.
    names : sequence of str, optional
        Parameter names for draws given as an array.
    seed : int, SeedSequence or Generator
        For the Student-t factors, so that the same draws give the same result.

    Returns
    -------
    Calibration

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
    as_level(level)
    rng = as_rng(seed)
    posterior = criterion if isinstance(criterion, GeneralizedPosterior) else None
    if posterior is not None:
        criterion = posterior.criterion
        if eta is not None and eta != posterior.eta:
            raise InputError("eta", f"is {eta} but the posterior's is {posterior.eta:g}")
        eta = posterior.eta
    if not isinstance(criterion, Criterion | Target | None):
        raise InputError(
            "criterion", f"is a {type(criterion).__name__}",
            "pass a Criterion, a GeneralizedPosterior or a Target",
        )  # fmt: skip
    original = Draws.of(draws, names, eta)
    if criterion is not None:
        original = _named(original, criterion, names is not None)
    source = original.source
    if posterior is None and source is not None and source.criterion is criterion:
        posterior = source
    full = original
    if isinstance(criterion, Criterion) and covariance is None:
        criterion = _estimated(criterion, posterior, estimand, center, kind)
        if isinstance(criterion.penalty, KinkedPenalty):
            if kind == "scale" or center not in (None, "map"):
                raise InputError("kind" if kind == "scale" else "center", "keeps a centre that a "
                                 "penalty with a kink moves", "use center='map'")  # fmt: skip
            criterion = active_block(criterion)
            original = original.select(criterion.names)
    original.covariance()  # refuses draws that cannot be rescaled, before any work
    if working == "curvature" and original.eta is None:
        raise InputError("working", "'curvature' needs the learning rate", "pass eta=")
    if isinstance(criterion, Criterion) and covariance is None:
        dependence = find_dependence(
            criterion.rows, clusters, strata=strata, fpc=fpc, single_psu=single_psu, time=time,
            units=units, copies=criterion.total.copies,
        )  # fmt: skip
        goal = target_of(
            criterion, dependence, center="map" if center is None else center, bandwidth=bandwidth,
            correction=correction, centered=centered, hessian=hessian, meat=meat, dof=dof,
            mean=original.mean,
        )  # fmt: skip
    else:
        dependence = None
        asked = {"clusters": clusters, "strata": strata, "fpc": fpc, "time": time, "units": units,
                 "bandwidth": bandwidth, "correction": correction, "hessian": hessian,
                 "meat": meat}  # fmt: skip
        goal = _given_target(criterion, original, center, covariance, dof, asked)
    spread = working_covariance(working, original, goal)
    omega = transport(spread, goal.covariance, root)
    offset = original.mean if kind == "scale" else goal.center
    mapping = LocationScaleMap(original.mean, offset, omega, original.names)
    values = mapping(original.values)
    if not np.isinf(goal.dof).all():
        flat = values.reshape(-1, original.p)
        flat -= offset
        flat *= student_factors(len(flat), goal.dof, rng)
        flat += offset
    if original is not full:  # coefficients at a kink are exactly zero
        every = np.zeros_like(full.values)
        every[:, :, [full.names.index(name) for name in original.names]] = values
        values = every
    settings = {"kind": kind, "root": root, "working": working, "level": float(level),
                "version": __version__}  # fmt: skip
    return Calibration(
        replace(full, values=values),
        full,
        goal,
        mapping,
        settings,
        criterion if isinstance(criterion, Criterion) else None,
        posterior,
        dependence,
    )


def _estimated(
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


def _named(draws: Draws, goal: Criterion | Target, asked: bool) -> Draws:
    """Return the draws under the criterion's names; refuse draws of other parameters."""
    if draws.p != goal.p:
        raise InputError("draws", f"have {draws.p} parameters, the criterion {goal.p}")
    if draws.names == goal.names:
        return draws
    if draws.names != as_names(None, draws.p):
        raise InputError(
            "names" if asked else "draws",
            f"are of {list(draws.names)}, the criterion of {list(goal.names)}",
            "select and order the draws' parameters as the criterion's",
        )
    return replace(draws, names=goal.names)


def _given_target(
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
            raise InputError("criterion", "is a Target, which has its own center and covariance")
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
    kind, point = find_center(center, criterion, original.mean)
    return replace(Target.given(point, covariance, original.names, dof), center_kind=kind)
