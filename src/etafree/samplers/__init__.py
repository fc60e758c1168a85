"""Samplers of generalized posteriors, one algorithm per file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from etafree.draws import Draws
from etafree.errors import ConvergenceError, InputError
from etafree.foundation.arguments import MOST, as_choice, as_rng, told_seed
from etafree.foundation.terminal import shown
from etafree.foundation.threads import own_settings
from etafree.posterior import GeneralizedPosterior
from etafree.samplers.elliptical import TOO_COARSE, elliptical_draws
from etafree.samplers.importance import importance_draws, trustworthy
from etafree.samplers.metropolis import metropolis_draws
from etafree.samplers.nuts import nuts_draws
from etafree.samplers.quadrature import quadrature_draws
from etafree.samplers.variational import TOGETHER, Normal, normal_approximation

__all__ = ["SAMPLERS", "sample"]

Sampler = Callable[[GeneralizedPosterior, Normal, int, np.random.Generator], Draws]
SAMPLERS: dict[str, Sampler] = {
    "importance": importance_draws,
    "elliptical": elliptical_draws,
    "quadrature": quadrature_draws,
    "nuts": nuts_draws,
}
#: With fewer draws neither the Pareto k nor an effective size means anything.
FEWEST = 50
#: Largest rounding error of the log density: draws come out right to ten per cent of a density.
ROUNDING = 0.1


@shown("sampling")
@own_settings
def sample(
    posterior: GeneralizedPosterior,
    draws: int = 4000,
    seed: object = 0,
    sampler: str = "auto",
    *,
    threads: int | None = None,
) -> Draws:
    r"""Draw from a generalized posterior, :math:`\propto\exp\{-\eta L(\theta)\}\tilde\pi(\theta)`.

    Parameters
    ----------
    posterior : GeneralizedPosterior
        A criterion with a learning rate.
    draws : int
        Number of draws; the slice sampler rounds it up to whole chains.
    seed : int, SeedSequence or Generator
        The same seed gives the same draws.
    sampler : {"auto", "importance", "elliptical", "quadrature", "nuts"}
        ``auto``: quadrature for one parameter, otherwise importance sampling around the
        variational normal approximation; if its weights fail (Pareto k at least 0.7, or an
        effective share below 5 %), elliptical slice sampling; of more than 32 coefficients with
        kinks, Metropolis steps that draw some of them at a time.
    threads : int, optional
        How many threads work on the rows; the result is the same. See `etafree.threads`.

    Returns
    -------
    Draws
        The draws, with their effective number and, for importance sampling, the Pareto k.

    Raises
    ------
    InputError
        Fewer than 50 draws are requested, or the sampler does not suit the posterior.
    ConvergenceError
        The criterion has no finite minimiser, or no sampler mixes.

    See Also
    --------
    calibrate : Give the draws the right spread.

    References
    ----------
    Vehtari, A., Simpson, D., Gelman, A., Yao, Y. and Gabry, J. (2024). Pareto smoothed importance
    sampling. J. Mach. Learn. Res. 25(72), 1-58. Nishihara, R., Murray, I. and Adams, R. P. (2014).
    Parallel MCMC with generalized elliptical slice sampling. J. Mach. Learn. Res. 15, 2087-2112.

    Examples
    --------
    >>> import etafree as ef
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((50, 2))
    >>> criterion = ef.Criterion(ef.losses.Huber(), data=(X, rng.standard_normal(50)))
    >>> ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), draws=500, seed=1).values.shape
    (1, 500, 2)
    """
    if not isinstance(posterior, GeneralizedPosterior):
        problem = f"is a {type(posterior).__name__}"
        raise InputError("posterior", problem, "build ef.GeneralizedPosterior(criterion, eta)")
    whole = isinstance(draws, int | np.integer) and not isinstance(draws, bool)
    if not whole or not FEWEST <= draws <= MOST:
        advice = f"pass a whole number up to {MOST:.0e}; fewer than {FEWEST} cannot be checked"
        raise InputError("draws", f"is {draws!r:.80}", advice)
    as_choice(sampler, "sampler", ("auto", *SAMPLERS))
    if sampler == "quadrature" and posterior.criterion.p != 1:
        problem = f"'quadrature' is for one parameter, not {posterior.criterion.p}"
        raise InputError("sampler", problem, "use sampler='auto'")
    rng = as_rng(seed)
    normal = normal_approximation(posterior)
    if np.finfo(np.float64).eps * abs(posterior.log_density(normal.mode)) > ROUNDING:
        raise ConvergenceError(TOO_COARSE)
    if sampler == "auto" and posterior.criterion.p == 1:
        sampler = "quadrature"
    chosen = _importance_or_slices if sampler == "auto" else SAMPLERS[sampler]
    drawn = chosen(posterior, normal, int(draws), rng)
    eta = drawn.eta if posterior.limit is None else None  # its curvature is not eta A
    info = {**drawn.info, "seed": told_seed(seed, rng)}
    return replace(drawn, source=posterior, eta=eta, info=info)


def _importance_or_slices(
    posterior: GeneralizedPosterior, normal: Normal, draws: int, rng: np.random.Generator
) -> Draws:
    """Return importance draws, or where their weights fail those of elliptical slices.

    Under a penalty with many kinks, of Metropolis steps. Where slices do not mix and JAX has the
    loss, of NUTS.
    """
    try:
        drawn = importance_draws(posterior, normal, draws, rng)
        if trustworthy(drawn):
            return drawn
    except ConvergenceError:
        if posterior.bounds is None:
            raise  # else no proposal may lie between them
    many = posterior.bounds is None and posterior.criterion.p > TOGETHER  # slices suit few kinks
    try:
        if many and (by_parts := metropolis_draws(posterior, normal, draws, rng)):
            return by_parts
        return elliptical_draws(posterior, normal, draws, rng)
    except ConvergenceError:
        plain = posterior.limit is None and posterior.bounds is None
        if not (plain and hasattr(posterior.criterion.total, "log_density_parts")):
            raise
    return nuts_draws(posterior, normal, draws, rng)
