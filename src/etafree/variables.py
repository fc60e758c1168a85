"""A model's own variables in a file without the model.

A fit whose model is known is calibrated on the unconstrained scale and shown as the model's own
variables. A file has no model: it holds the variables' values at all points that a result asks for,
the draws before and after, the centre and its neighbours for the delta method.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etafree.adapters.trees import LARGE, SAMPLE_DIMS
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.fits import Fit
from etafree.summaries import is_shown, neighbours
from etafree.validation import Array

__all__ = ["is_own", "pack_variables", "unpack_variables"]

POINTS = ("before", "after", "near")
OWN = re.compile(r"own_(near|chain|draw|\d+_(before|after|near|dim\d+))")


def is_own(name: str) -> bool:
    """Return whether an array of a file is of a model's own variables."""
    return OWN.fullmatch(name) is not None


@dataclass(frozen=True, eq=False)
class Tabulated:
    """A model's variables at points that are known.

    Attributes
    ----------
    points : tuple of (m, p) arrays
        Parameters.
    values : tuple of mappings
        The variables (m, *shape) at these.
    """

    points: tuple[Array, ...]
    values: tuple[Mapping[str, Array], ...]

    def __call__(self, theta: Array) -> dict[str, Array]:
        """Return the variables (..., *shape) at parameters (..., p), the first of known ones."""
        flat = theta.reshape(-1, theta.shape[-1])
        for points, values in zip(self.points, self.values, strict=True):
            if len(flat) <= len(points) and np.allclose(points[: len(flat)], flat, 1e-12, 0.0):
                return {name: value[: len(flat)].reshape(*theta.shape[:-1], *value.shape[1:])
                        for name, value in values.items()}  # fmt: skip
        raise InputError("model", "is not in the file of a result, which has its variables at the "
                         "draws only", "calibrate again")  # fmt: skip


def pack_variables(
    fit: Fit | None, original: Draws, draws: Draws, center: Array, se: Array
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a fit's own variables as arrays and a description, nothing if they are the draws.

    Variables that are not shown and have more than `LARGE` numbers are left out.
    """
    if fit is None or fit.constrain is None:
        return {}, {}
    posterior: Any = fit.tree["posterior"].to_dataset()
    thetas = original.array, draws.array, neighbours(center, se)
    before, after, near = (fit.constrain(theta) for theta in thetas)
    shown = [name for name in before if name in posterior and is_shown(fit, name)]
    arrays: dict[str, Any] = {"own_near": thetas[2]}
    arrays |= {f"own_{dim}": _plain(posterior[dim].values)
               for dim in SAMPLE_DIMS if dim in posterior.coords}  # fmt: skip
    told: list[Any] = []
    for name, values in before.items():
        if name not in posterior or (name not in shown and np.size(values) > LARGE):
            continue
        key, dims = f"own_{len(told)}", [d for d in posterior[name].dims if d not in SAMPLE_DIMS]
        arrays |= {f"{key}_{part}": np.asarray(made[name])
                   for part, made in zip(POINTS, (before, after, near), strict=True)}  # fmt: skip
        for k, dim in enumerate(dims):
            if dim in posterior.coords:
                arrays[f"{key}_dim{k}"] = _plain(posterior[dim].values)
        told.append([name, [str(dim) for dim in dims]])
    return arrays, {"own": {"variables": told, "shown": shown, "latent": list(fit.latent),
                            "kind": fit.kind}}  # fmt: skip


def unpack_variables(
    arrays: Mapping[str, NDArray[Any]], told: Mapping[str, Any], original: Draws, draws: Draws
) -> Fit:
    """Return a fit with the variables that `pack_variables` stored, of these draws."""
    import xarray as xr

    values: dict[str, dict[str, Any]] = {part: {} for part in POINTS}
    posterior = xr.Dataset()
    for j, (name, dims) in enumerate(told["variables"]):
        for part in POINTS:
            values[part][name] = arrays[f"own_{j}_{part}"]
        coords = {dim: arrays[f"own_{j}_dim{k}"] for k, dim in enumerate(dims)
                  if f"own_{j}_dim{k}" in arrays}  # fmt: skip
        made = values["before"][name]
        shaped = made.reshape(*original.values.shape[:2], *made.shape[1:])
        posterior[name] = xr.DataArray(shaped, dims=[*SAMPLE_DIMS, *dims], coords=coords)
    told_dims = [dim for dim in SAMPLE_DIMS if f"own_{dim}" in arrays]
    posterior = posterior.assign_coords({dim: arrays[f"own_{dim}"] for dim in told_dims})
    points = original.array, draws.array, arrays["own_near"]
    installed = importlib.util.find_spec("arviz") is not None
    return Fit(
        original,
        xr.DataTree.from_dict({"posterior": posterior}),
        constrain=Tabulated(points, tuple(values.values())),
        latent=tuple(map(str, told["latent"])),
        shown=tuple(map(str, told["shown"])),
        kind="InferenceData" if told["kind"] == "InferenceData" and installed else "DataTree",
    )


def _plain(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels of a dimension as a file without pickled objects can hold them."""
    return labels.astype(str) if labels.dtype == object else labels
