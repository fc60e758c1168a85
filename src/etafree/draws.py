"""Draws of a posterior: an array (chain, draw, parameter) with names and the η it was made at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree.errors import InputError
from etafree.foundation.arguments import (
    Array,
    as_array,
    as_mapping,
    as_names,
    as_number,
    as_positive,
    owned,
    places_of,
    renamed,
)
from etafree.foundation.linalg import check_covariance, correlation_eigenvalues
from etafree.foundation.terminal import counted_noun
from etafree.posterior import GeneralizedPosterior

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Draws:
    """Equally weighted posterior draws.

    Build them with `Draws.of`; ``draws["name"]`` is one parameter's draws (chain * draw,),
    ``np.asarray(draws)`` all of them (chain * draw, p) and ``len(draws)`` their number.

    Attributes
    ----------
    values : (chain, draw, parameter) array
        Chains by draws by parameters.
    names : tuple of str
        Parameter names.
    eta : float or None
        Learning rate of the posterior they came from, if known.
    sampler : str
        What drew them.
    info : mapping
        What the sampler reports of itself (ess, Pareto k, R-hat, evaluations, ...).
    source : GeneralizedPosterior or None
        The posterior they were drawn from by `sample`.

    Raises
    ------
    InputError
        `values` has not three axes, or `names` do not fit them.

    See Also
    --------
    etafree.sample : Draws of a generalized posterior.

    Examples
    --------
    >>> import etafree as ef
    >>> d = ef.Draws.of([[0.0, 1.0], [2.0, 3.0], [1.0, 5.0], [1.0, 3.0]], names=["a", "b"], eta=0.5)
    >>> len(d), d.mean, d["b"].tolist()
    (4, array([1., 3.]), [1.0, 3.0, 5.0, 3.0])
    >>> d.covariance().round(3)
    array([[0.667, 0.667],
           [0.667, 2.667]])
    >>> d.ess, d.r_hat  # too few to estimate
    (4.0, None)
    >>> d.select("~a").names
    ('b',)
    >>> d.select(["b"]).to_frame().head(2)
                  b
    chain draw
    0     0     1.0
          1     3.0
    """

    values: Array
    names: tuple[str, ...]
    eta: float | None = None
    sampler: str = "given"
    info: Mapping[str, Any] = field(default_factory=dict)
    source: GeneralizedPosterior | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", as_array(self.values, "values", finite=False))
        if self.values.ndim != 3:
            raise InputError(
                "values", f"has shape {self.values.shape}", "use ef.Draws.of(array) for (draw, p)"
            )
        as_names(self.names, self.values.shape[2])
        if self.eta is not None:
            as_positive(self.eta, "eta")
        if not isinstance(self.sampler, str):
            raise InputError("sampler", f"is a {type(self.sampler).__name__}", "pass its name")
        if not isinstance(self.source, GeneralizedPosterior | None):
            raise InputError(
                "source",
                f"is a {type(self.source).__name__}",
                "pass the GeneralizedPosterior that was drawn from",
            )
        object.__setattr__(self, "values", owned(self.values))
        object.__setattr__(self, "info", as_mapping(self.info, "info"))
        for name in ("ess", "r_hat", "pareto_k"):
            if self.info.get(name) is not None:
                as_number(self.info[name], name)

    @classmethod
    def of(
        cls, values: object, names: Sequence[str] | None = None, eta: float | None = None
    ) -> Draws:
        """Return draws of any form as checked draws.

        Parameters
        ----------
        values : Draws, DataFrame, or array (draw,), (draw, p) or (chain, draw, p)
            The columns of a DataFrame name the parameters.
        names : sequence of str, optional
            Parameter names; ``theta[0]`` and so on if not given. For draws that have names: new
            ones, or the same in the order that is wanted.
        eta : float, optional
            Learning rate that they were drawn at.

        Returns
        -------
        Draws
            With values (chain, draw, p).

        Raises
        ------
        InputError
            Values are not finite, `names` do not fit, or `eta` is not that of the draws.
        """
        if isinstance(values, Draws):
            named = values if names is None else values._renamed(as_names(names, values.p))
            if eta is None:
                return named
            eta = as_positive(eta, "eta")
            if named.eta is not None and named.eta != eta:
                raise InputError(
                    "eta", f"is {eta:g} but these draws were made at {named.eta:g}", "leave it out"
                )
            return replace(named, eta=eta)
        if isinstance(values, Mapping):
            problem = "are a dict, which does not say what chains are"
            advice = "pass a table with a column per parameter, or an xarray Dataset with chain "
            raise InputError("draws", problem, f"{advice}and draw, as arviz.from_dict makes")
        if getattr(values, "ndim", 2) > 1:  # the index of a Series names draws
            values, names = renamed(values, names, "draws")
        array = as_array(values, "draws")
        if array.ndim == 1:
            array = array[:, None]
        if array.ndim == 2:
            array = array[None]
        if array.ndim != 3 or 0 in array.shape:
            raise InputError(
                "draws", f"has shape {array.shape}", "pass (draw, p) or (chain, draw, p)"
            )
        return cls(
            array, as_names(names, array.shape[2]), None if eta is None else as_positive(eta, "eta")
        )

    @cached_property
    def p(self) -> int:
        """Number of parameters."""
        return int(self.values.shape[2])

    @cached_property
    def array(self) -> Array:
        """All draws as one array (chain * draw, p)."""
        return self.values.reshape(-1, self.p)

    def __len__(self) -> int:
        """Return the number of draws, of all chains together."""
        return int(self.values.shape[0] * self.values.shape[1])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.array, dtype=dtype, copy=copy)

    def __getitem__(self, name: str) -> Array:
        """Return the draws of the parameter `name`, (chain * draw,)."""
        if not isinstance(name, str) or name not in self.names:
            raise InputError(
                "name", f"{name!r:.80} is not a parameter", f"choose from {self.names}"
            )
        return self.array[:, self.names.index(name)]

    def select(self, names: str | Sequence[str], filter_vars: str | None = None) -> Draws:
        """Return the draws of some parameters, in the order in which they are named.

        Parameters
        ----------
        names : str or list of str
            With the meaning of ArviZ's ``var_names``: parameters, vectors, or ``"~name"``.
        filter_vars : {"like", "regex"}, optional
            Take names as parts of names, or as regular expressions.

        Returns
        -------
        Draws
            An `InputError` if there are no such parameters.
        """
        if filter_vars is None and type(names) is tuple and names == self.names:
            return self
        where = places_of(self.names, names, filter_vars, "names")
        wanted = tuple(self.names[j] for j in where)
        if wanted == self.names:
            return self
        return replace(self, values=self.values[:, :, where], names=wanted, source=None)

    def _renamed(self, names: tuple[str, ...]) -> Draws:
        """Return the draws under new names, or those they have in another order."""
        known = set(names) & set(self.names)
        return self.select(names) if known else replace(self, names=names)

    @cached_property
    def mean(self) -> Array:
        """Mean of every parameter (p,)."""
        return owned(self.array.mean(axis=0))

    def covariance(self) -> Array:
        """Return the covariance (p, p) with divisor D - 1, checked for use as a scale.

        Raises
        ------
        InputError
            Draws are fewer than p + 2, constant, collinear or too large.
        """
        return self._covariance

    @cached_property
    def _covariance(self) -> Array:
        if len(self) < self.p + 2:
            raise InputError(
                "draws",
                f"are {len(self)} for {counted_noun(self.p, 'parameter')}",
                f"pass at least {self.p + 2}, better thousands (chains of one parameter have shape "
                "(chain, draw, 1))",
            )
        array = self.array
        spread = array.max(axis=0) - array.min(axis=0)
        size = np.abs(array).max(axis=0)
        stuck = [self.names[j] for j in np.flatnonzero(spread <= 1e-14 * size)]
        if stuck:
            raise InputError("draws", f"of {stuck} are constant", "drop these parameters")
        if size.max() > 1e75:
            raise InputError("draws", f"reach {size.max():.1g}", "change the units")
        deviation = array - self.mean
        covariance = deviation.T @ deviation / (len(self) - 1)

        def advice() -> str:
            _, vectors = correlation_eigenvalues(covariance)
            tied = [self.names[j] for j in np.flatnonzero(np.abs(vectors[:, 0]) > 0.1)][:8]
            return f"the draws are collinear: drop or combine parameters, of {tied}"

        return owned(check_covariance(covariance, "draws", self.p, advice))

    @cached_property
    def ess(self) -> float:
        """Effective number of draws: the sampler's, or estimated from the chains.

        The smallest over parameters.
        """
        if self.info.get("ess") is not None:
            return float(self.info["ess"])
        if self.values.shape[1] < 8:
            return float(len(self))
        from arviz_stats.base.array import array_stats

        return float(np.min(array_stats.ess(self.values, chain_axis=0, draw_axis=1)))

    @cached_property
    def r_hat(self) -> float | None:
        """Largest R-hat of the parameters, None for a single chain."""
        if self.info.get("r_hat") is not None:
            return float(self.info["r_hat"])
        if self.values.shape[0] < 2 or self.values.shape[1] < 8:
            return None
        from arviz_stats.base.array import array_stats

        return float(np.max(array_stats.rhat(self.values, chain_axis=0, draw_axis=1)))

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with a column per parameter, indexed by chain and draw."""
        import pandas as pd

        index = pd.MultiIndex.from_product(
            [range(n) for n in self.values.shape[:2]], names=["chain", "draw"]
        )
        return pd.DataFrame(self.array, index=index, columns=list(self.names))

    def __repr__(self) -> str:
        rate = "" if self.eta is None else f", eta={self.eta:g}"
        size = f", ess={self.ess:.0f}" if "ess" in self.info else ""
        k = self.info.get("pareto_k")
        tail = "" if k is None else f", pareto_k={k:.2f}"
        return (
            f"Draws({counted_noun(self.values.shape[0], 'chain')} x {self.values.shape[1]} of "
            f"{', '.join(self.names[:6])}{', ...' if self.p > 6 else ''}; "
            f"{self.sampler}{rate}{size}{tail})"
        )
