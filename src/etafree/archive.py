"""The parts of a calibration as arrays and metadata, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etafree.calibration import LocationScaleMap
from etafree.checks import Check
from etafree.draws import Draws
from etafree.satterthwaite import Satterthwaite
from etafree.targets import Target
from etafree.validation import FAR, as_array, as_number

__all__ = ["pack", "unpack"]

SATTERTHWAITE = tuple(f.name for f in fields(Satterthwaite))
#: What is a number or nothing in the description of a target and the settings; the rest is text,
#: except for these.
NUMBERS = ("clusters", "n", "size", "level")
KINDS: dict[str, tuple[type, ...]] = {"centered": (bool,), "seed": (int, str)}


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
    told = (
        "center_kind",
        "correction",
        "centered",
        "clusters",
        "design",
        "n",
        "size",
        "estimand",
        "method",
    )
    meta = {
        "names": list(t.names),
        "all_names": list(o.names),
        "target": {name: _plain(getattr(t, name)) for name in told},
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
    names, every = tuple(meta["names"]), tuple(meta["all_names"])
    for name, value in (*meta["target"].items(), *meta["settings"].items()):
        number = name in NUMBERS and (value is None or as_number(value, name) > 0)
        if not (number or isinstance(value, KINDS.get(name, (str,)))):
            raise ValueError(f"{name} is {value!r}")
    satterthwaite = None
    if f"satterthwaite_{SATTERTHWAITE[0]}" in arrays:
        satterthwaite = Satterthwaite(*(arrays[f"satterthwaite_{name}"] for name in SATTERTHWAITE))
    target = Target(
        center=arrays["center"],
        covariance=arrays["covariance"],
        names=names,
        dof=arrays["dof"],
        hessian=arrays.get("hessian"),
        meat=arrays.get("meat"),
        se_error=arrays.get("se_error"),
        plug_ins={str(key): float(value) for key, value in meta["plug_ins"].items()},
        satterthwaite=satterthwaite,
        **meta["target"],
    )
    return {
        "draws": Draws(arrays["draws"], every, **meta["sampler"]),
        "original": Draws(arrays["original"], every, **meta["sampler"]),
        "target": target,
        "map": LocationScaleMap(
            arrays["map_mean"], arrays["map_offset"], arrays["map_scale"], names
        ),
        "settings": meta["settings"],
        "recorded": tuple(
            Check(str(name), float(value), float(threshold), str(verdict), str(advice))
            for name, value, threshold, verdict, advice in meta["checks"]
        ),
    }
