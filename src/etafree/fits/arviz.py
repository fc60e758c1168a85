"""ArviZ in, ArviZ out: InferenceData, DataTree and files of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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
KEPT = {"observed_data", "constant_data", "predictions_constant_data"}
KEPT |= {"prior", "prior_predictive", "sample_stats_prior"}


def arviz_fit(
    tree: xr.DataTree,
    var_names: object = None,
    filter_vars: str | None = None,
    log_likelihood: str | Sequence[str] | None = None,
    eta: float | None = None,
    losses: bool | None = None,
) -> Fit:
    """Return the draws and stored losses of a tree with groups posterior and log_likelihood.

    The options are those of `from_arviz`. By default all parameters are reported but those with one
    value per observation, along all dimensions of the log-likelihood, or computed along some of
    them; the others are accounted for by the draws. Log-likelihoods not named are held fixed.
    """
    posterior = _posterior(tree)
    if losses is None:
        losses = log_likelihood is not None or "log_likelihood" in tree.children
    stored = stored_losses(tree, log_likelihood) if losses else None
    long: list[str] = []
    computed: list[str] = []
    if stored is not None:
        variables = posterior.data_vars.items()
        long = [str(name) for name, array in variables if set(stored.dims) <= set(array.dims)]
        computed = computed_along(posterior, stored, long)
    names = chosen_names(posterior, var_names, filter_vars)
    findings: list[Finding] = []
    if var_names is None:
        names = [name for name in names if name not in long and name not in computed]
        findings += _left_out(long, "per observation") + _left_out(computed, "computed from others")
        if not names:
            problem = f"have one value per observation only: {long}"
            raise InputError("draws", problem, "name the parameters with var_names=")
    if not names:
        raise InputError("var_names", "leaves no parameter", f"choose from {[*posterior]}")
    values, flat = flatten(posterior, names)
    library = str(posterior.attrs.get("inference_library", "given"))
    draws = Draws.of(values, flat, 1.0 if eta is None else as_positive(eta, "eta"))
    draws = replace(draws, sampler=library)
    filled = _Filled.of(draws, posterior)
    if filled is not None:
        findings += _left_out([*filled.fixed, *filled.copies], "constant or copies")
        draws = draws.select(filled.names)
    return Fit(
        draws,
        tree,
        losses=stored,
        observations=None if stored is None else stored.observations,
        every=_every(posterior, [*long, *computed], names),
        constrain=filled,
        findings=tuple(findings),
    )


def _every(posterior: xr.Dataset, long: Sequence[str], names: Sequence[str]) -> Draws | None:
    """Return the draws of all real variables but the long ones, None if these are those named."""
    arrays = posterior.data_vars.items()
    real = [str(name) for name, a in arrays if a.dtype.kind == "f" and name not in long]
    return None if set(real) <= set(names) else Draws(*flatten(posterior, real))


def _left_out(names: Sequence[str], reason: str) -> list[Finding]:
    if not names:
        return []
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return [Finding(f"left out, {reason}", float(len(names)), {"advice": shown})]


def _posterior(tree: xr.DataTree) -> xr.Dataset:
    if "posterior" not in tree.children:
        problem = f"has no group 'posterior', only {sorted(tree.children)}"
        raise InputError("draws", problem, "pass what the sampler returned")
    posterior = tree["posterior"].to_dataset()
    if MARK in posterior.attrs:
        advice = "calibrate the original: its draws are in original_posterior"
        raise InputError("draws", f"is calibrated already, by {posterior.attrs[MARK]}", advice)
    for dim in SAMPLE_DIMS:
        if any(dim not in array.dims for array in posterior.data_vars.values()):
            problem = f"has posterior variables without dimension {dim!r}"
            raise InputError("draws", problem, "name the first two dimensions chain and draw")
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
    if getattr(asked, "ndim", 1) != 1 or not isinstance(asked, Iterable):
        asked = [None]
    asked = list(asked)
    if not all(isinstance(name, str) for name in asked):
        raise InputError("var_names", f"is {var_names!r}", f"pass names out of {names}")
    try:
        chosen = _var_names(asked, posterior, filter_vars)  # type: ignore[arg-type]
    except re.error as error:
        problem = f"is not a valid regular expression: {error}"
        raise InputError("var_names", problem, f"choose from {names}") from None
    except (KeyError, ValueError) as error:
        raise InputError("var_names", str(error.args[0]), f"choose from {names}") from None
    return [str(name) for name in chosen or ()]


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

    def __call__(self, theta: Array) -> dict[str, Array]:
        """Return the model's variables from the parameters (..., p)."""
        columns = {name: theta[..., j] for j, name in enumerate(self.names)}
        columns |= {name: np.full(theta.shape[:-1], value) for name, value in self.fixed.items()}
        columns |= {name: columns[source] for name, source in self.copies.items()}
        return unflatten(self.posterior, columns)


def calibrated_tree(draws: Draws, fit: Fit | None, record: Mapping[str, object]) -> xr.DataTree:
    """Return calibrated draws as a tree like the one they came from, with the record as attributes.

    Variables keep names, dimensions and coordinates. The original posterior and every group that
    was computed from it move to ``original_*``; the log-likelihood is computed again where the
    model is known. Variables that were not calibrated are in ``original_posterior`` only.
    """
    import xarray as xr

    if fit is None or fit.tree is None:
        names = [name.replace("/", DIVISION) for name in draws.names]  # xarray's paths have slashes
        columns = {name: (SAMPLE_DIMS, draws.values[..., j]) for j, name in enumerate(names)}
        return xr.DataTree.from_dict({"posterior": xr.Dataset(columns, attrs=dict(record))})
    before = fit.tree["posterior"].to_dataset()
    if fit.constrain is not None:
        variables = dict(fit.constrain(draws.values))
    else:
        entries = {name: draws.values[..., j] for j, name in enumerate(draws.names)}
        variables = unflatten(before, entries)
    known = {name: array for name, array in variables.items() if name in before}
    left = [str(name) for name in before.data_vars if name not in known]
    posterior = before[list(known)].copy()
    for name, values in known.items():
        like = before[name].transpose(*SAMPLE_DIMS, ...)
        posterior[name] = like.copy(data=values).transpose(*before[name].dims)
    posterior.attrs.update(record, calibration_left_out=", ".join(left))
    groups = {"posterior": posterior}
    if fit.pointwise is not None:
        groups["log_likelihood"] = _log_likelihood(fit.tree, draws, fit.pointwise(draws.array))
    for name, child in fit.tree.children.items():
        groups[name if name in KEPT else f"original_{name}"] = child.to_dataset()
    tree = xr.DataTree.from_dict(groups)
    tree.attrs.update(fit.tree.attrs)
    return tree


def _log_likelihood(tree: xr.DataTree, draws: Draws, pointwise: Mapping[str, Array]) -> xr.Dataset:
    """Return the log-likelihood of calibrated draws, along the dimensions of the original's."""
    import xarray as xr

    posterior, arrays = tree["posterior"].to_dataset(), {}
    groups = [
        tree[g].to_dataset() for g in ("log_likelihood", "observed_data") if g in tree.children
    ]
    for name, values in pointwise.items():
        shaped = np.reshape(values, (*draws.values.shape[:2], *np.shape(values)[1:]))
        dims = [f"{name}_dim_{k}" for k in range(shaped.ndim - 2)]
        coords = {dim: posterior[dim] for dim in SAMPLE_DIMS}
        like = next((group[name] for group in groups if name in group), None)
        if like is not None:
            dims = [str(dim) for dim in like.dims if dim not in SAMPLE_DIMS]
            coords |= {dim: like[dim] for dim in dims if dim in like.coords}
        arrays[name] = xr.DataArray(shaped, dims=[*SAMPLE_DIMS, *dims], coords=coords)
    return xr.Dataset(arrays)
