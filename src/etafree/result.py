"""What calibrate() returns: calibrated draws with everything that made them."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etafree import linalg
from etafree.answers import Answers
from etafree.archive import ARRAYS, pack, unpack
from etafree.calibration import LocationScaleMap, PaperMatrices, working_covariance
from etafree.checks import Check, run_checks
from etafree.criterion import Criterion
from etafree.dependence import Dependence
from etafree.diagnostics import checks_of_criterion, checks_of_draws, prior_weight
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.fits import Fit
from etafree.posterior import GeneralizedPosterior
from etafree.storage import damaged, load_arrays, save_arrays, whole_file, writable
from etafree.summaries import headline, record
from etafree.targets import Target
from etafree.terminal import plain
from etafree.variables import is_own, pack_variables, unpack_variables

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Calibration"]


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
    criterion : Criterion or None
        What was calibrated; of a penalty with a kink, its active block.
    posterior : GeneralizedPosterior or None
        What the draws are of, if it is known.
    dependence : Dependence or None
        Which rows may depend on each other.
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
    >>> result.flags(), result.diagnostics().loc["cluster leverage", "verdict"]
    ('effective clusters, cluster leverage', 'warn')
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
    criterion: Criterion | None = field(default=None, repr=False)
    posterior: GeneralizedPosterior | None = field(default=None, repr=False)
    dependence: Dependence | None = field(default=None, repr=False)
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
        before, t, offset = self._before, self.target, self.map.offset
        out = [*t.checks, *checks_of_draws(before, self.map, t, offset, before.eta)]
        if self.criterion is not None and t.hessian is not None:
            out = checks_of_criterion(self.criterion, t, offset, self.dependence) + out
            post = self.posterior
            unscaled = post is not None and post.log_prior is not None
            if post is not None and unscaled and self.criterion is not post.energy:
                out += run_checks([("unscaled prior", lambda: prior_weight(post, t))])
        return tuple(out)

    def diagnostics(self) -> pd.DataFrame:
        """Return the table of checks: value, threshold, verdict and advice.

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
        from etafree.adapters.arviz import calibrated_tree
        from etafree.adapters.trees import as_kind

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
