r"""Metropolis steps by parts of a Gibbs sampler, for posteriors with many kinks.

A law :math:`q` near the posterior :math:`\pi` is sampled coordinate by coordinate
(`etafree.samplers.lasso`) or line by line (`etafree.samplers.lines`). Importance weights
:math:`w=\pi/q` of whole vectors become uneven as coefficients become many. Drawing only some, in
random order, is reversible with respect to :math:`q`; a step so proposed is therefore accepted with
probability :math:`\min\{1,w(\theta')/w(\theta)\}`, and fewer coordinates at a time change
:math:`w` less.

References
----------
Tierney, L. (1994). Markov chains for exploring posterior distributions. Ann. Statist. 22,
1701-1728, section 2.3.
"""

from __future__ import annotations

import numpy as np

from etafree.draws import Draws
from etafree.errors import ConvergenceError
from etafree.foundation.arguments import Array
from etafree.posterior import GeneralizedPosterior
from etafree.samplers.elliptical import R_HAT_LIMIT
from etafree.samplers.lasso import KinkedLaw, kinked_law
from etafree.samplers.variational import Normal

CHAINS = 4
#: Steps from which the share of accepted ones is learnt, and the least share.
TRIED, ACCEPTED = 100, 0.35
#: Times that every coordinate is drawn between draws, more where chains say little new, and before.
THIN, BURN_IN = (2, 8), 40
#: Effective share of the draws that needs no more.
ENOUGH = 0.1


class _Chain:
    """A state of the chain: a point (p,) and its log weight."""

    def __init__(
        self, posterior: GeneralizedPosterior, law: KinkedLaw, start: Array, seed: int
    ) -> None:
        self.posterior, self.law, self.theta = posterior, law, start
        self.rng = np.random.default_rng(seed)
        self.log_weight = self._weigh(start)

    def _weigh(self, theta: Array) -> float:
        point = theta[None]
        return float(self.posterior.log_density(point)[0] - self.law.log_density(point)[0])

    def run(self, steps: int, size: int) -> int:
        """Propose so many times to draw `size` coordinates; return how many were accepted."""
        accepted = 0
        for _ in range(steps):
            which = self.rng.permutation(len(self.theta))[:size]
            theta = self.law.part(self.theta, which)
            log_weight = self._weigh(theta)
            if log_weight - self.log_weight > -self.rng.standard_exponential():
                self.theta, self.log_weight = theta, log_weight
                accepted += 1
        return accepted


def metropolis_draws(
    posterior: GeneralizedPosterior, normal: Normal, draws: int, rng: np.random.Generator
) -> Draws | None:
    """Return draws of a posterior with kinks, of a few chains; None without kinks or curvature.

    Examples
    --------
    >>> import etafree as ef
    >>> from etafree.samplers.variational import normal_approximation
    >>> X, y = np.eye(3)[:2], np.array([1.0, -2.0])
    >>> lasso = ef.Criterion(ef.losses.Huber(1.0), (X, y), ef.penalties.L1(0.5))
    >>> posterior = ef.GeneralizedPosterior(lasso, eta=2.0)
    >>> approximation = normal_approximation(posterior)
    >>> metropolis_draws(posterior, approximation, 100, np.random.default_rng(1)).values.shape
    (4, 25, 3)
    """
    from arviz_stats.base.array import array_stats

    law = kinked_law(posterior, normal, 1.0, rng)
    if law is None:
        return None
    p, size = posterior.criterion.p, posterior.criterion.p
    seeds = rng.integers(0, 1 << 62, CHAINS)
    starts = law.chain(CHAINS, BURN_IN)
    chains = [_Chain(posterior, law, *each) for each in zip(starts, seeds, strict=True)]
    while sum(c.run(TRIED // CHAINS, size) for c in chains) < ACCEPTED * TRIED and size > 1:
        size = -(-size // 2)
    each = -(-p // size)  # steps in which every coordinate is drawn once, on average
    length, r_hat, ess = -(-draws // CHAINS), np.inf, 0.0
    out, accepted, steps = np.empty((CHAINS, length, p)), 0, 0
    for thin in THIN:
        accepted = steps = 0
        for chain, kept in zip(chains, out, strict=True):
            chain.run(BURN_IN * each, size)
            for place in range(length):
                accepted += chain.run(thin * each, size)
                kept[place] = chain.theta
            steps += length * thin * each
        with np.errstate(invalid="ignore", divide="ignore"):
            ess = float(np.min(array_stats.ess(out, chain_axis=0, draw_axis=1, method="bulk")))
            r_hat = float(np.max(array_stats.rhat(out, chain_axis=0, draw_axis=1)))
        if r_hat < R_HAT_LIMIT and ess > ENOUGH * out.shape[0] * length:
            break
    if not r_hat < R_HAT_LIMIT:
        raise ConvergenceError(
            f"no sampler reaches the whole posterior at eta = {posterior.eta:g} (R-hat "
            f"{r_hat:.2f}): it is far from normal there; {posterior.remedy}"
        )
    info = {"ess": ess, "r_hat": r_hat, "accepted": accepted / steps}
    return Draws(out, posterior.criterion.names, posterior.eta, "Gibbs and Metropolis", info)
