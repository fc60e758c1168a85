r"""Random-intercept linear model with a Huber loss on whitened residuals.

:math:`y_{ij} = x_{ij}^\top\beta + b_i + \varepsilon_{ij}` with working covariance
:math:`\Sigma_i = \tau^2 11^\top + \sigma^2 I` of a group. Residuals are whitened by its symmetric
root, :math:`\Sigma_i^{-1/2}v = \sigma^{-1}\{v - \kappa_i\bar v 1\}` with
:math:`\kappa_i = 1 - \sigma/(\sigma^2+n_i\tau^2)^{1/2}`, so the model is a Huber regression on
whitened data whose groups are its clusters (section 5 of Tamano and Tomo, arXiv 2511.15320).

In the paper's experiment covariates are N(0, 1), intercepts :math:`N(0, \tau^2)`, errors
:math:`N(0, \sigma^2)`, and with a small probability an error has :math:`N(0, s^2)` added (appendix
"Detailed settings").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion, check_penalty
from etafree.data.formula import Design as ModelMatrices
from etafree.data.formula import design
from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.errors import InputError
from etafree.foundation import arguments
from etafree.foundation.arguments import Array, as_positive
from etafree.foundation.linalg import least_squares
from etafree.losses import Huber
from etafree.optimize import minimise
from etafree.paper.whitened import WhitenedHuber, whitened_criterion
from etafree.penalties import NoPenalty, Penalty, Ridge
from etafree.totals.linear import LinearTotal
from etafree.totals.nuisance import Median, Nuisance

#: The median absolute value of a standard normal.
NORMAL_MAD = 0.6744897501960817


def whiten(values: Array, groups: Groups, tau2: float, sigma2: float) -> Array:
    r"""Return :math:`\Sigma_i^{-1/2}` times every group's rows, (n,) or (n, p), in closed form.

    Examples
    --------
    >>> g = Groups.of([0, 0], 2)
    >>> whiten(np.array([1.0, 1.0]), g, tau2=1.5, sigma2=1.0)
    array([0.5, 0.5])
    """
    sizes = groups.weights(None)
    keep = np.sqrt(sigma2 / (sigma2 + sizes * tau2))
    columns = values.reshape(len(values), -1)
    sums = np.zeros((len(groups), columns.shape[1]))
    np.add.at(sums, groups.codes, columns)
    shift = ((1.0 - keep) / sizes)[:, None] * sums
    whitened: Array = (columns - shift[groups.codes]) / np.sqrt(sigma2)
    return whitened.reshape(values.shape)


def _median_variance(size: Array) -> Array:
    """Return the variance of the median of standard normals, to 2 % at every sample size."""
    odd = np.pi / (2 * (size + np.pi / 2 - 1))
    even = np.pi / (2 * (size + 4 / np.pi))
    return np.where(size % 2 == 1, odd, even)


class _Middles(NamedTuple):
    """Pairs of rows whose mean residual is a median; the same row twice where one is in the middle.

    `others` (n, 2) are of the others in each row's group, its own where there are none; `groups`
    (G, 2) of whole groups; `sizes` (n,) of the rows' groups.
    """

    others: NDArray[np.intp]
    groups: NDArray[np.intp]
    sizes: NDArray[np.intp]

    @classmethod
    def of(cls, residual: Array, groups: Groups) -> _Middles:
        """Return the middles of residuals within groups."""
        order = np.lexsort((residual, groups.codes))
        counts = groups.sizes()
        starts = np.cumsum(counts) - counts
        sizes, first = counts[groups.codes], starts[groups.codes]
        rank = np.empty(len(residual), dtype=np.intp)
        rank[order] = np.arange(len(residual))
        others = np.empty((len(residual), 2), dtype=np.intp)
        for k, place in enumerate(((sizes - 2) // 2, (sizes - 1) // 2)):
            place = first + np.maximum(place, 0)
            others[:, k] = order[place + ((place >= rank) & (sizes > 1))]  # the row is left out
        whole = np.column_stack([order[starts + (counts - 1) // 2], order[starts + counts // 2]])
        return cls(others, whole, sizes)


class _Spreads(NamedTuple):
    """Residuals less the median of the others in their group, scaled; and the groups' medians."""

    middles: _Middles
    rows: NDArray[np.intp]  #: Those with others in their group.
    unit: Array  #: What their deviations are divided by.
    deviations: Array
    medians: Array  #: (G,).
    noise: float  #: Variance of a group's median over that of an error.

    @classmethod
    def of(cls, residual: Array, groups: Groups) -> _Spreads:
        """Return the spreads of residuals within and between groups."""
        middles = _Middles.of(residual, groups)
        rows = np.flatnonzero(middles.sizes > 1)
        unit = np.sqrt(1 + _median_variance(middles.sizes[rows] - 1.0))
        off = residual[rows] - residual[middles.others[rows]].mean(axis=1)
        noise = float(np.median(_median_variance(groups.sizes().astype(np.float64))))
        medians = residual[middles.groups].mean(axis=1)
        return cls(middles, rows, unit, off / unit, medians, noise)


def robust_variances(residual: Array, groups: Groups) -> tuple[float, float]:
    r"""Return robust estimates of :math:`\tau^2` and :math:`\sigma^2` from residuals.

    Each residual minus the median of the *others* in its group has variance
    :math:`\sigma^2(1+v_{m-1})`, with :math:`v_k` the variance of a median of k standard normals;
    :math:`\sigma` is the normalised median absolute value of these over all groups of two or more.
    The groups' medians have variance :math:`\tau^2+\sigma^2v_m`; :math:`\tau^2` is their squared
    normalised median absolute deviation less :math:`\hat\sigma^2v_m`, at least zero.
    """
    spreads = _Spreads.of(residual, groups)
    if not len(spreads.rows):
        raise InputError("groups", "has no group of two or more", "pass tau2= and sigma2=")
    sigma2 = (float(np.median(np.abs(spreads.deviations))) / NORMAL_MAD) ** 2
    if not sigma2 > 0:
        raise InputError("sigma2", "is estimated as zero", "pass tau2= and sigma2=")
    medians = spreads.medians
    spread = (float(np.median(np.abs(medians - np.median(medians)))) / NORMAL_MAD) ** 2
    return max(0.0, spread - sigma2 * spreads.noise), sigma2


@dataclass(frozen=True, eq=False)
class WorkingVariances(Nuisance):
    r"""The variances :math:`\tau^2` and :math:`\sigma^2` of `robust_variances`, after a Huber fit.

    Both come from medians, whose influences are those of `Median`. Residuals are those of the
    `plain` regression at `theta`, which moves them: by its own influences, with its scale's.
    """

    plain: Criterion
    theta: Array
    groups: Groups
    tau2: float
    sigma2: float

    @property
    def values(self) -> Mapping[str, float]:
        return {"tau2": self.tau2, "sigma2": self.sigma2}

    def influence(self) -> Array:
        r"""Return influences (n, 2): those at the fit, and through it.

        A group's influence on :math:`\tau^2` is spread evenly over its rows; at the boundary
        :math:`\tau^2=0` there is none.
        """
        X, groups = self.plain.total.X, self.groups
        spreads = _Spreads.of(self.plain.total.y - X @ self.theta, groups)
        own, through = np.zeros((len(X), 2)), np.zeros((2, X.shape[1]))
        own[spreads.rows, 1], through[1] = _within(spreads, X)
        own[:, 1] *= 2 * self.sigma2
        through[1] *= 2 * self.sigma2
        if self.tau2 > 0:
            between, through[0] = _between(spreads, X)
            total = 2 * (self.tau2 + self.sigma2 * spreads.noise)
            own[:, 0] = total * (between / groups.sizes())[groups.codes] - spreads.noise * own[:, 1]
            through[0] = total * through[0] - spreads.noise * through[1]
        scores, stacked = self.plain.total.scores(self.theta), self.plain.stacked(self.theta)
        if stacked is not None:
            scores += stacked.influence @ stacked.slope.T
        back = least_squares(self.plain.hessian(self.theta), through.T)
        return np.asarray(own - scores @ back)

    def slope(self, total: LinearTotal, theta: Array) -> Array:
        r"""Return the slopes (p, 2) of the gradient of whitened rows.

        :math:`\Sigma^{-1/2}=a(I-P)+b_iP` with P the mean of a group, :math:`a=\sigma^{-1}` and
        :math:`b_i=(\sigma^2+n_i\tau^2)^{-1/2}`: whitened rows move along their deviations from the
        group's mean by :math:`\dot a/a`, and along the mean by :math:`\dot b_i/b_i`.
        """
        u, sizes = total.predictor(theta), self.groups.weights(None)
        first, second = total.loss.first(u, total.y), total.loss.second(u, total.y)
        rows = np.column_stack([total.X, total.y])
        sums = np.zeros((len(sizes), rows.shape[1]))
        np.add.at(sums, self.groups.codes, rows)
        means = (sums / sizes[:, None])[self.groups.codes]
        joint = (self.sigma2 + sizes * self.tau2)[self.groups.codes, None]
        moved = (
            -0.5 * sizes[self.groups.codes, None] / joint * means,
            -0.5 * (rows - means) / self.sigma2 - 0.5 * means / joint,
        )
        along = np.append(theta, -1.0)  # of the residual: u - y
        return np.column_stack(
            [first @ m[:, :-1] + (second * (m @ along)) @ total.X for m in moved]
        )


def _within(spreads: _Spreads, X: Array) -> tuple[Array, Array]:
    """Return influences of rows on log sigma, residuals fixed, and its slope (p,) in the fit."""
    size = np.abs(spreads.deviations)
    m = float(np.median(size))
    median = Median.of(size, m, m, None, float(len(size)))
    moved = X[spreads.rows] - X[spreads.middles.others[spreads.rows]].mean(axis=1)
    share = median.near * np.sign(spreads.deviations) / spreads.unit
    return median.influence / m, -share @ moved / m


def _between(spreads: _Spreads, X: Array) -> tuple[Array, Array]:
    """Return influences of groups on the log of their medians' spread, and its slope (p,)."""
    medians = spreads.medians
    middle = float(np.median(medians))
    off = medians - middle
    t, count = float(np.median(np.abs(off))), float(len(off))
    spread = Median.of(np.abs(off), t, t, None, count)
    center = Median.of(medians, middle, t, None, count)
    side = spread.near * np.sign(off)
    share = side - side.sum() * center.near
    influence = spread.influence - side.sum() * center.influence
    return influence / t, -share @ X[spreads.middles.groups].mean(axis=1) / t


@dataclass(frozen=True, eq=False, init=False)
class RandomIntercept(WhitenedHuber):
    r"""Random-intercept linear model with a Huber loss and an optional ridge.

    :math:`\sum_i\sum_j\rho_c\{(\Sigma_i^{-1/2}(y_i-X_i\beta))_j\}`, :math:`\Sigma_i=\tau^211^\top+
    \sigma^2I`: residuals are whitened within groups.

    Parameters
    ----------
    X : (n, p) array
        Design matrix; no intercept is added.
    y : (n,) array
        Response.
    groups : (n,) labels
        Groups share an intercept; they are the default clusters.
    c : float
        Huber's threshold on the whitened scale.
    tau2, sigma2 : float, optional
        Variances of the working covariance, of intercepts and errors. If not given they are
        estimated robustly from the residuals of a Huber regression, and the target includes how
        they vary.
    penalty : Ridge, optional
        On the coefficients; none if not given.
    names : sequence of str, optional
        Parameter names.

    Attributes
    ----------
    criterion : Criterion
        The penalized Huber loss of the whitened data.

    Raises
    ------
    InputError
        Data cannot be used, one of `tau2` and `sigma2` is missing or out of range, or no group has
        two rows to estimate them from.

    References
    ----------
    Tamano, S. and Tomo, Y. (2025). Location-scale calibration for generalized posterior.
    arXiv:2511.15320, section 5.

    Examples
    --------
    >>> import etafree as ef
    >>> rng = np.random.default_rng(0)
    >>> g = np.repeat(np.arange(20), 5)
    >>> x = rng.standard_normal((100, 1))
    >>> y = 2 * x[:, 0] + rng.standard_normal(20)[g] + rng.standard_normal(100)
    >>> model = ef.RandomIntercept(x, y, g, tau2=1.0, sigma2=1.0)
    >>> draws = model.sample(eta=0.5, draws=200, seed=1)
    >>> model.calibrate(draws).target.clusters
    20
    >>> model.target(correction="CR0").describe()
    'sandwich, 20 clusters, CR0, normal'
    >>> model.posterior(eta=0.5, kind="appendix").criterion.loss
    NormalLaplace(scale=1.0, c=1.345, eta=0.5)
    """

    tau2: float
    sigma2: float

    def __init__(
        self,
        X: object,
        y: object,
        groups: object,
        *,
        c: float = 1.345,
        tau2: float | None = None,
        sigma2: float | None = None,
        penalty: Ridge | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        plain = Criterion(Huber(as_positive(c, "c"), scale="mad"), (X, y), names=names)
        self._build(plain, groups, tau2, sigma2, penalty, None)

    @classmethod
    def from_formula(
        cls,
        formula: str,
        data: object,
        groups: object,
        *,
        c: float = 1.345,
        tau2: float | None = None,
        sigma2: float | None = None,
        penalty: Ridge | None = None,
        context: Mapping[str, object] | None = None,
    ) -> RandomIntercept:
        """Return the model of a formula and a DataFrame.

        Rows with missing values are dropped; a ridge leaves the intercept alone.

        Parameters
        ----------
        formula : str
            Such as ``"y ~ x"``.
        data : DataFrame
            With a row per observation.
        groups : (n,) labels or column name
            Groups share an intercept.
        c, tau2, sigma2, penalty : optional
            As for the model.
        context : mapping, optional
            Functions of your own that the formula calls.

        Returns
        -------
        RandomIntercept
            Its names are those of the design matrix.

        Examples
        --------
        >>> import etafree as ef
        >>> import pandas as pd
        >>> df = pd.DataFrame({"y": [1.0, 2.0, 4.0, 4.5], "x": [0, 1, 0, 1], "g": list("aabb")})
        >>> ef.RandomIntercept.from_formula("y ~ x", df, "g", tau2=1.0, sigma2=1.0).criterion.names
        ('Intercept', 'x')
        """
        matrices = design(formula, data, context)
        loss = Huber(as_positive(c, "c"), scale="mad")
        plain = Criterion(loss, (matrices.X, matrices.y), names=matrices.names)
        labels = matrices.rows.align(groups, "groups")
        model = cls.__new__(cls)
        model._build(plain, labels, tau2, sigma2, penalty, matrices)
        return model

    def _build(
        self,
        plain: Criterion,
        labels: object,
        tau2: float | None,
        sigma2: float | None,
        penalty: Penalty | None,
        matrices: ModelMatrices | None,
    ) -> None:
        """Whiten the data of a `plain` Huber regression and set the attributes."""
        if (tau2 is None) != (sigma2 is None):
            raise InputError("tau2", "and sigma2 go together", "give both or none")
        check_penalty(penalty)
        X, y, c = plain.total.X, plain.total.y, float(plain.loss.c)
        groups = Groups.of(Rows(len(y)).align(labels, "groups"), len(y), "groups")
        nuisance: tuple[WorkingVariances, ...] = ()
        if tau2 is None:
            theta = minimise(plain).theta
            tau2, sigma2 = robust_variances(y - X @ theta, groups)
            nuisance = (WorkingVariances(plain, theta, groups, tau2, sigma2),)
        tau2, sigma2 = arguments.as_number(tau2, "tau2"), as_positive(sigma2, "sigma2")
        if not (np.isfinite(tau2) and tau2 >= 0):
            raise InputError("tau2", f"is {tau2!r} but must be at least zero")
        intercept = None if matrices is None else matrices.intercept
        fitted = (penalty or NoPenalty()).fitted_to(X.shape[1], intercept)
        data = (whiten(X, groups, tau2, sigma2), whiten(y, groups, tau2, sigma2))
        rows = None if matrices is None else matrices.rows
        criterion = whitened_criterion(
            data, c, fitted, plain.names, groups=groups, rows=rows, nuisance=nuisance
        )
        vars(self).update(criterion=criterion, groups=groups, tau2=tau2, sigma2=sigma2, c=c)

    def __repr__(self) -> str:
        return (
            f"RandomIntercept(n={self.criterion.n}, p={self.criterion.p}, {len(self.groups)} "
            f"groups, tau2={self.tau2:.4g}, sigma2={self.sigma2:.4g}, c={self.c:g}, "
            f"{self.criterion.penalty.describe(self.criterion.size)})"
        )


@dataclass(frozen=True)
class Design:
    """Settings of the experiment; the defaults are the paper's.

    Groups of `size` observations; slope `beta`; variances of data and working covariance; the
    probability `share` and the standard deviation of what is added to an error; Huber's threshold
    and the ridge's strength.
    """

    groups: int = 100
    size: int = 5
    beta: float = 2.0
    tau2: float = 2.0
    sigma2: float = 1.0
    share: float = 0.1
    outlier_sd: float = 10.0
    c: float = 1.0
    strength: float = 0.5

    def simulate(self, rng: np.random.Generator) -> tuple[Array, Array, Groups]:
        """Return x (n, 1), y (n,) and the groups of one data set."""
        n = self.groups * self.size
        codes = np.repeat(np.arange(self.groups), self.size)
        x = rng.standard_normal(n)
        intercept = np.sqrt(self.tau2) * rng.standard_normal(self.groups)
        error = np.sqrt(self.sigma2) * rng.standard_normal(n)
        error += (rng.random(n) < self.share) * rng.normal(0.0, self.outlier_sd, n)
        y = self.beta * x + intercept[codes] + error
        return x[:, None], y, Groups(codes, np.arange(self.groups))

    def model(self, rng: np.random.Generator) -> RandomIntercept:
        """Return the model of one simulated data set."""
        x, y, groups = self.simulate(rng)
        return RandomIntercept(
            x,
            y,
            groups.codes,
            c=self.c,
            tau2=self.tau2,
            sigma2=self.sigma2,
            penalty=Ridge(self.strength),
            names=["beta"],
        )


def pseudo_true(design: Design) -> float:
    r"""Return :math:`\beta^\lambda`, the slope that the penalized population equation picks.

    Given which observations of a group are outliers, whitened covariate and residual are jointly
    normal with mean zero, and by Stein's identity :math:`E\{\tilde x\psi_c(\tilde r)\} =
    \mathrm{cov}(\tilde x, \tilde r)P(|\tilde r|\le c)`. What is left is a sum over the number of
    outliers and one root.

    Examples
    --------
    >>> round(pseudo_true(Design()), 12)
    0.816328133354
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    m = design.size
    group = Groups(np.zeros(m, dtype=np.intp), np.zeros(1))
    root = whiten(np.eye(m), group, design.tau2, design.sigma2)
    terms = []  # probability and (slope-free) variance of an observation's whitened residual
    for count in range(m + 1):
        chance = comb(m, count) * design.share**count * (1 - design.share) ** (m - count)
        extra = np.where(np.arange(m) < count, design.outlier_sd**2, 0.0)
        noise = np.diag(design.sigma2 + extra) + design.tau2
        terms.append((chance, np.diagonal(root @ noise @ root)))
    gain = np.diagonal(root @ root)

    def equation(beta: float) -> float:
        gap = design.beta - beta
        total = 0.0
        for chance, variance in terms:
            sd = np.sqrt(gap**2 * gain + variance)
            total += chance * float(np.mean(gap * gain * (2 * ndtr(design.c / sd) - 1)))
        return total - design.strength * beta

    low, high = sorted((0.0, design.beta))
    return float(brentq(equation, low, high, xtol=1e-15, rtol=1e-14))
