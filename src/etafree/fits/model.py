r"""From a model's log density in JAX to a fit that can be calibrated, group effects integrated out.

What PyMC and NumPyro give is the same: log densities over a flat vector of free variables on the
unconstrained scale. The prior, on the model's own scale and without a Jacobian, is the penalty;
the log-likelihood gives the losses. Vectors with a hierarchical prior that split the observations
are group effects: a group's loss is then its marginal log-likelihood.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, starmap
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etafree.criterion import Criterion
from etafree.data.pytrees import double_precision, import_jax
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.fits import Fit
from etafree.fits.marginal import (
    BUNDLE,
    CANDIDATES,
    GroupRows,
    Marginal,
    conditional_draws,
    group_effects,
    integrated,
    touch,
)
from etafree.fits.trees import SAMPLE_DIMS
from etafree.foundation.arguments import Array, as_choice, as_positive
from etafree.foundation.check import Finding, find
from etafree.foundation.linalg import inv
from etafree.totals.vector import JaxPenalty, PointwiseLoss

if TYPE_CHECKING:
    import xarray as xr
    from jax import Array as JaxArray

    from etafree.fits.marginal import EffectDraws, Function, Terms

    #: Arrays of JAX by the names of the model's variables.
    Variables = dict[str, JaxArray]

#: Names of the dimensions of a variable, if it has any.
Dims = tuple[str | None, ...] | None
#: Draws that a compiled function takes at a time.
BATCH = 64
OVERRIDE = "latent=None takes them for parameters, which is right only if groups are few and large"
CROSSED = (
    "drop the effects from the model and pass both labels, clusters=[one, other], for coefficients "
    f"of the average over groups; {OVERRIDE}"
)


class ModelOptions(TypedDict, total=False):
    """What the fit of a model takes besides: see `fit_of`."""

    eta: float | None
    prior: str | None
    latent: str | None
    log_likelihood: str | Sequence[str] | None


@dataclass(frozen=True, eq=False)
class Density:
    """A model in JAX, over the flat vector z (q,) of its free variables, unconstrained.

    Free variables have `shapes` and `labels` of their entries in z, observed ones `dims`, None if
    they have no names. The functions return arrays by variable: `log_likelihood` an entry per
    observation; `log_prior` of z and whether to count the Jacobian of the transform, else on the
    model's own scale; `constrain` all variables, computed ones too; `unconstrain` the entries of z
    of values of free variables.
    """

    package: str
    shapes: Mapping[str, tuple[int, ...]]
    labels: Mapping[str, tuple[str, ...]]
    dims: Mapping[str, Dims]
    log_likelihood: Callable[[JaxArray], Variables]
    log_prior: Callable[[JaxArray, bool], Variables]
    constrain: Callable[[JaxArray], Variables]
    unconstrain: Callable[[Variables], Variables]

    @property
    def size(self) -> int:
        """Length of z."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def place(self, names: Container[str]) -> NDArray[np.intp]:
        """Return where the named variables are in z."""
        every = np.arange(self.size, dtype=np.intp)
        places = [every[where] for name, where in slices(self.shapes).items() if name in names]
        return np.concatenate([every[:0], *places])


def slices(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, slice]:
    """Return where variables of these shapes are in the flat vector of all of them."""
    ends = [0, *accumulate(math.prod(shape) for shape in shapes.values())]
    return dict(zip(shapes, starmap(slice, pairwise(ends)), strict=True))


def over_draws(
    function: Callable[..., Variables], points: object, many: int = BATCH
) -> dict[str, Array]:
    """Return by name what a JAX function makes of many points (D, ...), or of trees of them."""
    jax = import_jax()
    with double_precision():
        mapped = jax.jit(lambda all_: jax.lax.map(function, all_, batch_size=many))(points)
        return {name: np.asarray(value) for name, value in mapped.items()}


def observations(
    density: Density, chosen: str | Sequence[str] | None
) -> tuple[str, Function, Function | None, int]:
    """Return the observations' name, log-likelihoods (n,), the sum of the others', and n."""
    jax = import_jax()
    with double_precision():
        traced = jax.eval_shape(density.log_likelihood, jax.numpy.zeros(density.size))
    shapes = {name: value.shape for name, value in traced.items()}
    if not shapes:
        raise InputError("model", "has no observed variables", "pass the model with its data")
    used = _chosen_variables(shapes, chosen)
    _refuse_unlike({name: shapes[name] for name in used}, density.dims)
    n = int(np.prod(shapes[used[0]]))
    if n < 2:
        problem = f"gives one log-likelihood for all of {used[0]}, so nothing says how parts vary"
        raise InputError("model", problem, "write the likelihood observation by observation")
    others = [name for name in shapes if name not in used]

    def rows(z: JaxArray) -> JaxArray:
        values = density.log_likelihood(z)
        return functools.reduce(operator.add, (values[name].reshape(-1) for name in used))

    def rest(z: JaxArray) -> JaxArray:
        values = density.log_likelihood(z)
        return functools.reduce(operator.add, (values[name].sum() for name in others))

    return " + ".join(used), rows, rest if others else None, n


def _chosen_variables(
    shapes: Mapping[str, tuple[int, ...]], chosen: str | Sequence[str] | None
) -> list[str]:
    """Return the observed variables that are asked for, each once; all for None or "sum"."""
    if chosen is None or (chosen == "sum" and "sum" not in shapes):
        return list(shapes)
    used = [chosen] if isinstance(chosen, str) else list(dict.fromkeys(chosen))
    if not used or not set(used) <= set(shapes):
        raise InputError("log_likelihood", f"is {chosen!r}", f"choose from {', '.join(shapes)}")
    return used


def _refuse_unlike(shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, Dims]) -> None:
    """Refuse observed variables whose entries are not those of the same observations."""
    advice = (
        "name the one whose entries are observations and depend on all parameters, "
        "log_likelihood=...; the others then count with the prior"
    )
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        problem = "of different lengths, which do not add up observation by observation"
        raise InputError("model", f"has observed variables {problem}: {listed}", advice)
    if len({dims[name] for name in shapes}) > 1:
        listed = ", ".join(f"{name} {dims[name]}" for name in shapes)
        advice = f"give them the same dims if of the same units, or {advice}"
        raise InputError("model", f"has observed variables along different dims: {listed}", advice)


def refuse_silent(losses: Function, theta: Array, names: Sequence[str], title: str) -> None:
    """Refuse losses that do not depend on some parameters, judged by their slope at theta (p,)."""
    jax = import_jax()
    with double_precision():
        weights = np.random.default_rng(1).standard_normal(jax.eval_shape(losses, theta).shape)
        slope = np.asarray(jax.jit(jax.grad(lambda t: weights @ losses(t)))(theta))
    silent = [name for name, entry in zip(names, slope, strict=True) if entry == 0]
    if silent:
        problem = f"{title} says nothing about {', '.join(silent)}"
        raise InputError("log_likelihood", problem, "leave log_likelihood out, or list all that do")


def posterior_samples(tree: xr.DataTree) -> tuple[dict[str, Array], dict[str, object]]:
    """Return the posterior's variables (chain, draw, ...), and what the sampler said of itself."""
    if "posterior" not in tree.children:
        raise InputError("fit", "has no group 'posterior'", "pass what the sampler returned")
    samples = {
        str(name): np.asarray(array.transpose(*SAMPLE_DIMS, ...).values)
        for name, array in tree["posterior"].to_dataset().data_vars.items()
    }
    stats = tree.children["sample_stats"].data_vars if "sample_stats" in tree.children else {}
    diverging = "diverging" in stats
    return samples, {"divergences": int(stats["diverging"].values.sum())} if diverging else {}


def fit_of(density: Density, tree: xr.DataTree, **options: Unpack[ModelOptions]) -> Fit:
    """Return the fit of a model from its density and the tree that holds its draws.

    The options are those of `from_pymc`. Observed variables that are not named by `log_likelihood`
    count with the prior; the others are added up observation by observation.
    """
    eta, weight, penalty_name = prior_weight(options.get("eta"), options.get("prior"))
    title, rows, rest, n = observations(density, options.get("log_likelihood"))
    samples, info = posterior_samples(tree)
    z = _unconstrained(density, samples)
    mean, spread = z.mean(axis=(0, 1)), z.std(axis=(0, 1))
    noise = np.random.default_rng(0).standard_normal(len(mean))
    scale = np.where(spread > 0, spread, 1.0)
    probe = mean + 0.1 * scale * noise  # no special point
    effects: tuple[str, ...] = ()
    if (latent := options.get("latent", "auto")) is not None:
        as_choice(latent, "latent", ("auto",))
        effects = _group_effects(density, rows, probe)
    free = [name for name in density.shapes if name not in effects]
    _check_drawn(density.package, free, samples)
    own, other = density.place(free), density.place(effects)

    def joined(theta: JaxArray | Array, u: JaxArray | Array = mean[other]) -> JaxArray:
        z: JaxArray = import_jax().numpy.zeros(density.size)
        return z.at[own].set(theta).at[other].set(u)

    def log_prior(z: JaxArray) -> JaxArray:
        each = density.log_prior(z, False)
        total = sum((each[name].sum() for name in free), import_jax().numpy.zeros(()))
        return total if rest is None else total + rest(z)

    unit = f"negative log-likelihood of {title}"
    losses: Function = lambda theta: -rows(theta)  # noqa: E731
    loss, index = PointwiseLoss(losses, n, unit), None
    marginal: Marginal | None = None
    if effects:
        if touch(lambda u: log_prior(joined(probe[own], u))[None], probe[other]).nnz:
            named = f"{', '.join(effects)} besides {title}"
            problem = f"has priors or observations that depend on the group effects {named}"
            raise InputError("model", problem, OVERRIDE)

        def terms(theta: JaxArray | Array, u: JaxArray) -> JaxArray:
            at = joined(theta, u)
            densities = density.log_prior(at, True)
            priors = [densities[name].reshape(-1) for name in effects]
            stacked: JaxArray = import_jax().numpy.concatenate([rows(at), *priors])
            return stacked

        marginal, drawn = _marginal(terms, n, effects, (mean, probe, scale), (own, other))
        losses, groups = marginal.losses, marginal.groups
        unit = f"marginal {unit} (effects integrated {marginal.method})"
        spreads = _spreads(terms, n, probe[own], probe[other])
        loss = PointwiseLoss(losses, groups.count, unit, n, spreads)
        index = GroupRows(n, members=groups.rows)
    names = tuple(label for name in free for label in density.labels[name])
    if rest is not None:
        refuse_silent(losses, probe[own], names, title)
    penalty = JaxPenalty.of(lambda theta: -log_prior(joined(theta)), weight, penalty_name)
    criterion = Criterion(loss, None, penalty, start=mean[own], names=names)
    if index is not None:
        criterion = replace(criterion, rows=index)
    moving = _moving(density, lambda u: joined(probe[own], u), probe[other]) if effects else set()

    def constrain(theta: Array) -> dict[str, Array]:
        def variables(t: JaxArray) -> Variables:
            every = density.constrain(joined(t))
            return {k: v for k, v in every.items() if k in samples and k not in moving}

        flat = over_draws(variables, theta.reshape(-1, len(own)))
        order = [name for name in dict.fromkeys([*density.shapes, *samples]) if name in flat]
        return {k: flat[k].reshape((*theta.shape[:-1], *flat[k].shape[1:])) for k in order}

    def group_draws(theta: Array, seed: int) -> dict[str, Array]:
        jax = import_jax()
        with double_precision():
            key = jax.random.PRNGKey(seed)
            keys = np.asarray(jax.random.split(key, len(theta)))

        def variables(point: tuple[JaxArray, JaxArray]) -> Variables:
            every = density.constrain(joined(point[0], drawn(*point)))
            return {k: v for k, v in every.items() if k in samples and k in moving}

        many = max(1, min(BATCH, BUNDLE // (CANDIDATES * (n + len(other)))))
        return over_draws(variables, (theta, keys), many)

    return Fit(
        draws=Draws(z[:, :, own], names, eta, density.package, info),
        tree=tree,
        criterion=criterion,
        constrain=constrain,
        pointwise=None if effects else lambda t: over_draws(density.log_likelihood, t),
        latent=tuple(name for name in samples if name in moving),
        group_effects=group_draws if effects else None,
        findings=()
        if marginal is None or marginal.reference is None
        else (_error(marginal, criterion),),
    )


def _check_drawn(package: str, free: Sequence[str], samples: Mapping[str, Array]) -> None:
    """Refuse samples that lack some of the free variables."""
    lacking = [name for name in free if name not in samples]
    advice = "pass the model that made the draws, and all of these"
    if package == "bambi" and all(name.endswith("_offset") for name in lacking):
        advice = "sample again and keep them by model.fit(omit_offsets=False)"
    if lacking:
        raise InputError("fit", f"has no draws of {', '.join(lacking)}", advice)


def prior_weight(eta: float | None, prior: str | None) -> tuple[float, float, str]:
    """Return eta, what the prior counts against the loss, and what it is called as a penalty."""
    eta = 1.0 if eta is None else as_positive(eta, "eta")
    if prior is not None:
        as_choice(prior, "prior", ("scaled", "unscaled"))
    elif eta != 1.0:
        raise InputError(
            "prior",
            f"is missing: at eta = {eta:g} the model's prior was either multiplied by eta or not",
            "pass prior='scaled' or 'unscaled' to ef.from_pymc, from_bambi or from_numpyro",
        )
    if prior != "unscaled" or eta == 1.0:
        return eta, 1.0, "prior as a"
    return eta, 1.0 / eta, f"prior over eta = {eta:g}, which moves with eta, as a"


def _unconstrained(density: Density, samples: Mapping[str, Array]) -> Array:
    """Return draws of z (chain, draw, q), zero where a variable has none."""
    drawn = {name: np.asarray(samples[name], float) for name in density.shapes if name in samples}
    if not density.shapes:
        raise InputError("model", "has no free variables", "pass the model that made the draws")
    if not drawn:
        raise InputError("fit", f"has no draws of {', '.join(density.shapes)}", "pass its model")
    chains = next(iter(drawn.values())).shape[:2]
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in drawn.items()}
    z, bad = np.zeros((*chains, density.size)), []
    for name, values in over_draws(density.unconstrain, flat).items():
        z[:, :, density.place([name])] = values.reshape(*chains, -1)
        if not np.isfinite(values).all():
            bad.append(name)
    if bad:
        problem = f"has draws of {', '.join(bad)} outside of the model's support"
        raise InputError("fit", problem, "pass the model that made the draws")
    return z


def _group_effects(density: Density, rows: Function, probe: Array) -> tuple[str, ...]:
    """Return the vectors with a hierarchical prior that split the observations into groups.

    A prior is hierarchical if other parameters enter it, or if some affect the data through such
    vectors only, as the standard deviation does that multiplies standard normal vectors.
    """
    jax = import_jax()
    vectors = [
        name
        for name, shape in density.shapes.items()
        if np.prod(shape) > 1 and _splits(rows, density.place([name]), probe)
    ]
    if not vectors:
        return ()

    def priors(z: JaxArray) -> Variables:
        return {name: value.sum() for name, value in density.log_prior(z, False).items()}

    with double_precision():
        prior_slopes = jax.jit(jax.jacrev(priors))(probe)
        weights = np.random.default_rng(1).standard_normal(jax.eval_shape(rows, probe).shape)
        slope = jax.jit(jax.grad(lambda z: weights @ rows(z)))

        def speaks(zero: Sequence[str]) -> NDArray[np.bool_]:
            without = probe.copy()
            without[density.place(zero)] = 0.0
            return np.asarray(np.asarray(slope(without)) != 0)

        through = speaks([]) & ~speaks(vectors)  # what affects the data through the vectors only
        through[density.place(vectors)] = False

        def is_hierarchical(name: str) -> bool:
            outside = np.setdiff1d(np.arange(density.size), density.place([name]))
            others = [other for other in vectors if other != name]
            known = np.any(np.asarray(prior_slopes[name])[outside] != 0)
            return bool(known or np.any(through & speaks(others)))

        return tuple(name for name in vectors if is_hierarchical(name))


def _splits(rows: Function, inside: NDArray[np.intp], probe: Array) -> bool:
    """Return whether the entries of a vector affect separate sets of observations."""
    array = import_jax().numpy.asarray
    touched = touch(lambda u: rows(array(probe).at[inside].set(u)), probe[inside])
    return group_effects(touched, touched.shape[0]).count > 1


def _marginal(
    terms: Terms,
    n: int,
    effects: tuple[str, ...],
    points: tuple[Array, Array, Array],
    places: tuple[NDArray[np.intp], NDArray[np.intp]],
) -> tuple[Marginal, EffectDraws]:
    """Return the groups' marginal losses, and a function that draws their effects."""
    own, other = places
    mean, probe, scale = points
    touched = touch(lambda u: terms(probe[own], u), probe[other])
    groups = group_effects(touched, n)
    if groups.count == 1:
        problem = (
            f"ties all observations together by {', '.join(effects)} (crossed or correlated "
            "effects), so there are no independent groups whose marginal likelihoods could be the "
            "losses"
        )
        raise InputError("model", problem, CROSSED)
    marginal = integrated(terms, groups, probe[own], mean[other], scale[other])
    every = group_effects(touched, touched.shape[0])  # effects without observations too
    many = 1 if marginal.reference is None else CANDIDATES
    return marginal, conditional_draws(terms, every, mean[other], many)


def _spreads(terms: Terms, n: int, theta: Array, effects: Array) -> tuple[int, ...]:
    """Return which parameters (p,) say how the effects spread, by position.

    They change the curvature of the effects' density, terms from the n-th on, as the mean does not,
    or affect the observations only where effects are not zero.
    """
    jax, rng = import_jax(), np.random.default_rng(3)
    with double_precision():
        count = jax.eval_shape(terms, theta, effects).shape[0]
        weights, away = rng.standard_normal(count), rng.standard_normal(len(effects))

        def data(t: JaxArray, u: JaxArray) -> JaxArray:
            value: JaxArray = weights[:n] @ terms(t, u)[:n]
            return value

        def curvature(t: JaxArray) -> JaxArray:
            slope = jax.grad(lambda u: terms(t, u)[n:].sum())
            bent: JaxArray = away @ jax.jvp(slope, (jax.numpy.asarray(effects),), (away,))[1]
            return bent

        heard, silent = (np.asarray(jax.grad(data)(theta, u)) for u in (effects, 0 * effects))
        bends = np.asarray(jax.grad(curvature)(theta)) != 0
    return tuple(int(j) for j in np.flatnonzero(bends | ((heard != 0) & (silent == 0))))


def _error(marginal: Marginal, criterion: Criterion) -> Finding:
    """Return how far the integrals are off, at the start of the criterion.

    Of quadrature, the largest difference of a group's loss from a finer rule's. Of Laplace's
    approximation, how far the estimate would move if the losses were those of importance sampling:
    one Newton step, in standard errors of the model.
    """
    assert marginal.reference is not None
    jax, start, reference = import_jax(), criterion.start, marginal.reference

    def difference() -> float:
        with double_precision():
            other = np.asarray(jax.jit(reference)(start))
        return float(np.abs(criterion.total.values(start) - other).max())

    def shift() -> float:
        with double_precision():
            other = np.asarray(jax.jit(jax.grad(lambda t: reference(t).sum()))(start))
        spread = inv(criterion.derivatives(start).hessian, "Hessian")
        moved = spread @ (criterion.total.derivatives(start).gradient - other)
        return float(np.max(np.abs(moved) / np.sqrt(np.diagonal(spread))))

    if marginal.sampled:
        return find("Laplace approximation", shift)
    return find("quadrature", difference)


def _moving(density: Density, joined: Function, effects: Array) -> set[str]:
    """Return the variables that depend on the group effects."""
    jax, direction = import_jax(), np.random.default_rng(2).standard_normal(len(effects))
    variables = lambda u: density.constrain(joined(u))  # noqa: E731
    with double_precision():
        slopes = jax.jit(lambda u: jax.jvp(variables, (u,), (direction,))[1])(effects)
        float0 = jax.dtypes.float0
        return {n for n, s in slopes.items() if s.dtype != float0 and np.any(np.asarray(s) != 0)}


def check_data(tree: xr.DataTree, observed: Mapping[str, ArrayLike]) -> None:
    """Refuse a model whose observed variables are not those that the fit stores, if it does."""
    if "observed_data" not in tree.children:
        return
    known = tree["observed_data"].to_dataset()
    for name, data in observed.items():
        if name not in known:
            problem = f"observes {name}, the fit {', '.join(map(str, known))}"
            raise InputError("model", problem, "pass the model that made the draws")
        refuse_other_data(name, data, known[name].values)


def refuse_other_data(name: str, mine: ArrayLike, stored: NDArray[Any]) -> None:
    """Refuse data that differ from those of a fit by more than their storage may."""
    same = np.squeeze(mine).shape == np.squeeze(stored).shape
    numbers = stored.dtype.kind in "biuf" and np.asarray(mine).dtype.kind in "biuf"
    if same and numbers:
        same = np.allclose(np.squeeze(mine), np.squeeze(stored), equal_nan=True)
    if not same:
        advice = "pass the model with the data that were sampled"
        raise InputError("model", f"has other data for {name} than the fit", advice)
