"""What calibrate() returns: calibrated draws with everything that made them."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from etafree.archive import pack, unpack
from etafree.calibration import LocationScaleMap, working_covariance
from etafree.criterion import Criterion
from etafree.diagnostics import Check, checks_of_criterion, checks_of_draws, prior_weight
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.inference import Region, WaldTest, student_quantile, wald_test
from etafree.posterior import GeneralizedPosterior
from etafree.sandwich import Target
from etafree.storage import damaged, load_arrays, save_arrays
from etafree.sums import Groups
from etafree.validation import Array, as_array, as_choice, as_level, as_names

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Calibration", "Functional", "PaperMatrices"]


class PaperMatrices(NamedTuple):
    r"""The paper's matrices: per unit of effective scale :math:`s_n`."""

    J: Array
    K: Array
    H0: Array
    V: Array
    Omega: Array

    def __str__(self) -> str:
        labels = ("J_lambda", "K", "H_0", "V_target", "Omega")
        with np.printoptions(precision=5, suppress=True):
            return "\n".join(
                f"{label} =\n{matrix}" for label, matrix in zip(labels, self, strict=True)
            )


@dataclass(frozen=True, eq=False)
class Functional:
    """A function of the parameters: its value at the centre and its draws before and after."""

    name: str
    estimate: Array
    draws: Array
    original: Array
    level: float = 0.95

    def interval(self, level: float | None = None) -> Array:
        """Return equal-tailed limits of the calibrated draws, (2,) or (2, k)."""
        tail = 0.5 * (1 - as_level(self.level if level is None else level))
        limits: Array = np.quantile(self.draws, [tail, 1 - tail], axis=0)
        return limits


@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibrated draws, with the target and the map that made them.

    Attributes
    ----------
    draws : Draws
        Calibrated: centred at the estimate, with the sandwich's spread and t tails.
    original : Draws
        As they came.
    target : Target
    map : LocationScaleMap
    settings : mapping
        kind, root, working, level and the library's version.
    """

    draws: Draws
    original: Draws
    target: Target
    map: LocationScaleMap
    settings: Mapping[str, Any]
    criterion: Criterion | None = field(default=None, repr=False)
    posterior: GeneralizedPosterior | None = field(default=None, repr=False)
    groups: Groups | None = field(default=None, repr=False)
    recorded: tuple[Check, ...] | None = field(default=None, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names."""
        return self.target.names

    @property
    def center(self) -> Array:
        """Where the calibrated draws are centred (p,)."""
        return self.map.offset

    @property
    def center_shift(self) -> Array:
        """Centre minus posterior mean in target standard errors (p,)."""
        return (self.map.offset - self.map.mean) / self.target.se

    def interval(self, level: float | None = None, kind: str = "draws") -> pd.DataFrame:
        """Return equal-tailed limits per parameter.

        Parameters
        ----------
        level : float, optional
            Default: the level the calibration was asked for, 0.95.
        kind : {"draws", "wald"}
            Quantiles of the calibrated draws, or estimate plus and minus t quantile times se.
        """
        import pandas as pd

        lower, upper = self._limits(self._level(level), kind)
        return pd.DataFrame({"lower": lower, "upper": upper}, index=pd.Index(self.names))

    def _level(self, level: float | None) -> float:
        return as_level(self.settings["level"] if level is None else level)

    def _limits(self, level: float, kind: str) -> tuple[Array, Array]:
        as_choice(kind, "kind", ("draws", "wald"))
        tail = 0.5 * (1 - level)
        if kind == "wald":
            half = student_quantile(1 - tail, self.target.dof) * self.target.se
            return self.center - half, self.center + half
        lower, upper = np.quantile(self.draws.array, [tail, 1 - tail], axis=0)
        return lower, upper

    def summary(self, level: float | None = None, kind: str = "draws") -> pd.DataFrame:
        """Return a table: estimate, se, interval and t degrees of freedom, before and after.

        ``ratio`` is the calibrated interval's width over the original's: above one, the posterior
        was overconfident.
        """
        import pandas as pd

        used = self._level(level)
        tail = 0.5 * (1 - used)
        before = np.quantile(self.original.array, [tail, 1 - tail], axis=0)
        lower, upper = self._limits(used, kind)
        return pd.DataFrame(
            {
                "estimate": self.center,
                "se": self.target.se,
                "lower": lower,
                "upper": upper,
                "dof": self.target.dof,
                "mean_before": self.original.mean,
                "sd_before": self.original.array.std(axis=0, ddof=1),
                "lower_before": before[0],
                "upper_before": before[1],
                "ratio": (upper - lower) / (before[1] - before[0]),
            },
            index=pd.Index(self.names, name="parameter"),
        )

    def region(self, level: float | None = None) -> Region:
        """Return the joint confidence ellipsoid (Hotelling); never read one off the draws."""
        return Region.of(self.center, self.target, self._level(level))

    def test(self, contrast: Any, value: Any = 0.0) -> WaldTest:
        """Test linear hypotheses about the parameters.

        Parameters
        ----------
        contrast : str, sequence of str, mapping or array
            ``"x1 - x2 = 0"``, ``["x1", "x2"]`` (both zero), ``{"x1": 1, "x2": -1}``, or a matrix
            (q, p).
        value : float or (q,) array
            Right-hand side for contrasts that are not equations.
        """
        return wald_test(self.center, self.target, contrast, value)

    def of(
        self, function: Callable[[Mapping[str, Array]], Array], name: str | None = None
    ) -> Functional:
        """Map centre and draws through a function of named parameters.

        Examples
        --------
        >>> import etafree as ef
        >>> rng = np.random.default_rng(0)
        >>> r = ef.calibrate(rng.standard_normal((500, 2)), center=[1.0, 2.0], covariance=np.eye(2),
        ...                  names=["a", "b"])
        >>> float(r.of(lambda t: t["a"] + t["b"]).estimate)
        3.0
        """

        if not callable(function):
            raise InputError("function", f"is {function!r}", "pass a function of named parameters")

        def through(array: Array) -> Array:
            named = {key: array[..., j] for j, key in enumerate(self.names)}
            try:
                image = as_array(function(named), "function")
            except KeyError as error:
                raise InputError(
                    "function", f"asks for {error}", f"parameters are {list(self.names)}"
                ) from None
            if image.shape[: array.ndim - 1] != array.shape[:-1]:
                raise InputError(
                    "function",
                    f"returns shape {image.shape} for {len(array)} draws",
                    "work on arrays: one value per draw",
                )
            return image

        label = str(name or getattr(function, "__name__", "functional"))
        draws, original = through(self.draws.array), through(self.original.array)
        return Functional(label, through(self.center), draws, original, self._level(None))

    def paper(self) -> PaperMatrices:
        r"""Return the paper's :math:`\hat J_\lambda, \hat K, \hat H_0, \hat V, \hat\Omega`.

        >>> import etafree as ef
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
            np.linalg.inv(t.size * working_covariance(self.settings["working"], self.original, t)),
            t.size * t.covariance,
            self.map.scale,
        )

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """The diagnostics as tuples."""
        if self.recorded is not None:
            return self.recorded
        mapped = self.map(self.original.array)
        out = checks_of_draws(self.original, mapped, self.target, self.center, self.original.eta)
        if self.criterion is not None and self.target.hessian is not None:
            out = checks_of_criterion(self.criterion, self.target, self.center, self.groups) + out
            if self.posterior is not None and self.posterior.log_prior is not None:
                out.append(prior_weight(self.posterior, self.target))
        return tuple(out)

    def diagnostics(self) -> pd.DataFrame:
        """Return the table of checks: value, threshold, verdict and advice."""
        import pandas as pd

        return pd.DataFrame(list(self.checks), columns=list(Check._fields)).set_index("name")

    def flags(self) -> str:
        """Return the names of the checks that did not pass, or ``"all ok"``."""
        return ", ".join(c.name for c in self.checks if c.verdict != "ok") or "all ok"

    def plot(self, names: Sequence[str] | None = None) -> Figure:
        """Return a figure of densities and intervals before and after, one row per parameter."""
        from etafree.report.plots import before_after

        chosen = list(self.names)
        if names is not None:
            if isinstance(names, str) or not isinstance(names, Sequence) or not names:
                raise InputError("names", f"is {names!r}", "pass a list of parameter names")
            chosen = list(as_names(names, len(names)))
        for name in chosen:
            if name not in self.names:
                raise InputError("names", f"has {name!r}", f"parameters are {list(self.names)}")
        level = self._level(None)
        table = self.summary(level)
        before = {name: self.original[name] for name in chosen}
        after = {name: self.draws[name] for name in chosen}
        eta = "" if self.original.eta is None else f" at η = {self.original.eta:g}"
        return before_after(before, after, table.loc[chosen], level, eta)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write draws, target, map and diagnostics to one ``.npz`` file; return its path."""
        parts = pack(self.draws, self.original, self.target, self.map, self.settings, self.checks)
        return save_arrays(path, "calibration", *parts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read a calibration that `save` wrote."""
        arrays, meta = load_arrays(path, "calibration")
        with damaged(path):
            return cls(**unpack(arrays, meta))

    def _headline(self) -> list[str]:
        s, t = self.settings, self.target
        center = "posterior mean (open-faced sandwich)" if s["kind"] == "scale" else t.center_kind
        eta = "unknown eta" if self.original.eta is None else f"eta = {self.original.eta:g}"
        shift = float(np.max(np.abs(self.center_shift)))
        lines = [
            f"Calibration ({s['kind']}, root {s['root']}) of {len(self.draws)} draws at {eta}",
            f"covers: {t.estimand}, not the parameter of the process that made the data",
            f"centre: {center}, {shift:.2g} se from the posterior mean at most",
            f"spread: {t.describe()}",
        ]
        if t.plug_ins:
            known = ", ".join(f"{k} = {v:.4g}" for k, v in t.plug_ins.items())
            lines.append(f"taken as known: {known}")
        lines.append(f"diagnostics: {self.flags()}")
        lines += [f"  {c.name}: {c.advice}" for c in self.checks if c.verdict != "ok"]
        return lines

    def __repr__(self) -> str:
        table = self.summary().drop(columns=["mean_before", "dof"])
        return "\n".join(
            [*self._headline(), "", table.to_string(float_format=lambda v: f"{v:.4g}")]
        )

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in self._headline()[1:])
        table = self.summary().to_html(float_format=lambda v: f"{v:.4g}", escape=True)
        return f"<b>{html.escape(self._headline()[0])}</b><ul>{lines}</ul>{table}"
