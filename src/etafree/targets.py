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
from etafree.validation import Array, as_array, as_names, as_number, owned

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
        p = len(as_names(self.names, None))
        for name in ("center", "covariance", "dof", "hessian", "meat", "se_error"):
            if getattr(self, name) is not None:  # frozen means the arrays too
                object.__setattr__(self, name, owned(np.asarray(getattr(self, name))))
        as_array(self.center, "center", shape=(p,))
        as_array(self.covariance, "covariance", shape=(p, p))
        as_array(self.dof, "dof", shape=(p,), finite=False)

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
