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

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.data.groups import Groups
from etafree.dependence.clusters import cluster_parts, stacked_of
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_array, as_choice, as_count, as_level, in_order
from etafree.foundation.terminal import counted_noun
from etafree.foundation.threads import in_threads
from etafree.target import Law, Target

WEBB = np.sqrt([1.5, 1.0, 0.5])
WEBB = np.concatenate([-WEBB, WEBB])
#: What may speak against a hypothesis, as SciPy calls it.
ALTERNATIVES = ("two-sided", "greater", "less")
#: A text that is a number, and no name unless it is quoted.
NUMBER = re.compile(r"\.?\d[\w.]*")
#: What is no equation.
INEQUALITY = re.compile("[<>]|!=")
#: Share of a derivative's reach below which it is rounding.
ROUNDING = 1e-6
#: Step of a derivative in standard errors.
STEP = 1e-3
#: Random numbers per block of wild weights, and of resampled rows.
BLOCK, RESAMPLED = 1 << 18, 1 << 18


@dataclass(frozen=True)
class Takeuchi:
    r"""Takeuchi's information criterion, :math:`2M(\hat\theta)+2\,\mathrm{tr}(A^{-1}B)`.

    Attributes
    ----------
    value : float
        The criterion; lower is better.
    loss : float
        :math:`M(\hat\theta)`, the total loss without its penalty.
    parameters : float
        :math:`\mathrm{tr}(A^{-1}B)`: p if the loss is the negative log-likelihood of a right model,
        more where scores vary more than curvature says.

    See Also
    --------
    etafree.Calibration.tic : What returns it.
    """

    value: float
    loss: float
    parameters: float

    def __repr__(self) -> str:
        loss, parameters = f"loss = {self.loss:.2f}", f"parameters = {self.parameters:.4g}"
        return f"Takeuchi(value = {self.value:.2f}, {loss}, {parameters})"


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
    step = max(1, BLOCK // len(scores))
    base, slope = scores @ h, reach @ h

    def work(picked: NDArray[np.int64]) -> Array:
        v = WEBB[picked]
        left, tilt = v * base - v @ scores @ pull.T, v * slope - v @ reach @ pull.T
        cross = np.vecdot(left, tilt)
        squares = np.vecdot(left, left), 2 * cross, np.vecdot(tilt, tilt)
        return np.array([v @ base, v @ slope, *squares])

    picked = (rng.integers(0, 6, (many, len(scores))) for many in _lengths(draws, step))
    return np.concatenate(list(in_threads(work, picked, draws * len(scores))), axis=1)


def _lengths(count: int, step: int) -> Iterator[int]:
    """Yield the lengths of the blocks of at most `step` that make `count`."""
    for first in range(0, count, step):
        yield min(step, count - first)


def resample_counts(
    units: Array, many: int, rng: np.random.Generator, size: int | None = None
) -> Array:
    """Return how often each of `units` copies is drawn with replacement, (many, units).

    As many are drawn as there are, or `size`.
    """
    total = int(units.sum())
    return _tallied(units, rng.integers(total, size=(many, total if size is None else size)))


def _tallied(units: Array, drawn: NDArray[np.int64]) -> Array:
    """Return how often each unit is among the copies drawn, (many, copies) -> (many, units)."""
    many, total = drawn.shape
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
    step = max(1, RESAMPLED // m)

    def work(drawn: NDArray[np.int64]) -> Array:
        sums, squares = np.split(_tallied(np.ones(m), drawn) @ both, 2, axis=1)
        return np.asarray(sums / np.sqrt(np.maximum(squares - np.square(sums) / m, 1e-300)))

    drawn = (rng.integers(m, size=(many, m)) for many in _lengths(draws, step))
    return np.concatenate(list(in_threads(work, drawn, draws * m)))


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
    r"""A function of the parameters: its value at the centre and its draws before and after.

    Its standard error is by the delta method, :math:`\{\mathrm{diag}(DVD^\top)\}^{1/2}` with D the
    derivative at the centre and V the target's covariance.

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
    slope : (p,) or (k, p) array
        Its derivative at the centre.
    target : Target
        Of the parameters it is a function of.

    See Also
    --------
    etafree.Calibration.of : What returns it.

    Examples
    --------
    >>> import etafree as ef
    >>> draws = np.random.default_rng(0).standard_normal((5000, 2))
    >>> result = ef.calibrate(draws, ef.Target([1, 2], np.eye(2), ["a", "b"]))
    >>> product = result.of(lambda t: t["a"] * t["b"], name="a b")
    >>> product
    Functional(a b: estimate 2, se 2.236, 95 % interval [-2.087, 7.444])
    >>> product.interval(0.9).round(1), product.interval(0.9, kind="wald").round(1)
    (array([-1.3,  6.4]), array([-1.7,  5.7]))
    >>> product.test(alternative="greater"), round(product.p_value(), 2)
    (WaldTest(t = 0.8944 with normal quantiles, p = 0.1855, greater), 0.34)
    """

    name: str
    estimate: Array
    draws: Array
    original: Array
    level: float
    slope: Array
    target: Target

    @cached_property
    def se(self) -> Array:
        """Standard errors by the delta method, () or (k,)."""
        variance = np.einsum("...i,ij,...j->...", self.slope, self.target.covariance, self.slope)
        return np.asarray(np.sqrt(variance))

    @cached_property
    def _rows(self) -> Array:
        """The derivative as rows (k, p), without what is rounding."""
        rows = self.slope.reshape(-1, self.target.p)
        reach = np.abs(rows) * self.target.se
        return np.where(reach > ROUNDING * np.max(reach, axis=1, keepdims=True), rows, 0.0)

    def interval(self, level: float | None = None, kind: str = "draws") -> Array:
        """Return equal-tailed limits, (2,) or (2, k).

        Parameters
        ----------
        level : float, optional
            Default: that of the calibration.
        kind : {"draws", "wald"}
            Quantiles of the calibrated draws, or estimate plus and minus t quantile times `se`.

        Returns
        -------
        array
            Lower and upper limits.
        """
        level = as_level(self.level if level is None else level)
        if as_choice(kind, "kind", ("draws", "wald")) == "draws":
            return equal_tails(self.draws, level)
        quantile = self.target.law(self._rows).quantile(0.5 + 0.5 * level)
        half = quantile.reshape(self.estimate.shape) * self.se
        return np.array([self.estimate - half, self.estimate + half])

    def test(self, value: object = 0.0, alternative: str = "two-sided") -> WaldTest:
        """Test by the delta method whether the function has this value.

        Parameters
        ----------
        value : float or (k,) array
            Hypothesised; several values are tested together.
        alternative : {"two-sided", "greater", "less"}
            For a function of one value: what speaks against the hypothesis.

        Returns
        -------
        WaldTest
            As for linear hypotheses; an `InputError` if the function does not vary, or its values
            do not vary freely.
        """
        right = self._values(value)
        return judged((self.estimate - right).reshape(-1), self._rows, self.target, alternative)

    def p_value(self, value: object = 0.0, alternative: str = "two-sided") -> float | Array:
        """Return p-values by the calibrated draws, the counterpart of `interval`.

        The share of draws on the other side of the value, of both sides twice the smaller.

        Parameters
        ----------
        value : float or (k,) array
            Hypothesised, one for each value of the function.
        alternative : {"two-sided", "greater", "less"}
            What speaks against the hypothesis: a function that is larger, or smaller.

        Returns
        -------
        float or (k,) array
            At least one over the number of draws.
        """
        sides, right = as_choice(alternative, "alternative", ALTERNATIVES), self._values(value)
        total = len(self.draws) + 1.0
        greater = (1 + (self.draws <= right).sum(axis=0)) / total
        less = (1 + (self.draws >= right).sum(axis=0)) / total
        both = np.minimum(2 * np.minimum(greater, less), 1.0)
        p_values = np.asarray({"two-sided": both, "greater": greater, "less": less}[sides])
        return p_values if p_values.ndim else float(p_values)

    def _values(self, value: object) -> Array:
        """Return hypothesised values, one or as many as the function has."""
        right = as_array(value, "value")
        if right.shape not in ((), self.estimate.shape):
            problem = f"has shape {right.shape} for values of shape {self.estimate.shape}"
            raise InputError("value", problem, "pass one number, or one per value")
        return right

    def __repr__(self) -> str:
        if self.estimate.ndim:
            first = ", ".join(f"{v:.4g}" for v in self.estimate.reshape(-1)[:4])
            more = ", ..." if self.estimate.size > 4 else ""
            return f"Functional({self.name}: {self.estimate.size} estimates {first}{more})"
        low, high = self.interval()
        return (
            f"Functional({self.name}: estimate {self.estimate:.4g}, se {self.se:.4g}, "
            f"{100 * self.level:g} % interval [{low:.4g}, {high:.4g}])"
        )


def two_sided(law: Law, ratios: Array) -> Array:
    """Return the probabilities (k,) of t ratios farther from zero than these (k,)."""
    p_values: Array = 2 * law.tail(np.abs(ratios))
    return p_values


def equal_tails(draws: Array, level: float) -> Array:
    """Return the quantiles (2, ...) of draws (draw, ...) that leave out equal tails."""
    tail = 0.5 * (1 - level)
    return np.quantile(draws, [tail, 1 - tail], axis=0)


def neighbours(center: Array, se: Array, basis: Array | None = None) -> Array:
    """Return the centre, and points a step above and below it in every parameter (1 + 2p, all).

    `basis` (all, p) says how all of the centre follow from the p parameters, where these are fewer.
    """
    step = STEP * np.diag(se)
    step = step if basis is None else step @ basis.T
    return np.concatenate([center[None], center + step, center - step])


def derivative(near: Array, se: Array) -> Array:
    """Return the derivative (..., p) of a function from its values at `neighbours`."""
    above, below = np.split(near[1:], 2)
    slope: Array = np.moveaxis(above - below, 0, -1) / (2 * STEP * se)
    return slope


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

    def __repr__(self) -> str:
        names = ", ".join(self.names[:6]) + (", ..." if len(self.names) > 6 else "")
        radius = f"radius squared {self.radius_squared:.4g}"
        return f"Region({100 * self.level:g} %, {names}; {radius})"

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
    HC3 and CR3 make :math:`V` too large by a factor :math:`\kappa` that is known, and is taken off.

    Attributes
    ----------
    statistic : float
        F; for one contrast :math:`\kappa t^2`.
    dof : tuple of float
        Numerator and denominator degrees of freedom, the latter infinite for the normal.
    p_value : float
        Probability of a larger F if the hypotheses are true; of one contrast with a one-sided
        alternative, of a t ratio farther on that side.
    estimate, se : (q,) array
        The contrasts minus their hypothesised values, and their standard errors.
    alternative : {"two-sided", "greater", "less"}
        What speaks against the hypothesis: a contrast that is another, larger or smaller.

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
    >>> result.test("b = 0", alternative="greater")
    WaldTest(t = 2 with 10 degrees of freedom, p = 0.03669, greater)
    """

    statistic: float
    dof: tuple[float, float]
    p_value: float
    estimate: Array
    se: Array
    alternative: str = "two-sided"

    @property
    def t(self) -> Array:
        """Ratios of `estimate` to `se` (q,)."""
        return self.estimate / self.se

    def __repr__(self) -> str:
        if self.alternative == "two-sided":
            law = f"F({self.dof[0]:g}, {self.dof[1]:.4g})"
            return f"WaldTest(F = {self.statistic:.4g} on {law}, p = {self.p_value:.4g})"
        normal, dof = np.isinf(self.dof[1]), f"with {self.dof[1]:.4g} degrees of freedom"
        law = f"t = {self.t[0]:.4g} {'with normal quantiles' if normal else dof}"
        return f"WaldTest({law}, p = {self.p_value:.4g}, {self.alternative})"


def wald_test(
    center: Array,
    target: Target,
    contrast: object,
    value: object = 0.0,
    alternative: str = "two-sided",
) -> WaldTest:
    """Test linear hypotheses about a target; see `WaldTest`."""
    matrix, right = constraints(contrast, value, target.names)
    return judged(matrix @ center - right, matrix, target, alternative, "contrast")


def judged(
    estimate: Array, matrix: Array, target: Target, alternative: str, argument: str = "function"
) -> WaldTest:
    """Test whether values (q,) that vary like contrasts (q, p) of a target's centre are zero."""
    from scipy.special import chdtrc, fdtrc

    q, sides = len(matrix), as_choice(alternative, "alternative", ALTERNATIVES)
    if q > 1 and sides != "two-sided":
        problem = f"is {sides!r} for {q} hypotheses at once"
        raise InputError("alternative", problem, "test one at a time")
    largest = np.abs(matrix).max(axis=1, keepdims=True)
    if np.any(largest < 1e-100) or np.any(largest > 1e100):
        problem = "has a row of zeros, or of numbers too small or too large"
        raise InputError(argument, problem, "drop or rescale it")
    if linalg.rank(matrix / largest, 1e-8, argument) < q:
        raise InputError(argument, f"has {q} rows that are not independent", "drop some")
    covariance = matrix @ target.covariance @ matrix.T
    dof, unbiased = target.joint_law(matrix)
    shrunk = unbiased @ covariance @ unbiased.T
    wald = float(estimate @ linalg.solve(shrunk, estimate, f"covariance of the {argument}"))
    rest = dof - q + 1.0  # Hotelling's
    if rest <= 0:
        problem = f"has {q} rows but only {dof:.1f} degrees of freedom are there to judge them"
        raise InputError(argument, problem, "test fewer at once, or use more clusters")
    normal = np.isinf(dof)
    statistic = wald / q if normal else wald * rest / (dof * q)
    p_value = float(chdtrc(q, wald) if normal else fdtrc(q, rest, statistic))
    if sides != "two-sided":
        beyond = (estimate[0] > 0) == (sides == "greater")
        p_value = 0.5 * p_value if beyond else 1.0 - 0.5 * p_value
    se = np.sqrt(np.diagonal(covariance))
    return WaldTest(statistic, (q, rest), p_value, estimate, se, sides)


def constraints(contrast: object, value: object, names: tuple[str, ...]) -> tuple[Array, Array]:
    """Return R (q, p) and r (q,) of a contrast in any of its forms."""
    texts = [contrast] if isinstance(contrast, str) else contrast
    equations = False
    if isinstance(texts, list | tuple) and texts and all(isinstance(t, str) for t in texts):
        rows = list(chain.from_iterable(_equations(text, names) for text in texts))
        whole, equations = np.array([row for row, _ in rows]), any(equal for _, equal in rows)
        matrix, constants = whole[:, :-1], -whole[:, -1]
    else:
        matrix = _weights(contrast, names)
        constants = np.zeros(len(matrix))
    if matrix.ndim != 2 or matrix.shape[1] != len(names) or len(matrix) == 0:
        raise InputError("contrast", f"has shape {matrix.shape}", f"pass (q, {len(names)})")
    return matrix, constants + _right(value, len(matrix), equations)


def _right(value: object, rows: int, equations: bool) -> Array:
    """Return hypothesised values, one or one per row; equations have theirs already."""
    right = as_array(value, "value")
    if equations and np.any(right != 0):
        raise InputError("value", f"is {value!r}", "the contrast is an equation already")
    if right.ndim > 1 or (right.ndim == 1 and len(right) != rows):
        problem = f"has shape {right.shape} for {counted_noun(rows, 'contrast')}"
        raise InputError("value", problem, "pass one number, or one per contrast")
    return right


def _weights(contrast: object, names: tuple[str, ...]) -> Array:
    """Return R (q, p) of a mapping from names to weights, or of an array."""
    if isinstance(contrast, Mapping):
        weights = np.zeros(len(names))
        for name, weight in contrast.items():
            if name not in names:
                raise _unknown(name, names)
            weights[names.index(name)] = as_array(weight, "contrast", shape=())
        return weights[None]
    return np.atleast_2d(as_array(in_order(contrast, names, "contrast"), "contrast"))


def _unknown(name: object, names: tuple[str, ...]) -> InputError:
    return InputError("contrast", f"names {name!r}", f"parameters are {list(names)}")


def _equations(text: str, names: tuple[str, ...]) -> list[tuple[Array, bool]]:
    """Return what must be zero, coefficients and a constant (p + 1,), and if it was an equation.

    Names are found before anything else is read, the longest first, so that they may hold colons,
    brackets, spaces and dots; one that is a number, or part of another text, is put in backticks.
    """
    if text in names:
        return [(np.eye(len(names) + 1)[names.index(text)], False)]
    mark = "_"
    while mark in text:
        mark += "_"

    def stand_in(found: re.Match[str]) -> str:
        name = found[0] if found[1] is None else found[1]
        if name not in names:
            raise _unknown(name, names)
        return f"{mark}{names.index(name)}"

    rows = []
    for part in _names_in(names).sub(stand_in, text).split(","):
        sides = _sides(part, text)
        try:
            trees = [ast.parse(side.strip(), mode="eval").body for side in sides]
            with np.errstate(all="ignore"):
                values = [_linear(tree, mark, names) for tree in trees]
        except InputError:
            raise
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
            advice = f"write it like 'a - b = 0' with parameters {list(names)}"
            raise InputError("contrast", f"{text!r} cannot be read", advice) from None
        rows.append((as_array(values[0] - sum(values[1:]), "contrast"), len(sides) == 2))
    return rows


def _sides(part: str, text: str) -> list[str]:
    """Return the sides of an equation, one of a term; parentheses around it are left out."""
    left = part.partition("=")[0]
    if left.count("(") > left.count(")"):  # "(a = b)"
        part = part.strip().removeprefix("(").removesuffix(")")
    sides = part.split("=")
    if INEQUALITY.search(part):
        advice = "write 'a = 0' and alternative='greater' or 'less'"
        raise InputError("contrast", f"{text!r} is an inequality", advice)
    if len(sides) > 2:
        raise InputError("contrast", f"{text!r} has two equal signs", "write 'a = b, b = 0'")
    return sides


def mentioned(contrast: object, names: Sequence[str], others: Sequence[str]) -> str | None:
    """Return the first of these names that hypotheses in words mention, if any, not in others."""
    texts = [contrast] if isinstance(contrast, str) else contrast
    if not names or not isinstance(texts, list | tuple | Mapping):
        return None
    texts, pattern = [t for t in texts if isinstance(t, str)], _names_in((*names, *others))
    found = (match[0].strip("`") for text in texts for match in pattern.finditer(text))
    return next((name for name in found if name in names), None)


def _names_in(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of texts between backticks and of names that are no numbers."""
    words = [name for name in sorted(names, key=len, reverse=True) if not NUMBER.fullmatch(name)]
    bounds = [
        (r"(?<!\w)" * bool(re.match(r"\w", name)), r"(?!\w)" * bool(re.search(r"\w\Z", name)))
        for name in words
    ]
    plain = [f"{low}{re.escape(n)}{high}" for n, (low, high) in zip(words, bounds, strict=True)]
    return re.compile("|".join(["`([^`]*)`", *filter(None, plain)]))


def _linear(node: ast.expr, mark: str, names: tuple[str, ...]) -> Array:
    """Return coefficients and constant (p + 1,) of an expression; `ValueError` for others."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            constant: Array = np.append(np.zeros(len(names)), float(number))
            return constant
        case ast.Name(id=name):
            if not name.startswith(mark):
                raise _unknown(name, names)
            unit: Array = np.eye(len(names) + 1)[int(name.removeprefix(mark))]
            return unit
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=inner):
            return (-1.0 if isinstance(sign, ast.USub) else 1.0) * _linear(inner, mark, names)
        case ast.BinOp(left=left, op=operator, right=right):
            one, other = _linear(left, mark, names), _linear(right, mark, names)
            if isinstance(operator, ast.Add | ast.Sub):
                return one + other if isinstance(operator, ast.Add) else one - other
            if isinstance(operator, ast.Mult) and not one[:-1].any():
                one, other = other, one
            if isinstance(operator, ast.Mult | ast.Div) and not other[:-1].any():
                factor = float(other[-1])
                return one * (factor if isinstance(operator, ast.Mult) else 1.0 / factor)
    raise ValueError("no linear expression")
