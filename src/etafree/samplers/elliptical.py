"""Generalized elliptical slice sampling in the same whitening: the fall-back without tuning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from etafree.draws import Draws
from etafree.errors import ConvergenceError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.posterior import GeneralizedPosterior
from etafree.samplers.importance import proposal_dof, student_proposal
from etafree.samplers.variational import Normal

LogRatio = Callable[[Array], Array]
CHAINS, WARM_UP, THIN = 32, 200, 4
#: A slice this small around a point that lies on it cannot be told from rounding.
SHRINKAGES = 200
#: Chains that disagree more than this have not seen the same distribution.
R_HAT_LIMIT = 1.1
TOO_COARSE = (
    "the log density changes by less than its rounding error: rescale huge responses or use a "
    "smaller eta"
)


def elliptical_draws(
    posterior: GeneralizedPosterior, normal: Normal, draws: int, rng: np.random.Generator
) -> Draws:
    """Return draws of many chains side by side, each on ellipses of a Student-t base measure.

    Given a scale drawn from its conditional, the Student-t is normal and an ellipse through the
    current point and a fresh normal point leaves it invariant; a slice on the ratio of posterior to
    base picks the angle. Every step is accepted and nothing is tuned.

    References
    ----------
    Murray, I., Adams, R. P. and MacKay, D. J. C. (2010). Elliptical slice sampling. AISTATS 9,
    541-548. Nishihara, R., Murray, I. and Adams, R. P. (2014). Parallel MCMC with generalized
    elliptical slice sampling. J. Mach. Learn. Res. 15, 2087-2112.
    """
    from arviz_stats.base.array import array_stats

    p, dof = posterior.criterion.p, proposal_dof(posterior)

    def log_ratio(z: Array) -> Array:
        log_base = -0.5 * (dof + p) * np.log1p(np.einsum("ij,ij->i", z, z) / dof)
        return np.asarray(posterior.log_density(normal.mean + z @ normal.lower.T) - log_base)

    chains = min(CHAINS, max(4, draws // 50))
    length = -(-draws // chains)
    z, _ = student_proposal(chains, p, dof, rng)
    mode = linalg.solve(normal.lower, normal.mode - normal.mean)[None]
    level, peak = log_ratio(z), float(log_ratio(mode)[0])
    lost = ~(level > peak - 50.0 - 10.0 * p)
    z[lost], level[lost] = mode, peak
    out, evaluations = np.empty((chains, length, p)), chains
    for step in range(-WARM_UP, length * THIN):
        z, level, spent = _sweep(z, level, log_ratio, dof, rng)
        evaluations += spent
        if step >= 0 and step % THIN == THIN - 1:
            out[:, step // THIN] = normal.mean + z @ normal.lower.T
    with np.errstate(invalid="ignore", divide="ignore"):
        ess = float(np.min(array_stats.ess(out, chain_axis=0, draw_axis=1, method="bulk")))
        r_hat = float(np.max(array_stats.rhat(out, chain_axis=0, draw_axis=1)))
    if not r_hat < R_HAT_LIMIT:
        raise ConvergenceError(
            f"no sampler reaches the whole posterior at eta = {posterior.eta:g} (R-hat "
            f"{r_hat:.2f}): it is far from normal there; {posterior.remedy}"
        )
    info = {"ess": ess, "r_hat": r_hat, "evaluations": evaluations}
    return Draws(out, posterior.criterion.names, posterior.eta, "elliptical slice", info)


def _sweep(
    z: Array, level: Array, log_ratio: LogRatio, dof: float, rng: np.random.Generator
) -> tuple[Array, Array, int]:
    """Move every chain once; return positions, log ratios and the number of evaluations."""
    chains, p = z.shape
    scale = 0.5 * (dof + np.einsum("ij,ij->i", z, z)) / rng.standard_gamma(0.5 * (dof + p), chains)
    other = rng.standard_normal((chains, p)) * np.sqrt(scale)[:, None]
    floor = level + np.log(rng.random(chains))
    angle = rng.random((chains,)) * (2 * np.pi)
    low, high = angle - 2 * np.pi, angle.copy()
    position, height = z.copy(), level.copy()
    open_, spent = np.arange(chains), 0
    for _ in range(SHRINKAGES):
        if not len(open_):
            return position, height, spent
        a = angle[open_, None]
        trial = z[open_] * np.cos(a) + other[open_] * np.sin(a)
        value = log_ratio(trial)
        spent += len(open_)
        good = value > floor[open_]
        position[open_[good]], height[open_[good]] = trial[good], value[good]
        open_ = open_[~good]
        below = angle[open_] < 0
        low[open_[below]] = angle[open_[below]]
        high[open_[~below]] = angle[open_[~below]]
        angle[open_] = low[open_] + rng.random(len(open_)) * (high - low)[open_]
    raise ConvergenceError(TOO_COARSE)
