r"""Random-intercept linear model with a Huber loss on whitened residuals.

:math:`y_{ij} = x_{ij}^\top\beta + b_i + \varepsilon_{ij}` with working covariance
:math:`\Sigma_i = \tau^2 11^\top + \sigma^2 I` of a group. Residuals are whitened by the symmetric
root, :math:`\Sigma_i^{-1/2}v = \sigma^{-1}\{v - \kappa_i\bar v 1\}` with
:math:`\kappa_i = 1 - \sigma/(\sigma^2+n_i\tau^2)^{1/2}`, so the model is a Huber regression on
whitened data whose groups are its clusters (section 4 of Tamano and Tomo, arXiv 2511.15320).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etafree.api import calibrate
from etafree.criterion import Criterion
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.formula import design
from etafree.losses import Huber, NormalLaplace
from etafree.optimize import minimise
from etafree.penalties import NoPenalty, Penalty, Ridge
from etafree.posterior import GeneralizedPosterior, LogPrior
from etafree.result import Calibration
from etafree.rows import Rows
from etafree.samplers import sample
from etafree.sandwich import target
from etafree.sums import Groups
from etafree.targets import Target
from etafree.validation import Array, as_choice, as_number, as_positive, as_seeds

__all__ = ["KINDS", "RandomIntercept", "robust_variances", "whiten"]

KINDS = ("huber", "appendix", "published")


def whiten(values: Array, groups: Groups, tau2: float, sigma2: float) -> Array:
    r"""Return :math:`\Sigma_i^{-1/2}` times every group's rows, (n,) or (n, p), in closed form.

    Examples
    --------
    >>> g = Groups.of([0, 0], 2)
    >>> whiten(np.array([1.0, 1.0]), g, tau2=1.5, sigma2=1.0)
    array([0.5, 0.5])
    """
    sizes = np.bincount(groups.codes, minlength=len(groups)).astype(np.float64)
    keep = np.sqrt(sigma2 / (sigma2 + sizes * tau2))
    columns = values.reshape(len(values), -1)
    sums = np.zeros((len(groups), columns.shape[1]))
    np.add.at(sums, groups.codes, columns)
    taken = ((1.0 - keep) / sizes)[:, None] * sums
    out: Array = (columns - taken[groups.codes]) / np.sqrt(sigma2)
    return out.reshape(values.shape)


def _median_variance(size: Array) -> Array:
    """Return the variance of the median of standard normals, to 2 % at every sample size."""
    odd = np.pi / (2 * (size + np.pi / 2 - 1))
    even = np.pi / (2 * (size + 4 / np.pi))
    return np.where(size % 2 == 1, odd, even)


def robust_variances(residual: Array, groups: Groups) -> tuple[float, float]:
    r"""Return robust estimates of :math:`\tau^2` and :math:`\sigma^2` from residuals.

    Each residual minus the median of the *others* in its group has variance
    :math:`\sigma^2(1+v_{m-1})`, with :math:`v_k` the variance of a median of k standard normals;
    :math:`\sigma` is the normalised median absolute value of these over all groups of two or more.
    The groups' medians have variance :math:`\tau^2+\sigma^2v_m`; :math:`\tau^2` is their squared
    normalised median absolute deviation less :math:`\hat\sigma^2v_m`, at least zero.
    """
    order, starts = groups.order()
    sorted_ = residual if order is None else residual[order]
    pieces = np.split(sorted_, starts[1:-1])
    sizes = np.diff(starts).astype(np.float64)
    deviations = [
        (r - np.array([np.median(np.delete(r, j)) for j in range(len(r))]))
        / np.sqrt(1 + _median_variance(np.array(len(r) - 1.0)))
        for r in pieces
        if len(r) > 1
    ]
    if not deviations:
        raise InputError("groups", "has no group of two or more", "pass tau2= and sigma2=")
    sigma2 = (float(np.median(np.abs(np.concatenate(deviations)))) / 0.6744897501960817) ** 2
    if not sigma2 > 0:
        raise InputError("sigma2", "is estimated as zero", "pass tau2= and sigma2=")
    medians = np.array([np.median(r) for r in pieces])
    spread = (float(np.median(np.abs(medians - np.median(medians)))) / 0.6744897501960817) ** 2
    tau2 = max(0.0, spread - sigma2 * float(np.median(_median_variance(sizes))))
    return tau2, sigma2


@dataclass(frozen=True, eq=False, init=False)
class RandomIntercept:
    r"""Random-intercept linear model with a Huber loss and an optional ridge.

    Parameters
    ----------
    X : (n, p) array
    y : (n,) array
    groups : (n,) labels
        Groups share an intercept; they are the default clusters.
    c : float
        Huber's threshold on the whitened scale.
    tau2, sigma2 : float, optional
        Variances of the working covariance. If not given they are estimated robustly (see
        `robust_variances`) from the residuals of a Huber regression, and recorded as plug-ins.
    penalty : Ridge, optional
    names : sequence of str, optional

    Attributes
    ----------
    criterion : Criterion
        The penalized Huber loss of the whitened data.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> g = np.repeat(np.arange(20), 5)
    >>> x = rng.standard_normal((100, 1))
    >>> y = 2 * x[:, 0] + rng.standard_normal(20)[g] + rng.standard_normal(100)
    >>> model = RandomIntercept(x, y, g, tau2=1.0, sigma2=1.0)
    >>> draws = model.sample(eta=0.5, draws=200, seed=1)
    >>> model.calibrate(draws).target.clusters
    20
    """

    criterion: Criterion
    groups: Groups
    tau2: float
    sigma2: float
    c: float

    def __init__(
        self,
        X: Any,
        y: Any,
        groups: Any,
        *,
        c: float = 1.345,
        tau2: float | None = None,
        sigma2: float | None = None,
        penalty: Ridge | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        plain = Criterion(Huber(as_positive(c, "c"), scale="mad"), (X, y), names=names)
        self._build(plain, groups, c, tau2, sigma2, penalty, None)

    @classmethod
    def from_formula(
        cls,
        formula: str,
        data: Any,
        groups: Any,
        *,
        c: float = 1.345,
        tau2: float | None = None,
        sigma2: float | None = None,
        penalty: Ridge | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> RandomIntercept:
        """Return the model of ``"y ~ x"`` and a DataFrame; `groups` may be a column name.

        Rows with missing values are dropped; a ridge leaves the intercept alone.
        """
        made = design(formula, data, context)
        plain = Criterion(
            Huber(as_positive(c, "c"), scale="mad"), (made.X, made.y), names=made.names
        )
        model = cls.__new__(cls)
        model._build(plain, made.rows.align(groups, "groups"), c, tau2, sigma2, penalty, made)
        return model

    def _build(
        self, plain: Criterion, labels: Any, c: float, tau2: Any, sigma2: Any,
        penalty: Penalty | None, made: Any,
    ) -> None:  # fmt: skip
        if (tau2 is None) != (sigma2 is None):
            raise InputError("tau2", "and sigma2 go together", "give both or none")
        X, y = plain.total.X, plain.total.y
        groups = Groups.of(Rows(len(y)).align(labels, "groups"), len(y), "groups")
        known: dict[str, float] = {}
        if tau2 is None:
            residual = y - X @ minimise(plain).theta
            tau2, sigma2 = robust_variances(residual, groups)
            known = {"tau2": tau2, "sigma2": sigma2}
        tau2, sigma2 = as_number(tau2, "tau2"), as_positive(sigma2, "sigma2")
        if not (np.isfinite(tau2) and tau2 >= 0):
            raise InputError("tau2", f"is {tau2!r} but must be at least zero")
        intercept = None if made is None else made.intercept
        fitted = (penalty or NoPenalty()).fitted_to(X.shape[1], intercept)
        data = (whiten(X, groups, tau2, sigma2), whiten(y, groups, tau2, sigma2))
        criterion = Criterion(Huber(c), data, fitted, names=plain.names).with_plug_ins(known)
        if made is not None:
            object.__setattr__(criterion, "rows", made.rows)
        for name, value in (("criterion", criterion), ("groups", groups), ("tau2", tau2),
                            ("sigma2", sigma2), ("c", float(c))):  # fmt: skip
            object.__setattr__(self, name, value)

    def posterior(
        self, eta: float, kind: str = "huber", *, scaled: bool = False
    ) -> GeneralizedPosterior:
        """Return the generalized posterior ``"huber"`` or ``"appendix"`` at a learning rate.

        ``huber`` is exact. ``appendix`` is what the paper's augmentation samples: normal-Laplace
        loss, with the ridge as a prior that eta does not multiply unless `scaled`.
        """
        as_choice(kind, "kind", KINDS)
        if kind == "huber":
            return GeneralizedPosterior(self.criterion, eta)
        if kind == "published":
            raise InputError("kind", "'published' has no density", "draw from it with sample()")
        loss = NormalLaplace(self.c, as_positive(eta, "eta"))
        criterion = self.criterion.with_loss(loss)
        if scaled or self.criterion.strength == 0:
            return GeneralizedPosterior(criterion, eta)
        prior = LogPrior.from_penalty(self.criterion.penalty, self.criterion.p)
        return GeneralizedPosterior(criterion.with_penalty(NoPenalty()), eta, prior)

    def sample(
        self,
        eta: float,
        kind: str = "huber",
        *,
        draws: int = 4000,
        seed: Any = None,
        chains: int = 4,
        burn_in: int = 500,
        scaled: bool = False,
    ) -> Draws:
        """Draw from one of the model's posteriors.

        ``huber`` goes through `etafree.sample`; ``appendix`` and ``published`` run Gibbs sampling
        with `chains` chains after `burn_in` iterations each (the published one scales the prior by
        eta, as the figure did).
        """
        as_choice(kind, "kind", KINDS)
        if kind == "huber":
            return sample(self.posterior(eta), draws, seed)
        from etafree.samplers.gibbs import gibbs_chains

        eta = as_positive(eta, "eta")
        criterion, p = self.criterion, self.criterion.p
        factor = eta if scaled or kind == "published" else 1.0
        precision = factor * criterion.size * criterion.penalty_share(np.zeros(p))
        pull = (
            -factor * criterion.size * criterion.strength * criterion.penalty.gradient(np.zeros(p))
        )
        made = gibbs_chains(
            criterion.total.X[None], criterion.total.y[None], np.zeros(chains, dtype=np.intp),
            np.full(chains, eta), self.c, np.tile(precision, (chains, 1, 1)),
            np.tile(pull, (chains, 1)), draws=-(-draws // chains), burn_in=burn_in,
            seed=as_seeds(seed), rule=kind,
        )  # fmt: skip
        return Draws(made, criterion.names, eta, None, f"Gibbs, {kind}")

    def target(self, **options: Any) -> Target:
        """Return the sandwich target; the groups are the clusters unless others are given."""
        return target(self.criterion, **{"clusters": self.groups, **options})

    def calibrate(self, draws: Any, **options: Any) -> Calibration:
        """Calibrate draws; the groups are the clusters unless others are given."""
        return calibrate(draws, self.criterion, **{"clusters": self.groups, **options})

    def __repr__(self) -> str:
        return (
            f"RandomIntercept(n={self.criterion.n}, p={self.criterion.p}, {len(self.groups)} "
            f"groups, tau2={self.tau2:.4g}, sigma2={self.sigma2:.4g}, c={self.c:g}, "
            f"{self.criterion.penalty.describe(self.criterion.size)})"
        )
