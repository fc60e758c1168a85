r"""Marginal likelihoods of groups: effects integrated out of a joint log density.

A joint log density comes as a vector of terms :math:`t_i(\theta, u)`, one per observation and one
per factor of the effects' own density. Terms that share an effect belong to the same group, and
the loss of group g is

.. math:: -\log\int \exp\{T_g(\theta, u_g)\}\,du_g, \qquad T_g = \sum_{i\in g} t_i.

Where :math:`T_g` is quadratic in :math:`u_g`, as in linear models with Gaussian effects, its slope
and precision at any point give the integral in closed form. Elsewhere up to three effects per group
are integrated by adaptive Gauss-Hermite quadrature around the group's mode, and more of them by
Laplace's approximation, whose error importance sampling estimates.

References
----------
Pinheiro, J. C. and Bates, D. M. (1995). Approximations to the log-likelihood function in the
nonlinear mixed-effects model. J. Comput. Graph. Statist. 4, 12-35. Liu, Q. and Pierce, D. A.
(1994). A note on Gauss-Hermite quadrature. Biometrika 81, 624-629. Tierney, L. and Kadane, J. B.
(1986). Accurate approximations for posterior moments and marginal densities. J. Amer. Statist.
Assoc. 81, 82-86.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.data.pytrees import double_precision, import_jax
from etafree.data.rows import Rows
from etafree.errors import InputError
from etafree.foundation.arguments import Array
from etafree.foundation.linalg import eigvalsh

if TYPE_CHECKING:
    from jax import Array as JaxArray
    from numpy.typing import ArrayLike
    from scipy.sparse import csr_array

    #: A function of a vector, written in JAX.
    Function = Callable[[JaxArray], JaxArray]
    #: Terms (N,) of a joint log density, of parameters (p,) and effects (k,).
    Terms = Callable[[JaxArray | Array, JaxArray], JaxArray]
    #: Groups' values, slopes (G, d) and precisions (G, d, d), of theta, effects and steps (k,).
    Local = Callable[..., tuple[JaxArray, JaxArray, JaxArray]]
    #: Random effects (k,), of parameters (p,) and a random key.
    EffectDraws = Callable[[JaxArray, JaxArray], JaxArray]

#: Numbers that the passes of one bundle write.
BUNDLE = 1 << 20
#: Steps to a group's mode, and how near to it in standard deviations is near enough.
STEPS, NEAR = 100, 1e-8
#: How far a quadratic may be from itself, relative.
CONSTANT = 1e-8
#: Effects per group up to which equations are solved by elimination, term by term.
ELIMINATED = 3
#: Nodes per effect of the quadrature, and of the one that checks it, by effects per group.
NODES = {1: (41, 81), 2: (15, 25), 3: (11, 15)}
#: Pairs of nodes of importance sampling, how much wider they spread than the mode says, and
#: candidates of which one is drawn.
SAMPLED, WIDE, CANDIDATES = 1000, 1.2, 64


@dataclass(frozen=True, eq=False)
class EffectGroups:
    """Which of `count` groups each observation, term and effect belongs to.

    Groups are numbered in the order of first appearance, from zero; terms and effects without
    observations have the number `count`. `slots` are positions of effects (k,) within their group.
    """

    rows: NDArray[np.intp]
    terms: NDArray[np.intp]
    effects: NDArray[np.intp]
    slots: NDArray[np.intp]
    count: int

    @property
    def sizes(self) -> NDArray[np.intp]:
        """Number of effects of each group (count,)."""
        return np.bincount(self.effects, minlength=self.count + 1)[:-1]

    @property
    def width(self) -> int:
        """The largest number of effects in a group."""
        return int(self.sizes.max())


@dataclass(frozen=True, eq=False)
class GroupRows(Rows):
    """Rows of a criterion whose unit is a group of observations; `members` (n,) has its number."""

    members: NDArray[np.intp] = field(kw_only=True)

    @property
    def used(self) -> int:
        """Number of groups."""
        return int(self.members.max()) + 1

    @property
    def observations(self) -> int:
        """Number of observations in all groups."""
        return len(self.members)

    @property
    def independent(self) -> str:
        """What is independent where nothing else is said."""
        return f"{self.used} independent groups"

    def align(self, values: object, argument: str) -> NDArray[Any]:
        """Return one value per group, of values per observation that agree within groups."""
        array = super().align(values, argument)
        first = np.unique(self.members, return_index=True)[1]
        differs = array != array[first][self.members]
        if np.any(differs):
            row = int(np.argmax(differs.reshape(len(array), -1).any(axis=1)))
            problem = f"differs within the group of row {row}, whose loss is one number"
            raise InputError(argument, problem, "pass labels of whole groups")
        return np.asarray(array[first])


class Touch:
    """Which entries (N,) of a function depend on which of its argument (k,): sparse (N, columns).

    Forward mode tells at a point, which should not be a special one. Compiled once.
    """

    def __init__(self, function: Function, k: int) -> None:
        jax = import_jax()
        with double_precision():
            self.n = jax.eval_shape(function, jax.numpy.zeros(k)).shape[0]

        def along(point: JaxArray, axes: JaxArray) -> JaxArray:
            touched: JaxArray = jax.vmap(lambda a: jax.jvp(function, (point,), (a,))[1] != 0)(axes)
            return touched

        self._along, self._step = jax.jit(along), max(1, min(k, BUNDLE // self.n))

    def __call__(self, point: Array, columns: NDArray[np.intp] | None = None) -> csr_array:
        from scipy.sparse import coo_array

        every, step = np.arange(len(point)) if columns is None else columns, self._step
        terms, touching = [], []
        with double_precision():
            for first in range(0, len(every), step):
                some = every[first : first + step]
                axes = np.zeros((step, len(point)))  # zero below the last
                axes[np.arange(len(some)), some] = 1.0
                touched, rows = np.nonzero(np.asarray(self._along(point, axes)))
                terms.append(rows)
                touching.append(touched + first)
        entries = tuple(np.concatenate([np.zeros(0, np.intp), *part]) for part in (terms, touching))
        return coo_array((np.ones(len(entries[0])), entries), shape=(self.n, len(every))).tocsr()


def touch(function: Function, point: Array) -> csr_array:
    """Return which entries of a function depend on which of its argument: sparse ones (N, k)."""
    return Touch(function, len(point))(np.asarray(point, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Given:
    """A function of parameters (p,) and of data, with the data; others compile nothing."""

    function: Callable[..., JaxArray]
    data: tuple[ArrayLike, ...]

    def __call__(self, theta: JaxArray) -> JaxArray:
        return self.function(theta, *self.data)


def group_effects(touched: NDArray[Any] | csr_array, n: int) -> EffectGroups:
    """Return the groups of terms (N, k) that share effects; the first n terms are observations."""
    from scipy.sparse import block_array, csr_array
    from scipy.sparse.csgraph import connected_components

    links: Any = csr_array(touched)
    labels = connected_components(block_array([[None, links], [links.T, None]]))[1]
    many = links.shape[0]
    present, first = np.unique(labels[:n], return_index=True)
    count = len(present)
    codes = np.full(int(labels.max()) + 1, count, dtype=np.intp)
    codes[present[np.argsort(first)]] = np.arange(count)
    terms, effects = codes[labels[:many]], codes[labels[many:]]
    order = np.argsort(effects, kind="stable")
    starts = np.searchsorted(effects[order], np.arange(count + 2))
    slots = np.empty(len(effects), dtype=np.intp)
    slots[order] = np.arange(len(effects)) - starts[effects[order]]
    return EffectGroups(terms[:n], terms, effects, slots, count)


def _values(terms: Terms, groups: EffectGroups) -> Terms:
    """Return the function of theta and effects (k,) that gives each group's log density (G,)."""
    add = import_jax().ops.segment_sum
    return lambda theta, u: add(terms(theta, u), groups.terms, groups.count)


@dataclass(frozen=True, eq=False)
class _Layout:
    """Where effects (k,) are in a table of groups by slots (G, d), zero where a group has fewer."""

    groups: EffectGroups

    @property
    def present(self) -> Array:
        """Ones where a group has an effect (G, d), zeros elsewhere."""
        return (np.arange(self.groups.width) < self.groups.sizes[:, None]).astype(float)

    def table(self, flat: JaxArray) -> JaxArray:
        """Return effects (k,) by group and slot (G, d)."""
        groups, zeros = self.groups, import_jax().numpy.zeros
        empty = zeros((groups.count, groups.width), dtype=flat.dtype)
        made: JaxArray = empty.at[groups.effects, groups.slots].set(flat, mode="drop")
        return made

    def flat(self, table: JaxArray) -> JaxArray:
        """Return a table (G, d) as effects (k,), zero for those without observations."""
        padded = import_jax().numpy.pad(table, ((0, 1), (0, 0)))
        made: JaxArray = padded[self.groups.effects, self.groups.slots]
        return made

    @property
    def axes(self) -> Array:
        """Directions (d, k): the j-th effects of all groups move at once, as groups do not meet."""
        there = self.groups.effects < self.groups.count
        axes = np.zeros((self.groups.width, len(there)))
        axes[self.groups.slots[there], np.flatnonzero(there)] = 1.0
        return axes


def quadratic(terms: Terms, groups: EffectGroups) -> Local:
    """Return a function of theta, effects and steps (k,) that describes a quadratic.

    It gives groups' values, slopes (G, d) and precisions (G, d, d) by differences, which are exact;
    the j-th effects of all groups move at once, as groups do not meet.
    """
    jax = import_jax()
    jnp, G, d, values = jax.numpy, groups.count, groups.width, _values(terms, groups)
    there = groups.effects < G
    steps = np.zeros((d, len(there)))
    steps[groups.slots[there], np.flatnonzero(there)] = 1.0
    pairs = np.column_stack(np.tril_indices(d, -1))
    moves = np.vstack([np.zeros((1, len(there))), steps, -steps, steps[pairs].sum(axis=1)])
    absent = np.ones((G, d))
    absent[groups.effects[there], groups.slots[there]] = 0.0
    many = max(1, BUNDLE // len(groups.terms))

    def local(
        theta: JaxArray, effects: JaxArray, scale: JaxArray
    ) -> tuple[JaxArray, JaxArray, JaxArray]:
        def after(move: JaxArray) -> JaxArray:
            return values(theta, effects + scale * move)

        moved = jax.lax.map(after, moves, batch_size=many)
        (middle,), ahead, back, both = jnp.split(moved, (1, d + 1, 2 * d + 1))
        bend = 2 * middle - ahead - back
        cross = ahead[pairs[:, 0]] + ahead[pairs[:, 1]] - middle - both
        precision = jnp.zeros((G, d, d)).at[:, pairs[:, 0], pairs[:, 1]].set(cross.T)
        precision += precision.transpose(0, 2, 1) + jnp.eye(d) * (bend.T + absent)[:, :, None]
        return middle, 0.5 * (ahead - back).T, precision

    return local


def is_quadratic(
    terms: Terms,
    groups: EffectGroups,
    theta: Array,
    effects: Array,
    scale: Array,
    local: Local | None = None,
) -> bool:
    """Return whether the log density is quadratic in the effects: curvature constant, downwards.

    Compared are the curvatures at `effects` and at a random point about `scale` (k,) away, by
    `local`, the compiled `quadratic` of the terms if there is one.
    """
    local = import_jax().jit(quadratic(terms, groups)) if local is None else local
    away = np.random.default_rng(0).standard_normal(len(effects))
    with double_precision():
        (middle, _, here), (_, _, there) = (
            map(np.asarray, local(theta, point, scale))
            for point in (effects, effects + scale * away)
        )
    if not (np.isfinite(here).all() and eigvalsh(here).min() > 0):
        return False
    size = np.abs(here).max(axis=(1, 2)) + np.abs(middle)
    return bool(np.all(np.abs(there - here) <= CONSTANT * size[:, None, None]))


def closed_form(terms: Terms, groups: EffectGroups, effects: Array, scale: Array) -> Given:
    r"""Return the groups' marginal losses (G,) as a function of theta, for a quadratic density.

    With slope s and precision P at any point u,
    :math:`\log\int e^{T_g} = T_g(u+P^{-1}s) - \tfrac12\log|P/2\pi|`, exactly. The point `effects`
    and the steps `scale` (k,) matter for rounding only.
    """
    jax, local = import_jax(), quadratic(terms, groups)
    layout, values = _Layout(groups), _values(terms, groups)

    def losses(theta: JaxArray, effects: JaxArray, scale: JaxArray) -> JaxArray:
        _, slope, precision = local(theta, effects, scale)
        ahead, log_root = _solved(precision, slope)
        top = values(theta, layout.flat(ahead) * scale + effects)
        logs = jax.numpy.log(jax.numpy.sqrt(2 * np.pi) * scale)
        volume = jax.ops.segment_sum(logs, groups.effects, groups.count)
        marginal: JaxArray = top - log_root + volume
        return -marginal

    return Given(losses, (effects, scale))


def _solved(precision: JaxArray, slope: JaxArray) -> tuple[JaxArray, JaxArray]:
    r"""Return solutions :math:`P^{-1}s` (G, d) and :math:`\tfrac12\log|P|` (G,).

    Few effects are eliminated one by one: derivatives of a Cholesky factor compile for seconds.
    """
    jax, d = import_jax(), slope.shape[1]
    jnp = jax.numpy
    if d > ELIMINATED:
        lower = jnp.linalg.cholesky(precision)
        solution = jax.scipy.linalg.cho_solve((lower, True), slope[..., None])[..., 0]
        return solution, jnp.log(jnp.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    rows = [[precision[:, i, j] for j in range(d)] + [slope[:, i]] for i in range(d)]
    for k in range(d):
        for i in range(k + 1, d):
            ratio = rows[i][k] / rows[k][k]
            rows[i] = [a - ratio * b for a, b in zip(rows[i], rows[k], strict=True)]
    ahead: list[JaxArray] = []
    for k in reversed(range(d)):
        known = sum(a * x for a, x in zip(rows[k][k + 1 : d], ahead, strict=True))
        ahead.insert(0, (rows[k][d] - known) / rows[k][k])
    logs = [0.5 * jnp.log(rows[k][k]) for k in range(d)]
    return jnp.stack(ahead, axis=1), functools.reduce(operator.add, logs)


def _local(
    terms: Terms, groups: EffectGroups
) -> Callable[[JaxArray, JaxArray], tuple[JaxArray, JaxArray, JaxArray]]:
    """Return a function of theta and effects: groups' values, slopes (G, d), precisions (G, d, d).

    Slots that a group does not have get the precision one.
    """
    jax, layout, values = import_jax(), _Layout(groups), _values(terms, groups)
    many, absent = max(1, BUNDLE // len(groups.terms)), 1.0 - layout.present

    def local(theta: JaxArray, u: JaxArray) -> tuple[JaxArray, JaxArray, JaxArray]:
        def both(v: JaxArray) -> tuple[JaxArray, JaxArray]:
            each = values(theta, v)
            return each.sum(), each

        slope = jax.grad(both, has_aux=True)

        def column(axis: JaxArray) -> JaxArray:
            return layout.table(jax.jvp(lambda v: slope(v)[0], (u,), (axis,))[1])

        first, logs = slope(u)
        bent = jax.lax.map(column, jax.numpy.asarray(layout.axes), batch_size=many)
        own = jax.numpy.eye(groups.width) * absent[:, :, None]
        return logs, layout.table(first), own - bent.transpose(1, 2, 0)

    return local


def modes(
    terms: Terms, groups: EffectGroups
) -> Callable[[JaxArray, JaxArray], tuple[JaxArray, JaxArray]]:
    r"""Return a function of theta and effects (k,) to start from: modes (k,), and roots.

    The root (G, d, d) has :math:`RR^\top=P^{-1}`, with the precision P minus the Hessian at the
    mode. Newton steps, per group shortened until the density rises; where the density is not
    concave, along the absolute values of the Hessian's eigenvalues, effects in units of their own
    curvature.
    """
    jax, layout, local = import_jax(), _Layout(groups), _local(terms, groups)
    jnp, G, d = jax.numpy, groups.count, groups.width

    def move(theta: JaxArray, state: tuple[JaxArray, ...]) -> tuple[JaxArray, ...]:
        u, step, value, root, shorten, _, count = state
        new = u + layout.flat(shorten[:, None] * step)
        logs, slope, precision = local(theta, new)
        rises = logs >= value - 1e-12 * jnp.abs(value)
        precision = jnp.where(rises[:, None, None], precision, jnp.eye(d))
        sd = jnp.sqrt(jnp.abs(jnp.diagonal(precision, axis1=1, axis2=2)))
        sd = jnp.where(sd > 0, sd, 1.0)
        sizes, vectors = jnp.linalg.eigh(precision / sd[:, :, None] / sd[:, None, :])
        sizes = jnp.abs(sizes)
        sizes = jnp.maximum(sizes, 1e-10 * sizes.max(axis=1, keepdims=True) + 1e-100)
        made = vectors / jnp.sqrt(sizes)[:, None, :] @ vectors.transpose(0, 2, 1) / sd[:, :, None]
        half = (made.transpose(0, 2, 1) @ slope[..., None])[..., 0]
        ahead = (made @ half[..., None])[..., 0]
        gap = jnp.max(jnp.where(rises, jnp.sqrt((half**2).sum(axis=1)), jnp.inf))
        u = jnp.where(layout.flat(jnp.broadcast_to(rises[:, None], (G, d))) > 0, new, u)
        step = jnp.where(rises[:, None], ahead, step)
        root = jnp.where(rises[:, None, None], made, root)
        shorten = jnp.where(rises, jnp.minimum(1.0, 2 * shorten), shorten / 4)
        return u, step, jnp.where(rises, logs, value), root, shorten, gap, count + 1

    def mode(theta: JaxArray, effects: JaxArray) -> tuple[JaxArray, JaxArray]:
        low, unit = jnp.full(G, -1e300), jnp.broadcast_to(jnp.eye(d), (G, d, d))
        start = (jnp.asarray(effects), jnp.zeros((G, d)), low, unit, jnp.ones(G), jnp.inf, 0)
        u, _, _, root, *_ = jax.lax.while_loop(
            lambda state: (state[6] < STEPS) & (state[5] > NEAR),
            functools.partial(move, theta),
            start,
        )
        return u, root

    return mode


@dataclass(frozen=True, eq=False)
class Rule:
    """Nodes (K, G or 1, d) with the logarithms of their weights, axis by axis.

    `weights` integrate over an axis, `alone` (of the same shape) average over one that a group does
    not have.
    """

    points: Array
    weights: Array
    alone: Array

    def over(self, present: Array) -> tuple[Array, Array]:
        """Return the nodes (K, G or 1, d) and log weights (K, G) for groups' effects (G, d)."""
        return self.points, np.where(present > 0, self.weights, self.alone).sum(axis=2)

    @classmethod
    def hermite(cls, nodes: int, d: int) -> Rule:
        """Return all combinations of `nodes` Gauss-Hermite nodes on d axes, scaled to sd one."""
        points, weights = np.polynomial.hermite.hermgauss(nodes)
        at = np.stack(np.meshgrid(*[np.arange(nodes)] * d, indexing="ij"), axis=-1)
        at = at.reshape(-1, 1, d)
        whole = np.log(weights) + points**2 + 0.5 * np.log(2)
        return cls(np.sqrt(2) * points[at], whole[at], (np.log(weights) - 0.5 * np.log(np.pi))[at])

    @classmethod
    def sampled(cls, count: int, groups: EffectGroups) -> Rule:
        """Return 2 `count` normal nodes per group, in opposite pairs, wider than the mode says."""
        half = np.random.default_rng(0).standard_normal((count, groups.count, groups.width))
        points = np.concatenate([half, -half])
        log_density = -0.5 * points**2 - np.log(WIDE) - 0.5 * np.log(2 * np.pi)
        each = np.zeros_like(points)
        each[..., 0] = np.log(2 * count)
        return cls(WIDE * points, -log_density - each, -each)


def quadrature(terms: Terms, groups: EffectGroups, effects: Array, rule: Rule) -> Given:
    r"""Return the groups' marginal losses (G,) as a function of theta, by nodes around the modes.

    The nodes :math:`\hat u+Rz` follow the group's mode and its curvature. The integral does not
    depend on where they sit, so derivatives in theta are taken with the nodes held fixed: they are
    the same quadrature of the integrand's derivatives, and as exact as the values.

    The search for the modes starts at `effects` (k,).
    """
    jax, layout, values = import_jax(), _Layout(groups), _values(terms, groups)
    jnp, mode, present = jax.numpy, modes(terms, groups), layout.present
    many = max(1, BUNDLE // len(groups.terms))

    def losses(theta: JaxArray, effects: JaxArray, points: JaxArray, weights: JaxArray) -> JaxArray:
        u, root = map(jax.lax.stop_gradient, mode(jax.lax.stop_gradient(theta), effects))

        def node(point: JaxArray) -> JaxArray:
            moved = (root @ point[..., None])[..., 0] * present
            return values(theta, u + layout.flat(moved))

        at_nodes = jax.lax.map(jax.checkpoint(node), points, batch_size=many)
        volume = jnp.linalg.slogdet(root)[1]
        marginal: JaxArray = jax.scipy.special.logsumexp(at_nodes + weights, axis=0) + volume
        return -marginal

    return Given(losses, (effects, *rule.over(present)))


def laplace(terms: Terms, groups: EffectGroups, effects: Array) -> Given:
    r"""Return the groups' marginal losses (G,) as a function of theta, by Laplace's approximation.

    :math:`\log\int e^{T_g}\approx T_g(\hat u)-\tfrac12\log|P(\hat u)/2\pi|`. Two steps
    :math:`u+P_0^{-1}s(\theta,u)` from the mode, with the precision :math:`P_0` held fixed, leave it
    where it is and give it its first and second derivatives in theta: after them the distance to
    the mode of a theta nearby is of third order.
    """
    jax, layout, local = import_jax(), _Layout(groups), _local(terms, groups)
    mode, values = modes(terms, groups), _values(terms, groups)
    volume = 0.5 * np.log(2 * np.pi) * groups.sizes

    def losses(theta: JaxArray, effects: JaxArray) -> JaxArray:
        u, root = map(jax.lax.stop_gradient, mode(jax.lax.stop_gradient(theta), effects))
        slope = jax.grad(lambda v: values(theta, v).sum())
        for _ in range(2):
            half = root.transpose(0, 2, 1) @ layout.table(slope(u))[..., None]
            u = u + layout.flat((root @ half)[..., 0])
        logs, _, precision = local(theta, u)
        lower = jax.numpy.linalg.cholesky(precision)
        turned = jax.numpy.log(jax.numpy.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        marginal: JaxArray = logs - turned + volume
        return -marginal

    return Given(losses, (effects,))


@dataclass(frozen=True, eq=False)
class Marginal:
    """Effects integrated out: the groups, their losses (G,) and how these were computed.

    They are held against a more exact integral: quadrature against a `finer` rule, whose nodes
    come in parts that the same function takes, Laplace's approximation against the `reference`
    by importance sampling, which has noise of its own. Losses in closed form are exact.
    """

    groups: EffectGroups
    losses: Given
    method: str
    finer: tuple[tuple[ArrayLike, ...], ...] = ()
    reference: Given | None = None

    @property
    def exact(self) -> bool:
        """Whether the losses are the integrals themselves."""
        return not self.finer and self.reference is None


def integrated(
    terms: Terms,
    groups: EffectGroups,
    theta: Array,
    effects: Array,
    scale: Array,
    local: Local | None = None,
) -> Marginal:
    """Return the marginal losses of groups by the most exact way that is known for them.

    `theta` is where the shape of the density is looked at; `effects` and `scale` (k,) are about
    where the effects are, and how far they spread; `local` as for `is_quadratic`.
    """
    if is_quadratic(terms, groups, theta, effects, scale, local):
        return Marginal(groups, closed_form(terms, groups, effects, scale), "exactly")
    if groups.width in NODES:
        few, many = NODES[groups.width]
        losses = quadrature(terms, groups, effects, Rule.hermite(few, groups.width))
        finer = _in_parts(Rule.hermite(many, groups.width), losses, _Layout(groups).present)
        each = f"{few} nodes{' per effect' * (groups.width > 1)}"
        return Marginal(groups, losses, f"by adaptive quadrature with {each}", finer)
    sampled = quadrature(terms, groups, effects, Rule.sampled(SAMPLED, groups))
    losses = laplace(terms, groups, effects)
    return Marginal(groups, losses, "by Laplace's approximation", reference=sampled)


def _in_parts(rule: Rule, losses: Given, present: Array) -> tuple[tuple[ArrayLike, ...], ...]:
    """Return the nodes of a rule as data of losses by a smaller one, with nodes of weight zero."""
    effects, few, _ = losses.data
    points, weights = rule.over(present)
    size, count = len(np.asarray(few)), -(-len(points) // len(np.asarray(few)))
    lacking = ((0, count * size - len(points)),)
    points = np.pad(points, (*lacking, (0, 0), (0, 0)))
    weights = np.pad(weights, (*lacking, (0, 0)), constant_values=-np.inf)
    parts = zip(np.split(points, count), np.split(weights, count), strict=True)
    return tuple((effects, *part) for part in parts)


def conditional_draws(
    terms: Terms, groups: EffectGroups, effects: Array, candidates: int = CANDIDATES
) -> EffectDraws:
    r"""Return a function of theta and a random key that draws effects (k,) given data and theta.

    A group's effects are drawn from the normal :math:`N(\hat u,P^{-1})` around its mode, which is
    their conditional distribution where :math:`T_g` is quadratic. Elsewhere one of several
    candidates from a wider normal is taken with probability in proportion to
    :math:`e^{T_g}` over the candidates' density (sampling importance resampling).

    References
    ----------
    Rubin, D. B. (1988). Using the SIR algorithm to simulate posterior distributions. In Bayesian
    Statistics 3, 395-402.
    """
    jax, layout, values = import_jax(), _Layout(groups), _values(terms, groups)
    jnp, mode, present = jax.numpy, modes(terms, groups), layout.present
    wide = WIDE if candidates > 1 else 1.0

    def draw(theta: JaxArray, key: JaxArray) -> JaxArray:
        u, root = mode(theta, jnp.asarray(effects))
        noise, choice = jax.random.split(key)
        shape = (candidates, groups.count, groups.width)
        points = wide * jax.random.normal(noise, shape) * present

        def moved(point: JaxArray) -> JaxArray:
            return u + layout.flat((root @ point[..., None])[..., 0])

        if candidates == 1:
            return moved(points[0])
        logs = jax.lax.map(lambda point: values(theta, moved(point)), points)
        logs += 0.5 * jnp.square(points / wide).sum(axis=2)
        taken = jax.random.categorical(choice, logs, axis=0)
        return moved(jnp.take_along_axis(points, taken[None, :, None], axis=0)[0])

    return draw
