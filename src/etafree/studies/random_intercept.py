r"""The paper's experiment: data of a contaminated random-intercept model, and what is estimated.

Covariates are N(0, 1), intercepts :math:`N(0, \tau^2)`, errors :math:`N(0, \sigma^2)`, and with a
small probability an error has :math:`N(0, s^2)` added (appendix "Detailed settings" of Tamano and
Tomo, arXiv 2511.15320).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from etafree.criterion import Criterion
from etafree.losses import Huber
from etafree.models.mixed import RandomIntercept, whiten
from etafree.optimize import minimise
from etafree.penalties import Ridge
from etafree.sums import Groups
from etafree.validation import Array

__all__ = ["Design", "pseudo_true", "pseudo_true_by_simulation"]


@dataclass(frozen=True)
class Design:
    """Settings of the experiment; the defaults are the paper's.

    Attributes
    ----------
    groups, size : int
        Number of groups and observations in each.
    beta, tau2, sigma2 : float
        Slope and variances, for the data and for the working covariance.
    share, outlier_sd : float
        Probability and standard deviation of what is added to an error.
    c, strength : float
        Huber's threshold and the ridge's strength.
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
            x, y, groups.codes, c=self.c, tau2=self.tau2, sigma2=self.sigma2,
            penalty=Ridge(self.strength), names=["beta"],
        )  # fmt: skip


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
    root = whiten(np.eye(m), Groups(np.zeros(m, dtype=np.intp), np.zeros(1)),
                  design.tau2, design.sigma2)  # fmt: skip
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


def pseudo_true_by_simulation(
    design: Design, datasets: int = 1000, groups: int = 5000, seed: int = 0
) -> tuple[float, float]:
    """Return the paper's approximation, a mean of fits to large data sets, and its error."""
    large = Design(**{**design.__dict__, "groups": groups})
    estimates = np.empty(datasets)
    for k, stream in enumerate(np.random.SeedSequence(seed).spawn(datasets)):
        x, y, codes = large.simulate(np.random.default_rng(stream))
        data = (
            whiten(x, codes, large.tau2, large.sigma2),
            whiten(y, codes, large.tau2, large.sigma2),
        )
        fit = minimise(Criterion(Huber(large.c), (data[0], data[1]), Ridge(large.strength)))
        estimates[k] = fit.theta[0]
    return float(estimates.mean()), float(estimates.std(ddof=1) / np.sqrt(datasets))
