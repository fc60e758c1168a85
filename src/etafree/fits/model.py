r"""From a model's log density in JAX to a fit that can be calibrated, group effects integrated out.

What PyMC and NumPyro give is the same: log densities over a flat vector of free variables on the
unconstrained scale. The prior, on the model's own scale and without a Jacobian, is the penalty;
the log-likelihood gives the losses. Vectors with a hierarchical prior that split the observations
are group effects: a group's loss is then its marginal log-likelihood.

A model's log densities in JAX, and which of its observed variables are the observations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.data.pytrees import double_precision, import_jax
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.fits import Fit
from etafree.fits.marginal import (
    EffectGroups,
    GroupRows,
    Terms,
    closed_form,
    gauss_hermite,
    group_effects,
    is_quadratic,
    touch,
)
from etafree.foundation.arguments import Array, as_choice, as_positive
from etafree.foundation.check import find
from etafree.totals.vector import JaxPenalty, PointwiseLoss

#: z (q,) to a number or a vector, written in JAX.
Function = Callable[[Any], Any]
#: Names of the dimensions of a variable, if it has any.
Dims = tuple[str | None, ...] | None
#: Draws that a compiled function takes at a time.
BATCH = 64


@dataclass(frozen=True, eq=False)
class Density:
    """A model in JAX, over the flat vector z (q,) of its free variables, unconstrained.

    Attributes
    ----------
    package : str
    shapes : mapping
        Free variables and the shapes they have in z, in its order.
    labels : mapping
        Names of the entries of every free variable in z.
    dims : mapping
        Observed variables and the names of their dimensions, None if they have none.
    log_likelihood : callable
        z to log-likelihoods of the observed variables, by name, an entry per observation.
    log_prior : callable
        (z, jacobian) to log densities of the free variables, by name: on the model's own scale, or
        with the Jacobian of the transform.
    constrain : callable
        z to the model's variables, by name, computed ones too.
    unconstrain : callable
        Values of free variables, by name, to their entries of z, by name.
    """

    package: str
    shapes: Mapping[str, tuple[int, ...]]
    labels: Mapping[str, tuple[str, ...]]
    dims: Mapping[str, Dims]
    log_likelihood: Callable[[Any], dict[str, Any]]
    log_prior: Callable[[Any, bool], dict[str, Any]]
    constrain: Callable[[Any], dict[str, Any]]
    unconstrain: Callable[[dict[str, Any]], dict[str, Any]]

    @property
    def size(self) -> int:
        """Length of z."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def place(self, names: Container[str]) -> NDArray[np.intp]:
        """Return where the named variables are in z."""
        every = np.arange(self.size, dtype=np.intp)
        parts = [every[where] for name, where in slices(self.shapes).items() if name in names]
        return np.concatenate([every[:0], *parts])


def slices(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, slice]:
    """Return where variables of these shapes are in the flat vector of all of them.

    Examples
    --------
    >>> slices({"a": (), "b": (2, 2)})
    {'a': slice(0, 1, None), 'b': slice(1, 5, None)}
    """
    ends = [0, *accumulate(math.prod(shape) for shape in shapes.values())]
    return dict(zip(shapes, starmap(slice, pairwise(ends)), strict=True))


def over_draws(function: Function, points: Array | Mapping[str, Array]) -> dict[str, Array]:
    """Return by name what a JAX function makes of many points (D, ...), or of arrays by name."""
    jax = import_jax()
    with double_precision():
        mapped = jax.jit(lambda all_: jax.lax.map(function, all_, batch_size=BATCH))(points)
        return {name: np.asarray(value) for name, value in mapped.items()}


def observations(
    density: Density, chosen: str | Sequence[str] | None
) -> tuple[str, Function, Function | None, int]:
    """Return the observations' name, log-likelihoods (n,), the sum of the others', and n.

    All observed variables are chosen by None or "sum"; then there are no others.
    """
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
        raise InputError(
            "model",
            f"gives one log-likelihood for all of {used[0]}, so nothing says how its parts vary",
            "write the likelihood observation by observation",
        )

    def rows(z: Any) -> Any:
        values = density.log_likelihood(z)
        return sum(values[name].reshape(-1) for name in used)

    def rest(z: Any) -> Any:
        values = density.log_likelihood(z)
        return sum(values[name].sum() for name in shapes if name not in used)

    return " + ".join(used), rows, rest if len(used) < len(shapes) else None, n


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
        raise InputError(
            "model",
            f"has observed variables of different lengths, which do not add "
            f"up observation by observation: {listed}",
            advice,
        )
    if len({dims[name] for name in shapes}) > 1:
        listed = ", ".join(f"{name} {dims[name]}" for name in shapes)
        raise InputError(
            "model",
            f"has observed variables along different dims: {listed}",
            f"give them the same dims if of the same units, or {advice}",
        )


def refuse_silent(losses: Function, theta: Array, names: Sequence[str], title: str) -> None:
    """Refuse losses that do not depend on some parameters, seen by their slope at theta (p,)."""
    jax = import_jax()
    with double_precision():
        weights = np.random.default_rng(1).standard_normal(jax.eval_shape(losses, theta).shape)
        slope = np.asarray(jax.jit(jax.grad(lambda t: weights @ losses(t)))(theta))
    silent = [name for name, entry in zip(names, slope, strict=True) if entry == 0]
    if silent:
        raise InputError(
            "log_likelihood",
            f"{title} says nothing about {', '.join(silent)}",
            "leave log_likelihood out, or list all that do",
        )


#: Nodes of the quadrature, and of the one that checks it.
NODES, MORE_NODES = 41, 81
OVERRIDE = "latent=None takes them for parameters, which is right only if groups are few and large"


def fit_of(
    density: Density,
    samples: Mapping[str, Array],
    tree: object,
    *,
    eta: float | None = None,
    prior: str | None = None,
    latent: str | None = "auto",
    log_likelihood: str | Sequence[str] | None = None,
    info: Mapping[str, object] | None = None,
) -> Fit:
    """Return the fit of a model from its density and its draws.

    Parameters
    ----------
    density : Density
    samples : mapping of variables to arrays (chain, draw, *shape)
    tree : the fit as it came
    eta : float, optional
        Learning rate of the draws, one by default.
    prior : {"scaled", "unscaled"}, optional
        Whether eta multiplied the prior too; must be said unless eta is one.
    latent : {"auto", None}
        Integrate group effects out, or take them for parameters.
    log_likelihood : str or several, optional
        The observed variables whose entries are the observations, added up; the others then count
        with the prior. All by default, or by "sum".
    info : mapping, optional
        What the sampler reports of itself.
    """
    eta = 1.0 if eta is None else as_positive(eta, "eta")
    weight, known_as = _prior_weight(eta, prior)
    title, rows, rest, n = observations(density, log_likelihood)
    z = _unconstrained(density, samples)
    mean, spread = z.mean(axis=(0, 1)), z.std(axis=(0, 1))
    noise = np.random.default_rng(0).standard_normal(len(mean))
    scale = np.where(spread > 0, spread, 1.0)
    probe = mean + 0.1 * scale * noise  # no special point
    effects: tuple[str, ...] = ()
    if latent is not None:
        as_choice(latent, "latent", ("auto",))
        effects = _group_effects(density, rows, probe)
    free = [name for name in density.shapes if name not in effects]
    _check_drawn(density.package, free, samples)
    own, other = density.place(free), density.place(effects)

    def joined(theta: Any, u: Any = mean[other]) -> Any:
        empty = import_jax().numpy.zeros(density.size)
        return empty.at[own].set(theta).at[other].set(u)

    def log_prior(z: Any) -> Any:
        each = density.log_prior(z, False)
        return sum(each[name].sum() for name in free) + (0.0 if rest is None else rest(z))

    unit = f"negative log-likelihood of {title}"
    losses: Function = lambda theta: -rows(theta)  # noqa: E731
    loss, index, finer = PointwiseLoss(losses, n, unit), None, None
    if effects:
        if touch(lambda u: log_prior(joined(probe[own], u))[None], probe[other]).nnz:
            raise InputError(
                "model",
                "has priors or observations that depend on the group effects "
                f"{', '.join(effects)} besides {title}",
                OVERRIDE,
            )

        def terms(theta: Any, u: Any) -> Any:
            at = joined(theta, u)
            own_density = density.log_prior(at, True)
            parts = [rows(at), *(own_density[name].reshape(-1) for name in effects)]
            return import_jax().numpy.concatenate(parts)

        losses, groups, finer = _marginal(terms, n, effects, (mean, probe, scale), (own, other))
        loss = PointwiseLoss(losses, groups.count, f"marginal {unit}", n)
        index = GroupRows(n, members=groups.rows)
    names = tuple(label for name in free for label in density.labels[name])
    if rest is not None:
        refuse_silent(losses, probe[own], names, title)
    penalty = JaxPenalty.of(lambda theta: -log_prior(joined(theta)), weight, known_as)
    criterion = Criterion(loss, None, penalty, start=mean[own], names=names)
    if index is not None:
        criterion = criterion.with_rows(index)
    moving = _moving(density, lambda u: joined(probe[own], u), probe[other]) if effects else set()

    def constrain(theta: Array) -> dict[str, Array]:
        def variables(t: Any) -> dict[str, Any]:
            every = density.constrain(joined(t))
            return {k: v for k, v in every.items() if k in samples and k not in moving}

        flat = over_draws(variables, theta.reshape(-1, len(own)))
        return {k: v.reshape((*theta.shape[:-1], *v.shape[1:])) for k, v in flat.items()}

    return Fit(
        draws=Draws(z[:, :, own], names, eta, density.package, dict(info or {})),
        tree=tree,
        criterion=criterion,
        constrain=constrain,
        pointwise=None if effects else lambda t: over_draws(density.log_likelihood, t),
        latent=tuple(name for name in samples if name in moving),
        findings=()
        if finer is None
        else (find("quadrature", lambda: _quadrature_error(criterion, finer)),),
    )


def _check_drawn(package: str, free: Sequence[str], samples: Mapping[str, Array]) -> None:
    """Refuse samples that lack some of the free variables."""
    lacking = [name for name in free if name not in samples]
    if not lacking:
        return
    offsets = package == "bambi" and all(name.endswith("_offset") for name in lacking)
    raise InputError(
        "fit",
        f"has no draws of {', '.join(lacking)}",
        "sample again and keep them by model.fit(omit_offsets=False)"
        if offsets
        else "pass the model that made the draws, and all of these",
    )


def _prior_weight(eta: float, prior: str | None) -> tuple[float, str]:
    """Return what the prior counts against the loss, and what it is called as a penalty."""
    if prior is not None:
        as_choice(prior, "prior", ("scaled", "unscaled"))
    elif eta != 1.0:
        raise InputError(
            "prior",
            f"is not said and eta is {eta:g}",
            "'scaled' if eta multiplied the prior too, else 'unscaled'",
        )
    if prior != "unscaled" or eta == 1.0:
        return 1.0, "prior as a"
    return 1.0 / eta, f"prior over eta = {eta:g}, which moves with eta, as a"


def _unconstrained(density: Density, samples: Mapping[str, Array]) -> Array:
    """Return draws of z (chain, draw, q), zero where a variable has none."""
    given = {
        name: np.asarray(samples[name], dtype=np.float64)
        for name in density.shapes
        if name in samples
    }
    if not density.shapes:
        raise InputError("model", "has no free variables", "pass the model that made the draws")
    if not given:
        raise InputError("fit", f"has no draws of {', '.join(density.shapes)}", "pass its model")
    chains = next(iter(given.values())).shape[:2]
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in given.items()}
    made = over_draws(density.unconstrain, flat)
    z = np.zeros((*chains, density.size))
    for name, values in made.items():
        z[:, :, density.place([name])] = values.reshape(*chains, -1)
    bad = [name for name in made if not np.isfinite(z[:, :, density.place([name])]).all()]
    if bad:
        raise InputError(
            "fit",
            f"has draws of {', '.join(bad)} outside of the model's support",
            "pass the model that made the draws",
        )
    return z


def _group_effects(density: Density, rows: Function, probe: Array) -> tuple[str, ...]:
    """Return the vectors with a hierarchical prior that split the observations into groups.

    A prior is hierarchical if other parameters enter it, or if some speak to the data through this
    vector only, as the standard deviation does that multiplies a standard normal vector.
    """
    jax = import_jax()
    vectors = [name for name, shape in density.shapes.items() if np.prod(shape) > 1]
    if not vectors:
        return ()

    def priors(z: Any) -> dict[str, Any]:
        return {name: value.sum() for name, value in density.log_prior(z, False).items()}

    with double_precision():
        made = jax.jit(jax.jacrev(priors))(probe)
        weights = np.random.default_rng(1).standard_normal(jax.eval_shape(rows, probe).shape)
        slope = jax.jit(jax.grad(lambda z: weights @ rows(z)))
        here = np.asarray(slope(probe))
        found = []
        for name in vectors:
            inside = density.place([name])
            outside = np.setdiff1d(np.arange(density.size), inside)
            without = probe.copy()
            without[inside] = 0.0
            silent = (np.asarray(slope(without))[outside] == 0) & (here[outside] != 0)
            if silent.any() or np.any(np.asarray(made[name])[outside] != 0):
                found.append(name)
    return tuple(name for name in found if _splits(density, rows, name, probe))


def _splits(density: Density, rows: Function, name: str, probe: Array) -> bool:
    """Return whether a vector's entries speak to separate sets of observations."""
    inside, array = density.place([name]), import_jax().numpy.asarray
    touched = touch(lambda u: rows(array(probe).at[inside].set(u)), probe[inside])
    return group_effects(touched, touched.shape[0]).count > 1


def _marginal(
    terms: Terms,
    n: int,
    effects: tuple[str, ...],
    points: tuple[Array, Array, Array],
    places: tuple[NDArray[np.intp], NDArray[np.intp]],
) -> tuple[Function, EffectGroups, Function | None]:
    """Return the groups' marginal losses, the groups, and a finer quadrature if it is one."""
    own, other = places
    mean, probe, scale = points
    groups = group_effects(touch(lambda u: terms(probe[own], u), probe[other]), n)
    named = ", ".join(effects)
    if groups.count == 1:
        raise InputError(
            "model",
            f"ties all observations together by {named} (crossed or "
            "correlated effects), so there are no independent groups whose marginal "
            "likelihoods could be the losses",
            OVERRIDE,
        )
    if is_quadratic(terms, groups, probe[own], mean[other], scale[other]):
        return closed_form(terms, groups, mean[other], scale[other]), groups, None
    if groups.width > 1:
        raise InputError(
            "model",
            f"has {groups.width} effects per group in {named} that are not "
            "Gaussian in a linear model; a marginal likelihood is known for Gaussian "
            "linear models and for one effect per group",
            OVERRIDE,
        )
    losses, finer = (gauss_hermite(terms, groups, mean[other], k) for k in (NODES, MORE_NODES))
    return losses, groups, finer


def _quadrature_error(criterion: Criterion, finer: Function) -> float:
    """Return by how much a group's loss changes with the number of nodes."""
    with double_precision():
        other = np.asarray(import_jax().jit(finer)(criterion.start))
    return float(np.abs(criterion.total.values(criterion.start) - other).max())


def _moving(density: Density, joined: Function, effects: Array) -> set[str]:
    """Return the variables that depend on the group effects."""
    jax, some = import_jax(), np.random.default_rng(2).standard_normal(len(effects))
    with double_precision():
        along = jax.jit(lambda u: jax.jvp(lambda v: density.constrain(joined(v)), (u,), (some,))[1])
        made = along(effects)
    return {
        name
        for name, slope in made.items()
        if slope.dtype != jax.dtypes.float0 and np.any(np.asarray(slope) != 0)
    }
