r"""Random observation weights, on which every bootstrap rests; clusters share theirs.

==========  ================================================================================
dirichlet   n times a draw of Dirichlet(1, ..., 1)
counts      how often each row is drawn with replacement
urn         1 + how often each is drawn from Pólya's urn, over the mean of these numbers
==========  ================================================================================

The urn's weights tend to the Dirichlet ones as the number of its draws grows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.random import SeedSequence

from etafree.criterion import Criterion
from etafree.data.groups import Groups
from etafree.dependence import Clusters
from etafree.errors import InputError
from etafree.foundation.arguments import Array
from etafree.inference import resample_counts
from etafree.penalties import KinkedPenalty
from etafree.totals.base import require

#: Numbers in a block of weights, and the fewest resamples in one. Blocks of that few resamples are
#: long: their rows are shared out among threads, otherwise the blocks.
NUMBERS, FEWEST = 1 << 17, 8


def block_length(n: int) -> int:
    """Return how many resamples of n rows are made at once."""
    return max(FEWEST, NUMBERS // n)


def long_rows(n: int) -> bool:
    """Return whether so few resamples are in a block that its rows are shared out, not the blocks.

    Examples
    --------
    >>> long_rows(1000), long_rows(100_000)
    (False, True)
    """
    return NUMBERS // n < FEWEST


def resampled_groups(criterion: Criterion, clusters: object, purpose: str) -> Groups | None:
    """Return the clusters to resample as wholes, None for rows; refuse what cannot be resampled."""
    if not isinstance(criterion, Criterion):
        raise InputError("criterion", f"is a {type(criterion).__name__}", "pass an ef.Criterion")
    if isinstance(criterion.penalty, KinkedPenalty):
        kink = f"{type(criterion.penalty).__name__} has a kink: {purpose} needs a normal limit"
        raise InputError("penalty", kink, "use ef.calibrate, which works on the active block")
    require(criterion.total, "memory", "criterion")
    if clusters is None:
        return None
    groups = Clusters(clusters).bind(criterion.rows).clusters
    if groups is None:
        problem = "has several ways, and no bootstrap resamples crossed clusters"
        raise InputError("clusters", problem, "pass one set of labels")
    if len(groups) < 2:
        raise InputError("clusters", "has only one cluster", "at least two must vary")
    return groups


def weight_blocks(
    criterion: Criterion,
    count: int,
    groups: Groups | None,
    seeds: SeedSequence,
    kind: str,
    size: int | None = None,
) -> Iterator[tuple[Array, str]]:
    """Yield `count` weight vectors in blocks (b, n), and which kind of weights they are.

    `size` is how many rows or clusters are drawn: all there are if it is not given; the urn has no
    such default.
    """
    rng, total = np.random.default_rng(seeds), criterion.total
    own = np.ones(criterion.n) if total.weights is None else total.weights
    step = block_length(criterion.n)
    copies = total.frequency and groups is None  # drawn one by one; sampling weights stay
    units = own if copies else np.ones(criterion.n if groups is None else len(groups))
    for start in range(0, count, step):
        factor = _factors(kind, units, min(step, count - start), rng, size)
        if groups is not None:
            factor = factor[:, groups.codes]
        whole = kind == "counts" and total.frequency
        yield factor if copies else factor * own, "frequency" if whole else "sampling"


def _factors(
    kind: str, units: Array, many: int, rng: np.random.Generator, size: int | None
) -> Array:
    """Return random multiples (many, units) of units that stand for so many copies each."""
    if kind == "counts":
        return resample_counts(units, many, rng, size)
    shares = _dirichlet(units, many, rng)
    if kind == "dirichlet":
        return shares
    assert size is not None
    drawn = rng.multinomial(size, shares / shares.sum(axis=1, keepdims=True))
    factors: Array = (units + drawn) * (units.sum() / (units.sum() + size))
    return factors


def _dirichlet(units: Array, many: int, rng: np.random.Generator) -> Array:
    """Return Dirichlet weights (many, units) with these parameters, times their sum."""
    plain = bool((units == 1.0).all())
    shape = (many, len(units))
    gamma = rng.standard_exponential(shape) if plain else rng.standard_gamma(units, shape)
    gamma *= units.sum() / gamma.sum(axis=1, keepdims=True)
    return gamma
