"""What calibrate() returns: calibrated draws with everything that made them."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree.archive import pack, unpack
from etafree.calibration import LocationScaleMap, PaperMatrices, working_covariance
from etafree.checks import Check
from etafree.criterion import Criterion
from etafree.dependence import Clusters, Dependence
from etafree.diagnostics import checks_of_criterion, checks_of_draws, prior_weight
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.fits import Fit
from etafree.functional import Functional, image
from etafree.inference import Region, WaldTest, constraints, wald_test
from etafree.leverage import cluster_table
from etafree.posterior import GeneralizedPosterior
from etafree.storage import damaged, load_arrays, save_arrays, whole_file
from etafree.summaries import Shown, constrained, flat_variables, headline, record, summary_table
from etafree.targets import Target
from etafree.validation import Array, as_choice, as_count, as_level, as_rng
from etafree.wild import WildBootstrap, wild_bootstrap

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Calibration"]


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
    fit : Fit or None
        What another package made, if the draws came from one. A fit whose model is known is
        calibrated on the unconstrained scale; tables, plots and `of` then show the model's own
        variables, `test` and `region` the parameters that were calibrated.
    """

    draws: Draws
    original: Draws
    target: Target
    map: LocationScaleMap
    settings: Mapping[str, Any]
    criterion: Criterion | None = field(default=None, repr=False)
    posterior: GeneralizedPosterior | None = field(default=None, repr=False)
    dependence: Dependence | None = field(default=None, repr=False)
    recorded: tuple[Check, ...] | None = field(default=None, repr=False)
    fit: Fit | None = field(default=None, repr=False)

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
        """Return equal-tailed limits per parameter.

        Parameters
        ----------
        level : float, optional
            Default: the level the calibration was asked for, 0.95.
        kind : {"draws", "wald"}
            Quantiles of the calibrated draws, or estimate plus and minus t quantile times se.
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

        ``ratio`` is the calibrated interval's width over the original's: above one, the posterior
        was overconfident. ``se_error`` is the relative Monte Carlo error of a standard error that
        draws made. Under a penalty with a kink, ``status`` says which parameters are exactly zero
        and have no interval.
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
        """Return the joint confidence ellipsoid (Hotelling); never read one off the draws."""
        return Region.of(self.map.offset, self.target, self._level(level))

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
        return wald_test(self.map.offset, self.target, contrast, value)

    def wild_bootstrap(
        self, contrast: Any, value: float = 0.0, *, level: float | None = None, draws: int = 9999,
        seed: Any = 0,
    ) -> WildBootstrap:  # fmt: skip
        """Return an interval and a p-value of one contrast by the wild cluster bootstrap.

        An independent check of an interval when clusters are few: no t quantile is involved.
        `contrast` and `value` as for `test`, one row.
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
        in standard errors. `way` names one of several ways.
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

        Examples
        --------
        >>> import etafree as ef
        >>> rng = np.random.default_rng(0)
        >>> r = ef.calibrate(rng.standard_normal((500, 2)), center=[1.0, 2.0], covariance=np.eye(2),
        ...                  names=["a", "b"])
        >>> float(r.of(lambda t: t["a"] + t["b"]).estimate)
        3.0
        """

        label = str(name or getattr(function, "__name__", "functional"))
        arrays = self.center, self.draws.array, self.original.array
        at, after, before = (self._image(function, array) for array in arrays)
        return Functional(label, at, after, before, self._level(None))

    def _image(self, function: Callable[[Mapping[str, Array]], Array], array: Array) -> Array:
        if self.fit is None or self.fit.constrain is None:
            return image(function, self.names, array)
        names, flat, whole = flat_variables(self.fit, np.atleast_2d(array))
        made = image(lambda entries: function({**entries, **whole}), names, flat)
        return made if array.ndim > 1 else made[0]

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
            np.linalg.inv(t.size * working_covariance(self.settings["working"], self._before, t)),
            t.size * t.covariance,
            self.map.scale,
        )

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """The diagnostics as tuples."""
        if self.recorded is not None:
            return self.recorded
        before, t, offset = self._before, self.target, self.map.offset
        out = [*t.checks]
        out += checks_of_draws(before, self.map(before.array), t, offset, before.eta)
        if self.criterion is not None and t.hessian is not None:
            out = checks_of_criterion(self.criterion, t, offset, self.dependence) + out
            post = self.posterior
            unscaled = post is not None and post.log_prior is not None
            if post is not None and unscaled and self.criterion is not post.energy:
                out.append(prior_weight(post, self.target))
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

        before, after = self.shown.columns(names)
        level = self._level(None)
        table = self.summary(level).loc[list(before)]
        eta = "" if self.original.eta is None else f" at η = {self.original.eta:g}"
        return before_after(before, after, table, level, eta, self.target.describe())

    def to_arviz(self) -> Any:
        """Return the calibrated draws as the kind of object they came as.

        An InferenceData gives an InferenceData, everything else an xarray DataTree, with the same
        variables, dimensions and coordinates. How they were calibrated is in the posterior's
        attributes. Groups computed from the original draws are ``original_*`` now.
        """
        from etafree.adapters.arviz import calibrated_tree
        from etafree.adapters.trees import as_kind

        tree = calibrated_tree(self.draws, self.fit, record(self))
        return as_kind(tree, "DataTree" if self.fit is None else self.fit.kind)

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write a self-contained HTML page about this calibration; return its path.

        A file that is there already is replaced with ``force=True`` only.
        """
        from etafree.report.calibration import calibration_page

        target = Path(path)
        if target.exists() and not force:
            raise InputError("path", f"{str(target)!r} exists", "pass force=True to replace it")
        if not target.parent.is_dir():
            raise InputError("path", f"the folder {str(target.parent)!r} does not exist")
        text = calibration_page(self)
        with whole_file(target) as file:
            file.write(text.encode())
        return target

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write draws, target, map and diagnostics to one ``.npz`` file; return its path.

        Data and models are not in it: a loaded result shows the parameters that were calibrated.
        """
        parts = pack(self.draws, self.original, self.target, self.map, self.settings, self.checks)
        return save_arrays(path, "calibration", *parts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read a calibration that `save` wrote."""
        arrays, meta = load_arrays(path, "calibration")
        with damaged(path):
            return cls(**unpack(arrays, meta))

    def __repr__(self) -> str:
        table = self.summary().drop(columns=["mean_before", "dof"])
        shown = table.to_string(float_format=lambda v: f"{v:.4g}", na_rep="-")
        return "\n".join([*headline(self), "", shown])

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in headline(self)[1:])
        table = self.summary().to_html(float_format=lambda v: f"{v:.4g}", escape=True, na_rep="-")
        return f"<b>{html.escape(headline(self)[0])}</b><ul>{lines}</ul>{table}"
