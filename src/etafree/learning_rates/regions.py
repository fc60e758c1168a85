"""Credible regions from draws of bootstrap posteriors, reweighted to other learning rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etafree import linalg
from etafree.bootstrap import Resamples, weight_blocks
from etafree.errors import ConvergenceError, InputError
from etafree.learning_rates.problem import Problem
from etafree.samplers import sample
from etafree.validation import Array

__all__ = ["DrawnRegions", "reweighted"]

TOO_FEW = "reweighting leaves too few draws of a posterior: pass more draws="


def reweighted(losses: Array, change: float) -> Array:
    r"""Return weights :math:`\propto e^{-c\,L}` that sum to one, over the last axis.

    They turn draws at one learning rate into draws at another, c further up.

    Examples
    --------
    >>> reweighted(np.array([1.0, 1.0]), 0.3)
    array([0.5, 0.5])
    """
    power = -change * (losses - losses.mean(axis=-1, keepdims=True))
    weights: Array = np.exp(power - power.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


@dataclass(frozen=True, eq=False)
class DrawnRegions:
    """Draws (B, D, p) of the posteriors of bootstrap data at `eta`, with their losses (B, D)."""

    center: Array
    eta: float
    draws: Array
    losses: Array
    failed: int

    @classmethod
    def of(cls, problem: Problem, drawn: Resamples, eta: float, count: int) -> DrawnRegions:
        """Draw from the posterior of every resample whose minimiser was found."""
        wanted, seeds = set(drawn.which.tolist()), problem.seeds.spawn(drawn.drawn)
        draws, losses, number = [], [], -1
        blocks = weight_blocks(
            problem.criterion, drawn.drawn, problem.groups, problem.seeds, "counts"
        )
        for block, kind in blocks:
            for weights in block:
                number += 1
                if number not in wanted:
                    continue
                try:
                    posterior = problem.posterior(eta, problem.criterion.reweighted(weights, kind))
                    made = sample(posterior, count, seed=np.random.default_rng(seeds[number]))
                except (ConvergenceError, InputError):  # no sampler reaches it, or it is improper
                    continue
                draws.append(made.array[:count])
                losses.append(posterior.criterion.values_at(draws[-1]))
        if len(draws) < 0.5 * len(wanted):
            raise ConvergenceError(
                f"{len(wanted) - len(draws)} of {len(wanted)} bootstrap posteriors at eta = "
                f"{eta:.3g} could not be drawn from; add a penalty or use region='laplace'"
            )
        return cls(problem.fit.theta, eta, np.array(draws), np.array(losses),
                   len(wanted) - len(draws))  # fmt: skip

    def effective(self, eta: float) -> Array:
        """Return how many draws the reweighted ones are worth at `eta`, (B,)."""
        size: Array = 1.0 / np.square(reweighted(self.losses, eta - self.eta)).sum(axis=1)
        return size

    def coverage(self, eta: float, level: float, contrast: Array | None) -> float:
        """Return how often the region at `eta` holds the centre.

        The ellipsoid of the draws' mean and covariance that holds a share `level` of them, or a
        contrast's equal-tailed interval.
        """
        weights = reweighted(self.losses, eta - self.eta)
        if contrast is not None:
            values, tail = self.draws @ contrast, 0.5 * (1 - level)
            limits = _quantiles(values, weights, [tail, 1 - tail])
            point = self.center @ contrast
            return float(np.mean((limits[0] <= point) & (point <= limits[1])))
        mean = np.einsum("bd,bdi->bi", weights, self.draws)
        apart = self.draws - mean[:, None]
        covariance = np.einsum("bdi,bdj->bij", weights[:, :, None] * apart, apart)
        lower = linalg.inv(linalg.cholesky(covariance, "draws", TOO_FEW), "draws", TOO_FEW)
        size = np.square(np.einsum("bij,bdj->bdi", lower, apart)).sum(axis=2)
        limit = _quantiles(size, weights, [level])[0]
        own = np.square(np.einsum("bij,bj->bi", lower, self.center - mean)).sum(axis=1)
        return float(np.mean(own <= limit))


def _quantiles(values: Array, weights: Array, levels: list[float]) -> Array:
    """Return quantiles of weighted values along the last axis, (levels, B), by mid-ranks."""
    order = np.argsort(values, axis=1)
    values = np.take_along_axis(values, order, axis=1)
    weights = np.take_along_axis(weights, order, axis=1)
    ranks = np.cumsum(weights, axis=1) - 0.5 * weights
    return np.array([
        [np.interp(level, rank, row) for rank, row in zip(ranks, values, strict=True)]
        for level in levels
    ])  # fmt: skip
