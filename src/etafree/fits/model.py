r"""From a model's log density in JAX to a fit that can be calibrated, group effects integrated out.

What PyMC and NumPyro give is the same: log densities over a flat vector of free variables on the
unconstrained scale. The prior, on the model's own scale and without a Jacobian, is the penalty;
the log-likelihood gives the losses. Vectors with a hierarchical prior that split the observations
are group effects: a group's loss is then its marginal log-likelihood.

What is compiled belongs to the model: a second fit of it, or another calibration of the first,
compiles nothing. Functions are kept as long as the model lives, by a digest of all that they hold.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, starmap
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack
from weakref import WeakKeyDictionary

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
    EffectGroups,
    GroupRows,
    Marginal,
    Touch,
    conditional_draws,
    group_effects,
    integrated,
    quadratic,
)
from etafree.fits.trees import SAMPLE_DIMS
from etafree.foundation.arguments import Array, as_choice, as_positive
from etafree.foundation.check import Finding, find
from etafree.foundation.linalg import inv
from etafree.totals.vector import JaxPenalty, PointwiseLoss, PointwiseTotal

if TYPE_CHECKING:
    import xarray as xr
    from jax import Array as JaxArray
    from scipy.sparse import csr_array

    from etafree.fits.marginal import Function, Local

    #: Arrays of JAX by the names of the model's variables.
    Variables = dict[str, JaxArray]

#: Names of the dimensions of a variable, if it has any.
Dims = tuple[str | None, ...] | None
#: Draws that a compiled function takes at a time.
BATCH = 64
#: States of a model, such as data it was given in turn, whose functions are kept.
KEPT = 4
T = TypeVar("T")
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
    compiled: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made of the density under this key, made at the first call."""
        if key not in self.compiled:
            self.compiled[key] = make()
        kept: T = self.compiled[key]
        return kept

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


_DENSITIES: WeakKeyDictionary[Any, OrderedDict[Hashable, Density]] = WeakKeyDictionary()


def remembered(model: object, state: Hashable, make: Callable[[], Density]) -> Density:
    """Return the density of a model in this state, made once as long as the model lives."""
    try:
        states = _DENSITIES.setdefault(model, OrderedDict())
    except TypeError:  # nothing refers weakly to it
        return make()
    if state not in states:
        states[state] = make()
        while len(states) > KEPT:
            states.popitem(last=False)
    states.move_to_end(state)
    return states[state]


def batched(function: Callable[..., Variables]) -> Callable[..., Variables]:
    """Return the compiled function of many points (D, ...), or trees of them."""
    jax = import_jax()
    compiled: Callable[..., Variables] = jax.jit(jax.vmap(function))
    return compiled


def in_batches(
    compiled: Callable[..., Variables], points: object, many: int = BATCH
) -> dict[str, Array]:
    """Return by name what a compiled function makes of points (D, ...), so `many` at a time.

    Batches are filled up: any number of draws takes one compilation.
    """
    tree = import_jax().tree
    points = tree.map(np.asarray, points)
    count, parts = len(tree.leaves(points)[0]), []
    for first in range(0, max(count, 1), many):
        where = np.minimum(np.arange(first, first + many), count - 1)
        batch = tree.map(
            lambda a, where=where: (
                a[where] if len(a) else np.zeros_like(a, shape=(many, *a.shape[1:]))
            ),
            points,
        )
        with double_precision():
            values = compiled(batch)
        parts.append({name: np.asarray(v)[: count - first] for name, v in values.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def over_draws(function: Callable[..., Variables], points: object) -> dict[str, Array]:
    """Return by name what a JAX function makes of many points (D, ...), or of trees of them."""
    return in_batches(batched(function), points)


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


def refuse_silent(total: PointwiseTotal, theta: Array, names: Sequence[str], title: str) -> None:
    """Refuse losses that do not depend on some parameters, judged by their slopes at theta (p,)."""
    slopes = total.scores(theta)
    silent = [name for name, column in zip(names, slopes.T, strict=True) if not column.any()]
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
    chosen = options.get("log_likelihood")
    key: Hashable = chosen if chosen is None or isinstance(chosen, str) else tuple(chosen)
    title, rows, rest, n = density.once(("data", key), lambda: observations(density, chosen))
    samples, info = posterior_samples(tree)
    z = _unconstrained(density, samples)
    mean, spread = z.mean(axis=(0, 1)), z.std(axis=(0, 1))
    noise = np.random.default_rng(0).standard_normal(len(mean))
    scale = np.where(spread > 0, spread, 1.0)
    probe = mean + 0.1 * scale * noise  # no special point
    effects: tuple[str, ...] = ()
    if (latent := options.get("latent", "auto")) is not None:
        as_choice(latent, "latent", ("auto",))
        effects = _group_effects(density, (key, rows), probe)
    split = density.once(
        ("split", key, effects), lambda: _Split(density, key, effects, title, rows, rest)
    )
    own, other, free = split.own, split.other, split.free
    _check_drawn(density.package, free, samples)
    names = tuple(label for name in free for label in density.labels[name])
    unit, moving = f"negative log-likelihood of {title}", frozenset[str]()
    marginal: Marginal | None = None
    if effects:
        marginal, every, moving = split.integrated(n, probe, mean, scale)
        unit = f"marginal {unit} (effects integrated {marginal.method})"
        kept = density.once(
            ("loss", key, effects, marginal.method, marginal.groups.terms.tobytes()),
            lambda: PointwiseLoss(
                marginal.losses.function,
                marginal.groups.count,
                unit,
                n,
                staged=marginal.reference is not None,  # Laplace's search for modes takes long
            ),
        )
        loss = kept.again(data=marginal.losses.data, spreads=split.spreads(probe))
    else:
        loss = density.once(
            ("loss", key, effects), lambda: PointwiseLoss(lambda theta: -rows(theta), n, unit)
        )
    penalty = density.once(
        ("penalty", key, effects, weight),
        lambda: JaxPenalty.of(lambda theta: -split.log_prior(theta), weight, penalty_name),
    )
    criterion = Criterion(loss, None, penalty, start=mean[own], names=names)
    if marginal is not None:
        criterion = replace(criterion, rows=GroupRows(n, members=marginal.groups.rows))
    if rest is not None:
        refuse_silent(criterion.total, probe[own], names, title)
    shown = frozenset(name for name in samples if name not in moving)

    def constrain(theta: Array) -> dict[str, Array]:
        call = density.once(("constrain", key, effects, shown), lambda: split.variables(shown))
        flat = in_batches(call, theta.reshape(-1, len(own)))
        order = [name for name in dict.fromkeys([*density.shapes, *samples]) if name in flat]
        return {k: flat[k].reshape((*theta.shape[:-1], *flat[k].shape[1:])) for k in order}

    def pointwise(theta: Array) -> dict[str, Array]:
        return in_batches(density.once("rows", lambda: batched(density.log_likelihood)), theta)

    group_draws = None
    if marginal is not None:
        group_draws = _group_draws(split, every, marginal, mean[other], moving & set(samples))
    return Fit(
        draws=Draws(z[:, :, own], names, eta, density.package, info),
        tree=tree,
        criterion=criterion,
        constrain=constrain,
        pointwise=None if effects else pointwise,
        latent=tuple(name for name in samples if name in moving),
        group_effects=group_draws,
        findings=() if marginal is None or marginal.exact else (_error(marginal, criterion),),
    )


class _Stack:
    """Arrays by name that a function makes of z (q,), one below the other, and which it touches."""

    def __init__(self, function: Callable[[JaxArray], Variables], size: int) -> None:
        jax = import_jax()
        with double_precision():
            traced = jax.eval_shape(function, jax.numpy.zeros(size))
        self.where = slices({name: value.shape for name, value in traced.items()})

        def stacked(z: JaxArray) -> JaxArray:
            values = function(z)
            column: JaxArray = jax.numpy.concatenate([values[k].reshape(-1) for k in self.where])
            return column

        self.touch = Touch(stacked, size)


class _Split:
    """A density as a function of parameters theta (p,) and group effects u (k,), which may be none.

    Compiled functions of it are kept with the density.
    """

    def __init__(
        self,
        density: Density,
        key: Hashable,
        effects: tuple[str, ...],
        title: str,
        rows: Function,
        rest: Function | None,
    ) -> None:
        self.density, self.key, self.effects = density, key, effects
        self.title, self.rows, self.rest = title, rows, rest
        self.free = [name for name in density.shapes if name not in effects]
        self.own, self.other = density.place(self.free), density.place(effects)
        self._order = np.argsort(np.concatenate([self.own, self.other]))
        self._locals: dict[bytes, Local] = {}

    def joined(self, theta: JaxArray | Array, u: JaxArray | Array | None = None) -> JaxArray:
        """Return z; without effects where these do not matter."""
        u = np.zeros(len(self.other)) if u is None else u
        z: JaxArray = import_jax().numpy.concatenate([theta, u])[self._order]
        return z

    def _log_prior(self, z: JaxArray) -> JaxArray:
        each = self.density.log_prior(z, False)
        total = sum((each[name].sum() for name in self.free), import_jax().numpy.zeros(()))
        return total if self.rest is None else total + self.rest(z)

    def log_prior(self, theta: JaxArray) -> JaxArray:
        """Return the log density of the parameters, and of observations that count with them."""
        return self._log_prior(self.joined(theta))

    def _priors(self, z: JaxArray) -> JaxArray:
        densities = self.density.log_prior(z, True)
        flat = [densities[name].reshape(-1) for name in self.effects]
        stacked: JaxArray = import_jax().numpy.concatenate(flat)
        return stacked

    def terms(self, theta: JaxArray | Array, u: JaxArray) -> JaxArray:
        """Return the log density of observations and of effects, term by term."""
        z = self.joined(theta, u)
        stacked: JaxArray = import_jax().numpy.concatenate([self.rows(z), self._priors(z)])
        return stacked

    @functools.cached_property
    def _stack(self) -> _Stack:
        floating = import_jax().numpy.floating

        def everything(z: JaxArray) -> Variables:
            terms = import_jax().numpy.concatenate([self.rows(z), self._priors(z)])
            variables = {
                f"variable {name}": value
                for name, value in self.density.constrain(z).items()
                if import_jax().numpy.issubdtype(value.dtype, floating)
            }
            return {"terms": terms, "prior": self._log_prior(z), **variables}

        return _Stack(everything, self.density.size)

    def touched(self, probe: Array) -> tuple[csr_array, bool, frozenset[str]]:
        """Return which terms depend on which effects, if the prior does, and which variables."""
        touched, where = self._stack.touch(probe, self.other), self._stack.where
        depends = {name: bool(touched[rows].nnz) for name, rows in where.items()}
        moving = [name.partition(" ")[2] for name in where if name.startswith("variable ")]
        moving = [name for name in moving if depends[f"variable {name}"]]
        return touched[where["terms"]], depends["prior"], frozenset(moving)

    def integrated(
        self, n: int, probe: Array, mean: Array, scale: Array
    ) -> tuple[Marginal, EffectGroups, frozenset[str]]:
        """Return the groups' marginal losses, groups of all effects, and variables that move."""
        touched, depends, moving = self.touched(probe)
        named = ", ".join(self.effects)
        if depends:
            problem = f"has priors or observations that depend on the group effects {named}"
            raise InputError("model", f"{problem} besides {self.title}", OVERRIDE)
        groups = group_effects(touched, n)
        if groups.count == 1:
            problem = (
                f"ties all observations together by {named} (crossed or correlated effects), so "
                "there are no independent groups whose marginal likelihoods could be the losses"
            )
            raise InputError("model", problem, CROSSED)
        at = probe[self.own], mean[self.other], scale[self.other]
        marginal = integrated(self.terms, groups, *at, self.local(groups))
        every = group_effects(touched, touched.shape[0])  # effects without observations too
        return marginal, every, moving

    def local(self, groups: EffectGroups) -> Local:
        """Return the compiled function that describes the terms as a quadratic in the effects."""
        key = groups.terms.tobytes()
        if key not in self._locals:
            self._locals = {key: import_jax().jit(quadratic(self.terms, groups))}
        return self._locals[key]

    @functools.cached_property
    def _bends(self) -> Callable[..., JaxArray]:
        jax = import_jax()

        def curvature(theta: JaxArray, u: JaxArray, away: JaxArray) -> JaxArray:
            slope = jax.grad(lambda u: self._priors(self.joined(theta, u)).sum())
            bent: JaxArray = away @ jax.jvp(slope, (u,), (away,))[1]
            return bent

        compiled: Callable[..., JaxArray] = jax.jit(jax.grad(curvature))
        return compiled

    def spreads(self, probe: Array) -> tuple[int, ...]:
        """Return which parameters (p,) say how the effects spread, by position.

        They change the curvature of the effects' density, as the mean does not, or affect the
        observations only where effects are not zero.
        """
        away = np.random.default_rng(3).standard_normal(len(self.other))
        with double_precision():
            bends = np.asarray(self._bends(probe[self.own], probe[self.other], away)) != 0
        rows = _rows_and_priors(self.density, self.key, self.rows)
        heard = _heard(rows, probe, self.own)
        silent = _heard(rows, _zeroed(probe, self.other), self.own)
        return tuple(int(j) for j in np.flatnonzero(bends | (heard & ~silent)))

    def variables(self, shown: Container[str]) -> Callable[..., Variables]:
        """Return the compiled function of parameters that gives the variables in `shown`."""

        def named(theta: JaxArray) -> Variables:
            every = self.density.constrain(self.joined(theta))
            return {name: value for name, value in every.items() if name in shown}

        return batched(named)


def _group_draws(
    split: _Split, groups: EffectGroups, marginal: Marginal, start: Array, moving: Container[str]
) -> Callable[[Array, int], Mapping[str, Array]]:
    """Return the function that draws group effects, and what is computed of them."""
    drawn = conditional_draws(split.terms, groups, start, 1 if marginal.exact else CANDIDATES)
    many = max(1, min(BATCH, BUNDLE // (CANDIDATES * len(groups.terms))))

    @functools.cache
    def compiled() -> Callable[..., Variables]:
        def variables(point: tuple[JaxArray, JaxArray]) -> Variables:
            every = split.density.constrain(split.joined(point[0], drawn(*point)))
            return {name: value for name, value in every.items() if name in moving}

        return batched(variables)

    def group_draws(theta: Array, seed: int) -> dict[str, Array]:
        jax = import_jax()
        with double_precision():
            keys = np.asarray(jax.random.split(jax.random.PRNGKey(seed), len(theta)))
        return in_batches(compiled(), (theta, keys), many)

    return group_draws


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
    return eta, 1.0 / eta, f"prior over eta = {eta:g}, which depends on eta, as a"


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
    compiled = density.once("unconstrain", lambda: batched(density.unconstrain))
    for name, values in in_batches(compiled, flat).items():
        z[:, :, density.place([name])] = values.reshape(*chains, -1)
        if not np.isfinite(values).all():
            bad.append(name)
    if bad:
        problem = f"has draws of {', '.join(bad)} outside of the model's support"
        raise InputError("fit", problem, "pass the model that made the draws")
    return z


def _rows_and_priors(density: Density, key: Hashable, rows: Function) -> _Stack:
    """Return which observations, and prior densities of which variables, depend on what."""

    def everything(z: JaxArray) -> Variables:
        priors = {f"prior {name}": value for name, value in density.log_prior(z, False).items()}
        return {"rows": rows(z), **priors}

    return density.once(("stack", key), lambda: _Stack(everything, density.size))


def _heard(stack: _Stack, point: Array, columns: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which of these entries of z affect the observations at a point."""
    touched = stack.touch(point, columns)[stack.where["rows"]]
    return np.isin(np.arange(len(columns)), touched.indices)


def _zeroed(point: Array, places: NDArray[np.intp]) -> Array:
    """Return a point with zeros in these places."""
    return np.where(np.isin(np.arange(len(point)), places), 0.0, point)


def _group_effects(
    density: Density, observed: tuple[Hashable, Function], probe: Array
) -> tuple[str, ...]:
    """Return the vectors with a hierarchical prior that split the observations into groups.

    A prior is hierarchical if other parameters enter it, or if some affect the data through such
    vectors only, as the standard deviation does that multiplies standard normal vectors.
    """
    vectors = [name for name, shape in density.shapes.items() if np.prod(shape) > 1]
    if not vectors:
        return ()
    stack = _rows_and_priors(density, *observed)
    touched = stack.touch(probe)
    rows, every = touched[stack.where["rows"]], np.arange(density.size)
    vectors = [
        name
        for name in vectors
        if group_effects(rows[:, density.place([name])], rows.shape[0]).count > 1
    ]
    if not vectors:
        return ()
    outside = np.setdiff1d(every, density.place(vectors))

    def speaks(zero: Sequence[str]) -> NDArray[np.bool_]:
        return _heard(stack, _zeroed(probe, density.place(zero)), outside)

    through = speaks([]) & ~speaks(vectors)  # what affects the data through the vectors only

    def is_hierarchical(name: str) -> bool:
        others = [other for other in vectors if other != name]
        prior = touched[stack.where[f"prior {name}"]]
        known = prior[:, np.setdiff1d(every, density.place([name]))].nnz > 0
        return bool(known or np.any(through & speaks(others)))

    return tuple(name for name in vectors if is_hierarchical(name))


def _error(marginal: Marginal, criterion: Criterion) -> Finding:
    """Return how far the integrals are off, at the start of the criterion.

    Of quadrature, the largest difference of a group's loss from a finer rule's. Of Laplace's
    approximation, how far the estimate would move if the losses were those of importance sampling:
    one Newton step, in standard errors of the model.
    """
    from scipy.special import logsumexp

    jax, start = import_jax(), criterion.start
    loss: PointwiseLoss = criterion.total.loss

    def difference() -> float:
        parts = [PointwiseTotal(loss.again(data=data), len(start)) for data in marginal.finer]
        other = -logsumexp([-part.values(start) for part in parts], axis=0)
        return float(np.abs(criterion.total.values(start) - other).max())

    def shift() -> float:
        reference = marginal.reference
        assert reference is not None
        with double_precision():
            other = np.asarray(jax.jit(jax.grad(lambda t: reference(t).sum()))(start))
        spread = inv(criterion.derivatives(start).hessian, "Hessian")
        moved = spread @ (criterion.total.derivatives(start).gradient - other)
        return float(np.max(np.abs(moved) / np.sqrt(np.diagonal(spread))))

    if marginal.reference is not None:
        return find("Laplace approximation", shift)
    return find("quadrature", difference)


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
