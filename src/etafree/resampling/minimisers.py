r"""Draws without a learning rate: minimisers under random observation weights.

The loss-likelihood bootstrap draws weights from a Dirichlet distribution, the bootstrap counts of
rows drawn with replacement, the martingale posterior counts of the observed and the imagined rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.dependence import Clusters, bind
from etafree.draws import Draws
from etafree.errors import CalibrationWarning, ConvergenceError, EtafreeError
from etafree.foundation.arguments import Array, as_count, as_seeds, told_seed
from etafree.foundation.terminal import counted
from etafree.foundation.threads import in_threads, own_settings
from etafree.optimize import Minimum, minimise
from etafree.optimize.many import Minimisers, minimisers, steps_suit
from etafree.resampling.weights import block_length, long_rows, resampled_groups, weight_blocks
from etafree.sandwich import target_of
from etafree.target import Target

#: What draws by each kind of weights are called.
SAMPLERS = {
    "dirichlet": "loss-likelihood bootstrap",
    "counts": "bootstrap",
    "urn": "martingale posterior",
}


class Resamples(NamedTuple):
    """Minimisers (B, p) and Hessians (B, p, p) of those resamples `which` (B,) have a minimiser."""

    thetas: Array
    hessians: Array
    which: NDArray[np.intp]
    drawn: int

    @property
    def failed(self) -> int:
        """Number of resamples without a minimiser."""
        return self.drawn - len(self.thetas)


def resampled_targets(target: Target, count: int, rng: np.random.Generator) -> Iterator[Target]:
    """Yield targets of data drawn from the target's rows or clusters, if they have a minimiser.

    A scale that was estimated from the rows is estimated again.
    """
    criterion, dependence = target.criterion, target.dependence
    assert criterion is not None
    assert dependence is not None
    groups = dependence.clusters
    units = Groups(np.arange(criterion.n), np.arange(criterion.n)) if groups is None else groups
    order = np.argsort(units.codes, kind="stable")
    sizes = units.sizes()
    first = np.cumsum(sizes) - sizes
    own = np.ones(criterion.n) if criterion.total.weights is None else criterion.total.weights
    kind = "frequency" if criterion.total.frequency else "sampling"
    fixed, centered = target.correction, target.centered
    fit, step = minimise(criterion, target.center), block_length(criterion.n)
    for start in range(0, count, step):
        many = [rng.integers(len(sizes), size=len(sizes)) for _ in range(min(step, count - start))]
        counts = np.array([np.bincount(drawn, minlength=len(sizes)) for drawn in many])
        found = minimisers(criterion, fit, counts[:, units.codes] * own, kind)
        for k in np.flatnonzero(found.found):
            drawn = many[k]
            lengths = sizes[drawn]
            labels = np.repeat(np.arange(len(drawn)), lengths)  # a cluster drawn twice is two
            within = np.arange(len(labels)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            again = criterion.subset(order[first[drawn][labels] + within])
            new = None if groups is None else Clusters(Groups(labels, np.arange(len(drawn))))
            rows = Rows(len(labels)) if new is None else again.rows
            at: object = found.thetas[k]
            try:
                if "scale" in target.stacked:  # is estimated anew
                    again = again.with_loss(replace(criterion.loss, scale="mad", estimated=False))
                    at = "map"
                bound = bind(new, rows, copies=False)
                yield target_of(again, bound, center=at, correction=fixed, centered=centered)
            except EtafreeError:
                continue


@own_settings
def resamples(
    criterion: Criterion,
    fit: Minimum,
    count: int,
    groups: Groups | None,
    seeds: SeedSequence,
    kind: str = "counts",
    size: int | None = None,
) -> Resamples:
    """Return the minimisers of `count` resamples, by Newton steps from the full-data fit.

    Plug-ins that were estimated from the rows move with the weights, to first order.
    """
    stacked = criterion.stacked(fit.theta)

    def work(block: tuple[Array, str]) -> Minimisers:
        return minimisers(criterion, fit, *block, stacked)

    blocks = weight_blocks(criterion, count, groups, seeds, kind, size)
    side_by_side = steps_suit(criterion) and not long_rows(criterion.n)
    fits = list(
        in_threads(work, blocks, criterion.n * criterion.p) if side_by_side else map(work, blocks)
    )
    thetas, hessians, found = (np.concatenate(arrays) for arrays in zip(*fits, strict=True))
    drawn = Resamples(thetas[found], hessians[found], np.flatnonzero(found), count)
    if len(drawn.thetas) < min(count, criterion.p + 2):
        problem = f"{drawn.failed} of {count} resamples have no minimiser (separated or collinear)"
        raise ConvergenceError(f"{problem}; add penalty=ef.penalties.Ridge(...)")
    return drawn


@own_settings
def loss_likelihood_bootstrap(
    criterion: Criterion,
    draws: int = 1000,
    *,
    clusters: object = None,
    seed: object = 0,
    threads: int | None = None,
) -> Draws:
    r"""Draw minimisers under Dirichlet weights: a posterior that needs no learning rate.

    .. math:: \theta^{(b)} = \arg\min_\theta \sum_i w_i^{(b)}\ell_i(\theta)
              + \lambda_n s_n\rho(\theta), \qquad w^{(b)}\sim n\,\mathrm{Dirichlet}(1,\dots,1).

    Their covariance is that of the sandwich, so intervals cover asymptotically whatever the model.
    With clusters, the rows of a cluster share a weight. `bootstrap` has whole counts as weights.

    Parameters
    ----------
    criterion : Criterion
        With a smooth penalty, or none.
    draws : int
        At least 2.
    clusters : (n,) labels or column name, optional
        One way only.
    seed : int, SeedSequence or Generator
        The same seed gives the same draws.
    threads : int, optional
        How many threads work on the rows; the result is the same. See `etafree.threads`.

    Returns
    -------
    Draws
        ``info["failed"]`` counts weightings without a minimiser; they are left out, with a warning.

    Raises
    ------
    InputError
        The penalty has a kink, clusters are of several ways, or the data are read in parts.
    ConvergenceError
        Too many weightings have no minimiser.

    References
    ----------
    Lyddon, S. P., Holmes, C. C. and Walker, S. G. (2019). General Bayesian updating and the
    loss-likelihood bootstrap. Biometrika 106, 465-478.

    Examples
    --------
    >>> import etafree as ef
    >>> data = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> mean = ef.Criterion(ef.losses.Squared(), data)
    >>> draws = ef.loss_likelihood_bootstrap(mean, draws=20_000, seed=1)
    >>> abs(float(draws.array.var()) - 0.7) < 0.03  # the variance of the data over n + 1
    True
    """
    return _drawn(criterion, draws, clusters, seed, "dirichlet")


@own_settings
def bootstrap(
    criterion: Criterion,
    draws: int = 1000,
    *,
    clusters: object = None,
    seed: object = 0,
    threads: int | None = None,
) -> Draws:
    r"""Draw minimisers of data resampled with replacement.

    .. math:: \theta^{(b)} = \arg\min_\theta \sum_i k_i^{(b)}\ell_i(\theta)
              + \lambda_n s_n\rho(\theta), \qquad k^{(b)}\sim\mathrm{Multinomial}(n, 1/n).

    With clusters, whole clusters are drawn.

    Parameters
    ----------
    criterion, draws, clusters, seed, threads : Criterion, int, labels, seed and int
        As for `loss_likelihood_bootstrap`.

    Returns
    -------
    Draws
        ``info["failed"]`` counts resamples without a minimiser; they are left out, with a warning.

    Raises
    ------
    InputError, ConvergenceError
        As for `loss_likelihood_bootstrap`, the same with smooth weights.

    References
    ----------
    Efron, B. (1979). Bootstrap methods: another look at the jackknife. Ann. Statist. 7, 1-26.

    Examples
    --------
    >>> import etafree as ef
    >>> data = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> draws = ef.bootstrap(ef.Criterion(ef.losses.Squared(), data), 20_000, seed=1)
    >>> abs(float(draws.array.var()) - 0.875) < 0.03  # the variance of the data over n
    True
    """
    return _drawn(criterion, draws, clusters, seed, "counts")


@own_settings
def martingale_posterior(
    criterion: Criterion,
    draws: int = 1000,
    *,
    horizon: int | None = None,
    clusters: object = None,
    seed: object = 0,
    threads: int | None = None,
) -> Draws:
    r"""Draw minimisers of the observed data and imagined further ones, drawn from Pólya's urn.

    .. math:: \theta^{(b)} = \arg\min_\theta \frac{n}{n+N}\sum_i (1+k_i^{(b)})\ell_i(\theta)
              + \lambda_n s_n\rho(\theta),

    where k counts N draws from an urn that holds the rows and gets a copy of each that is drawn:
    the predictive distribution is the empirical one, and a martingale. What is not known is what
    has not been observed. With an infinite horizon these are the draws of
    `loss_likelihood_bootstrap`; a population of n + N rows that is to be known has the horizon N,
    and the variance is smaller by the factor N / (n + N).

    Parameters
    ----------
    criterion : Criterion
        With a smooth penalty, or none.
    draws : int
        At least 2.
    horizon : int, optional
        Number N of further rows, or of clusters; infinite if not given.
    clusters : (n,) labels or column name, optional
        The urn then holds clusters. One way only.
    seed : int, SeedSequence or Generator
        The same seed gives the same draws.
    threads : int, optional
        How many threads work on the rows; the result is the same. See `etafree.threads`.

    Returns
    -------
    Draws
        ``info["failed"]`` counts data sets without a minimiser; they are left out, with a warning.

    Raises
    ------
    InputError, ConvergenceError
        As for `loss_likelihood_bootstrap`, or the horizon is not a whole number above zero.

    See Also
    --------
    bayesbag : Posteriors of resampled data.

    References
    ----------
    Fong, E., Holmes, C. and Walker, S. G. (2023). Martingale posterior distributions. J. Roy.
    Statist. Soc. B 85, 1357-1391. Blackwell, D. and MacQueen, J. B. (1973). Ferguson distributions
    via Polya urn schemes. Ann. Statist. 1, 353-355.

    Examples
    --------
    >>> import etafree as ef
    >>> data = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> mean = ef.Criterion(ef.losses.Squared(), data)
    >>> draws = ef.martingale_posterior(mean, 20_000, horizon=12, seed=1)
    >>> abs(float(draws.array.var()) - 0.7 * 12 / 16) < 0.03  # 3.5 / (n + 1), N / (n + N)
    True
    """
    size = None if horizon is None else as_count(horizon, "horizon")
    return _drawn(criterion, draws, clusters, seed, "urn", size)


def _drawn(
    criterion: Criterion,
    draws: int,
    clusters: object,
    seed: object,
    kind: str,
    size: int | None = None,
) -> Draws:
    name = SAMPLERS[kind]
    groups, seeds = resampled_groups(criterion, clusters, "the bootstrap"), as_seeds(seed)
    count = as_count(draws, "draws", least=2)
    weights = "dirichlet" if kind == "urn" and size is None else kind
    with counted(None, name):
        drawn = resamples(criterion, minimise(criterion), count, groups, seeds, weights, size)
    if drawn.failed:
        left_out = f"{drawn.failed} of {count} resamples have no minimiser and are left out"
        advice = "the spread is understated; add a penalty"
        warnings.warn(f"{left_out}: {advice}", CalibrationWarning, stacklevel=4)
    info = {
        "ess": float(len(drawn.thetas)),
        "failed": drawn.failed,
        "clusters": None if groups is None else len(groups),
        "seed": told_seed(seed, seeds),
    }
    return Draws(drawn.thetas[None], criterion.names, None, name, info)
