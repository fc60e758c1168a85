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
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree import inference, predictions
from etafree.criterion import Criterion
from etafree.data.groups import Groups
from etafree.dependence.base import Dependence, Point, Structure
from etafree.dependence.clusters import (
    MANY,
    LeverageLaws,
    cluster_table,
    contrast_laws,
    influences,
    point_of,
)
from etafree.diagnostics import every_check
from etafree.draws import Draws
from etafree.errors import CalibrationWarning, InputError
from etafree.fits import Fit
from etafree.fits.trees import LARGE, SAMPLE_DIMS
from etafree.foundation import arguments, linalg
from etafree.foundation.arguments import Array, as_bool, as_choice, as_count, as_level, as_rng
from etafree.foundation.check import VERDICTS, Check
from etafree.foundation.storage import damaged, load_arrays, save_arrays, whole_file, writable
from etafree.foundation.terminal import counted, plain
from etafree.inference import Functional, Region, Takeuchi, WaldTest, WildBootstrap
from etafree.map import (
    LocationScaleMap,
    Map,
    PaperMatrices,
    student_factor_grid,
    working_covariance,
)
from etafree.optimize import minimise
from etafree.posterior import GeneralizedPosterior
from etafree.report import summaries
from etafree.report.summaries import Shown
from etafree.resampling import resampled_targets
from etafree.sandwich import target_of
from etafree.target import Law, Satterthwaite, Target
from etafree.totals.base import require

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Calibration:
    r"""Calibrated draws, with the target and the map that made them.

    Numbers: `summary`, `params`, `bse`, `tvalues`, `pvalues`, `conf_int` and `cov_params` as of a
    fit of statsmodels, `interval`, `region`, `test`, `wild_bootstrap`, `bootstrap_t` with its
    `skewed_draws`, `of` for functions of the parameters, `group_effects` given them. How far to
    trust them: `diagnostics`, `flags`, `corrections`, `coverage_check`, `cluster_table`. To keep or
    show: `plot`, `report`, `to_arviz`, `save`. Printing it tells what the intervals are and what
    they cover, `details` how they were made.

    Attributes
    ----------
    draws, original : Draws
        Calibrated, centred at the estimate with the sandwich's spread and t tails; the posterior's.
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
    again : callable or None
        Calibrates the same draws under another dependence, for `with_dependence`; files have none.
    face : (p, k) array or None
        Under a penalty that ties coefficients (SLOPE, fused) :math:`E`, :math:`\theta=E\beta`.
        The target, `test` and `region` are of :math:`\beta`, with names such as "b = c"; tables,
        plots and draws show every coefficient by its own name, tied ones alike.

    See Also
    --------
    etafree.calibrate : What returns it.

    References
    ----------
    Tamano, S. and Tomo, Y. (2025). Location-scale calibration for generalized posterior.
    arXiv:2511.15320.

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np, etafree as ef
    >>> rng, school = np.random.default_rng(1), np.repeat(np.arange(40), 5)
    >>> X = rng.standard_normal((40, 2))[school]
    >>> y = X @ [1.0, 2.0] + rng.standard_normal(40)[school] + rng.standard_normal(200)
    >>> criterion = ef.Criterion(ef.losses.Huber(), data=(X, y), names=["a", "b"])
    >>> post = ef.GeneralizedPosterior(criterion, eta=1.0)
    >>> result = ef.calibrate(ef.sample(post, seed=2), post, clusters=school)
    >>> result.summary()[["estimate", "se", "ratio"]].round(2)
               estimate    se  ratio
    parameter
    a              0.87  0.24   2.61
    b              2.47  0.21   2.17
    >>> result.pvalues.round(4).to_dict(), result.tvalues.equals(result.params / result.bse)
    ({'a': 0.0053, 'b': 0.0}, True)
    >>> result.conf_int(alpha=0.1).round(2)
       lower  upper
    a   0.45   1.29
    b   2.11   2.83
    >>> result.summary(var_names="~a")["estimate"].round(2).to_dict()
    {'b': 2.47}
    >>> result.cov_params().round(3)
           a      b
    a  0.059 -0.022
    b -0.022  0.046
    >>> result.flags(), result.diagnostics().loc["implied coverage", "verdict"]
    ('all ok', 'ok')
    >>> result.details()
    draws: 4000 at eta = 1, importance, moved by one affine map
    map: location-scale, root affine, from the draws
    centre: the minimiser of loss plus penalty (MAP), at most 0.027 se from the posterior mean
    spread: sandwich, 40 clusters, CR3, t with 7.4 to 12.8 degrees of freedom
    rows: 200
    effective scale: 200
    >>> result.cluster_table().head(2).round(2)
             rows  weight  leverage  shift
    cluster
    12          5     5.0      0.32   0.33
    15          5     5.0      0.21   0.51
    >>> result.interval(kind="wald").round(2)
       lower  upper
    a   0.35   1.39
    b   2.03   2.91
    >>> result.test("b - a = 1"), result.region().contains([1.0, 2.0])
    (WaldTest(F = 2.713 on F(1, 9.498), p = 0.1321), True)
    >>> result.test(["a = 1", "b = 2*a"]), round(result.test("b", 2, "greater").p_value, 3)
    (WaldTest(F = 2.523 on F(2, 7.852), p = 0.1425), 0.018)
    >>> result.wild_bootstrap("a", draws=999).p_value < 0.01
    True
    >>> float(result.of(lambda t: t["a"] + t["b"]).estimate.round(2)), result.paper().J.shape
    (3.34, (2, 2))
    >>> len(result.plot(["a", "b"]).axes), result.to_arviz()["posterior"]["a"].shape
    (2, (1, 4000))
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
    again: Callable[..., Calibration] | None = field(default=None, repr=False)
    face: Array | None = field(default=None, repr=False)

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
        if self.face is None:
            return tuple(name for name in self.names if name not in self.target.names)
        return tuple(n for n, row in zip(self.names, self.face, strict=True) if not row.any())

    @cached_property
    def basis(self) -> Array:
        """The parameters (p, k) as linear functions of the target's, zero where inactive."""
        if self.face is not None:
            return self.face
        places = {name: j for j, name in enumerate(self.target.names)}
        rows = [np.eye(self.target.p)[places[n]] if n in places else None for n in self.names]
        return np.array([np.zeros(self.target.p) if row is None else row for row in rows])

    @property
    def center(self) -> Array:
        """Where the calibrated draws are centred (p,)."""
        return self.map.offset if self.names == self.target.names else self.basis @ self.map.offset

    @property
    def center_shift(self) -> Array:
        """Centre minus posterior mean in target standard errors, of every active parameter."""
        return (self.map.offset - self.map.mean) / self.target.se

    @cached_property
    def _before(self) -> Draws:
        """The original draws of the target's parameters, with what they were drawn from."""
        return replace(self._on_target(self.original), source=self.original.source)

    def _on_target(self, draws: Draws) -> Draws:
        """Return the draws of the target's parameters, of a tie the mean of its members'."""
        if self.face is None:
            return draws.select(self.target.names)
        nearest = draws.values @ (self.face / np.square(self.face).sum(axis=0))
        return replace(draws, values=nearest, names=self.target.names, source=None)

    @cached_property
    def shown(self) -> Shown:
        """Estimates, errors and draws of what tables and plots show."""
        t = self.target
        if self.fit is not None and self.fit.constrain is not None:
            arrays = self.original.array, self.draws.array
            return summaries.constrained(self.fit, self.center, t, *arrays)
        if self.face is None:
            after, before = self.draws.select(t.names).array, self._before.array
            return Shown(t.names, self.map.offset, t.se, t.law(), before, after, t.se_error)
        active = np.flatnonzero(self.face.any(axis=1))
        names, slope = tuple(self.names[j] for j in active), self.face[active]
        before, after = self._before.array @ slope.T, self.draws.array[:, active]
        estimate, se, law = slope @ self.map.offset, np.abs(slope) @ t.se, t.law(slope)
        return Shown(names, estimate, se, law, before, after, slope=slope)

    def _by_name(self, values: Array, zero: float = np.nan) -> pd.Series:
        """Return values of what is shown as a Series; `zero` is what parameters at zero have."""
        import pandas as pd

        series = pd.Series(values, index=pd.Index(self.shown.names))
        return series.reindex(list(self.names), fill_value=zero) if self.inactive else series

    @property
    def params(self) -> pd.Series:
        """Estimates by name, as of a fit of statsmodels; zero of those a penalty sets to zero."""
        return self._by_name(self.shown.estimate, 0.0)

    @property
    def bse(self) -> pd.Series:
        """Standard errors of `params`, the roots of the diagonal of `cov_params`."""
        return self._by_name(self.shown.se)

    @property
    def tvalues(self) -> pd.Series:
        """The ratios of `params` to `bse`, NaN of variables that a model transforms."""
        return self._by_name(self.shown.t_ratios)

    @property
    def pvalues(self) -> pd.Series:
        r"""Two-sided p-values of no effect, those of `test`.

        A ratio of `tvalues` has the law of :math:`t_\nu/\sqrt\kappa`, with the degrees of freedom
        :math:`\nu` in `summary` and the factor :math:`\kappa` in ``target.inflation`` by which HC3
        and CR3 make variances too large, one for the others. NaN of variables that a model
        transforms: zero is no value of a scale.
        """
        return self._by_name(self.shown.p_values)

    def conf_int(
        self, alpha: float = 0.05, var_names: object = None, filter_vars: str | None = None
    ) -> pd.DataFrame:
        """Return confidence limits by standard errors, ``interval(1 - alpha, kind="wald")``.

        Parameters
        ----------
        alpha : float
            One minus the level.
        var_names, filter_vars : optional
            Which rows, as for `summary`.

        Returns
        -------
        DataFrame
            With columns lower and upper, which statsmodels calls 0 and 1.
        """
        level = 1.0 - arguments.as_level(alpha, "alpha")
        return self.interval(level, "wald", var_names, filter_vars)

    def cov_params(self) -> pd.DataFrame:
        """Return the covariance of `params`, (k, k) by name.

        That of the target, or by the delta method for the variables of a model.
        """
        import pandas as pd

        slope, names = self.shown.slope, list(self.shown.names)
        covariance = self.target.covariance
        covariance = covariance.copy() if slope is None else slope @ covariance @ slope.T
        table = pd.DataFrame(covariance, index=names, columns=names)
        every = list(self.names)
        return table.reindex(index=every, columns=every) if self.inactive else table

    def _advice(self, advice: str) -> str:
        """Return what to do where data or a model are missing; files have neither."""
        if self.recorded is None:
            return advice
        instead = f", or {advice}" if advice.startswith("give") else ""
        return f"a saved result has no data and no model: calibrate again{instead}"

    def _level(self, level: float | None) -> float:
        return as_level(self.settings["level"] if level is None else level)

    def interval(
        self,
        level: float | None = None,
        kind: str = "draws",
        var_names: object = None,
        filter_vars: str | None = None,
    ) -> pd.DataFrame:
        """Return equal-tailed confidence limits per parameter.

        Parameters
        ----------
        level : float, optional
            Default: the level the calibration was asked for, 0.95.
        kind : {"draws", "wald", "bootstrap-t"}
            Quantiles of the calibrated draws, estimate plus and minus t quantile times se, or what
            `bootstrap_t` gives for skewed data.
        var_names, filter_vars : optional
            Which rows, as for `summary`.

        Returns
        -------
        DataFrame
            With columns lower and upper; a parameter that is exactly zero has none.
        """
        import pandas as pd

        rows = self._names_of(var_names, filter_vars)
        if isinstance(kind, str) and kind == "bootstrap-t":
            return self.bootstrap_t(level).loc[rows]
        lower, upper = self.shown.limits(self._level(level), kind)
        table = pd.DataFrame({"lower": lower, "upper": upper}, index=pd.Index(self.shown.names))
        return (table.reindex(list(self.names)) if self.inactive else table).loc[rows]

    def _names_of(self, var_names: object, filter_vars: object) -> list[str]:
        """Return the names of the rows of a table that are asked for."""
        names = list(self.names if self.inactive else self.shown.names)
        return [names[j] for j in arguments.places_of(names, var_names, filter_vars)]

    def summary(
        self,
        level: float | None = None,
        kind: str = "draws",
        var_names: object = None,
        filter_vars: str | None = None,
    ) -> pd.DataFrame:
        """Return a table: estimate, se, t, p, interval and degrees of freedom, before and after.

        Parameters
        ----------
        level : float, optional
            Default: the level the calibration was asked for, 0.95.
        kind : {"draws", "wald"}
            As for `interval`.
        var_names : str or list of str, optional
            Rows to show, with ArviZ's meaning: names of parameters or of vectors, or ``"~name"``.
        filter_vars : {"like", "regex"}, optional
            Take `var_names` as parts of names, or as regular expressions.

        Returns
        -------
        DataFrame
            A row per parameter: estimate, se, t, p, lower, upper, dof, and of the original draws
            mean_before, sd_before, lower_before, upper_before. ``t`` and ``p`` are `tvalues` and
            `pvalues`, NaN of variables that a model transforms. ``ratio`` is the calibrated
            interval's width over the original's: above one, the posterior was overconfident.
            ``se_error`` is the relative Monte Carlo error of a standard error that draws made.
            Under a penalty with a kink, ``status`` says which parameters are exactly zero and have
            no interval, and which are tied to each other.
        """
        import pandas as pd

        rows = self._names_of(var_names, filter_vars)
        table = summaries.summary_table(self.shown, self._level(level), kind)
        if not self.inactive and self.face is None:
            return table.loc[rows]
        table = table.reindex(pd.Index(self.names, name="parameter"))
        table.loc[list(self.inactive), "estimate"] = 0.0
        table["status"] = self._status()
        return table.loc[rows]

    def _status(self) -> list[str]:
        """Return of every parameter that it has no interval, is active, or the tie it is in."""
        ties = np.abs(self.basis).sum(axis=0) > 1
        status = []
        for row in self.basis:
            block = int(np.abs(row).argmax())
            active = self.target.names[block] if ties[block] else "active"
            status.append(active if row.any() else "no interval")
        return status

    def region(self, level: float | None = None) -> Region:
        r"""Return the joint confidence ellipsoid of all parameters (Hotelling), at `level`.

        Marginal quantiles of the draws make no joint region: a box of intervals covers less. An
        `InputError` if degrees of freedom are fewer than parameters.
        """
        return Region.of(self.map.offset, self.target, self._level(level))

    def test(
        self, contrast: object, value: object = 0.0, alternative: str = "two-sided"
    ) -> WaldTest:
        """Test linear hypotheses about the parameters, by an F test.

        Parameters
        ----------
        contrast : str, sequence of str, mapping or array
            ``"x1 = x2"``, ``"2*x1 + x2 = 1"``, ``["x1 = 0", "x2 = 0"]`` or ``["x1", "x2"]`` (both
            zero), ``{"x1": 1, "x2": -1}``, or a matrix (q, p). Names are written as they are,
            ``"x:z = 0"`` or ``"C(g)[T.b] = C(g)[T.c]"``; a name that is a number goes between
            backticks.
        value : float or (q,) array
            Right-hand side for contrasts that are not equations.
        alternative : {"two-sided", "greater", "less"}
            For one hypothesis: "greater" says that the contrast is larger than the hypothesis has
            it, as SciPy's tests do.

        Returns
        -------
        WaldTest
            Statistic, degrees of freedom, p-value, estimate and standard error; an `InputError` if
            a name is no parameter, rows depend on each other, or degrees of freedom are too few.
        """
        shown = [name for name in self.shown.names if name not in self.target.names]
        if computed := inference.mentioned(contrast, shown, self.target.names):
            problem = f"names {computed!r}, which the model computes from its parameters"
            advice = f"use result.of(lambda t: t[{computed!r}]).test(value), or one of "
            raise InputError("contrast", problem, f"{advice}{list(self.target.names)}")
        return inference.wald_test(self.map.offset, self.target, contrast, value, alternative)

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
            Estimate, limits and p-value; an `InputError` without a criterion and one-way clusters.
        """
        groups = None if self.dependence is None else self.dependence.clusters
        if self.criterion is None or groups is None:
            advice = self._advice("calibrate with a Criterion and one-way clusters=")
            raise InputError("contrast", "needs a criterion and clusters to bootstrap", advice)
        matrix, right = inference.constraints(contrast, value, self.target.names)
        if len(matrix) != 1:
            raise InputError("contrast", f"has {len(matrix)} rows", "bootstrap one at a time")
        how = self._level(level), as_count(draws, "draws", least=99), as_rng(seed)
        with counted(None, "wild bootstrap"):
            return inference.wild_bootstrap(
                self.criterion, self.target, groups, matrix[0], float(right[0]), *how
            )

    def bootstrap_t(
        self,
        level: float | None = None,
        *,
        draws: int = 9999,
        refits: bool = False,
        wider: bool = True,
        seed: object = 0,
    ) -> pd.DataFrame:
        r"""Return limits that know of skewness, by the bootstrap of the t ratio.

        Rows, or clusters as wholes, are drawn with replacement, and quantiles of the t ratios
        :math:`(\theta^*-\hat\theta)/\mathrm{se}^*` take the place of Student's: of a skewed mean
        the limit on the side of the long tail lies farther out. What a row or cluster adds to the
        estimate is resampled, which takes matrix products only, or everything is fitted again.
        Where few rows or clusters carry a coefficient this law is too short, so by default each
        limit lies at least as far out as that of Satterthwaite's.

        Parameters
        ----------
        level : float, optional
            Default: the level the calibration was asked for, 0.95.
        draws : int
            Data sets drawn, at least 99.
        refits : bool
            Fit every data set anew: slower, and exact where the loss is far from quadratic. A
            progress bar is shown if it takes long.
        wider : bool
            Take on each side the wider of this limit and that of :math:`t_\nu/\sqrt\kappa`, the law
            in `corrections`. False gives the bootstrap's own.
        seed : int, SeedSequence or Generator
            The same seed gives the same limits.

        Returns
        -------
        DataFrame
            With columns lower and upper.

        Raises
        ------
        InputError
            There is no criterion, or rows depend on each other in another way than by one-way
            clusters.

        References
        ----------
        Hall, P. (1992). The Bootstrap and Edgeworth Expansion, section 3.5. Springer.

        Examples
        --------
        >>> import etafree as ef
        >>> X, y = np.ones((40, 1)), np.random.default_rng(0).lognormal(0.0, 1.5, 40)
        >>> post = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), (X, y)), eta=1.0)
        >>> result = ef.calibrate(ef.sample(post, seed=1), post)
        >>> result.interval(kind="wald").round(1), result.bootstrap_t().round(1)
        (          lower  upper
        theta[0]    1.0    2.4,           lower  upper
        theta[0]    1.0    2.8)
        """
        import pandas as pd

        shown, tail = self.shown, 0.5 * (1 - self._level(level))
        slope = np.eye(self.target.p) if shown.slope is None else shown.slope
        ratios, law = self._ratios(slope, draws, refits, wider, seed)
        low, high = inference.ratio_quantiles(ratios, law, np.array([tail, 1 - tail]))
        limits = {
            "lower": shown.estimate - high * shown.se,
            "upper": shown.estimate - low * shown.se,
        }
        table = pd.DataFrame(limits, index=pd.Index(shown.names))
        return table.reindex(list(self.names)) if self.inactive else table

    def skewed_draws(
        self, *, draws: int = 9999, refits: bool = False, wider: bool = True, seed: object = 0
    ) -> Draws:
        r"""Return the calibrated draws with the shape of the bootstrap of the t ratio.

        Every coefficient's draws are moved, in their order, to the quantiles
        :math:`\hat\theta-\mathrm{se}\,Q^*(1-u)` with :math:`Q^*` those of `bootstrap_t`: their
        limits at any level are its limits, and how coefficients go together stays. Plots and
        functions of skewed coefficients may use them; summaries, tests and files have the
        symmetric ones. With `wider`, none fall between the estimate and the bootstrap's median.

        Parameters
        ----------
        draws, refits, wider, seed : optional
            As for `bootstrap_t`; `draws` are the data sets drawn.

        Returns
        -------
        Draws
            As many as were calibrated, of the parameters that were.

        Raises
        ------
        InputError
            As for `bootstrap_t`.

        Examples
        --------
        >>> import etafree as ef
        >>> X, y = np.ones((40, 1)), np.random.default_rng(0).lognormal(0.0, 1.5, 40)
        >>> post = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), (X, y)), eta=1.0)
        >>> result = ef.calibrate(ef.sample(post, seed=1), post)
        >>> np.quantile(result.skewed_draws().array, [0.025, 0.975]).round(1)
        array([1. , 2.8])
        """
        t, count = self.target, len(self.draws)
        ratios, law = self._ratios(np.eye(t.p), draws, refits, wider, seed)
        grid = (np.arange(count) + 0.5) / count
        reach = inference.ratio_quantiles(ratios, law, grid)[::-1]
        d, values = self.draws, self._on_target(self.draws).values.copy()
        for j in range(t.p):
            column = values[:, :, j]
            rank = np.argsort(np.argsort(column, axis=None, kind="stable"), kind="stable")
            column[:] = (self.map.offset[j] - t.se[j] * reach[rank, j]).reshape(column.shape)
        values = values @ self.basis.T
        return Draws(values, d.names, d.eta, d.sampler, d.info)

    def _ratios(
        self, slope: Array, draws: int, refits: bool, wider: bool, seed: object
    ) -> tuple[Array, Law | None]:
        """Return resampled t ratios (b, k) of contrasts (k, p), and their law if it counts too."""
        count, rng = as_count(draws, "draws", least=99), as_rng(seed)
        refits, wider = as_bool(refits, "refits"), as_bool(wider, "wider")
        criterion, _ = self._resampled("draws")
        if refits:
            require(criterion.total, "linear", "criterion")
            law = _law(self.target, point_of(self.target), slope) if wider else None
            return self._refitted_ratios(slope, count, rng), law
        return influence_ratios(self.target, slope, count, rng, wider)

    def _refitted_ratios(self, slope: Array, count: int, rng: np.random.Generator) -> Array:
        """Return t ratios (b, k) of data sets that are fitted anew."""
        assert self.criterion is not None
        truth, ratios = minimise(self.criterion).theta, []
        with counted(count, "bootstrap-t") as step:
            for other in resampled_targets(self.target, count, rng):
                variance = np.einsum("ki,ij,kj->k", slope, other.covariance, slope)
                ratios.append(slope @ (other.center - truth) / np.sqrt(variance))
                step(1)
        if len(ratios) < count / 2:
            problem = f"have a minimiser in {len(ratios)} of {count} data sets only"
            raise InputError("refits", problem, "add a penalty")
        return np.array(ratios)

    def _resampled(self, argument: str) -> tuple[Criterion, Groups | None]:
        """Return the criterion and the clusters drawn as wholes, or say why none can be drawn."""
        criterion, dependence = self.target.criterion, self.target.dependence
        if criterion is None or dependence is None:
            raise InputError(argument, "need a criterion", self._advice("calibrate with one"))
        require(criterion.total, "memory", "criterion")
        if dependence.clusters is None and not dependence.independent:
            problem = "are of rows or of one-way clusters, and these depend otherwise"
            raise InputError(argument, problem, "no data set can be drawn from this one alone")
        if criterion.total.copies:
            raise InputError(argument, "are of rows, and weights count copies", "repeat them")
        if self.target.correction in ("custom", "given"):
            raise InputError(argument, "need a correction of ours", "leave meat= out")
        return criterion, dependence.clusters

    def corrections(
        self, level: float | None = None, *, draws: int = 999, seed: object = 0
    ) -> pd.DataFrame:
        r"""Return every correction that applies, side by side, for each coefficient.

        Parameters
        ----------
        level : float, optional
            Default: the level the calibration was asked for, 0.95.
        draws, seed : int
            Of the wild bootstrap, as for `wild_bootstrap`.

        Returns
        -------
        DataFrame
            A row per coefficient and correction: standard error, degrees of freedom, limits and the
            p-value of no effect. Quantiles of HC2, HC3, CR2 and CR3 are those of
            :math:`t_\nu/\sqrt\kappa`, the law that few rows or clusters leave a coefficient;
            "HC3, normal" and "CR3, t(G - 1)" are what other packages take. The wild bootstrap, for
            one-way clusters, and `bootstrap_t` have limits and a p-value only. An `InputError`
            without a criterion: the jackknife and covariances of your own have no others.

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
        HC0          0.94  inf   0.17   3.83     0.03
        HC1          1.08  inf  -0.12   4.12     0.06
        HC2          1.08  3.0  -1.44   5.44     0.16
        HC2, normal  1.08  inf  -0.12   4.12     0.06
        HC3          1.25  3.0  -1.44   5.44     0.16
        HC3, normal  1.25  inf  -0.44   4.44     0.11
        bootstrap-t   NaN  NaN  -1.44   9.61     0.16
        """
        import pandas as pd

        criterion, dependence, own = self.criterion, self.dependence, self.target
        if criterion is None or dependence is None or own.meat is None:
            advice = self._advice("calibrate with a Criterion")
            raise InputError("target", "has no other corrections", advice)
        level = self._level(level)
        rows: dict[tuple[str, str], Sequence[float]] = {}
        for correction in dependence.corrections:
            try:
                t = target_of(criterion, dependence, center=own.center, correction=correction)
            except InputError:  # there is no leverage, or it is one
                continue
            laws = {correction: t.law()}
            if correction in USUAL and t.laws is not None:  # the law that other packages take
                count = np.inf if t.clusters is None else t.clusters - 1.0
                plain = Law(np.full(t.p, count), np.ones(t.p))
                laws[f"{correction}, {'normal' if np.isinf(count) else 't(G - 1)'}"] = plain
            for label, law in laws.items():
                half = law.quantile(0.5 + 0.5 * level) * t.se
                p_value = inference.two_sided(law, t.center / t.se)
                columns = np.array([t.se, law.dof, t.center - half, t.center + half, p_value])
                rows |= {(n, label): row for n, row in zip(t.names, columns.T, strict=True)}
        for n in () if dependence.clusters is None else own.names:
            wild = self.wild_bootstrap(n, level=level, draws=draws, seed=seed)
            rows[n, "wild bootstrap"] = [np.nan, np.nan, wild.lower, wild.upper, wild.p_value]
        rows |= self._bootstrap_rows(level, draws, seed)
        index = pd.MultiIndex.from_tuples([*rows], names=["parameter", "correction"])
        names = ["se", "dof", "lower", "upper", "p_value"]
        return pd.DataFrame(np.array([*rows.values()]), index, names).loc[list(own.names)]

    def _bootstrap_rows(
        self, level: float, draws: int, seed: object
    ) -> dict[tuple[str, str], Sequence[float]]:
        """Return the rows of `corrections` that the bootstrap of t gives; none if it cannot."""
        t = self.target
        try:
            ratios, law = self._ratios(np.eye(t.p), draws, refits=False, wider=True, seed=seed)
        except InputError:
            return {}
        tails = np.array([0.5 * (1 - level), 0.5 * (1 + level)])
        low, high = inference.ratio_quantiles(ratios, law, tails)
        own = t.center / t.se
        beyond = np.where(own > 0, (ratios >= own).mean(axis=0), (ratios <= own).mean(axis=0))
        if law is not None:
            beyond = np.maximum(beyond, law.tail(np.abs(own)))
        none = np.full(t.p, np.nan)
        limits = t.center - high * t.se, t.center - low * t.se
        columns = np.array([none, none, *limits, np.minimum(2 * beyond, 1.0)])
        return {(n, "bootstrap-t"): row for n, row in zip(t.names, columns.T, strict=True)}

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
        the interval of that data set, by its own standard errors and degrees of freedom, covers the
        estimate or not. Variables of a model are taken as linear in its parameters. A coverage
        below the level says that the sample is too small, too skewed or too uneven for the law
        behind the interval; one at the level does not say that the structure of dependence is
        right. A progress bar is shown if it takes long.

        Parameters
        ----------
        replicates : int
            Data sets, at least 50.
        level : float, optional
            Default: the level the calibration was asked for, 0.95.
        kind : {"draws", "wald", "bootstrap-t"}
            Which intervals, as for `interval`; the last resamples every data set 999 times.
        seed : int, SeedSequence or Generator
            The same seed gives the same result.

        Returns
        -------
        DataFrame
            A row per parameter: coverage, its Monte Carlo error, the shares of intervals that lie
            below and above, and how many data sets there were; some may have no minimiser. An
            `InputError` without a criterion over a linear predictor in memory, or if rows depend on
            each other in another way than by one-way clusters.

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
        theta[0]       0.94   0.01   0.06    0.0         400
        """
        import pandas as pd

        t, shown, count = self.target, self.shown, as_count(replicates, "replicates", least=50)
        as_choice(kind, "kind", ("draws", "wald", "bootstrap-t"))
        criterion, _ = self._resampled("replicates")
        require(criterion.total, "linear", "criterion")
        tails, rng = 0.5 + np.array([-0.5, 0.5]) * self._level(level), as_rng(seed)
        slope = np.eye(t.p) if shown.slope is None else shown.slope

        def reach(other: Target) -> Array:
            """Return lower and upper limits (2, k) in standard errors of another data set."""
            if kind == "bootstrap-t":
                ratios = influence_ratios(other, slope, RESAMPLES, rng)
                low, high = inference.ratio_quantiles(*ratios, tails)
                return np.array([-high, -low])
            own = other.law(None if shown.slope is None else slope).quantile(tails[1])
            return ends * own

        ends = np.zeros((2, len(shown.names)))
        if kind != "bootstrap-t":
            center = shown.estimate + slope @ (t.center - self.map.offset)
            limits = np.array(shown.limits(self._level(level), kind))
            ends = (limits - center) / (shown.se * shown.law.quantile(tails[1]))
        truth, sides, used = minimise(criterion).theta, np.zeros((2, len(shown.names))), 0
        with counted(count, "coverage") as step:
            for other in resampled_targets(t, count, rng):
                se = np.sqrt(np.einsum("ki,ij,kj->k", slope, other.covariance, slope))
                lower, upper = slope @ (other.center - truth) + reach(other) * se
                sides += [upper < 0, lower > 0]
                used += 1
                step(1)
        if used < count / 2:
            problem = f"have a minimiser in {used} of {count} data sets only"
            raise InputError("replicates", problem, "add a penalty")
        below, above = sides / used
        coverage = 1 - below - above
        error = np.sqrt(np.maximum(coverage * (1 - coverage), 1 / used) / used)
        table = {"coverage": coverage, "error": error, "below": below, "above": above}
        index = pd.Index(shown.names, name="parameter")
        return pd.DataFrame({**table, "replicates": used}, index=index)

    def with_dependence(
        self,
        *,
        clusters: object = None,
        dependence: Structure | None = None,
        correction: str | None = None,
    ) -> Calibration:
        """Return the same draws calibrated under another dependence, without sampling again.

        Parameters
        ----------
        clusters : (n,) labels or column name, or several of them, optional
            As for `calibrate`; without any, rows are independent, or depend as the clusters that
            the criterion's data came with.
        dependence : Clusters, Survey, ReplicateWeights, TimeSeries or Panel, optional
            Another structure than clusters.
        correction : str, optional
            Small-sample correction, by default that of the structure.

        Returns
        -------
        Calibration
            With another target and map; this one stays. An `InputError` if it was read from a file,
            or its target was given: neither has a criterion or log-likelihoods.

        Examples
        --------
        >>> import etafree as ef
        >>> X, y = np.ones((6, 1)), np.array([0.0, 1.0, 2.0, 5.0, 3.0, 1.0])
        >>> post = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), (X, y)), eta=1.0)
        >>> result = ef.calibrate(ef.sample(post, seed=1), post)
        >>> clustered = result.with_dependence(clusters=[1, 1, 2, 2, 3, 3], correction="CR1")
        >>> result.target.design, clustered.target.design
        ('independent observations', '3 clusters')
        """
        if self.again is None:
            problem = "needs the criterion or the fit, which files and given targets do not have"
            raise InputError("dependence", problem, "calibrate again with clusters= or dependence=")
        return self.again(clusters=clusters, dependence=dependence, correction=correction)

    def cluster_table(self, way: str | None = None) -> pd.DataFrame:
        """Return a row per cluster, largest leverage first.

        Columns: rows and weight of the cluster, leverage (largest eigenvalue of its share of the
        Hessian; all share p among them) and the largest shift of an estimate that its scores make,
        in standard errors. `way` names one of several ways; an `InputError` without clusters. Check
        and hinge losses have no leverage, and clusters are in the order of their shifts.
        """
        groups = {} if self.dependence is None else self.dependence.row_groups()
        if self.criterion is None or not groups:
            advice = self._advice("calibrate with clusters=")
            raise InputError("way", "has no clusters to list", advice)
        kind = next(iter(groups)) if way is None else as_choice(way, "way", tuple(groups))
        return cluster_table(self.criterion, self.target, kind, groups[kind])

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
            ``estimate``, ``se``, ``draws``, ``interval()`` and ``test()`` of the function; an
            `InputError` if it asks for other parameters, or does not return a value per draw.
        """
        label = str(getattr(function, "__name__", "functional") if name is None else name)
        arrays = self.center, self.draws.array, self.original.array
        at, after, before = (self._image(function, array) for array in arrays)
        near = inference.neighbours(self.center, self.target.se, self.basis)
        slope = inference.derivative(self._image(function, near), self.target.se)
        return Functional(label, at, after, before, self._level(None), slope, self.target)

    def _image(self, function: Callable[[Mapping[str, Array]], Array], array: Array) -> Array:
        if self.fit is None or self.fit.constrain is None:
            return inference.image(function, self.names, array)
        names, flat, whole = summaries.flat_variables(self.fit, np.atleast_2d(array))
        values = inference.image(lambda entries: function({**entries, **whole}), names, flat)
        return values if array.ndim > 1 else values[0]

    def paper(self) -> PaperMatrices:
        r"""Return the paper's :math:`\hat J_\lambda, \hat K, \hat H_0, \hat V, \hat\Omega`.

        Per unit of effective scale: :math:`A/s_n`, :math:`B/s_n`, :math:`(s_nS)^{-1}`,
        :math:`s_nA^{-1}BA^{-1}`. An `InputError` if the target was given as a covariance.
        """
        t, size = self.target, self.target.size
        if t.hessian is None or t.meat is None or size is None:
            raise InputError("target", "was given as a covariance", "J and K need a criterion")
        spread = linalg.inv(size * working_covariance(self.settings["working"], self._before, t))
        scale = self.map.scale
        return PaperMatrices(t.hessian / size, t.meat / size, spread, size * t.covariance, scale)

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """The diagnostics as tuples."""
        if self.recorded is not None:
            return self.recorded
        offset = self.map.offset
        return tuple(every_check(self._before, self.target, self.map, offset, self.posterior))

    def details(self) -> str:
        """Return how the calibration was made, in the method's terms; it shows as it prints.

        The draws and their learning rate, the map, the centre, the covariance with its correction,
        the effective scale, and what nuisance values were estimated or taken as known.
        """
        return summaries.details(self)

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

    def plot(
        self,
        var_names: object = None,
        *,
        kind: str = "density",
        filter_vars: str | None = None,
        ax: Any = None,
    ) -> Figure:
        """Draw the calibration and return the figure, which notebooks and ``plt.show()`` show.

        Parameters
        ----------
        var_names, filter_vars : optional
            Which of the parameters that have an interval, as for `summary`.
        kind : {"density", "forest", "corrections", "eta", "coverage", "clusters", "shape"}
            ``density`` and ``forest``: intervals before and after. ``corrections``: those of
            `corrections`. ``eta``: widths of intervals at other learning rates, drawn afresh.
            ``coverage``: how often intervals cover by the law of their t ratio, and by
            `coverage_check` where that is quick. ``clusters``: how far the estimate moves when a
            cluster, or row, is left out. ``shape``: quantiles of the draws against their law. Of
            variables that a model transforms, ``corrections`` and ``shape`` show the parameters
            that were calibrated.
        ax : matplotlib Axes or array of them, optional
            Where to draw: one for ``forest`` and ``coverage``, one per parameter for the others.

        Returns
        -------
        matplotlib.figure.Figure
            That of `ax`, if given. An `InputError` where a kind needs what is not known here, such
            as ``eta`` a criterion.

        Examples
        --------
        >>> import matplotlib.pyplot as plt, etafree as ef
        >>> rng = np.random.default_rng(0)
        >>> X = np.column_stack([np.ones(60), rng.standard_normal(60)])
        >>> criterion = ef.Criterion(ef.losses.Squared(), (X, rng.standard_t(4, 60)))
        >>> posterior = ef.GeneralizedPosterior(criterion, eta=0.5)
        >>> result = ef.calibrate(ef.sample(posterior, seed=1), posterior)
        >>> figure, (left, right) = plt.subplots(1, 2)
        >>> result.plot(kind="forest", ax=left) is figure
        True
        >>> result.plot("theta[1]", kind="clusters", ax=right) is figure
        True
        >>> plt.close(figure)
        """
        from etafree.report.kinds import plot

        return plot(self, var_names, kind, filter_vars, ax)

    def to_arviz(self, *, group_effects: bool = False, seed: object = 0) -> Any:
        """Return the calibrated draws as the kind of object they came as.

        An InferenceData gives an InferenceData, everything else an xarray DataTree, with the same
        variables, dimensions and coordinates. How they were calibrated is in the posterior's
        attributes. Groups computed from the original draws are ``original_*`` now. A slash in a
        name, which no such object can have, is the sign of division ``∕``.

        Parameters
        ----------
        group_effects : bool
            Add the effects of the groups in the data, drawn as by `group_effects`, for what asks
            for them: posterior predictive checks of the same groups, Bambi's ``predict``.
        seed : int, SeedSequence or Generator
            What makes those draws.

        Returns
        -------
        xarray.DataTree or arviz.InferenceData
        """
        from etafree.fits.arviz import calibrated_tree
        from etafree.fits.trees import as_kind

        tree = calibrated_tree(self.draws, self.fit, summaries.record(self))
        if as_bool(group_effects, "group_effects"):
            posterior = tree["posterior"].to_dataset()
            drawn = self.group_effects(seed)
            tree["posterior"] = type(tree)(posterior.merge(drawn).assign_attrs(posterior.attrs))
        return as_kind(tree, "DataTree" if self.fit is None else self.fit.kind)

    def group_effects(self, seed: object = 0) -> xr.Dataset:
        r"""Draw the effects of the groups in the data, given the calibrated parameters.

        Of a fit whose model is known: for every calibrated draw :math:`\theta` a draw of
        :math:`p(u_g\mid y_g,\theta)` of each group, exact where the model is linear and Gaussian,
        else by importance resampling around the group's mode. Parameters vary as the sandwich says,
        effects given them as the model says.

        Parameters
        ----------
        seed : int, SeedSequence or Generator
            What makes the draws.

        Returns
        -------
        xarray.Dataset
            The fit's variables that depend on group effects, along chain, draw and their own
            dimensions; draws belong to those of `draws`. An `InputError` if there are none.

        References
        ----------
        Rubin, D. B. (1988). Using the SIR algorithm to simulate posterior distributions. In
        Bayesian Statistics 3, 395-402.

        Examples
        --------
        >>> import numpy as np, numpyro, etafree as ef
        >>> from numpyro.distributions import HalfNormal, Normal
        >>> rng, group = np.random.default_rng(0), np.repeat(np.arange(30), 4)
        >>> y = rng.standard_normal(30)[group] + rng.standard_normal(120)
        >>> def model(y):
        ...     mu, tau = numpyro.sample("mu", Normal(0, 9)), numpyro.sample("tau", HalfNormal(3))
        ...     with numpyro.plate("groups", 30):
        ...         u = numpyro.sample("u", Normal(mu, tau))
        ...     numpyro.sample("y", Normal(u[group], 1.0), obs=y)
        >>> samples = {"mu": 0.2 * rng.standard_normal((2, 200))}
        >>> samples["tau"] = np.exp(0.2 * rng.standard_normal((2, 200)))
        >>> samples["u"] = rng.standard_normal((2, 200, 30))
        >>> result = ef.calibrate(ef.from_numpyro(samples, model, args=(y,)))
        >>> dict(result.group_effects(seed=1).sizes)
        {'chain': 2, 'draw': 200, 'u_dim_0': 30}
        """
        draw = None if self.fit is None else self.fit.group_effects
        if self.fit is None or draw is None:
            advice = self._advice("calibrate a fit with its model=")
            raise InputError("group_effects", "are not known without a model that has any", advice)
        drawn = draw(self.draws.array, int(as_rng(seed).integers(1 << 31)))
        before: xr.Dataset = self.fit.tree["posterior"].to_dataset()
        shape, effects = self.draws.values.shape[:2], before[list(drawn)].copy()
        for name, values in drawn.items():
            like = before[name].transpose(*SAMPLE_DIMS, ...)
            shaped = np.reshape(values, (*shape, *values.shape[1:]))
            effects[name] = like.copy(data=shaped).transpose(*before[name].dims)
        return effects

    def predict(
        self,
        newdata: object = None,
        *,
        offset: object = None,
        variable: str | None = None,
        group_effects: bool | None = None,
        scale: str = "response",
        kind: str = "draws",
        level: float | None = None,
        link: str | None = None,
    ) -> pd.DataFrame:
        """Predict at rows of data, with intervals.

        What is predicted is the loss's own: a mean for squared and count losses, a probability for
        the logistic, a quantile, a centre that outliers do not move. Of a fit of Bambi it is the
        mean that ``model.predict`` gives, of PyMC the mean of the observed variable. Intervals are
        of that value, not of a new response.

        Parameters
        ----------
        newdata : DataFrame, mapping or (m, p) array, optional
            New rows, a table or dict with the columns of the formula, or rows of X; of a PyMC model
            its ``pm.Data`` by their names, as for ``pm.set_data``. The data's own rows if not
            given. Columns of a matrix X of PyMC's are "X[label]" in tables and `comparisons`.
            With `link` a table whose columns are named after coefficients.
        offset : float or (m,) array, optional
            Of new rows; needed if the data had one. Models have theirs in the data.
        variable : str, optional
            Of a model: what to predict, another parameter of Bambi's response such as "sigma", or a
            ``pm.Deterministic`` or observed variable of PyMC's.
        group_effects : bool, optional
            Of a hierarchical model: whether predictions are of the groups in the data, with effects
            drawn as by `group_effects`, the default, or in Bambi of a group whose effects are zero.
            With effects, estimate and se are mean and standard deviation over the draws.
        scale : {"response", "link"}
            Whether to predict responses, or linear predictors.
        kind : {"draws", "wald"}
            Limits are quantiles of the calibrated draws' predictions, or by the delta method.
        level : float, optional
            Of the intervals; by default the result's.
        link : {"identity", "log", "logit"}, optional
            Needed where the loss is not known, as of a fit of another package or a result that was
            loaded: predictions are of the linear predictor of the coefficients that `newdata`
            names, through this link. A column "offset" is added to it.

        Returns
        -------
        DataFrame
            A row per row: estimate, se (delta method), lower, upper.

        Raises
        ------
        InputError
            Rows cannot be made of what is given, or `link` is missing or not needed.

        See Also
        --------
        average_predictions, comparisons, slopes : Averages over rows, and what changes them.

        Examples
        --------
        >>> import etafree as ef, pandas as pd
        >>> df = pd.DataFrame({"x": range(20), "y": [k % 3 + 0.1 * k for k in range(20)]})
        >>> posterior = ef.GeneralizedPosterior(
        ...     ef.Criterion.from_formula("y ~ x", df, ef.losses.Squared()), 1.0
        ... )
        >>> result = ef.calibrate(ef.sample(posterior, seed=1), posterior)
        >>> result.predict(pd.DataFrame({"x": [0.0, 30.0]}), kind="wald").round(2)
           estimate    se  lower  upper
        0      0.90  0.39   0.05   1.75
        1      4.06  0.73   2.51   5.60

        Draws alone predict the linear predictor of the coefficients that are named:

        >>> named = ef.calibrate(result.draws, center=[0.9, 0.1], covariance=[[0.2, 0], [0, 0.01]])
        >>> named.predict(pd.DataFrame({"x": [10.0]}), link="identity", kind="wald").round(2)
           estimate   se  lower  upper
        0       1.0  1.0  -0.96   2.96
        """
        if link is None:
            grid = self._grid(newdata, offset, variable, group_effects, scale)
            return self._predicted(grid.each(), kind, level)
        if predictions.has_rows(self.criterion):
            raise InputError("link", "is that of the loss", "leave it out")
        if variable is not None or group_effects is not None:
            name = "group_effects" if variable is None else "variable"
            raise InputError(name, "is of a model, and link= of coefficients", "leave one out")
        columns = predictions.Columns(self.names, self.basis)
        rows = predictions.named_rows(columns, newdata, offset, scale, link)
        return self._predicted(rows, kind, level)

    def average_predictions(
        self,
        by: str | Sequence[str] | None = None,
        newdata: object = None,
        *,
        offset: object = None,
        variable: str | None = None,
        group_effects: bool | None = None,
        scale: str = "response",
        kind: str = "draws",
        level: float | None = None,
    ) -> pd.DataFrame:
        """Average predictions over rows, or over those that agree in the columns `by`.

        Rows of the data count by their weights, new rows alike.

        Parameters
        ----------
        by : str or list of str, optional
            Columns of the data, or of `newdata`.
        newdata, offset, variable, group_effects, scale, kind, level : optional
            As for `predict`.

        Returns
        -------
        DataFrame
            A row per average: estimate, se (delta method), lower, upper.

        Examples
        --------
        >>> import etafree as ef, pandas as pd
        >>> df = pd.DataFrame({"x": range(20), "y": [k % 3 + 0.1 * k for k in range(20)]})
        >>> df["half"] = ["low"] * 10 + ["high"] * 10
        >>> posterior = ef.GeneralizedPosterior(
        ...     ef.Criterion.from_formula("y ~ x", df, ef.losses.Squared()), 1.0
        ... )
        >>> result = ef.calibrate(ef.sample(posterior, seed=1), posterior)
        >>> result.average_predictions(by="half", kind="wald")["estimate"].round(2).to_dict()
        {'high': 2.43, 'low': 1.37}
        """
        grid = self._grid(newdata, offset, variable, group_effects, scale)
        return self._predicted(grid.averages(by), kind, level)

    def comparisons(
        self,
        variables: str | Sequence[str] | Mapping[str, object] | None = None,
        by: str | Sequence[str] | None = None,
        newdata: object = None,
        *,
        offset: object = None,
        variable: str | None = None,
        group_effects: bool | None = None,
        scale: str = "response",
        kind: str = "draws",
        level: float | None = None,
    ) -> pd.DataFrame:
        """Return by how much predictions change on average when a variable changes.

        Every row is predicted twice, with the variable at one value and at another, all else as it
        is. Numbers grow by one, those that are only ever 0 and 1 go from 0 to 1, categories from
        the first to each of the others.

        Parameters
        ----------
        variables : str, list of str or mapping, optional
            Which variables; a mapping says how they change, ``{"x": 10}`` by ten, ``{"x": (0, 1)}``
            or ``{"g": ("a", "b")}`` from one value to another. All if not given.
        by : str or list of str, optional
            Columns of the data whose values averages are of; all rows if not given.
        newdata, offset, variable, group_effects, scale, kind, level : optional
            As for `predict`.

        Returns
        -------
        DataFrame
            A row per change: estimate, se, lower, upper, and t and p for no change.

        References
        ----------
        Arel-Bundock, V., Greifer, N. and Heiss, A. (2024). How to interpret statistical models
        using marginaleffects for R and Python. J. Statist. Software 111(9).

        Examples
        --------
        >>> import etafree as ef, pandas as pd
        >>> df = pd.DataFrame({"x": range(20), "y": [k % 3 + 0.1 * k for k in range(20)]})
        >>> posterior = ef.GeneralizedPosterior(
        ...     ef.Criterion.from_formula("y ~ x", df, ef.losses.Squared()), 1.0
        ... )
        >>> result = ef.calibrate(ef.sample(posterior, seed=1), posterior)
        >>> result.comparisons({"x": 10})["estimate"].round(2).to_dict()
        {('x', '+10'): 1.05}
        """
        grid = self._grid(newdata, offset, variable, group_effects, scale)
        sums = grid.contrasts(variables, by, slopes=False)
        return self._predicted(sums, kind, level, tests=True)

    def slopes(
        self,
        variables: str | Sequence[str] | None = None,
        by: str | Sequence[str] | None = None,
        newdata: object = None,
        *,
        offset: object = None,
        variable: str | None = None,
        group_effects: bool | None = None,
        scale: str = "response",
        kind: str = "draws",
        level: float | None = None,
    ) -> pd.DataFrame:
        """Return the average derivative of predictions in a variable.

        Parameters
        ----------
        variables : str or list of str, optional
            Numeric ones; all of them if not given.
        by : str or list of str, optional
            As for `comparisons`.
        newdata, offset, variable, group_effects, scale, kind, level : optional
            As for `predict`.

        Returns
        -------
        DataFrame
            A row per variable: estimate, se, lower, upper, and t and p for a slope of zero.

        Examples
        --------
        >>> import etafree as ef, pandas as pd
        >>> df = pd.DataFrame({"x": range(20), "y": [k % 3 + 0.1 * k for k in range(20)]})
        >>> posterior = ef.GeneralizedPosterior(
        ...     ef.Criterion.from_formula("y ~ x", df, ef.losses.Squared()), 1.0
        ... )
        >>> result = ef.calibrate(ef.sample(posterior, seed=1), posterior)
        >>> result.slopes("x")["estimate"].round(3).to_dict()
        {('x', 'slope'): 0.105}
        """
        grid = self._grid(newdata, offset, variable, group_effects, scale)
        sums = grid.contrasts(variables, by, slopes=True)
        return self._predicted(sums, kind, level, tests=True)

    def _grid(
        self,
        newdata: object,
        offset: object,
        variable: str | None,
        group_effects: bool | None,
        scale: str,
    ) -> predictions.Grid:
        fit, asked = self.fit, {"variable": variable, "group_effects": group_effects}
        if fit is None or fit.predictor is None or fit.constrain is None:
            for name, value in asked.items():
                if value is not None:
                    raise InputError(name, "is of models", "calibrate a PyMC or Bambi fit, model=")
            if self.recorded is not None:
                advice = self._advice("give predict() rows with a column per coefficient and link=")
                raise InputError("predict", "needs the loss or the model", advice)
            columns = predictions.Columns(self.names, self.basis)
            return predictions.Grid.of_criterion(self.criterion, columns, newdata, offset, scale)
        if offset is not None:
            raise InputError("offset", "is in the model", "give its variable in newdata=")
        counted = None if group_effects is None else as_bool(group_effects, "group_effects")
        model = fit.predictor(newdata, variable, counted)
        drawn = predictions.Drawn(fit.constrain, fit.group_effects if model.effects else None)
        return predictions.Grid.of_model(model, drawn, self.target.se, scale)

    def _predicted(
        self, sums: predictions.Sums, kind: str, level: float | None, *, tests: bool = False
    ) -> pd.DataFrame:
        draws = self._on_target(self.draws).array
        return predictions.table_of(sums, self.target, draws, kind, self._level(level), tests=tests)

    def tic(self) -> Takeuchi:
        r"""Return Takeuchi's information criterion, for comparing fits of the same responses.

        :math:`2M(\hat\theta)+2\,\mathrm{tr}(A^{-1}B)` estimates twice the total loss in new data of
        the same size, as leaving out one row (or cluster) at a time does. For the negative
        log-likelihood of a model that is right it is Akaike's criterion; under clustering, or where
        the model is wrong, the trace counts what parameters really cost. Leave-one-out of
        calibrated draws (`arviz.loo`) means nothing: they are no posterior draws.

        Returns
        -------
        Takeuchi
            ``value``, ``loss`` and the trace, ``parameters``. An `InputError` without a criterion.
            Compare values of the same loss (the same scale of it too) on the same rows.

        References
        ----------
        Takeuchi, K. (1976). Distribution of informational statistics and a criterion of model
        fitting. Suri-Kagaku 153, 12-18. Shibata, R. (1989). Statistical aspects of model selection.
        In From Data to Model, 215-240, Springer: with a penalty.

        Examples
        --------
        >>> import etafree as ef
        >>> x = np.arange(40.0)
        >>> X, y = np.column_stack([np.ones(40), x, x % 5]), 0.1 * x + np.sin(x)
        >>> for columns in (2, 3):
        ...     criterion = ef.Criterion(ef.losses.Squared(), (X[:, :columns], y))
        ...     posterior = ef.GeneralizedPosterior(criterion, 1.0)
        ...     made = ef.calibrate(ef.sample(posterior, 500), posterior, correction="HC0")
        ...     print(round(made.tic().value, 1), round(made.tic().parameters, 1))
        21.8 1.0
        22.0 1.4
        """
        t = self.target
        if t.criterion is None or t.hessian is None:
            problem = "needs all coefficients of a criterion, and its loss"
            advice = self._advice("calibrate an ef.Criterion, or a fit with its model=")
            raise InputError("tic", problem, advice)
        require(t.criterion.total, "rows", "tic")
        loss = float(t.criterion.total.derivatives(t.center).value)
        parameters = float(np.sum(t.hessian * t.covariance))
        return Takeuchi(2 * (loss + parameters), loss, parameters)

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write a self-contained HTML page about this calibration.

        Parameters
        ----------
        path : str or path
            In a folder that exists.
        force : bool
            Replace a file that is there already; else that is an `InputError`.

        Returns
        -------
        Path
            Where it is.
        """
        from etafree.report.calibration import calibration_page

        target = writable(path)
        if target.exists() and not force:
            raise InputError("path", f"{str(target)!r} exists", "pass force=True to replace it")
        with counted(None, "report"):
            text = calibration_page(self)
        with whole_file(target) as file:
            file.write(text.encode())
        return target

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write draws, target, map and diagnostics to the ``.npz`` file `path`; return its path.

        Data and models are not in it, but a model's own variables are. Of several ways of clusters
        and of moments, `test` of a result that was loaded takes the fewest degrees of freedom that
        any parameter has.
        """
        return save_arrays(path, "calibration", *pack(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Return the calibration that `save` wrote to `path`."""
        arrays, meta = load_arrays(path, "calibration", _is_stored)
        with damaged(path):
            return unpack(cls, arrays, meta)

    def __repr__(self) -> str:
        table = self.summary().drop(columns=["mean_before", "sd_before", "dof"])
        numbers = table.to_string(float_format=lambda v: f"{v:.4g}", na_rep="-")
        more = "details() says how this was made."
        return plain("\n".join([*summaries.headline(self), "", numbers, "", more]))

    def _repr_html_(self) -> str:
        title, *lines = map(html.escape, summaries.headline(self))
        items = "".join(f"<li>{line}</li>" for line in lines)
        table = self.summary().to_html(float_format=lambda v: f"{v:.4g}", escape=True, na_rep="-")
        return plain(f"<b>{title}</b><ul>{items}</ul>{table}")


def influence_ratios(
    target: Target, slope: Array, count: int, rng: np.random.Generator, wider: bool = True
) -> tuple[Array, Law | None]:
    """Return t ratios (count, k) of contrasts (k, p) from resampled influences, and their law."""
    groups = None if target.dependence is None else target.dependence.clusters
    at = point_of(target)
    each = influences(at, groups, target.correction) @ slope.T
    return inference.t_ratios(each, count, rng), _law(target, at, slope) if wider else None


def _law(target: Target, at: Point, slope: Array) -> Law:
    """Return the law of contrasts (k, p), as far as leverage tells."""
    if "leverage" not in at.criterion.total.traits:
        return target.law(slope)
    groups = None if target.dependence is None else target.dependence.clusters
    return contrast_laws(at, groups, target.correction, slope)


#: Resamples of a data set that was itself drawn.
RESAMPLES = 999
#: Corrections that other packages have with the normal law, or with t and G - 1.
USUAL = ("HC2", "HC3", "CR1", "CR1S", "CR2", "CR3")
SATTERTHWAITE = tuple(f.name for f in fields(Satterthwaite))
#: Arrays and words of a target, properties of the draws and settings that a file holds.
TARGET_ARRAYS = ("center", "covariance", "dof", "inflation", "hessian", "meat", "se_error")
WORDS = (
    *(
        "center_kind",
        "correction",
        "centered",
        "clusters",
        "design",
        "cluster_label",
        "n",
        "size",
        "estimand",
    ),
    *("method", "joint_dof", "stacked"),
)
SAMPLER = ("eta", "sampler", "info")
SETTINGS = ("kind", "root", "working", "level", "seed", "version", "made_with")
ARRAYS = (
    *("draws", "original", "map_mean", "map_offset", "map_scale", "face", *TARGET_ARRAYS),
    *(f"satterthwaite_{name}" for name in SATTERTHWAITE),
)
#: Where a file has a model's own variables, and the arrays of these.
PLACES = ("before", "after", "near")
OWN = re.compile(r"own_(near|chain|draw|\d+_(before|after|near|dim\d+))")
#: Share by which matrices, and standard errors by which draws, may differ: other processors round
#: otherwise, and a covariance near the limit of what is accepted makes much of it.
MATRICES, POINTS = 1e-3, 1e-6


def _is_stored(array: str) -> bool:
    return array in ARRAYS or OWN.fullmatch(array) is not None


def pack(result: Calibration) -> tuple[dict[str, Array], dict[str, object]]:
    """Return the arrays and the JSON-able rest of a calibration; data are not stored."""
    t, m, o = result.target, result.map, result.original
    arrays = {"draws": result.draws.values, "original": o.values}
    arrays |= {"map_mean": m.mean, "map_offset": m.offset, "map_scale": m.scale}
    arrays |= {name: getattr(t, name) for name in TARGET_ARRAYS if getattr(t, name) is not None}
    arrays |= {} if result.face is None else {"face": result.face}
    laws = t.laws.whole() if isinstance(t.laws, LeverageLaws) and t.laws.storable else t.laws
    if isinstance(laws, Satterthwaite):
        arrays |= {f"satterthwaite_{n}": getattr(laws, n) for n in SATTERTHWAITE}
    meta = {
        "names": list(t.names),
        "all_names": list(o.names),
        "target": _plain({name: getattr(t, name) for name in WORDS}),
        "plug_ins": dict(t.plug_ins),
        "settings": _plain(result.settings),
        "sampler": {"eta": o.eta, "sampler": o.sampler, "info": _plain(o.info)},
        "checks": [list(check) for check in result.checks],
    }
    variables, description = pack_variables(result)
    return arrays | variables, meta | description


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    """Return values with numpy's numbers as Python's, which JSON takes."""
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in values.items()}


def pack_variables(result: Calibration) -> tuple[dict[str, Array], dict[str, object]]:
    """Return a fit's own variables as arrays and a description, nothing if they are the draws.

    Variables that are not shown and have more than `LARGE` numbers are left out.
    """
    fit = result.fit
    if fit is None or fit.constrain is None:
        return {}, {}
    posterior: xr.Dataset = fit.tree["posterior"].to_dataset()
    near = inference.neighbours(result.center, result.target.se)
    thetas = result.original.array, result.draws.array, near
    places = dict(zip(PLACES, map(fit.constrain, thetas), strict=True))
    known = [name for name in places["before"] if name in posterior]
    shown = [name for name in known if summaries.is_shown(fit, name)]
    kept = [name for name in known if name in shown or np.size(places["before"][name]) <= LARGE]
    arrays, labels = {"own_near": near}, {f"own_{dim}": dim for dim in SAMPLE_DIMS}
    variables: list[tuple[str, list[str]]] = []
    for j, name in enumerate(kept):
        dims = [str(d) for d in posterior[name].dims if d not in SAMPLE_DIMS]
        arrays |= {f"own_{j}_{place}": np.asarray(values[name]) for place, values in places.items()}
        labels |= {f"own_{j}_dim{k}": dim for k, dim in enumerate(dims)}
        variables.append((name, dims))
    for key, dim in labels.items():
        if dim in posterior.coords:
            values = posterior[dim].values
            arrays[key] = values.astype(str) if values.dtype == object else values  # no pickles
    description = {"variables": variables, "shown": shown, "latent": list(fit.latent)}
    return arrays, {"own": {**description, "kind": fit.kind}}


def unpack(
    kind: type[Calibration], arrays: Mapping[str, Array], meta: Mapping[str, Any]
) -> Calibration:
    """Return the calibration that `pack` was given, or raise a `ValueError`."""
    own = {name: value for name, value in arrays.items() if OWN.fullmatch(name)}
    arrays = {
        name: arguments.as_array(value, name, finite=name != "dof")
        for name, value in arrays.items()
        if name not in own
    }
    for name, value in arrays.items():
        if name != "dof" and np.abs(value).max(initial=0.0) > arguments.FAR:
            raise ValueError(f"{name} reaches {np.abs(value).max():.1g}")
    for part, keys in (("target", WORDS), ("settings", SETTINGS), ("sampler", SAMPLER)):
        if sorted(meta[part]) != sorted(keys):
            raise ValueError(f"{part} has {sorted(meta[part])}, not {sorted(keys)}")
    names = arguments.as_names(meta["all_names"], None)
    draws = Draws(arrays["draws"], names, **meta["sampler"])
    original = Draws(arrays["original"], names, **meta["sampler"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # said when it was calibrated
        target = _target(arrays, meta)
        mean, offset, scale = (arrays[f"map_{part}"] for part in ("mean", "offset", "scale"))
        moved = LocationScaleMap(mean, offset, scale, target.names)
        checks = tuple(_check(*values) for values in meta["checks"])
        fit = unpack_variables(own, meta["own"], original, draws) if "own" in meta else None
        parts = draws, original, target, moved, meta["settings"]
        result = kind(*parts, recorded=checks, fit=fit, face=arrays.get("face"))
        _check_face(result)
        _check_settings(result)
        _check_target(target)
        _check_map(result)
    _check_draws(result)
    return result


def _check(
    name: str, value: float, threshold: float, warns: str, verdict: str, advice: str
) -> Check:
    as_choice(warns, "warns", ("above", "below"))
    as_choice(verdict, "verdict", VERDICTS)
    return Check(str(name), float(value), float(threshold), warns, verdict, str(advice))


def _target(arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> Target:
    values: dict[str, Any] = {name: arrays.get(name) for name in TARGET_ARRAYS}
    names = [name for name in ARRAYS if name.startswith("satterthwaite") and name in arrays]
    return Target(
        names=arguments.as_names(meta["names"], None),
        plug_ins={str(key): float(value) for key, value in meta["plug_ins"].items()},
        laws=Satterthwaite(*(arrays[name] for name in names)) if names else None,
        **values,
        **meta["target"],
    )


def unpack_variables(
    arrays: Mapping[str, Array], description: Mapping[str, Any], original: Draws, draws: Draws
) -> Fit:
    """Return a fit with the variables that `pack_variables` stored, of these draws."""
    import xarray as xr

    values: dict[str, dict[str, Array]] = {place: {} for place in PLACES}
    posterior = xr.Dataset()
    for j, (name, dims) in enumerate(description["variables"]):
        for place in PLACES:
            values[place][name] = arrays[f"own_{j}_{place}"]
        labels = {dim: arrays.get(f"own_{j}_dim{k}") for k, dim in enumerate(dims)}
        coords = {dim: label for dim, label in labels.items() if label is not None}
        before = values["before"][name]
        shaped = before.reshape(*original.values.shape[:2], *before.shape[1:])
        posterior[name] = xr.DataArray(shaped, dims=[*SAMPLE_DIMS, *dims], coords=coords)
    labelled = [dim for dim in SAMPLE_DIMS if f"own_{dim}" in arrays]
    posterior = posterior.assign_coords({dim: arrays[f"own_{dim}"] for dim in labelled})
    points = original.array, draws.array, arrays["own_near"]
    installed = importlib.util.find_spec("arviz") is not None
    return Fit(
        original,
        xr.DataTree.from_dict({"posterior": posterior}),
        constrain=Tabulated(points, tuple(values.values())),
        latent=tuple(map(str, description["latent"])),
        shown=tuple(map(str, description["shown"])),
        kind="InferenceData"
        if description["kind"] == "InferenceData" and installed
        else "DataTree",
    )


@dataclass(frozen=True, eq=False)
class Tabulated:
    """A model's variables (m, *shape) at several sets of points (m, p) that are known."""

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
        problem = "is not in the file of a result, which has its variables at the draws only"
        raise InputError("model", problem, "calibrate again")


def _check_settings(result: Calibration) -> None:
    """Refuse settings and properties of the draws that are none."""
    settings, info = result.settings, result.original.info
    Map(settings["root"], settings["kind"], settings["working"])
    as_level(settings["level"])
    for name, kinds in (("seed", int | str), ("version", str), ("made_with", str)):
        if not isinstance(settings[name], kinds):
            raise ValueError(f"{name} is {settings[name]!r}")
    for name in ("ess", "pareto_k", "r_hat"):
        if info.get(name) is not None and np.isnan(info[name]):
            raise ValueError(f"{name} is not a number")


def _check_target(target: Target) -> None:
    """Refuse a covariance, or Satterthwaite's matrices, that do not fit Hessian and meat."""
    one, satterthwaite = np.eye(target.p), target.laws
    linalg.check_covariance(target.covariance, "covariance", target.p)
    if target.se_error is not None and np.any(target.se_error < 0):
        raise ValueError("an error of a standard error is negative")
    if isinstance(satterthwaite, Satterthwaite):
        law, few = satterthwaite.single(one), target.dof < MANY
        if not np.allclose(law.dof[few], target.dof[few], rtol=MATRICES):
            raise ValueError("degrees of freedom are not Satterthwaite's")
        if not np.allclose(law.inflation, target.inflation, rtol=MATRICES):
            raise ValueError("factors of variances are not Satterthwaite's")
        if not np.allclose(satterthwaite.total, satterthwaite.total.T, atol=1e-8):
            raise ValueError("Satterthwaite's total is not symmetric")
        whiten, unit = satterthwaite.whiten, one if target.hessian is None else target.hessian
        if not np.allclose(whiten @ unit @ whiten.T, one, atol=MATRICES):
            raise ValueError("Satterthwaite's coordinates are not the Hessian's")
    if (target.hessian is None) != (target.meat is None):
        raise ValueError("of Hessian and meat there is one only")
    if target.hessian is not None and target.meat is not None:
        hessian = linalg.check_covariance(target.hessian, "hessian", target.p)
        bread = linalg.inv(hessian, "hessian")
        sandwich = bread @ linalg.check_covariance(target.meat, "meat", target.p) @ bread
        ratios = linalg.relative_eigenvalues(sandwich, target.covariance)
        if np.any(np.abs(ratios - 1) > MATRICES):
            raise ValueError("the covariance is not the sandwich of Hessian and meat")


def _check_face(result: Calibration) -> None:
    """Refuse a face that does not lead from the target's parameters to all."""
    face = result.face
    if face is None:
        return
    if face.shape != (len(result.names), result.target.p):
        raise ValueError(f"the face has shape {face.shape}")
    if np.any(np.count_nonzero(face, axis=1) > 1) or not np.isin(face, (-1.0, 0.0, 1.0)).all():
        raise ValueError("the face is not one of zeros and ties")
    if not face.any(axis=0).all():
        raise ValueError("a parameter of the target is shown by none")


def _check_map(result: Calibration) -> None:
    """Refuse a map that does not lead from these draws to this target."""
    before, target, moved = result._before, result.target, result.map
    working, kind = result.settings["working"], result.settings["kind"]
    if working == "curvature" and (before.eta is None or target.hessian is None):
        raise ValueError("the curvature that was mapped is missing")
    covariance = working_covariance(working, before, target)
    center = before.mean if kind == "scale" else target.center
    sd = np.sqrt(np.diagonal(before.covariance()))
    if np.any(np.abs(moved.mean - before.mean) > POINTS * sd):
        raise ValueError("the map's mean is not that of the original draws")
    if np.any(np.abs(moved.offset - center) > POINTS * target.se):
        raise ValueError("the map's offset is not the centre")
    scale = linalg.transport(covariance, target.covariance, result.settings["root"])
    unit = np.sqrt(np.diagonal(covariance)) / target.se[:, None]
    if np.any(np.abs(moved.scale - scale) * unit > MATRICES * np.max(np.abs(scale) * unit)):
        raise ValueError("the map does not lead from the draws' covariance to the target's")


def _check_draws(result: Calibration) -> None:
    """Refuse draws that the map and Student-t factors do not make of the original ones."""
    draws, target, offset = result.draws, result.target, result.map.offset
    if draws.values.shape != result.original.values.shape:
        raise ValueError("there are more draws before than after, or fewer")
    rest = [k for k, name in enumerate(draws.names) if name in result.inactive]
    if np.any(draws.array[:, rest] != 0):
        raise ValueError("draws of parameters without an interval are not zero")
    tied = result._on_target(draws).array @ result.basis.T
    if not np.allclose(draws.array, tied, rtol=1e-9, atol=0.0):
        raise ValueError("draws of tied parameters differ")
    image = result.map(result._before.array)
    after = result._on_target(draws).array
    rounding = 1e-12 * np.maximum(np.abs(offset), np.abs(image).max(axis=0))
    room = POINTS * target.se + rounding
    for j, nu in enumerate(target.dof):
        before, moved = image[:, j] - offset[j], after[:, j] - offset[j]
        grow = target.inflation[j] ** 0.5
        factor = np.ones(len(image)) / grow
        if np.isfinite(nu):
            factor = _nearest_factor(grow * moved, before, nu) / grow
        if np.any(np.abs(moved - factor * before) > room[j] * np.maximum(factor, 1.0)):
            raise ValueError(f"draws of {target.names[j]!r} are not the map of the original ones")


def _nearest_factor(moved: Array, before: Array, nu: float) -> Array:
    """Return of the possible t factors the one next to the ratio of every draw."""
    grid = np.sort(student_factor_grid(len(moved), float(nu)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(moved / before, nan=1.0)
    above = np.clip(np.searchsorted(grid, ratio), 1, len(grid) - 1) if len(grid) > 1 else 0
    low, high = grid[above - 1], grid[above]
    return np.where(ratio - low < high - ratio, low, high)
