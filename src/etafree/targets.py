"""Where calibrated draws go: a centre, a covariance and the law that quantiles come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etafree.axes import axis_names, in_order, renamed
from etafree.checks import Check
from etafree.errors import InputError
from etafree.linalg import check_covariance
from etafree.satterthwaite import Satterthwaite
from etafree.validation import (
    Array,
    as_array,
    as_bool,
    as_mapping,
    as_names,
    as_number,
    as_positive,
    owned,
)

__all__ = ["Target", "degrees_of_freedom"]


@dataclass(frozen=True, eq=False)
class Target:
    r"""Where calibrated draws go: centre, covariance and reference distribution.

    Attributes
    ----------
    center : (p,) array
        The estimate.
    covariance : (p, p) array
        Covariance of the estimator in absolute units, the paper's :math:`V/s_n`.
    names : tuple of str
        Parameter names.
    dof : (p,) array
        Degrees of freedom of each parameter's t distribution, infinite for the normal.
    hessian, meat : (p, p) arrays or None
        :math:`A` and :math:`B`, sums over observations.
    center_kind, correction : str
        Choices that made it, such as ``"map"`` and ``"CR3"``.
    centered : bool
        Whether scores were centred at observation level.
    clusters : int or None
        Number of independent clusters or PSUs, the smallest if there are several ways.
    design : str
        Which observations may depend on each other, in words.
    n : int or None
        Number of rows.
    size : float or None
        The effective scale :math:`s_n`.
    estimand : str
        What an interval covers, in words.
    plug_ins : mapping
        Nuisance values estimated beforehand and taken as known.
    method : str
        "sandwich" from a criterion's derivatives, or "infinitesimal jackknife" from draws.
    se_error : (p,) array or None
        Relative Monte Carlo error of the standard errors, where draws made them.
    satterthwaite : Satterthwaite or None
        What the degrees of freedom of a contrast come from (CR2).
    checks : tuple of Check
        Diagnostics found on the way.

    Raises
    ------
    InputError
        Shapes do not fit together.

    See Also
    --------
    etafree.target : The target of a criterion.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> t = ef.target(ef.Criterion(ef.losses.Squared(), data=(X, y)), correction="HC1")
    >>> t.se.round(3), t.dof_of(np.array([1.0])), t.describe()
    (array([1.08]), inf, 'sandwich, independent observations, HC1, normal')
    """

    center: Array
    covariance: Array
    names: tuple[str, ...]
    dof: Array
    hessian: Array | None = None
    meat: Array | None = None
    center_kind: str = "given"
    correction: str = "given"
    centered: bool = True
    clusters: int | None = None
    design: str = ""
    n: int | None = None
    size: float | None = None
    estimand: str = "whatever the given centre estimates"
    plug_ins: Mapping[str, float] = field(default_factory=dict)
    method: str = "sandwich"
    se_error: Array | None = None
    satterthwaite: Satterthwaite | None = field(default=None, repr=False)
    checks: tuple[Check, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        names = as_names(self.names, None)
        object.__setattr__(self, "names", names)
        p = len(names)
        for name in ("center", "covariance", "dof", "hessian", "meat", "se_error"):
            value = getattr(self, name)
            if value is None and name in ("hessian", "meat", "se_error"):
                continue
            axes = (0, 1) if name in ("covariance", "hessian", "meat") else (-1,)
            value = in_order(value, names, name, axes)
            array = as_array(value, name, shape=(p,) * len(axes), finite=name != "dof")
            object.__setattr__(self, name, owned(array))  # frozen means the arrays too
        if not np.all(self.dof > 0):
            raise InputError("dof", f"are {self.dof.tolist()}",
                             "pass numbers above zero, numpy.inf for the normal")  # fmt: skip
        for name in ("clusters", "n", "size"):
            if getattr(self, name) is not None:
                as_positive(getattr(self, name), name)
        for name in ("center_kind", "correction", "design", "estimand", "method"):
            if not isinstance(getattr(self, name), str):
                raise InputError(name, f"is a {type(getattr(self, name)).__name__}", "pass text")
        as_bool(self.centered, "centered")
        numbers = as_mapping(self.plug_ins, "plug_ins")
        object.__setattr__(self, "plug_ins", {k: as_number(v, k) for k, v in numbers.items()})
        if not isinstance(self.satterthwaite, Satterthwaite | None):
            raise InputError("satterthwaite", f"is a {type(self.satterthwaite).__name__}",
                             "leave it out")  # fmt: skip
        if not isinstance(self.checks, tuple) or not all(isinstance(c, Check) for c in self.checks):
            raise InputError("checks", "are no tuple of Check", "leave them out")

    @classmethod
    def given(cls, center: Any, covariance: Any, names: Any = None, dof: Any = None) -> Target:
        """Return a target from a centre and a covariance matrix of the user's.

        Parameters
        ----------
        center : (p,) array
            The estimate.
        covariance : (p, p) array
            Of the estimate, in absolute units.
        names : sequence of str, optional
            Parameter names; by default those of a Series or DataFrame among the two.
        dof : float, optional
            Degrees of freedom of a reference t distribution; the normal if not given.

        Returns
        -------
        Target
            To be passed to `calibrate` in place of a criterion.

        Raises
        ------
        InputError
            Shapes differ, or the covariance is not positive definite.

        Examples
        --------
        >>> import etafree as ef
        >>> ef.Target.given([0.0, 1.0], np.eye(2)).se
        array([1., 1.])
        """
        names = axis_names(center) or axis_names(covariance) if names is None else names
        point = as_array(renamed(center, names, "center")[0], "center").reshape(-1)
        if len(point) == 0:
            raise InputError("center", "is empty")
        known = as_names(names, len(point))
        order = in_order(covariance, known, "covariance", (0, 1))
        matrix = check_covariance(order, "covariance", len(point))
        return cls(point, matrix, known, degrees_of_freedom(dof, np.inf, len(point)))

    @property
    def se(self) -> Array:
        """Standard errors (p,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def p(self) -> int:
        """Number of parameters."""
        return len(self.center)

    def dof_of(self, contrast: Array) -> float:
        """Return the degrees of freedom for a `contrast` (p,), or for several at once (q, p)."""
        if self.satterthwaite is not None:
            return self.satterthwaite.dof(contrast)
        return float(self.dof.min())

    def describe(self) -> str:
        """Return in words how the covariance was made."""
        if not self.design:
            return "covariance given by the user"
        dof = self.dof
        if np.isinf(dof).all():
            law = "normal"
        elif np.ptp(dof) < 1e-9:
            law = f"t with {dof[0]:g} degrees of freedom"
        else:
            law = f"t with {dof.min():.1f} to {dof.max():.1f} degrees of freedom"
        printed = "" if self.centered else ", scores not centred"
        return f"{self.method}, {self.design}, {self.correction}, {law}{printed}"


def degrees_of_freedom(given: Any, default: float | Array, p: int) -> Array:
    if given is None:
        return np.broadcast_to(np.asarray(default, dtype=np.float64), (p,)).copy()
    number = as_number(given, "dof")
    if not number >= 1:
        raise InputError("dof", f"is {number!r}", "pass at least 1, or numpy.inf for the normal")
    return np.full(p, number)
