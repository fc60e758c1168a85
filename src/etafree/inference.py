r"""Regions and tests from a centre, its covariance and degrees of freedom; functions of parameters.

The wild cluster bootstrap is an interval that shares nothing with t quantiles. Scores of clusters,
taken where the hypothesis holds, get random signs and sizes (Webb's six points), the estimate takes
its linear step and the statistic is studentised anew. With the contrast :math:`r`,
:math:`h=A^{-1}r` and :math:`d=r^\top\hat\theta-\text{value}`, the constrained estimate is
:math:`\hat\theta-dA^{-1}r/(r^\top A^{-1}r)` and cluster scores there are
:math:`\psi_g - A_g(\cdot)`: linear in :math:`d`. So numerator and variance of every bootstrap
statistic are polynomials in :math:`d`, and an interval by inversion of the test costs no more
than one p-value. For least squares this is the restricted wild cluster bootstrap itself.

References
----------
Kline, P. and Santos, A. (2012). J. Econometric Methods 1, 23-41. Webb, M. D. (2023). Canadian J.
Economics 56, 839-858. MacKinnon, J. G., Nielsen, M. O. and Webb, M. D. (2023). J. Econometrics 232,
272-299.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from etafree.criterion import Criterion
from etafree.data.formula import plain_text
from etafree.data.groups import Groups
from etafree.dependence.clusters import cluster_parts, stacked_of
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_array, as_count, as_level, in_order
from etafree.target import Law, Target

WEBB = np.sqrt([1.5, 1.0, 0.5])
WEBB = np.concatenate([-WEBB, WEBB])
#: Random numbers per block of wild weights, and of resampled rows.
BLOCK, RESAMPLED = 4_000_000, 1 << 18


@dataclass(frozen=True)
class WildBootstrap:
    """Interval and p-value of one contrast by the wild cluster bootstrap with Webb's weights.

    The interval holds the values that the studentised test does not reject.

    Attributes
    ----------
    estimate, lower, upper : float
        Estimate of the contrast and its interval; a side without rejected values is infinite.
    level, p_value : float
        Of the interval, and of the hypothesis.
    draws, clusters : int
        Bootstrap draws, and clusters that were weighted.

    See Also
    --------
    etafree.Calibration.wild_bootstrap : What returns it.

    Examples
    --------
    >>> import etafree as ef
    >>> rng = np.random.default_rng(0)
    >>> data = np.ones((30, 1)), rng.standard_normal(30) + 1.0
    >>> criterion = ef.Criterion(ef.losses.Squared(), data, names=["mean"])
    >>> draws, clusters = rng.standard_normal((500, 1)), np.arange(30) // 3
    >>> result = ef.calibrate(draws, criterion, clusters=clusters)
    >>> wild = result.wild_bootstrap("mean = 1", draws=999)
    >>> wild.clusters, bool(wild.lower < wild.estimate < wild.upper), wild.p_value > 0.05
    (10, True, True)
    """

    estimate: float
    lower: float
    upper: float
    level: float
    p_value: float
    draws: int
    clusters: int

    def __repr__(self) -> str:
        return (
            f"WildBootstrap(estimate {self.estimate:.4g}, {100 * self.level:g} % interval "
            f"[{self.lower:.4g}, {self.upper:.4g}], p = {self.p_value:.4g}; {self.draws} draws of "
            f"Webb weights over {self.clusters} clusters)"
        )


def wild_bootstrap(
    criterion: Criterion,
    target: Target,
    groups: Groups,
    contrast: Array,
    value: float,
    level: float,
    draws: int,
    rng: np.random.Generator,
) -> WildBootstrap:
    """Bootstrap one contrast (p,) of the parameters at the target's centre."""
    assert target.hessian is not None
    center, stacked = target.center, stacked_of(target)
    scores, hessians, there = cluster_parts(criterion, center, groups, target.centered, stacked)
    scores, hessians = scores[there], hessians[there]
    inverse = linalg.inv(target.hessian, "Hessian")
    h = inverse @ contrast
    reach = -hessians @ (h / (contrast @ h))  # (G, p): by how much scores move with d
    pull = np.einsum("i,gij->gj", h, hessians) @ inverse  # (G, p): what re-estimation takes away
    estimate = float(contrast @ target.center)
    # of CR0's variance: constant factors cancel against the bootstrap's
    observed = np.sqrt(float(np.square(scores @ h).sum()))
    n0, n1, q0, q1, q2 = _polynomials(scores, reach, pull, h, draws, rng)

    def p_value(d: float) -> float:
        variance = np.maximum(q0 + d * (q1 + d * q2), 0.0)
        return float(np.mean(np.abs(n0 + d * n1) >= abs(d) / observed * np.sqrt(variance)))

    below = estimate - _boundary(p_value, 1.0 - level, observed)
    above = estimate + _boundary(lambda d: p_value(-d), 1.0 - level, observed)
    p = p_value(estimate - value)
    return WildBootstrap(estimate, below, above, level, p, draws, len(scores))


def _polynomials(
    scores: Array, reach: Array, pull: Array, h: Array, draws: int, rng: np.random.Generator
) -> Array:
    """Return n0, n1, q0, q1, q2, (5, draws): numerators and variances as polynomials in d."""
    blocks, step = [], max(1, BLOCK // len(scores))
    for first in range(0, draws, step):
        v = WEBB[rng.integers(0, 6, (min(step, draws - first), len(scores)))]
        base, slope = v * (scores @ h), v * (reach @ h)
        left, tilt = base - v @ scores @ pull.T, slope - v @ reach @ pull.T
        cross = 2 * np.einsum("ij,ij->i", left, tilt)
        squares = np.square(left).sum(axis=1), cross, np.square(tilt).sum(axis=1)
        blocks.append(np.array([base.sum(axis=1), slope.sum(axis=1), *squares]))
    return np.concatenate(blocks, axis=1)


def resample_counts(units: Array, many: int, rng: np.random.Generator) -> Array:
    """Return how often each of `units` copies is drawn with replacement, (many, units)."""
    total = int(units.sum())
    drawn = rng.integers(total, size=(many, total))
    if total != len(units) or not (units == 1.0).all():
        drawn = np.repeat(np.arange(len(units)), units.astype(np.intp))[drawn]
    drawn += np.arange(many)[:, None] * len(units)
    flat = np.bincount(drawn.reshape(-1), minlength=many * len(units))
    return flat.reshape(many, len(units)).astype(np.float64)


def t_ratios(influences: Array, draws: int, rng: np.random.Generator) -> Array:
    r"""Return t ratios (draws, p) of resampled influences (m, p), each over its own spread.

    .. math:: t = \sum_g (k_g-1)I_g\Big/\Big\{\sum_g k_g(I_g-\bar I_k)^2\Big\}^{1/2},
              \qquad k\sim\mathrm{Multinomial}(m, 1/m).

    Their skewness is that of the estimate over its standard error: no fit is needed.
    """
    m = len(influences)
    centred = influences - influences.mean(axis=0)
    both = np.hstack([centred, np.square(centred)])
    out, step = np.empty((draws, influences.shape[1])), max(1, RESAMPLED // m)
    for first in range(0, draws, step):
        counts = resample_counts(np.ones(m), min(step, draws - first), rng)
        sums, squares = np.split(counts @ both, 2, axis=1)
        spread = np.sqrt(np.maximum(squares - np.square(sums) / m, 1e-300))
        out[first : first + step] = sums / spread
    return out


def ratio_quantiles(ratios: Array, law: Law | None, probabilities: Array) -> Array:
    """Return quantiles (m, k) of t ratios (draws, k): of a law and theirs those farther out.

    Theirs alone without a law. Above one half the larger counts and below it the smaller, so
    quantiles rise with their probabilities (m,) and limits are never inside those of the law.
    """
    from scipy.special import ndtri, stdtrit

    own: Array = np.quantile(ratios, probabilities, axis=0)
    if law is None:
        return own
    at, finite = probabilities[:, None], np.isfinite(law.dof)
    reach = np.where(finite, stdtrit(np.where(finite, law.dof, 1.0), at), ndtri(at))
    reach /= np.sqrt(law.inflation)
    return np.where(at > 0.5, np.maximum(own, reach), np.minimum(own, reach))


def _boundary(p_value: Callable[[float], float], alpha: float, scale: float) -> float:
    """Return the distance at which the p-value falls to alpha, infinite if it does not."""
    low, high = 0.0, 2.0 * scale
    for _ in range(40):
        if p_value(high) < alpha:
            break
        low, high = high, 2 * high
    else:
        return np.inf
    while high - low > 1e-6 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if p_value(middle) < alpha else (middle, high)
    return 0.5 * (low + high)


@dataclass(frozen=True, eq=False)
class Functional:
    """A function of the parameters: its value at the centre and its draws before and after.

    Attributes
    ----------
    name : str
        What it is called.
    estimate : () or (k,) array
        Its value at the centre of the calibration.
    draws, original : (draw,) or (draw, k) array
        Its calibrated and its original draws.
    level : float
        Default level of its interval.

    See Also
    --------
    etafree.Calibration.of : What returns it.

    Examples
    --------
    >>> import etafree as ef
    >>> draws = np.random.default_rng(0).standard_normal((5000, 2))
    >>> result = ef.calibrate(draws, ef.Target([1, 2], np.eye(2), ["a", "b"]))
    >>> product = result.of(lambda t: t["a"] * t["b"])
    >>> float(product.estimate), product.interval(0.9).round(1)
    (2.0, array([-1.3,  6.4]))
    """

    name: str
    estimate: Array
    draws: Array
    original: Array
    level: float = 0.95

    def interval(self, level: float | None = None) -> Array:
        """Return equal-tailed limits at `level` of the calibrated draws, (2,) or (2, k)."""
        return equal_tails(self.draws, as_level(self.level if level is None else level))


def two_sided(law: Law, ratios: Array) -> Array:
    """Return the probabilities (k,) of t ratios farther from zero than these (k,)."""
    p_values: Array = 2 * law.tail(np.abs(ratios))
    return p_values


def equal_tails(draws: Array, level: float) -> Array:
    """Return the quantiles (2, ...) of draws (draw, ...) that leave out equal tails."""
    tail = 0.5 * (1 - level)
    return np.quantile(draws, [tail, 1 - tail], axis=0)


def image(
    function: Callable[[Mapping[str, Array]], Array], names: tuple[str, ...], array: Array
) -> Array:
    """Evaluate a function of named parameters at one point (p,) or many (d, p)."""
    if not callable(function):
        raise InputError("function", f"is {function!r}", "pass a function of named parameters")
    named = {key: array[..., j] for j, key in enumerate(names)}
    try:
        values = as_array(function(named), "function")
    except KeyError as error:
        raise InputError("function", f"asks for {error}", f"parameters are {list(names)}") from None
    if values.shape[: array.ndim - 1] != array.shape[:-1]:
        problem = f"returns shape {values.shape} for {len(array)} draws"
        raise InputError("function", problem, "work on arrays: one value per draw")
    return values


@dataclass(frozen=True, eq=False)
class Region:
    r"""Joint confidence ellipsoid :math:`(\theta-c)^\top V^{-1}(\theta-c)\le r^2`.

    With :math:`\nu` degrees of freedom
    :math:`r^2 = \frac{p\nu}{\nu-p+1}F_{p,\nu-p+1}` (Hotelling), with the normal
    :math:`r^2=\chi^2_p`: the quantiles at `level` of these laws.

    Attributes
    ----------
    center, covariance : (p,) and (p, p) array
        :math:`c` and :math:`V`.
    radius_squared, level, dof : float
        :math:`r^2`, the confidence level and :math:`\nu`, infinite for the normal.
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

        An `InputError` if there are no more degrees of freedom than p - 1.

        Parameters
        ----------
        center : (p,) array
        target : Target
        level : float

        Returns
        -------
        Region

        Examples
        --------
        >>> target = Target(np.zeros(2), np.eye(2), dof=10)
        >>> round(Region.of(np.zeros(2), target, level=0.95).radius_squared, 2)
        9.46
        """
        from scipy.special import chdtri, fdtri

        if not isinstance(target, Target):
            raise InputError("target", f"is a {type(target).__name__}", "pass an ef.Target")
        level, p = as_level(level), target.p
        center = as_array(in_order(center, target.names, "center"), "center", shape=(p,))
        dof, unbiased = target.joint_law(np.eye(p))
        rest = dof - p + 1.0
        if rest <= 0:
            problem = f"needs more than {p - 1} degrees of freedom and has {dof:.1f}"
            raise InputError("region", problem, "use single intervals, or more clusters")
        if np.isinf(dof):
            radius = float(chdtri(p, 1 - level))
        else:
            radius = p * dof / rest * float(fdtri(p, rest, level))
        covariance = unbiased @ target.covariance @ unbiased.T
        return cls(center, covariance, radius, level, dof, target.names)

    def contains(self, theta: object) -> bool:
        """Return whether a parameter value `theta`, (p,), lies inside; a Series goes by name."""
        point = in_order(theta, self.names, "theta")
        d = as_array(point, "theta", shape=self.center.shape) - self.center
        return bool(d @ linalg.solve(self.covariance, d, "covariance") <= self.radius_squared)

    def boundary(self, i: int | str = 0, j: int | str = 1, points: int = 200) -> Array:
        """Return the outline of the region's shadow on two parameters, to plot.

        Parameters
        ----------
        i, j : int or str
            Two parameters, by position or name; others are an `InputError`.
        points : int
            How many points the closed curve has.

        Returns
        -------
        (points, 2) array
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
    estimate, se : (q,) array
        The contrasts minus their hypothesised values, and their standard errors.

    See Also
    --------
    etafree.Calibration.test : What returns it.

    Examples
    --------
    >>> import etafree as ef
    >>> draws = np.random.default_rng(0).standard_normal((500, 2))
    >>> result = ef.calibrate(draws, ef.Target([1, 2], np.eye(2), ["a", "b"], dof=10))
    >>> result.test(["a", "b"])
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


def wald_test(center: Array, target: Target, contrast: object, value: object = 0.0) -> WaldTest:
    """Test linear hypotheses about a target; see `WaldTest`."""
    from scipy.special import chdtrc, fdtrc

    matrix, right = constraints(contrast, value, target.names)
    q = len(matrix)
    largest = np.abs(matrix).max(axis=1, keepdims=True)
    if np.any(largest < 1e-100) or np.any(largest > 1e100):
        problem = "has a row of zeros, or of numbers too small or too large"
        raise InputError("contrast", problem, "drop or rescale it")
    if linalg.rank(matrix / largest, 1e-8, "contrast") < q:
        raise InputError("contrast", f"has {q} rows that are not independent", "drop some")
    estimate = matrix @ center - right
    covariance = matrix @ target.covariance @ matrix.T
    dof, unbiased = target.joint_law(matrix)
    shrunk = unbiased @ covariance @ unbiased.T
    wald = float(estimate @ linalg.solve(shrunk, estimate, "covariance of the contrast"))
    se = np.sqrt(np.diagonal(covariance))
    if np.isinf(dof):
        return WaldTest(wald / q, (q, np.inf), float(chdtrc(q, wald)), estimate, se)
    rest = dof - q + 1.0  # Hotelling's
    if rest <= 0:
        problem = f"has {q} rows but only {dof:.1f} degrees of freedom are there to judge them"
        raise InputError("contrast", problem, "test fewer at once, or use more clusters")
    statistic = wald * rest / (dof * q)
    return WaldTest(statistic, (q, rest), float(fdtrc(q, rest, statistic)), estimate, se)


def constraints(contrast: object, value: object, names: tuple[str, ...]) -> tuple[Array, Array]:
    """Return R (q, p) and r (q,) of a contrast in any of its forms."""
    if isinstance(contrast, str) and contrast not in names:
        matrix, right = _parsed(contrast, names)
        if "=" in contrast:
            if np.any(as_array(value, "value") != 0):
                raise InputError("value", f"is {value!r}", "the contrast is an equation already")
            return matrix, right
    else:
        matrix = _weights(contrast, names)
    if matrix.ndim != 2 or matrix.shape[1] != len(names) or len(matrix) == 0:
        raise InputError("contrast", f"has shape {matrix.shape}", f"pass (q, {len(names)})")
    right = as_array(value, "value")
    if right.ndim > 1 or (right.ndim == 1 and len(right) != len(matrix)):
        problem = f"has shape {right.shape} for {len(matrix)} contrast(s)"
        raise InputError("value", problem, "pass one number, or one per contrast")
    return matrix, np.broadcast_to(right, (len(matrix),))


def _weights(contrast: object, names: tuple[str, ...]) -> Array:
    """Return R (q, p) of names (each zero), of a mapping from names to weights, or of an array."""
    if isinstance(contrast, Mapping):
        weights = np.zeros(len(names))
        for name, weight in contrast.items():
            weights[_position(name, names)] = as_array(weight, "contrast", shape=())
        return weights[None]
    chosen = [contrast] if isinstance(contrast, str) else contrast
    if isinstance(chosen, list | tuple) and all(isinstance(name, str) for name in chosen):
        return np.eye(len(names))[[_position(name, names) for name in chosen]]
    return np.atleast_2d(as_array(in_order(contrast, names, "contrast"), "contrast"))


def _position(name: object, names: tuple[str, ...]) -> int:
    if name not in names:
        raise InputError("contrast", f"names {name!r}", f"parameters are {list(names)}")
    return names.index(name)


def _parsed(text: str, names: tuple[str, ...]) -> tuple[Array, Array]:
    from formulaic.utils.constraints import LinearConstraints

    if any(part.count("=") > 1 for part in text.split(",")):
        raise InputError("contrast", f"{text!r} has two equal signs", "write 'a = b, b = 0'")
    try:
        parsed = LinearConstraints.from_spec(text, variable_names=list(names))
    except Exception as error:  # formulaic raises its own and Python's errors alike
        problem = f"{text!r} cannot be read: {plain_text(error)}"
        advice = f"write it like 'a - b = 0' with parameters {list(names)}"
        raise InputError("contrast", problem, advice) from None
    matrix = np.asarray(parsed.constraint_matrix, dtype=np.float64)
    return matrix, np.asarray(parsed.constraint_values, dtype=np.float64)
