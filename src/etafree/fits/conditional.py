r"""Group effects in a posterior: a conditional log-likelihood is not a cluster's loss.

With a latent effect per group the stored log-likelihood is conditional on it, and the jackknife
misses the variance between groups: for m observations per group, residual variance
:math:`\sigma^2` and effects of variance :math:`\tau^2`, a standard error comes out as
:math:`\sigma^2/(\sigma^2+m\tau^2)` of the right one. A cluster's loss must be its *marginal*
log-likelihood.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from etafree.data.groups import Groups
from etafree.dependence.base import Dependence
from etafree.errors import InputError
from etafree.fits.observations import StoredLosses
from etafree.fits.trees import SAMPLE_DIMS, flatten
from etafree.foundation.arguments import Array
from etafree.foundation.linalg import least_squares

if TYPE_CHECKING:
    import xarray as xr

#: A variable this well explained by the other parameters is computed from them.
COMPUTED = 0.9
#: Levels of a group index from which on its dimension counts as groups.
LEVELS = 5


def refuse_latent(tree: xr.DataTree, losses: StoredLosses, dependence: Dependence) -> None:
    """Raise if the posterior has group effects that the stored log-likelihood is conditional on.

    Seen are variables named like ``1|school``, variables along a dimension of the observations
    that has at least `LEVELS` entries (fewer are outcomes, say), and variables along a dimension
    of as many entries as there are clusters, or levels of an index in ``constant_data``. What the
    other parameters determine is computed, not latent.
    """
    posterior = tree["posterior"].to_dataset()
    groups = [*dependence.row_groups().values()]
    groups += _indices(tree, losses)
    along = {
        str(n): _groups_along(str(n), a, losses, groups) for n, a in posterior.data_vars.items()
    }
    seen = [name for name, size in along.items() if size]
    plain = [name for name in along if name not in seen and "|" not in name]
    latent = [name for name in seen if not _computed(posterior, name, plain)]
    if not latent:
        return
    raise InputError(
        "log_likelihood",
        f"is conditional on the group effects {', '.join(latent[:5])}, so a "
        f"cluster's loss is not in it and {_consequence(posterior, latent[0], plain, losses.n)}",
        "pass model= for a marginal likelihood; if these are no group effects, "
        "ef.from_arviz(fit, latent=None)",
    )


def computed_along(
    posterior: xr.Dataset, losses: StoredLosses, besides: Sequence[str]
) -> list[str]:
    """Return more variables along the observations' dimensions that other variables determine."""
    seen = [str(n) for n, a in posterior.data_vars.items() if _sizes_along(a, losses)]
    plain = [str(name) for name in posterior.data_vars if name not in seen]
    return [name for name in seen if name not in besides and _computed(posterior, name, plain)]


def _sizes_along(array: xr.DataArray, losses: StoredLosses) -> list[int]:
    """Return the numbers of entries along dimensions that are the observations' own."""
    sizes = {str(dim): int(array.sizes[dim]) for dim in array.dims if dim not in SAMPLE_DIMS}
    return [
        size
        for dim, size in sizes.items()
        if size >= LEVELS and (dim in losses.dims or size == losses.n)
    ]


def _indices(tree: xr.DataTree, losses: StoredLosses) -> list[Groups]:
    """Return the groups of whole-number variables in constant_data along the observations."""
    if "constant_data" not in tree.children:
        return []
    found = []
    for array in tree["constant_data"].to_dataset().data_vars.values():
        if array.dtype.kind in "iu" and losses.observations.has(array):
            index = Groups.of(losses.observations.spread(array), losses.n)
            if LEVELS <= len(index) < losses.n:
                found.append(index)
    return found


def _groups_along(
    name: str, array: xr.DataArray, losses: StoredLosses, groups: list[Groups]
) -> int:
    """Return the number of groups that a variable has an entry for each of, or zero."""
    along = _sizes_along(array, losses)
    if along:
        return along[0]
    for dim in (str(dim) for dim in array.dims if dim not in SAMPLE_DIMS):
        size = int(array.sizes[dim])
        if "|" in name:
            return size
        labels = {str(label) for label in array[dim].values.tolist()}
        for found in groups:
            if size != len(found):
                continue
            plain = array[dim].dtype.kind in "iu" or dim not in array.coords
            if plain or labels == {str(label) for label in found.labels.tolist()}:
                return size
    return 0


def _computed(posterior: xr.Dataset, name: str, plain: list[str]) -> bool:
    """Return whether the other parameters determine a variable."""
    if posterior[name].dtype.kind not in "iuf":
        return False
    values = posterior[name].transpose(*SAMPLE_DIMS, ...).values
    wanted = values.reshape(values.shape[0] * values.shape[1], -1)
    wanted = wanted[:, np.linspace(0, wanted.shape[1] - 1, min(10, wanted.shape[1])).astype(int)]
    wanted = np.asarray(wanted[:, np.ptp(wanted, axis=0) > 0], dtype=np.float64)
    real = [other for other in plain if posterior[other].dtype.kind == "f"]
    if not wanted.size:
        return True
    if not real:
        return False
    base, _ = flatten(posterior, real)
    explained = [_explained(base.reshape(len(wanted), -1), x) for x in (wanted, _scores(wanted))]
    return bool(np.min(np.max(explained, axis=0)) > COMPUTED)


def _scores(values: Array) -> Array:
    """Return normal scores of the columns: a probability or a rate becomes its linear predictor."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    scores: Array = ndtri(rankdata(values, axis=0) / (len(values) + 1))
    return scores


def _explained(base: Array, wanted: Array) -> Array:
    """Return the share of each column's variance that a regression explains, freed of optimism."""
    base = base - base.mean(axis=0)
    base = base[:, base.std(axis=0) > 0]
    many, p = base.shape
    if p == 0 or 2 * p >= many:
        return np.zeros(wanted.shape[1])
    wanted = wanted - wanted.mean(axis=0)
    fitted = base @ least_squares(base, wanted, 1e-10, "draws")
    rest = np.square(wanted - fitted).sum(axis=0) / (many - 1 - p)
    share: Array = 1 - rest / (np.square(wanted).sum(axis=0) / (many - 1))
    return share


def _consequence(posterior: xr.Dataset, name: str, plain: list[str], n: int) -> str:
    """Return by how much the standard errors would be wrong, in words."""
    scale = [
        other
        for other in plain
        if re.fullmatch(r"(.*_)?(sigma|sd)", other) and posterior[other].ndim == 2
    ]
    effects = posterior[name].transpose(*SAMPLE_DIMS, ...).values
    effects = effects.reshape(effects.shape[0] * effects.shape[1], -1)
    count = effects.shape[1]
    if len(scale) != 1 or not 2 <= count < n:
        return (
            "standard errors by the jackknife would miss the variance between groups, as "
            "sigma^2 / (sigma^2 + m tau^2) for m observations in a group"
        )
    tau = float(effects.var(axis=1, ddof=1).mean())
    sigma = float(np.square(posterior[scale[0]].values).mean())
    share = sigma / (sigma + n / count * tau)
    return (
        f"standard errors by the jackknife would be about {share:.2g} of the right ones: "
        f"sigma^2 / (sigma^2 + m tau^2) = {sigma:.3g} / ({sigma:.3g} + {n / count:.3g} x "
        f"{tau:.3g})"
    )
