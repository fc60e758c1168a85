"""Regions and tests from a centre, its covariance and degrees of freedom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from etafree import linalg
from etafree.axes import in_order
from etafree.errors import InputError
from etafree.formula import plain_text
from etafree.targets import Target
from etafree.validation import Array, as_array, as_count, as_level

__all__ = ["Region", "WaldTest", "constraints", "student_quantile", "wald_test"]


def student_quantile(probability: float, dof: Array) -> Array:
    """Return t quantiles (p,), the normal's where the degrees of freedom are infinite.

    Examples
    --------
    >>> student_quantile(0.975, np.array([4.0, np.inf])).round(4)
    array([2.7764, 1.96  ])
    """
    from scipy.special import ndtri, stdtrit

    finite = np.isfinite(dof)
    out = np.full(dof.shape, float(ndtri(probability)))
    out[finite] = stdtrit(dof[finite], probability)
    return out


def _hotelling_dof(dof: float, q: int) -> float:
    """Return the denominator degrees of freedom of Hotelling's F for q contrasts."""
    return dof - q + 1.0


@dataclass(frozen=True, eq=False)
class Region:
    r"""Joint confidence ellipsoid :math:`(\theta-c)^\top V^{-1}(\theta-c)\le r^2`.

    With :math:`\nu` degrees of freedom
    :math:`r^2 = \frac{p\nu}{\nu-p+1}F_{p,\nu-p+1}` (Hotelling), with the normal
    :math:`r^2=\chi^2_p`: the quantiles at `level` of these laws.

    Attributes
    ----------
    center : (p,) array
        :math:`c`.
    covariance : (p, p) array
        :math:`V`.
    radius_squared : float
        :math:`r^2`.
    level : float
        Confidence level.
    dof : float
        :math:`\nu`, infinite for the normal.
    names : tuple of str
        Parameter names.

    See Also
    --------
    etafree.Calibration.region : What returns it.

    References
    ----------
    Hotelling, H. (1931). The generalization of Student's ratio. Ann. Math. Statist. 2, 360-378.

    Examples
    --------
    >>> import etafree as ef
    >>> draws = np.random.default_rng(0).standard_normal((500, 2))
    >>> region = ef.calibrate(draws, center=np.zeros(2), covariance=np.eye(2)).region()
    >>> round(region.radius_squared, 3), region.contains([2.0, 1.0]), region.contains([2.0, 2.0])
    (5.991, True, False)
    >>> region.boundary(points=100).shape
    (100, 2)
    """

    center: Array
    covariance: Array
    radius_squared: float
    level: float
    dof: float
    names: tuple[str, ...]

    @classmethod
    def of(cls, center: Array, target: Target, level: float) -> Region:
        """Return the region of a target around a centre.

        Parameters
        ----------
        center : (p,) array
            Middle of the ellipsoid.
        target : Target
            Its covariance and degrees of freedom.
        level : float
            Confidence level.

        Returns
        -------
        Region
            Of all parameters.

        Raises
        ------
        InputError
            There are no more degrees of freedom than p - 1.

        Examples
        --------
        >>> target = Target.given(np.zeros(2), np.eye(2), dof=10)
        >>> round(Region.of(np.zeros(2), target, level=0.95).radius_squared, 2)
        9.46
        """
        from scipy.special import chdtri, fdtri

        if not isinstance(target, Target):
            raise InputError("target", f"is a {type(target).__name__}", "pass an ef.Target")
        level = as_level(level)
        center = as_array(in_order(center, target.names, "center"), "center", shape=(target.p,))
        p, dof = target.p, target.dof_of(np.eye(target.p))
        if np.isinf(dof):
            radius = float(chdtri(p, 1 - level))
        else:
            rest = _hotelling_dof(dof, p)
            if rest <= 0:
                raise InputError(
                    "region", f"needs more than {p - 1} degrees of freedom and has {dof:.1f}",
                    "use single intervals, or more clusters",
                )  # fmt: skip
            radius = p * dof / rest * float(fdtri(p, rest, level))
        return cls(center, target.covariance, radius, level, dof, target.names)

    def contains(self, theta: Any) -> bool:
        """Return whether a parameter value `theta`, (p,), lies inside; a Series goes by name."""
        point = in_order(theta, self.names, "theta")
        d = as_array(point, "theta", shape=self.center.shape) - self.center
        return bool(d @ linalg.solve(self.covariance, d, "covariance") <= self.radius_squared)

    def boundary(self, i: int | str = 0, j: int | str = 1, points: int = 200) -> Array:
        """Return the outline of the region's shadow on two parameters, to plot.

        Parameters
        ----------
        i, j : int or str
            Two parameters, by position or name.
        points : int
            How many points.

        Returns
        -------
        (points, 2) array
            A closed curve.

        Raises
        ------
        InputError
            `i` or `j` is no parameter, or both are the same.
        """
        pair = [self._position(i, "i"), self._position(j, "j")]
        if pair[0] == pair[1]:
            raise InputError("j", f"is the same parameter as i, {i!r}", "name two")
        lower = linalg.cholesky(self.covariance[np.ix_(pair, pair)], "covariance")
        angle = np.linspace(0, 2 * np.pi, as_count(points, "points", least=2))
        circle = np.column_stack([np.cos(angle), np.sin(angle)])
        outline: Array = self.center[pair] + np.sqrt(self.radius_squared) * circle @ lower.T
        return outline

    def _position(self, which: int | str, argument: str) -> int:
        if isinstance(which, str) and which in self.names:
            return self.names.index(which)
        if isinstance(which, int) and 0 <= which < len(self.names):
            return which
        raise InputError(argument, f"is {which!r}", f"parameters are {list(self.names)}")


@dataclass(frozen=True, eq=False)
class WaldTest:
    r"""Wald test of linear hypotheses :math:`R\theta = r` with q rows.

    :math:`F=\frac{\nu-q+1}{\nu q}W\sim F_{q,\nu-q+1}` with
    :math:`W=(Rc-r)^\top(RVR^\top)^{-1}(Rc-r)`, centre :math:`c`, covariance :math:`V` and
    :math:`\nu` degrees of freedom; with the normal :math:`W/q`, held against :math:`\chi^2_q/q`.

    Attributes
    ----------
    statistic : float
        F; for one contrast the square of t.
    dof : tuple of float
        Numerator and denominator degrees of freedom, the latter infinite for the normal.
    p_value : float
        Probability of a larger F if the hypotheses are true.
    estimate : (q,) array
        The contrasts minus their hypothesised values.
    se : (q,) array
        Standard errors of the contrasts.

    See Also
    --------
    etafree.Calibration.test : What returns it.

    Examples
    --------
    >>> import etafree as ef
    >>> draws, target = np.random.default_rng(0).standard_normal((500, 2)), np.eye(2)
    >>> made = ef.calibrate(draws, center=[1, 2], covariance=target, names=["a", "b"], dof=10)
    >>> made.test(["a", "b"])
    WaldTest(F = 2.25 on F(2, 9), p = 0.1613)
    """

    statistic: float
    dof: tuple[float, float]
    p_value: float
    estimate: Array
    se: Array

    def __repr__(self) -> str:
        law = f"F({self.dof[0]:g}, {self.dof[1]:.4g})"
        return f"WaldTest(F = {self.statistic:.4g} on {law}, p = {self.p_value:.4g})"


def wald_test(center: Array, target: Target, contrast: Any, value: Any = 0.0) -> WaldTest:
    r"""Test :math:`R\theta = r` with :math:`W=(R c-r)^\top(RVR^\top)^{-1}(Rc-r)`.

    With :math:`\nu` degrees of freedom (of all rows together),
    :math:`\frac{\nu-q+1}{\nu q}W \sim F_{q,\nu-q+1}`; with the normal :math:`W/q\sim F_{q,\infty}`.
    """
    from scipy.special import chdtrc, fdtrc

    matrix, right = constraints(contrast, value, target.names)
    q = len(matrix)
    largest = np.abs(matrix).max(axis=1, keepdims=True)
    if np.any(largest < 1e-100) or np.any(largest > 1e100):
        raise InputError("contrast", "has a row of zeros, or of numbers too small or too large",
                         "drop or rescale it")  # fmt: skip
    if linalg.rank(matrix / largest, 1e-8, "contrast") < q:
        raise InputError("contrast", f"has {q} rows that are not independent", "drop some")
    estimate = matrix @ center - right
    covariance = matrix @ target.covariance @ matrix.T
    wald = float(estimate @ linalg.solve(covariance, estimate, "covariance of the contrast"))
    dof = target.dof_of(matrix)
    se = np.sqrt(np.diagonal(covariance))
    if np.isinf(dof):
        return WaldTest(wald / q, (q, np.inf), float(chdtrc(q, wald)), estimate, se)
    rest = _hotelling_dof(dof, q)
    if rest <= 0:
        raise InputError(
            "contrast",
            f"has {q} rows but only {dof:.1f} degrees of freedom are there to judge them",
            "test fewer at once, or use more clusters",
        )
    statistic = wald * rest / (dof * q)
    return WaldTest(statistic, (q, rest), float(fdtrc(q, rest, statistic)), estimate, se)


def constraints(contrast: Any, value: Any, names: tuple[str, ...]) -> tuple[Array, Array]:
    """Return R (q, p) and r (q,) of a contrast in any of its forms."""
    p = len(names)
    matrix: Array
    if isinstance(contrast, Mapping):
        contrast_row = np.zeros(p)
        for name, weight in contrast.items():
            contrast_row[_position(name, names)] = as_array(weight, "contrast", shape=())
        matrix = contrast_row[None]
    elif isinstance(contrast, str) and contrast in names:
        matrix = np.eye(p)[[names.index(contrast)]]
    elif isinstance(contrast, str):
        matrix, given = _parsed(contrast, names)
        if "=" in contrast:
            if np.any(as_array(value, "value") != 0):
                raise InputError("value", f"is {value!r}", "the contrast is an equation already")
            return matrix, given
    elif isinstance(contrast, list | tuple) and all(isinstance(c, str) for c in contrast):
        matrix = np.eye(p)[[_position(c, names) for c in contrast]]
    else:
        matrix = np.atleast_2d(as_array(in_order(contrast, names, "contrast"), "contrast"))
    if matrix.ndim != 2 or matrix.shape[1] != p or len(matrix) == 0:
        raise InputError("contrast", f"has shape {matrix.shape}", f"pass (q, {p})")
    right = as_array(value, "value")
    if right.ndim > 1 or (right.ndim == 1 and len(right) != len(matrix)):
        raise InputError("value", f"has shape {right.shape} for {len(matrix)} contrast(s)",
                         "pass one number, or one per contrast")  # fmt: skip
    return matrix, np.broadcast_to(right, (len(matrix),))


def _position(name: Any, names: tuple[str, ...]) -> int:
    if name not in names:
        raise InputError("contrast", f"names {name!r}", f"parameters are {list(names)}")
    return names.index(name)


def _parsed(text: str, names: tuple[str, ...]) -> tuple[Array, Array]:
    from formulaic.utils.constraints import LinearConstraints

    if any(part.count("=") > 1 for part in text.split(",")):
        raise InputError("contrast", f"{text!r} has two equal signs", "write 'a = b, b = 0'")
    try:
        made = LinearConstraints.from_spec(text, variable_names=list(names))
    except Exception as error:  # formulaic raises its own and Python's errors alike
        raise InputError(
            "contrast", f"{text!r} cannot be read: {plain_text(error)}",
            f"write it like 'a - b = 0' with parameters {list(names)}",
        ) from None  # fmt: skip
    matrix = np.asarray(made.constraint_matrix, dtype=np.float64)
    right = np.asarray(made.constraint_values, dtype=np.float64)
    return matrix, right
