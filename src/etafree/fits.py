"""A fit that another package made, as calibration needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from etafree.checks import Check
from etafree.criterion import Criterion
from etafree.draws import Draws
from etafree.validation import Array

__all__ = ["Fit"]


@dataclass(frozen=True, eq=False)
class Fit:
    """Draws of a model's parameters, and what is known of its losses.

    Attributes
    ----------
    draws : Draws
        Free parameters on the scale that is calibrated: the unconstrained one where the model is
        known, else the one the draws came in. With R-hat, divergences and such in ``draws.info``.
    tree : xarray.DataTree
        The fit as it came; groups ``posterior``, ``log_likelihood`` and so on.
    criterion : Criterion or None
        Exact losses and derivatives on the scale of `draws`, the prior as penalty. None: only
        pointwise losses are known and the infinitesimal jackknife makes the target.
    losses : PointwiseLosses or None
        Minus the stored log-likelihood, for the jackknife.
    observations : etafree.adapters.observations.Observations or None
        Dimensions and coordinates that labels are lined up with, where they are known.
    every : Draws or None
        All real variables for the slopes of the jackknife, where `draws` are some of them.
    constrain : callable or None
        Parameters (..., p) to a mapping of the model's own variables (..., *shape), deterministic
        ones too; None where the draws are the variables themselves.
    pointwise : callable or None
        Parameters (D, p) to a mapping of observed variables to log-likelihoods (D, *shape), to
        recompute the group ``log_likelihood`` of calibrated draws.
    latent : tuple of str
        Group effects that a marginal likelihood integrates out: left as they were.
    checks : tuple of Check
        What the adapter noticed.
    shown : tuple of str
        Variables to report of those that `constrain` returns; all if empty.
    kind : {"DataTree", "InferenceData"}
        What the fit came as, and goes back as.
    """

    draws: Draws
    tree: Any = field(repr=False)
    criterion: Criterion | None = None
    losses: Any = field(default=None, repr=False)
    observations: Any = field(default=None, repr=False)
    every: Draws | None = field(default=None, repr=False)
    constrain: Callable[[Array], Mapping[str, Array]] | None = field(default=None, repr=False)
    pointwise: Callable[[Array], Mapping[str, Array]] | None = field(default=None, repr=False)
    latent: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    shown: tuple[str, ...] = ()
    kind: str = "DataTree"
