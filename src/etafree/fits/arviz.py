"""ArviZ in, ArviZ out: InferenceData, DataTree and files of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree.draws import Draws
from etafree.errors import InputError
from etafree.fits import Fit
from etafree.fits.conditional import computed_along
from etafree.fits.observations import stored_losses
from etafree.fits.trees import SAMPLE_DIMS, flatten, unflatten
from etafree.foundation.arguments import Array, as_positive
from etafree.foundation.check import Finding

if TYPE_CHECKING:
    import xarray as xr

#: Posterior attribute that says that draws are calibrated.
MARK = "calibrated_by"
#: What stands for the slash of ``I(x / z)`` in names of variables.
DIVISION = "\N{DIVISION SLASH}"
#: Groups that do not depend on the posterior draws.
KEPT = (
    "observed_data",
    "constant_data",
    "predictions_constant_data",
    "prior",
    "prior_predictive",
    "sample_stats_prior",
)


def arviz_fit(
    tree: xr.DataTree,
    *,
    var_names: object = None,
    filter_vars: str | None = None,
    log_likelihood: str | Sequence[str] | None = None,
    eta: float | None = None,
    stored: bool = True,
) -> Fit:
    """Return the draws and stored losses of a tree with groups posterior and log_likelihood.

    Parameters
    ----------
    tree : xarray.DataTree
    var_names, filter_vars
        Parameters to report, as in ArviZ: names, ``"~name"`` to leave one out, with "like" or
        "regex" parts of names or regular expressions. Default: all that are not one value per
        observation, along all dimensions of the log-likelihood, or computed along some of them.
        The others are accounted for by the draws.
    log_likelihood : str or list of str, optional
        Which variables, added up; "sum" for all. Needed if there are several; those not named
        are held fixed.
    eta : float, optional
        Learning rate of the draws, 1 by default.
    stored : bool
        Whether losses must be stored; False to calibrate with another criterion.
    """
    posterior = _posterior(tree)
    losses = stored_losses(tree, log_likelihood) if stored else None
    long = (
        []
        if losses is None
        else [
            str(name)
            for name, array in posterior.data_vars.items()
            if set(losses.dims) <= set(array.dims)
        ]
    )
    computed = [] if losses is None else computed_along(posterior, losses, long)
    names = chosen_names(posterior, var_names, filter_vars)
    findings: list[Finding] = []
    if var_names is None:
        names = [name for name in names if name not in long and name not in computed]
        findings += _left_out(long, "per observation") + _left_out(computed, "computed from others")
        if not names:
            raise InputError(
                "draws",
                f"have one value per observation only: {long}",
                "name the parameters with var_names=",
            )
    if not names:
        raise InputError("var_names", "leaves no parameter", f"choose from {[*posterior]}")
    rate = 1.0 if eta is None else as_positive(eta, "eta")
    values, flat = flatten(posterior, names)
    draws = replace(Draws.of(values, flat, rate), sampler=_library(posterior))
    filled = _Filled.of(draws, posterior)
    if filled is not None:
        findings += _left_out(filled.described(), "constant or copies")
        draws = draws.select(filled.names)
    every = _every(posterior, [*long, *computed], names)
    observations = None if losses is None else losses.observations
    return Fit(
        draws,
        tree,
        losses=losses,
        observations=observations,
        every=every,
        constrain=filled,
        findings=tuple(findings),
    )


def _every(posterior: xr.Dataset, long: Sequence[str], names: Sequence[str]) -> Draws | None:
    """Return the draws of all real variables but the long ones, None if these are those named."""
    real = [
        str(name)
        for name, array in posterior.data_vars.items()
        if array.dtype.kind == "f" and name not in long
    ]
    return None if set(real) <= set(names) else Draws(*flatten(posterior, real))


def _left_out(names: Sequence[str], reason: str) -> list[Finding]:
    if not names:
        return []
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return [Finding(f"left out, {reason}", float(len(names)), {"advice": shown})]


def _posterior(tree: xr.DataTree) -> xr.Dataset:
    if "posterior" not in tree.children:
        raise InputError(
            "draws",
            f"has no group 'posterior', only {sorted(tree.children)}",
            "pass what the sampler returned",
        )
    posterior = tree["posterior"].to_dataset()
    if MARK in posterior.attrs:
        raise InputError(
            "draws",
            f"is calibrated already, by {posterior.attrs[MARK]}",
            "calibrate the original: its draws are in original_posterior",
        )
    for dim in SAMPLE_DIMS:
        if any(dim not in array.dims for array in posterior.data_vars.values()):
            raise InputError(
                "draws",
                f"has posterior variables without dimension {dim!r}",
                "name the first two dimensions chain and draw",
            )
    if not posterior.data_vars:
        raise InputError("draws", "has an empty posterior", "pass what the sampler returned")
    return posterior


def chosen_names(posterior: xr.Dataset, var_names: object, filter_vars: str | None) -> list[str]:
    """Return the variables that `var_names` asks for, with ArviZ's meaning of its parts."""
    from arviz_base.utils import _var_names

    names = [str(name) for name in posterior.data_vars]
    if var_names is None:
        return names
    asked = [var_names] if isinstance(var_names, str) else var_names
    if (
        not isinstance(asked, Iterable)
        or getattr(asked, "ndim", 1) != 1
        or not all(isinstance(name, str) for name in asked)
    ):
        raise InputError("var_names", f"is {var_names!r}", f"pass names out of {names}")
    try:
        found: Any = _var_names(list(asked), posterior, filter_vars)  # type: ignore[arg-type]
    except re.error as error:
        raise InputError(
            "var_names", f"is no regular expression: {error}", f"choose from {names}"
        ) from None
    except (KeyError, ValueError) as error:
        raise InputError("var_names", str(error.args[0]), f"choose from {names}") from None
    return [str(name) for name in found]


def _library(posterior: xr.Dataset) -> str:
    return str(posterior.attrs.get("inference_library", "given"))


@dataclass(frozen=True, eq=False)
class _Filled:
    """Puts back the entries that are constant or copies, as of a correlation matrix."""

    posterior: xr.Dataset
    names: tuple[str, ...]
    fixed: Mapping[str, float]
    copies: Mapping[str, str]

    @classmethod
    def of(cls, draws: Draws, posterior: xr.Dataset) -> _Filled | None:
        """Return what fills the gaps of these draws, None if there are none."""
        fixed: dict[str, float] = {}
        copies: dict[str, str] = {}
        first: dict[bytes, str] = {}
        for name, column in zip(draws.names, draws.array.T, strict=True):
            if np.ptp(column) <= 1e-14 * np.abs(column).max():
                fixed[name] = float(column[0])
                continue
            known = first.setdefault(np.ascontiguousarray(column).tobytes(), name)
            if known != name:
                copies[name] = known
        if not fixed and not copies:
            return None
        names = tuple(n for n in draws.names if n not in fixed and n not in copies)
        if not names:
            raise InputError("draws", "of every parameter are constant", "draw again")
        return cls(posterior, names, fixed, copies)

    def described(self) -> list[str]:
        """Return the entries that are not calibrated themselves."""
        return [*self.fixed, *self.copies]

    def __call__(self, theta: Array) -> dict[str, Array]:
        """Return the model's variables from the parameters (..., p)."""
        columns = {name: theta[..., j] for j, name in enumerate(self.names)}
        columns |= {name: np.full(theta.shape[:-1], value) for name, value in self.fixed.items()}
        columns |= {name: columns[source] for name, source in self.copies.items()}
        return unflatten(self.posterior, columns)


def calibrated_tree(draws: Draws, fit: Fit | None, record: Mapping[str, object]) -> xr.DataTree:
    """Return calibrated draws as a tree like the one they came from.

    Variables keep names, dimensions and coordinates. The original posterior and every group that
    was computed from it move to ``original_*``; the log-likelihood is computed again where the
    model is known. Variables that were not calibrated are in ``original_posterior`` only.

    Parameters
    ----------
    draws : Draws
        Calibrated.
    fit : Fit or None
        What they came from.
    record : mapping
        Attributes of the new posterior.
    """
    import xarray as xr

    if fit is None or fit.tree is None:
        names = [name.replace("/", DIVISION) for name in draws.names]  # xarray's paths have slashes
        made = {name: (SAMPLE_DIMS, draws.values[..., j]) for j, name in enumerate(names)}
        return xr.DataTree.from_dict({"posterior": xr.Dataset(made, attrs=dict(record))})
    before = fit.tree["posterior"].to_dataset()
    if fit.constrain is not None:
        variables = dict(fit.constrain(draws.values))
    else:
        columns = {name: draws.values[..., j] for j, name in enumerate(draws.names)}
        variables = unflatten(before, columns)
    known = {name: array for name, array in variables.items() if name in before}
    left = [str(name) for name in before.data_vars if name not in known]
    posterior = before[list(known)].copy()
    for name, values in known.items():
        like = before[name].transpose(*SAMPLE_DIMS, ...)
        posterior[name] = like.copy(data=values).transpose(*before[name].dims)
    posterior.attrs.update(record, calibration_left_out=", ".join(left))
    groups = {"posterior": posterior}
    if fit.pointwise is not None:
        groups["log_likelihood"] = _log_likelihood(fit, draws)
    for name, child in fit.tree.children.items():
        groups[name if name in KEPT else f"original_{name}"] = child.to_dataset()
    tree = xr.DataTree.from_dict(groups)
    tree.attrs.update(fit.tree.attrs)
    return tree


def _log_likelihood(fit: Fit, draws: Draws) -> xr.Dataset:
    """Return the log-likelihood of calibrated draws, along the dimensions of the original's."""
    import xarray as xr

    assert fit.pointwise is not None
    posterior, made = fit.tree["posterior"].to_dataset(), {}
    for name, values in fit.pointwise(draws.array).items():
        shaped = np.reshape(values, (*draws.values.shape[:2], *np.shape(values)[1:]))
        like = next(
            (
                fit.tree[group][name]
                for group in ("log_likelihood", "observed_data")
                if group in fit.tree.children and name in fit.tree[group]
            ),
            None,
        )
        dims = [f"{name}_dim_{k}" for k in range(shaped.ndim - 2)]
        coords: dict[Any, Any] = {dim: posterior[dim] for dim in SAMPLE_DIMS}
        if like is not None:
            dims = [str(dim) for dim in like.dims if dim not in SAMPLE_DIMS]
            coords |= {dim: like[dim] for dim in dims if dim in like.coords}
        made[name] = xr.DataArray(shaped, dims=[*SAMPLE_DIMS, *dims], coords=coords)
    return xr.Dataset(made)
