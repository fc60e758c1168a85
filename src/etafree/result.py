r"""What calibrate() returns: calibrated draws with everything that made them, and what they answer.

A result is saved as arrays and a description. What is loaded must be a calibration: names that are
distinct, a covariance that is one, :math:`V=A^{-1}BA^{-1}`, :math:`\Omega S\Omega^\top=V` and draws
that the map, with its Student-t factors, takes from before to after. Anything else is a
`ValueError` that says what does not fit.

A fit whose model is known is calibrated on the unconstrained scale and shown as the model's own
variables. A file has no model: it holds the variables' values at all points that a result asks for,
the draws before and after, the centre and its neighbours for the delta method.
"""

from __future__ import annotations

import html
import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.bootstrap import resampled_targets
from etafree.criterion import Criterion
from etafree.dependence.base import Dependence
from etafree.dependence.clusters import cluster_table, contrast_laws, point_of
from etafree.diagnostics import every_check
from etafree.draws import Draws
from etafree.errors import CalibrationWarning, InputError
from etafree.fits import Fit
from etafree.fits.trees import LARGE, SAMPLE_DIMS
from etafree.foundation import linalg
from etafree.foundation.arguments import (
    FAR,
    Array,
    as_array,
    as_choice,
    as_count,
    as_level,
    as_names,
    as_number,
    as_rng,
)
from etafree.foundation.check import VERDICTS, Check
from etafree.foundation.linalg import ROOTS, check_covariance, relative_eigenvalues, transport
from etafree.foundation.storage import damaged, load_arrays, save_arrays, whole_file, writable
from etafree.foundation.terminal import counted, plain
from etafree.inference import (
    Functional,
    Region,
    WaldTest,
    WildBootstrap,
    constraints,
    image,
    student_quantile,
    student_tail,
    wald_test,
    wild_bootstrap,
)
from etafree.map import (
    KINDS,
    WORKING,
    LocationScaleMap,
    PaperMatrices,
    student_factor_grid,
    working_covariance,
)
from etafree.optimize import minimise
from etafree.posterior import GeneralizedPosterior
from etafree.report.summaries import (
    Shown,
    constrained,
    flat_variables,
    headline,
    is_shown,
    neighbours,
    record,
    summary_table,
)
from etafree.sandwich import target_of
from etafree.target import Satterthwaite, Target
from etafree.totals.linear import has_design

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PLACES = ("before", "after", "near")
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
                return {
                    name: value[: len(flat)].reshape(*theta.shape[:-1], *value.shape[1:])
                    for name, value in values.items()
                }
        raise InputError(
            "model",
            "is not in the file of a result, which has its variables at the draws only",
            "calibrate again",
        )


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
    places = dict(zip(PLACES, map(fit.constrain, thetas), strict=True))
    known = [name for name in places["before"] if name in posterior]
    shown = [name for name in known if is_shown(fit, name)]
    kept = [name for name in known if name in shown or np.size(places["before"][name]) <= LARGE]
    arrays: dict[str, Any] = {"own_near": thetas[2]}
    labels = {f"own_{dim}": dim for dim in SAMPLE_DIMS}
    variables: list[list[Any]] = []
    for j, name in enumerate(kept):
        dims = [d for d in posterior[name].dims if d not in SAMPLE_DIMS]
        arrays |= {f"own_{j}_{part}": np.asarray(values[name]) for part, values in places.items()}
        labels |= {f"own_{j}_dim{k}": dim for k, dim in enumerate(dims)}
        variables.append([name, [str(dim) for dim in dims]])
    for key, dim in labels.items():
        if dim in posterior.coords:
            arrays[key] = _storable(posterior[dim].values)
    told = {"shown": shown, "latent": list(fit.latent), "kind": fit.kind}
    return arrays, {"own": {"variables": variables, **told}}


def unpack_variables(
    arrays: Mapping[str, NDArray[Any]], told: Mapping[str, Any], original: Draws, draws: Draws
) -> Fit:
    """Return a fit with the variables that `pack_variables` stored, of these draws."""
    import xarray as xr

    values: dict[str, dict[str, Any]] = {part: {} for part in PLACES}
    posterior = xr.Dataset()
    for j, (name, dims) in enumerate(told["variables"]):
        for part in PLACES:
            values[part][name] = arrays[f"own_{j}_{part}"]
        coords = {
            dim: arrays[f"own_{j}_dim{k}"]
            for k, dim in enumerate(dims)
            if f"own_{j}_dim{k}" in arrays
        }
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


def _storable(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels of a dimension as a file without pickled objects can hold them."""
    return labels.astype(str) if labels.dtype == object else labels


SATTERTHWAITE = tuple(f.name for f in fields(Satterthwaite))
TOLD = (
    "center_kind",
    "correction",
    "centered",
    "clusters",
    "design",
    "n",
    "size",
    "estimand",
    "method",
    "joint_dof",
)
SAMPLER = ("eta", "sampler", "info")
SETTINGS = ("kind", "root", "working", "level", "seed", "version", "made_with")
#: What `pack` may store.
ARRAYS = (
    *("draws", "original", "map_mean", "map_offset", "map_scale", "center", "covariance", "dof"),
    *("hessian", "meat", "se_error"),
    *(f"satterthwaite_{name}" for name in SATTERTHWAITE),
)
#: What is a number or nothing in the description of a target and the settings; the rest is text,
#: except for these.
NUMBERS = ("clusters", "n", "size", "level", "joint_dof")
TYPES: dict[str, tuple[type, ...]] = {"centered": (bool,), "seed": (int, str)}
#: Share by which matrices, and standard errors by which draws, may differ: other processors round
#: otherwise, and a covariance near the limit of what is accepted makes much of it.
MATRICES, POINTS = 1e-3, 1e-6


def _plain(value: object) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def pack(
    draws: Draws,
    original: Draws,
    target: Target,
    mapping: LocationScaleMap,
    settings: Mapping[str, Any],
    checks: tuple[Check, ...],
) -> tuple[dict[str, Any], dict[str, Any]]:
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
        "sampler": {
            "eta": o.eta,
            "sampler": o.sampler,
            "info": {key: _plain(value) for key, value in o.info.items()},
        },
        "checks": [[_plain(value) for value in check] for check in checks],
    }
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
        Check(
            str(name),
            float(value),
            float(threshold),
            as_choice(warns, "warns", ("above", "below")),
            as_choice(verdict, "verdict", VERDICTS),
            str(advice),
        )
        for name, value, threshold, warns, verdict, advice in meta["checks"]
    )
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
    known = {name: sampler["info"].get(name) for name in ("ess", "pareto_k", "r_hat")}
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


class Answers:
    """The numbers that a `Calibration`, which inherits them, can be asked for."""

    draws: Draws
    original: Draws
    target: Target
    map: LocationScaleMap
    settings: Mapping[str, Any]
    fit: Fit | None

    @property
    def criterion(self) -> Criterion | None:
        """What was calibrated, if it is known; of a penalty with a kink, its active block."""
        return self.target.criterion

    @property
    def dependence(self) -> Dependence | None:
        """Which rows may depend on each other, if that is known."""
        return self.target.dependence

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names, also of those that an L1 penalty sets to zero."""
        return self.draws.names

    @property
    def inactive(self) -> tuple[str, ...]:
        """Parameters that are exactly zero under a penalty with a kink: they have no interval."""
        return tuple(name for name in self.names if name not in self.target.names)

    @property
    def center(self) -> Array:
        """Where the calibrated draws are centred (p,)."""
        if not self.inactive:
            return self.map.offset
        where = [self.names.index(name) for name in self.target.names]
        center = np.zeros(len(self.names))
        center[where] = self.map.offset
        return center

    @property
    def center_shift(self) -> Array:
        """Centre minus posterior mean in target standard errors, of every active parameter."""
        return (self.map.offset - self.map.mean) / self.target.se

    @cached_property
    def _before(self) -> Draws:
        """The original draws of the active parameters."""
        return self.original.select(self.target.names)

    def interval(self, level: float | None = None, kind: str = "draws") -> pd.DataFrame:
        """Return equal-tailed confidence limits per parameter.

        Parameters
        ----------
        level : float, optional
            Default: the level the calibration was asked for, 0.95.
        kind : {"draws", "wald"}
            Quantiles of the calibrated draws, or estimate plus and minus t quantile times se.

        Returns
        -------
        DataFrame
            With columns lower and upper; a parameter that is exactly zero has none.

        Examples
        --------
        >>> import etafree as ef
        >>> draws = np.random.default_rng(0).standard_normal((500, 2))
        >>> r = ef.calibrate(draws, ef.Target([1.0, 2.0], np.eye(2), ["a", "b"]))
        >>> r.interval(kind="wald").round(2)
           lower  upper
        a  -0.96   2.96
        b   0.04   3.96
        """
        import pandas as pd

        shown = self.shown
        lower, upper = shown.limits(self._level(level), kind)
        table = pd.DataFrame({"lower": lower, "upper": upper}, index=pd.Index(shown.names))
        return table.reindex(list(self.names)) if self.inactive else table

    def _level(self, level: float | None) -> float:
        return as_level(self.settings["level"] if level is None else level)

    @cached_property
    def shown(self) -> Shown:
        """Estimates, errors and draws of what tables and plots show."""
        if self.fit is not None and self.fit.constrain is not None:
            arrays = self.original.array, self.draws.array
            return constrained(self.fit, self.center, self.target, *arrays)
        t = self.target
        after = self.draws.select(t.names).array
        return Shown(t.names, self.map.offset, t.se, t.dof, self._before.array, after, t.se_error)

    def summary(self, level: float | None = None, kind: str = "draws") -> pd.DataFrame:
        """Return a table: estimate, se, interval and t degrees of freedom, before and after.

        Parameters
        ----------
        level : float, optional
            Default: the level the calibration was asked for, 0.95.
        kind : {"draws", "wald"}
            Quantiles of the calibrated draws, or estimate plus and minus t quantile times se.

        Returns
        -------
        DataFrame
            A row per parameter: estimate, se, lower, upper, dof, and of the original draws
            mean_before, sd_before, lower_before, upper_before. ``ratio`` is the calibrated
            interval's width over the original's: above one, the posterior was overconfident.
            ``se_error`` is the relative Monte Carlo error of a standard error that draws made.
            Under a penalty with a kink, ``status`` says which parameters are exactly zero and have
            no interval.
        """
        import pandas as pd

        table = summary_table(self.shown, self._level(level), kind)
        if not self.inactive:
            return table
        table = table.reindex(pd.Index(self.names, name="parameter"))
        table.loc[list(self.inactive), "estimate"] = 0.0
        table["status"] = ["no interval" if n in self.inactive else "active" for n in self.names]
        return table

    def region(self, level: float | None = None) -> Region:
        r"""Return the joint confidence ellipsoid of all parameters (Hotelling).

        Marginal quantiles of the draws make no joint region: a box of intervals covers less.

        Parameters
        ----------
        level : float, optional
            Default: the level the calibration was asked for, 0.95.

        Returns
        -------
        Region
            ``contains(theta)`` tells what is inside, ``boundary(i, j)`` draws its outline.

        Raises
        ------
        InputError
            Degrees of freedom are fewer than parameters.

        Examples
        --------
        >>> import etafree as ef
        >>> draws = np.random.default_rng(0).standard_normal((500, 2))
        >>> r = ef.calibrate(draws, ef.Target([1.0, 2.0], np.eye(2), ["a", "b"]))
        >>> r.region().contains([1.0, 4.4]), r.region().contains([1.0, 4.5])
        (True, False)
        """
        return Region.of(self.map.offset, self.target, self._level(level))

    def test(self, contrast: object, value: object = 0.0) -> WaldTest:
        """Test linear hypotheses about the parameters, by an F test.

        Parameters
        ----------
        contrast : str, sequence of str, mapping or array
            ``"x1 - x2 = 0"``, ``["x1", "x2"]`` (both zero), ``{"x1": 1, "x2": -1}``, or a matrix
            (q, p).
        value : float or (q,) array
            Right-hand side for contrasts that are not equations.

        Returns
        -------
        WaldTest
            Statistic, degrees of freedom, p-value, estimate and standard error.

        Raises
        ------
        InputError
            A name is no parameter, rows depend on each other, or degrees of freedom are too few.

        Examples
        --------
        >>> import etafree as ef
        >>> draws = np.random.default_rng(0).standard_normal((500, 2))
        >>> r = ef.calibrate(draws, ef.Target([1.0, 2.0], np.eye(2), ["a", "b"]))
        >>> r.test("b - a = 3")
        WaldTest(F = 2 on F(1, inf), p = 0.1573)
        """
        return wald_test(self.map.offset, self.target, contrast, value)

    def wild_bootstrap(
        self,
        contrast: object,
        value: float = 0.0,
        *,
        level: float | None = None,
        draws: int = 9999,
        seed: object = 0,
    ) -> WildBootstrap:
        """Return an interval and a p-value of one contrast by the wild cluster bootstrap.

        An independent check of an interval when clusters are few: no t quantile is involved.

        Parameters
        ----------
        contrast : str, mapping or (p,) array
            As for `test`, one row.
        value : float
            Hypothesised value, for a contrast that is no equation.
        level : float, optional
            Default: the level the calibration was asked for, 0.95.
        draws : int
            Bootstrap draws, at least 99.
        seed : int, SeedSequence or Generator
            The same seed gives the same result.

        Returns
        -------
        WildBootstrap
            Estimate, limits and p-value.

        Raises
        ------
        InputError
            There is no criterion, no one-way clusters, or several contrasts.

        References
        ----------
        Kline, P. and Santos, A. (2012). A score based approach to wild bootstrap inference. J.
        Econometric Methods 1, 23-41.
        """
        groups = None if self.dependence is None else self.dependence.clusters
        if self.criterion is None or groups is None:
            raise InputError(
                "contrast",
                "needs a criterion and clusters to bootstrap",
                "calibrate with a Criterion and one-way clusters=",
            )
        matrix, right = constraints(contrast, value, self.target.names)
        if len(matrix) != 1:
            raise InputError("contrast", f"has {len(matrix)} rows", "bootstrap one at a time")
        return wild_bootstrap(
            self.criterion,
            self.target,
            groups,
            matrix[0],
            float(right[0]),
            self._level(level),
            as_count(draws, "draws", least=99),
            as_rng(seed),
        )

    def corrections(
        self, level: float | None = None, *, draws: int = 999, seed: object = 0
    ) -> pd.DataFrame:
        r"""Return every correction that applies, side by side, for each coefficient.

        Parameters
        ----------
        level : float, optional
            Default: the level the calibration was asked for, 0.95.
        draws : int
            Bootstrap draws of the wild bootstrap, at least 99.
        seed : int, SeedSequence or Generator
            Of the wild bootstrap.

        Returns
        -------
        DataFrame
            A row per coefficient and correction: standard error, degrees of freedom, limits and the
            p-value of no effect. "HC3, Satterthwaite" and its like take quantiles of
            :math:`t_\nu/\sqrt\kappa`, the law that few rows or clusters leave a coefficient. The
            wild bootstrap, for one-way clusters, has limits and a p-value only.

        Raises
        ------
        InputError
            There is no criterion: the jackknife and covariances of your own have no others.

        References
        ----------
        Imbens, G. W. and Kolesar, M. (2016). Robust standard errors in small samples: some
        practical advice. Rev. Econ. Statist. 98, 701-712.

        Examples
        --------
        >>> import etafree as ef
        >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
        >>> post = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), (X, y)), eta=1.0)
        >>> ef.calibrate(ef.sample(post, seed=1), post).corrections().round(2).loc["theta[0]"]
                              se  dof  lower  upper  p_value
        correction
        HC0                 0.94  inf   0.17   3.83     0.03
        HC1                 1.08  inf  -0.12   4.12     0.06
        HC2                 1.08  inf  -0.12   4.12     0.06
        HC2, Satterthwaite  1.08  3.0  -1.44   5.44     0.16
        HC3                 1.25  inf  -0.44   4.44     0.11
        HC3, Satterthwaite  1.25  3.0  -1.44   5.44     0.16
        """
        import pandas as pd

        criterion, dependence, known = self.criterion, self.dependence, self.target
        if criterion is None or dependence is None or known.meat is None:
            raise InputError("target", "has no other corrections", "calibrate with a Criterion")
        level, columns = self._level(level), ["se", "dof", "lower", "upper", "p_value"]
        rows: dict[tuple[str, str], Array] = {}
        for name in dependence.corrections:
            try:
                goal = target_of(criterion, dependence, center=known.center, correction=name)
            except InputError:  # there is no leverage, or it is one
                continue
            laws = {name: (goal.dof, goal.se)}
            if name in ("HC2", "HC3", "CR3"):  # CR2's are Satterthwaite's anyway
                law = contrast_laws(point_of(goal), dependence.clusters, name, np.eye(goal.p))
                laws[f"{name}, Satterthwaite"] = law.dof, goal.se / np.sqrt(law.inflation)
            for told, (dof, se) in laws.items():
                half = student_quantile(0.5 + 0.5 * level, dof) * se
                p_value = 2 * student_tail(np.abs(goal.center) / se, dof)
                found = np.column_stack(
                    [goal.se, dof, goal.center - half, goal.center + half, p_value]
                )
                rows |= {(n, told): row for n, row in zip(goal.names, found, strict=True)}
        if dependence.clusters is not None:
            for n in known.names:
                wild = self.wild_bootstrap(n, level=level, draws=draws, seed=seed)
                found = np.array([np.nan, np.nan, wild.lower, wild.upper, wild.p_value])
                rows[n, "wild bootstrap"] = found
        index = pd.MultiIndex.from_tuples([*rows], names=["parameter", "correction"])
        table = pd.DataFrame(np.array([*rows.values()]), index, columns)
        return table.loc[list(known.names)]

    def coverage_check(
        self,
        replicates: int = 500,
        *,
        level: float | None = None,
        kind: str = "draws",
        seed: object = 0,
    ) -> pd.DataFrame:
        """Return how often the intervals shown cover, in data sets drawn from the user's own.

        Rows, or clusters as wholes, are drawn with replacement, everything is fitted again, and
        the interval of that data set, as wide in its standard errors as the one shown, covers the
        estimate or not. A coverage below the level says that the sample is too small, too skewed or
        too uneven for the law behind the interval; one at the level does not say that the structure
        of dependence is right. A progress bar is shown if it takes long.

        Parameters
        ----------
        replicates : int
            Data sets, at least 50.
        level : float, optional
            Default: the level the calibration was asked for, 0.95.
        kind : {"draws", "wald"}
            Which intervals, as for `interval`.
        seed : int, SeedSequence or Generator
            The same seed gives the same result.

        Returns
        -------
        DataFrame
            A row per parameter: coverage, its Monte Carlo error, the shares of intervals that lie
            below and above, and how many data sets there were; some may have no minimiser.

        Raises
        ------
        InputError
            There is no criterion over a linear predictor in memory, or rows depend on each other in
            another way than by one-way clusters.

        References
        ----------
        Beran, R. (1987). Prepivoting to reduce level error of confidence sets. Biometrika 74,
        457-468.

        Examples
        --------
        >>> import etafree as ef
        >>> X, y = np.ones((40, 1)), np.random.default_rng(0).lognormal(0.0, 1.5, 40)
        >>> post = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), (X, y)), eta=1.0)
        >>> result = ef.calibrate(ef.sample(post, seed=1), post)
        >>> result.coverage_check(400).round(2)
                   coverage  error  below  above  replicates
        parameter
        theta[0]       0.93   0.01   0.07    0.0         400
        """
        import pandas as pd

        goal, count = self.target, as_count(replicates, "replicates", least=50)
        criterion, dependence = goal.criterion, goal.dependence
        if criterion is None or dependence is None or not has_design(criterion.total):
            raise InputError(
                "replicates", "need a criterion over a linear predictor, in memory", "pass one"
            )
        if dependence.clusters is None and not dependence.independent:
            raise InputError(
                "replicates",
                "are of rows or of one-way clusters, and these depend otherwise",
                "no data set can be drawn from this one alone",
            )
        if criterion.total.copies:
            raise InputError("replicates", "are of rows, and weights count copies", "repeat them")
        if goal.correction in ("custom", "given"):
            raise InputError("replicates", "need a correction of ours", "leave meat= out")
        limits = (np.array(self.shown.limits(self._level(level), kind)) - goal.center) / goal.se
        truth, sides = minimise(criterion).theta, np.zeros((2, goal.p))
        used = 0
        with counted(count, "coverage") as step:
            for other in resampled_targets(goal, count, as_rng(seed)):
                ends = other.center + limits * other.se
                sides += [ends[1] < truth, ends[0] > truth]
                used += 1
                step(1)
        if used < count / 2:
            problem = f"have a minimiser in {used} of {count} data sets only"
            raise InputError("replicates", problem, "add a penalty")
        below, above = sides / used
        covered = 1 - below - above
        table = {
            "coverage": covered,
            "error": np.sqrt(np.maximum(covered * (1 - covered), 1 / used) / used),
            "below": below,
            "above": above,
            "replicates": used,
        }
        return pd.DataFrame(table, index=pd.Index(goal.names, name="parameter"))

    def cluster_table(self, way: str | None = None) -> pd.DataFrame:
        """Return a row per cluster, largest leverage first.

        Columns: rows and weight of the cluster, leverage (largest eigenvalue of its share of the
        Hessian; all share p among them) and the largest shift of an estimate that its scores make,
        in standard errors. `way` names one of several ways; an `InputError` without clusters.
        """
        named = {} if self.dependence is None else self.dependence.row_groups()
        if self.criterion is None or not named or "leverage" not in self.criterion.total.traits:
            raise InputError("way", "has no clusters to list", "calibrate with clusters=")
        kind = next(iter(named)) if way is None else as_choice(way, "way", tuple(named))
        return cluster_table(self.criterion, self.target, kind, named[kind])

    def of(
        self, function: Callable[[Mapping[str, Array]], Array], name: str | None = None
    ) -> Functional:
        """Map centre and draws through a function of named parameters.

        Parameters
        ----------
        function : callable
            Takes a mapping of names to arrays (draw,) and returns an array (draw,) or (draw, k).
        name : str, optional
            What to call it; the function's own name if not given.

        Returns
        -------
        Functional
            ``estimate``, ``draws`` and ``interval()`` of the function.

        Raises
        ------
        InputError
            The function asks for other parameters, or does not return a value per draw.

        Examples
        --------
        >>> import etafree as ef
        >>> draws = np.random.default_rng(0).standard_normal((500, 2))
        >>> r = ef.calibrate(draws, ef.Target([1.0, 2.0], np.eye(2), ["a", "b"]))
        >>> float(r.of(lambda t: t["a"] + t["b"]).estimate)
        3.0
        """
        label = str(getattr(function, "__name__", "functional") if name is None else name)
        arrays = self.center, self.draws.array, self.original.array
        at, after, before = (self._image(function, array) for array in arrays)
        return Functional(label, at, after, before, self._level(None))

    def _image(self, function: Callable[[Mapping[str, Array]], Array], array: Array) -> Array:
        if self.fit is None or self.fit.constrain is None:
            return image(function, self.names, array)
        names, flat, whole = flat_variables(self.fit, np.atleast_2d(array))
        made = image(lambda entries: function({**entries, **whole}), names, flat)
        return made if array.ndim > 1 else made[0]


@dataclass(frozen=True, eq=False)
class Calibration(Answers):
    """Calibrated draws, with the target and the map that made them.

    Numbers: `summary`, `interval`, `region`, `test`, `wild_bootstrap`, and `of` for functions of
    the parameters. How far to trust them: `diagnostics`, `flags`, `cluster_table`. To keep or show:
    `plot`, `report`, `to_arviz`, `save`. Printing it tells what was done and what it covers.

    Attributes
    ----------
    draws : Draws
        Calibrated: centred at the estimate, with the sandwich's spread and t tails.
    original : Draws
        As they came.
    target : Target
        The centre and covariance that they were moved to.
    map : LocationScaleMap
        What moved them, without t tails; ``result.map(array)`` moves others alike.
    settings : mapping
        kind, root, working, level, seed, and the versions it was made with.
    posterior : GeneralizedPosterior or None
        What the draws are of, if it is known.
    recorded : tuple of Check or None
        Diagnostics of a result that was read from a file.
    fit : etafree.fits.Fit or None
        What another package made, if the draws came from one. A fit whose model is known is
        calibrated on the unconstrained scale; tables, plots and `of` then show the model's own
        variables, `test` and `region` the parameters that were calibrated.

    See Also
    --------
    etafree.calibrate : What returns it.

    References
    ----------
    Tamano, S. and Tomo, Y. (2025). Location-scale calibration for generalized posterior.
    arXiv:2511.15320.

    Examples
    --------
    >>> import numpy as np, etafree as ef
    >>> rng, school = np.random.default_rng(1), np.repeat(np.arange(40), 5)
    >>> X = rng.standard_normal((40, 2))[school]
    >>> y = X @ [1.0, 2.0] + rng.standard_normal(40)[school] + rng.standard_normal(200)
    >>> criterion = ef.Criterion(ef.losses.Huber(), data=(X, y), names=["a", "b"])
    >>> post = ef.GeneralizedPosterior(criterion, eta=1.0)
    >>> result = ef.calibrate(ef.sample(post, seed=2), post, clusters=school)
    >>> result.summary()[["estimate", "se", "ratio"]].round(2)
               estimate    se  ratio
    parameter
    a              0.87  0.24   2.48
    b              2.47  0.21   2.15
    >>> result.flags(), result.diagnostics().loc["implied coverage", "verdict"]
    ('all ok', 'ok')
    >>> result.cluster_table().head(2).round(2)
             rows  weight  leverage  shift
    cluster
    12          5     5.0      0.32   0.33
    15          5     5.0      0.21   0.51
    >>> result.wild_bootstrap("a", draws=999).p_value < 0.01
    True
    >>> len(result.plot(["a", "b"]).axes), result.to_arviz()["posterior"]["a"].shape
    (2, (1, 4000))
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = result.report(pathlib.Path(folder, "report.html"))
    ...     same = ef.Calibration.load(result.save(pathlib.Path(folder, "result.npz")))
    >>> page.name, bool(np.array_equal(same.draws.array, result.draws.array))
    ('report.html', True)
    """

    draws: Draws
    original: Draws
    target: Target
    map: LocationScaleMap
    settings: Mapping[str, Any]
    posterior: GeneralizedPosterior | None = field(default=None, repr=False)
    recorded: tuple[Check, ...] | None = field(default=None, repr=False)
    fit: Fit | None = field(default=None, repr=False)

    def paper(self) -> PaperMatrices:
        r"""Return the paper's :math:`\hat J_\lambda, \hat K, \hat H_0, \hat V, \hat\Omega`.

        Per unit of effective scale: :math:`A/s_n`, :math:`B/s_n`, :math:`(s_nS)^{-1}`,
        :math:`s_nA^{-1}BA^{-1}`. An `InputError` if the target was given as a covariance.

        Examples
        --------
        >>> import numpy as np, etafree as ef
        >>> c = ef.Criterion(ef.losses.Squared(), data=(np.ones((4, 1)), np.arange(4.0)))
        >>> d = ef.sample(ef.GeneralizedPosterior(c, eta=1.0), draws=100, seed=0)
        >>> ef.calibrate(d, c).paper().J
        array([[1.]])
        """
        t = self.target
        if t.hessian is None or t.meat is None or t.size is None:
            raise InputError("target", "was given as a covariance", "J and K need a criterion")
        return PaperMatrices(
            t.hessian / t.size,
            t.meat / t.size,
            linalg.inv(t.size * working_covariance(self.settings["working"], self._before, t)),
            t.size * t.covariance,
            self.map.scale,
        )

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """The diagnostics as tuples."""
        if self.recorded is not None:
            return self.recorded
        parts = self._before, self.target, self.map, self.map.offset, self.posterior
        return tuple(every_check(*parts))

    def diagnostics(self) -> pd.DataFrame:
        """Return the table of checks: value, threshold, the side that warns, verdict and advice.

        A verdict is ``"ok"``, ``"warn"``, ``"fail"``, or ``"unknown"`` if a check could not be
        computed; advice says what to do, or why it is unknown.
        """
        import pandas as pd

        return pd.DataFrame(list(self.checks), columns=list(Check._fields)).set_index("name")

    def flags(self) -> str:
        """Return the names of the checks that did not pass, or ``"all ok"``."""
        return ", ".join(c.name for c in self.checks if c.verdict != "ok") or "all ok"

    def plot(self, names: Sequence[str] | None = None) -> Figure:
        """Return a figure of densities and intervals before and after, a row each of `names`.

        All parameters that have an interval if `names` is not given.
        """
        from etafree.report.plots import before_after

        before, after = self.shown.columns(names)
        level = self._level(None)
        table = self.summary(level).loc[list(before)]
        eta = "" if self.original.eta is None else f" at η = {self.original.eta:g}"
        return before_after(before, after, table, level, eta, self.target.describe())

    def to_arviz(self) -> Any:
        """Return the calibrated draws as the kind of object they came as.

        An InferenceData gives an InferenceData, everything else an xarray DataTree, with the same
        variables, dimensions and coordinates. How they were calibrated is in the posterior's
        attributes. Groups computed from the original draws are ``original_*`` now. A slash in a
        name, which no such object can have, is the sign of division ``∕``.
        """
        from etafree.fits.arviz import calibrated_tree
        from etafree.fits.trees import as_kind

        tree = calibrated_tree(self.draws, self.fit, record(self))
        return as_kind(tree, "DataTree" if self.fit is None else self.fit.kind)

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write a self-contained HTML page about this calibration; return its path.

        Parameters
        ----------
        path : str or path
            In a folder that exists.
        force : bool
            Replace a file that is there already.

        Returns
        -------
        Path
            Where it is.

        Raises
        ------
        InputError
            The file exists, or its folder does not.
        """
        from etafree.report.calibration import calibration_page

        target = writable(path)
        if target.exists() and not force:
            raise InputError("path", f"{str(target)!r} exists", "pass force=True to replace it")
        text = calibration_page(self)
        with whole_file(target) as file:
            file.write(text.encode())
        return target

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write draws, target, map and diagnostics to the ``.npz`` file `path`; return its path.

        Data and models are not in it, but a model's own variables are.
        """
        arrays, meta = pack(
            self.draws, self.original, self.target, self.map, self.settings, self.checks
        )
        own, told = pack_variables(self.fit, self.original, self.draws, self.center, self.target.se)
        return save_arrays(path, "calibration", arrays | own, meta | told)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Return the calibration that `save` wrote to `path`."""
        arrays, meta = load_arrays(path, "calibration", lambda name: name in ARRAYS or is_own(name))
        own = {name: arrays.pop(name) for name in [*arrays] if is_own(name)}
        with damaged(path):
            parts = unpack(arrays, meta)
            if "own" in meta:
                drawn = parts["original"], parts["draws"]
                parts["fit"] = unpack_variables(own, meta["own"], *drawn)
            return cls(**parts)

    def __repr__(self) -> str:
        table = self.summary().drop(columns=["mean_before", "dof"])
        shown = table.to_string(float_format=lambda v: f"{v:.4g}", na_rep="-")
        return plain("\n".join([*headline(self), "", shown]))

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in headline(self)[1:])
        table = self.summary().to_html(float_format=lambda v: f"{v:.4g}", escape=True, na_rep="-")
        return plain(f"<b>{html.escape(headline(self)[0])}</b><ul>{lines}</ul>{table}")
