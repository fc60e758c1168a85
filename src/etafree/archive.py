r"""The parts of a calibration as arrays and metadata, and back.

What is read must be a calibration: names that are distinct, a covariance that is one, and
:math:`V=A^{-1}BA^{-1}`, :math:`\Omega S\Omega^\top=V` and draws that the map, with its Student-t
factors, takes from before to after. Anything else is a `ValueError` that says what does not fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etafree import linalg
from etafree.calibration import (
    KINDS,
    WORKING,
    LocationScaleMap,
    student_factor_grid,
    working_covariance,
)
from etafree.checks import VERDICTS, Check
from etafree.draws import Draws
from etafree.errors import CalibrationWarning
from etafree.linalg import ROOTS, check_covariance, relative_eigenvalues, transport
from etafree.satterthwaite import Satterthwaite
from etafree.targets import Target
from etafree.validation import FAR, Array, as_array, as_choice, as_level, as_names, as_number

__all__ = ["ARRAYS", "pack", "unpack"]

SATTERTHWAITE = tuple(f.name for f in fields(Satterthwaite))
TOLD = ("center_kind", "correction", "centered", "clusters", "design", "n", "size", "estimand",
        "method")  # fmt: skip
SAMPLER = ("eta", "ess", "sampler", "info")
SETTINGS = ("kind", "root", "working", "level", "seed", "version", "made_with")
#: What `pack` may store.
ARRAYS = (
    *("draws", "original", "map_mean", "map_offset", "map_scale", "center", "covariance", "dof"),
    *("hessian", "meat", "se_error"),
    *(f"satterthwaite_{name}" for name in SATTERTHWAITE),
)
#: What is a number or nothing in the description of a target and the settings; the rest is text,
#: except for these.
NUMBERS = ("clusters", "n", "size", "level")
TYPES: dict[str, tuple[type, ...]] = {"centered": (bool,), "seed": (int, str)}
#: Share by which matrices, and standard errors by which draws, may differ: other processors round
#: otherwise, and a covariance near the limit of what is accepted makes much of it.
MATRICES, POINTS = 1e-3, 1e-6


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def pack(
    draws: Draws, original: Draws, target: Target, mapping: LocationScaleMap,
    settings: Mapping[str, Any], checks: tuple[Check, ...],
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Return the arrays and the JSON-able rest of a calibration; data are not stored."""
    t, m, o = target, mapping, original
    arrays: dict[str, Any] = {
        "draws": draws.values,
        "original": o.values,
        "map_mean": m.mean,
        "map_offset": m.offset,
        "map_scale": m.scale,
        "center": t.center,
        "covariance": t.covariance,
        "dof": t.dof,
    }
    for name in ("hessian", "meat", "se_error"):
        if getattr(t, name) is not None:
            arrays[name] = getattr(t, name)
    if t.satterthwaite is not None:
        for name in SATTERTHWAITE:
            arrays[f"satterthwaite_{name}"] = getattr(t.satterthwaite, name)
    meta = {
        "names": list(t.names),
        "all_names": list(o.names),
        "target": {name: _plain(getattr(t, name)) for name in TOLD},
        "plug_ins": dict(t.plug_ins),
        "settings": {key: _plain(value) for key, value in settings.items()},
        "sampler": {"eta": o.eta, "ess": o.ess, "sampler": o.sampler,
                    "info": {key: _plain(value) for key, value in o.info.items()}},
        "checks": [[_plain(value) for value in check] for check in checks],
    }  # fmt: skip
    return arrays, meta


def unpack(arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> dict[str, Any]:
    """Return the parts that `pack` was given, by the names of a Calibration's fields."""
    arrays = {name: as_array(value, name, finite=name != "dof") for name, value in arrays.items()}
    for name, value in arrays.items():
        if name != "dof" and np.abs(value).max(initial=0.0) > FAR:
            raise ValueError(f"{name} reaches {np.abs(value).max():.1g}")
    _check_description(meta)
    target = _target(arrays, meta)
    every = as_names(meta["all_names"], None)
    parts: dict[str, Any] = {
        "draws": Draws(arrays["draws"], every, **meta["sampler"]),
        "original": Draws(arrays["original"], every, **meta["sampler"]),
        "target": target,
        "map": LocationScaleMap(
            arrays["map_mean"], arrays["map_offset"], arrays["map_scale"], target.names
        ),
        "settings": meta["settings"],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # said when it was calibrated
        _check_target(target)
        _check_map(**parts)
    _check_draws(**parts)
    recorded = tuple(
        Check(str(name), float(value), float(threshold), as_choice(verdict, "verdict", VERDICTS),
              str(advice))
        for name, value, threshold, verdict, advice in meta["checks"]
    )  # fmt: skip
    return {**parts, "recorded": recorded}


def _check_description(meta: dict[str, Any]) -> None:
    for part, keys in (("target", TOLD), ("settings", SETTINGS), ("sampler", SAMPLER)):
        if sorted(meta[part]) != sorted(keys):
            raise ValueError(f"{part} has {sorted(meta[part])}, not {sorted(keys)}")
    for name, value in (*meta["target"].items(), *meta["settings"].items()):
        number = name in NUMBERS and (value is None or as_number(value, name) > 0)
        if not (number or isinstance(value, TYPES.get(name, (str,)))):
            raise ValueError(f"{name} is {value!r}")
    settings = meta["settings"]
    for name, options in (("kind", KINDS), ("root", ROOTS), ("working", WORKING)):
        as_choice(settings[name], name, options)
    as_level(settings["level"])
    sampler = meta["sampler"]
    known = {"ess": sampler["ess"], **{k: sampler["info"].get(k) for k in ("pareto_k", "r_hat")}}
    for name, value in known.items():
        if value is not None and np.isnan(as_number(value, name)):
            raise ValueError(f"{name} is no number")
    if not isinstance(sampler["sampler"], str):
        raise ValueError(f"sampler is {sampler['sampler']!r}")


def _target(arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> Target:
    satterthwaite = None
    if f"satterthwaite_{SATTERTHWAITE[0]}" in arrays:
        satterthwaite = Satterthwaite(*(arrays[f"satterthwaite_{name}"] for name in SATTERTHWAITE))
    return Target(
        center=arrays["center"],
        covariance=arrays["covariance"],
        names=as_names(meta["names"], None),
        dof=arrays["dof"],
        hessian=arrays.get("hessian"),
        meat=arrays.get("meat"),
        se_error=arrays.get("se_error"),
        plug_ins={str(key): float(value) for key, value in meta["plug_ins"].items()},
        satterthwaite=satterthwaite,
        **meta["target"],
    )


def _check_target(target: Target) -> None:
    """Refuse a covariance that is none, or not the sandwich of the matrices beside it."""
    check_covariance(target.covariance, "covariance", target.p)
    if not np.all(target.dof > 0):
        raise ValueError("degrees of freedom are not above zero")
    if target.se_error is not None:
        error = as_array(target.se_error, "se_error", shape=(target.p,))
        if np.any(error < 0):
            raise ValueError("an error of a standard error is negative")
    if target.satterthwaite is not None:
        _check_satterthwaite(target, target.satterthwaite)
    if (target.hessian is None) != (target.meat is None):
        raise ValueError("of Hessian and meat there is one only")
    if target.hessian is not None and target.meat is not None:
        bread = linalg.inv(check_covariance(target.hessian, "hessian", target.p), "hessian")
        sandwich = bread @ check_covariance(target.meat, "meat", target.p) @ bread
        if np.any(np.abs(relative_eigenvalues(sandwich, target.covariance) - 1) > MATRICES):
            raise ValueError("the covariance is not the sandwich of Hessian and meat")


def _check_satterthwaite(target: Target, parts: Satterthwaite) -> None:
    """Refuse parts that do not make the degrees of freedom, or belong to another Hessian."""
    dof = np.array([parts.dof(row) for row in np.eye(target.p)])
    if not np.allclose(dof, target.dof, rtol=MATRICES):
        raise ValueError("degrees of freedom are not Satterthwaite's")
    if not np.allclose(parts.total, parts.total.T, atol=1e-8):
        raise ValueError("Satterthwaite's total is not symmetric")
    unit = np.eye(target.p) if target.hessian is None else target.hessian
    if not np.allclose(parts.whiten @ unit @ parts.whiten.T, np.eye(target.p), atol=MATRICES):
        raise ValueError("Satterthwaite's coordinates are not the Hessian's")


def _check_map(
    original: Draws, target: Target, map: LocationScaleMap, settings: Mapping[str, Any], **_: Any
) -> None:
    """Refuse a map that does not lead from these draws to this target."""
    before = original.select(target.names)
    if settings["working"] == "curvature" and (before.eta is None or target.hessian is None):
        raise ValueError("the curvature that was mapped is missing")
    covariance = working_covariance(settings["working"], before, target)
    sd = np.sqrt(np.diagonal(covariance))
    center = before.mean if settings["kind"] == "scale" else target.center
    if np.any(np.abs(map.mean - before.mean) > POINTS * np.sqrt(np.diagonal(before.covariance()))):
        raise ValueError("the map's mean is not that of the original draws")
    if np.any(np.abs(map.offset - center) > POINTS * target.se):
        raise ValueError("the map's offset is not the centre")
    scale = transport(covariance, target.covariance, settings["root"])
    unit = sd / target.se[:, None]
    if np.any(np.abs(map.scale - scale) * unit > MATRICES * np.max(np.abs(scale) * unit)):
        raise ValueError("the map does not lead from the draws' covariance to the target's")


def _check_draws(
    draws: Draws, original: Draws, target: Target, map: LocationScaleMap, **_: Any
) -> None:
    """Refuse draws that the map and Student-t factors do not make of the original ones."""
    if draws.values.shape != original.values.shape:
        raise ValueError("there are more draws before than after, or fewer")
    rest = [k for k, name in enumerate(draws.names) if name not in target.names]
    if np.any(draws.array[:, rest] != 0):
        raise ValueError("draws of parameters without an interval are not zero")
    image = map(original.select(target.names).array)
    after = draws.select(target.names).array
    rounding = 1e-12 * np.maximum(np.abs(map.offset), np.abs(image).max(axis=0))
    room = POINTS * target.se + rounding
    for j, nu in enumerate(target.dof):
        before, moved = image[:, j] - map.offset[j], after[:, j] - map.offset[j]
        factor = _nearest_factor(moved, before, nu) if np.isfinite(nu) else np.ones(len(image))
        if np.any(np.abs(moved - factor * before) > room[j] * np.maximum(factor, 1.0)):
            raise ValueError(f"draws of {target.names[j]!r} are not the map of the original ones")


def _nearest_factor(moved: Array, before: Array, nu: float) -> Array:
    """Return of the possible t factors the one next to the ratio of every draw."""
    grid = np.sort(student_factor_grid(len(moved), float(nu)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(moved / before, nan=1.0)
    above = np.clip(np.searchsorted(grid, ratio), 1, len(grid) - 1) if len(grid) > 1 else 0
    low, high = grid[above - 1], grid[above]
    nearest: Array = np.where(ratio - low < high - ratio, low, high)
    return nearest
