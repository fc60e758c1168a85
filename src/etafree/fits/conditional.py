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
from etafree.fits.trees import SAMPLE_DIMS, flat_names, flatten
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

    Recognised are variables named as Bambi, brms and rstanarm name group effects, variables along a
    dimension of observations that has at least `LEVELS` entries (fewer are outcomes, say), and
    variables along a dimension of as many entries as there are clusters, or levels of an index in
    ``constant_data``. What the other parameters determine is computed, not latent.
    """
    posterior = tree["posterior"].to_dataset()
    groups = [*dependence.row_groups().values(), *_indices(tree, losses)]
    arrays = {str(name): array for name, array in posterior.data_vars.items()}
    named = named_effects(posterior)
    grouped = [n for n, array in arrays.items() if n in named or _has_groups(array, losses, groups)]
    plain = [name for name in arrays if name not in grouped and "|" not in name]
    latent = [name for name in grouped if not _computed(posterior, name, plain)]
    if latent:
        raise InputError(
            "log_likelihood",
            f"is conditional on the group effects {', '.join(latent[:5])}, so a cluster's loss is "
            f"not in it and {_consequence(posterior, latent[0], plain, losses.n)}",
            "pass model= for a marginal likelihood, or calibrate a fit without these effects, with "
            "the groups as clusters; if these are not group effects, "
            "ef.from_arviz(fit, latent=None)",
        )


def computed_along(
    posterior: xr.Dataset, losses: StoredLosses, besides: Sequence[str]
) -> list[str]:
    """Return more variables along the observations' dimensions that other variables determine."""
    grouped = [str(n) for n, a in posterior.data_vars.items() if _is_along(a, losses)]
    plain = [str(name) for name in posterior.data_vars if name not in grouped]
    return [name for name in grouped if name not in besides and _computed(posterior, name, plain)]


def _is_along(array: xr.DataArray, losses: StoredLosses) -> bool:
    """Return whether some dimension is the observations' own, with more entries than outcomes."""
    return any(
        size >= LEVELS and (dim in losses.dims or size == losses.n)
        for dim, size in array.sizes.items()
        if dim not in SAMPLE_DIMS
    )


def _indices(tree: xr.DataTree, losses: StoredLosses) -> list[Groups]:
    """Return the groups of whole-number variables in constant_data along the observations."""
    constants = tree.children["constant_data"].data_vars if "constant_data" in tree.children else {}
    indices = [
        Groups.of(losses.observations.spread(array), losses.n)
        for array in constants.values()
        if array.dtype.kind in "iu" and losses.observations.has(array)
    ]
    return [index for index in indices if LEVELS <= len(index) < losses.n]


def named_effects(posterior: xr.Dataset) -> set[str]:
    """Return the variables that are group effects by their names.

    Those of Bambi are called ``1|school``; of brms ``r_school`` where there is ``sd_school__...``;
    of rstanarm ``b[... school:...]`` where there is ``Sigma[school:...]``.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> names = "b_x", "r_school", "sd_school__Intercept", "1|firm_sigma", "r_squared"
    >>> drawn = xr.Dataset({name: (("chain", "draw"), np.zeros((1, 2))) for name in names})
    >>> drawn["1|firm"] = ("chain", "draw", "firm"), np.zeros((1, 2, 3))
    >>> sorted(named_effects(drawn))
    ['1|firm', 'r_school']
    """
    arrays = {str(name): array for name, array in posterior.data_vars.items()}
    effects = {name for name, array in arrays.items() if "|" in name and array.ndim > 2}
    entries = {name: flat_names(name, array) for name, array in arrays.items()}
    whole = [entry for several in entries.values() for entry in several]
    for name, own in entries.items():
        brms = re.match(r"r_(.+?)(__.*|\[.*)?$", name)
        stan = [re.match(r"b\[\S+ ([^:]+):", entry) for entry in own]
        beside = f"sd_{brms[1]}__" if brms else f"Sigma[{stan[0][1]}:" if stan[0] else None
        if beside and any(entry.startswith(beside) for entry in whole):
            effects.add(name)
    return effects


def _has_groups(array: xr.DataArray, losses: StoredLosses, groups: list[Groups]) -> bool:
    """Return whether a variable has an entry for each of some groups."""
    if _is_along(array, losses):
        return True
    for dim in (dim for dim in array.dims if dim not in SAMPLE_DIMS):
        labels = {str(label) for label in array[dim].values.tolist()}
        plain = array[dim].dtype.kind in "iu" or dim not in array.coords
        for index in groups:
            same = plain or labels == {str(label) for label in index.labels.tolist()}
            if array.sizes[dim] == len(index) and same:
                return True
    return False


def _computed(posterior: xr.Dataset, name: str, plain: list[str]) -> bool:
    """Return whether the other parameters determine a variable."""
    if posterior[name].dtype.kind not in "iuf":
        return False
    wanted = _by_draw(posterior[name])
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


def _by_draw(array: xr.DataArray) -> Array:
    """Return a variable's entries (draws, k), chain after chain."""
    values = array.transpose(*SAMPLE_DIMS, ...).values
    return values.reshape(values.shape[0] * values.shape[1], -1)


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
    """Say by how much the standard errors would be wrong."""
    numbers = [other for other in plain if posterior[other].ndim == 2]
    scale = [other for other in numbers if re.fullmatch(r"(.*_)?(sigma|sd)", other)]
    effects = _by_draw(posterior[name])
    count = effects.shape[1]
    if len(scale) != 1 or not 2 <= count < n:
        return (
            "standard errors by the jackknife would miss the variance between groups, as "
            "sigma^2 / (sigma^2 + m tau^2) for m observations in a group"
        )
    tau = float(effects.var(axis=1, ddof=1).mean())
    sigma = float(np.square(posterior[scale[0]].values).mean())
    share = sigma / (sigma + n / count * tau)
    terms = f"{sigma:.3g} / ({sigma:.3g} + {n / count:.3g} x {tau:.3g})"
    return (
        f"standard errors by the jackknife would be about {share:.2g} of the right ones: "
        f"sigma^2 / (sigma^2 + m tau^2) = {terms}"
    )
