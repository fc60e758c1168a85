"""What a calibration answers: intervals, regions, tests and functions of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree.calibration import LocationScaleMap
from etafree.criterion import Criterion
from etafree.dependence import Clusters, Dependence
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.fits import Fit
from etafree.functional import Functional, image
from etafree.inference import Region, WaldTest, constraints, wald_test
from etafree.leverage import cluster_table
from etafree.summaries import Shown, constrained, flat_variables, summary_table
from etafree.targets import Target
from etafree.validation import Array, as_choice, as_count, as_level, as_rng
from etafree.wild import WildBootstrap, wild_bootstrap

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Answers"]


class Answers:
    """The numbers that a `Calibration`, which inherits them, can be asked for."""

    draws: Draws
    original: Draws
    target: Target
    map: LocationScaleMap
    settings: Mapping[str, Any]
    criterion: Criterion | None
    dependence: Dependence | None
    fit: Fit | None

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
        >>> r = ef.calibrate(draws, center=[1.0, 2.0], covariance=np.eye(2), names=["a", "b"])
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
        >>> r = ef.calibrate(draws, center=[1.0, 2.0], covariance=np.eye(2), names=["a", "b"])
        >>> r.region().contains([1.0, 4.4]), r.region().contains([1.0, 4.5])
        (True, False)
        """
        return Region.of(self.map.offset, self.target, self._level(level))

    def test(self, contrast: Any, value: Any = 0.0) -> WaldTest:
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
        >>> r = ef.calibrate(draws, center=[1.0, 2.0], covariance=np.eye(2), names=["a", "b"])
        >>> r.test("b - a = 3")
        WaldTest(F = 2 on F(1, inf), p = 0.1573)
        """
        return wald_test(self.map.offset, self.target, contrast, value)

    def wild_bootstrap(
        self, contrast: Any, value: float = 0.0, *, level: float | None = None, draws: int = 9999,
        seed: Any = 0,
    ) -> WildBootstrap:  # fmt: skip
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
        if self.criterion is None or not isinstance(self.dependence, Clusters):
            raise InputError("contrast", "needs a criterion and clusters to bootstrap",
                             "calibrate with a Criterion and one-way clusters=")  # fmt: skip
        matrix, right = constraints(contrast, value, self.target.names)
        if len(matrix) != 1:
            raise InputError("contrast", f"has {len(matrix)} rows", "bootstrap one at a time")
        return wild_bootstrap(
            self.criterion, self.target, self.dependence.groups, matrix[0], float(right[0]),
            self._level(level), as_count(draws, "draws", least=99), as_rng(seed),
        )  # fmt: skip

    def cluster_table(self, way: str | None = None) -> pd.DataFrame:
        """Return a row per cluster, largest leverage first.

        Columns: rows and weight of the cluster, leverage (largest eigenvalue of its share of the
        Hessian; all share p among them) and the largest shift of an estimate that its scores make,
        in standard errors. `way` names one of several ways; an `InputError` without clusters.
        """
        named = {} if self.dependence is None else self.dependence.row_groups()
        if self.criterion is None or not named or not self.criterion.total.leverages:
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
        >>> r = ef.calibrate(draws, center=[1.0, 2.0], covariance=np.eye(2), names=["a", "b"])
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
