r"""Marginal likelihoods of groups: effects integrated out of a joint log density.

A joint log density comes as a vector of terms :math:`t_i(\theta, u)`, one per observation and one
per factor of the effects' own density. Terms that share an effect belong to the same group, and
the loss of group g is

.. math:: -\log\int \exp\{T_g(\theta, u_g)\}\,du_g, \qquad T_g = \sum_{i\in g} t_i.

Where :math:`T_g` is quadratic in :math:`u_g`, as in linear models with Gaussian effects, its slope
and precision at any point give the integral in closed form. A single effect per group is integrated
by adaptive Gauss-Hermite quadrature around the mode.

References
----------
Pinheiro, J. C. and Bates, D. M. (1995). Approximations to the log-likelihood function in the
nonlinear mixed-effects model. J. Comput. Graph. Statist. 4, 12-35. Liu, Q. and Pierce, D. A.
(1994). A note on Gauss-Hermite quadrature. Biometrika 81, 624-629.
"""

from __future__ import annotations

import functools
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
    from scipy.sparse import csr_array

    #: A function of a vector, written in JAX.
    Function = Callable[[JaxArray], JaxArray]
    #: Terms (N,) of a joint log density, of parameters (p,) and effects (k,).
    Terms = Callable[[JaxArray | Array, JaxArray], JaxArray]

#: Numbers that the passes of one bundle write.
BUNDLE = 1 << 20
#: Steps to a group's mode, and how near to it in standard deviations is near enough.
STEPS, NEAR = 100, 1e-8
#: How far a quadratic may be from itself, relative.
CONSTANT = 1e-8


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


def touch(function: Function, point: Array) -> csr_array:
    """Return which entries of a function depend on which of its argument: sparse ones (N, k).

    Forward mode tells at `point`, which should not be a special one.
    """
    from scipy.sparse import coo_array

    jax = import_jax()
    with double_precision():
        point = jax.numpy.asarray(point)
        n = jax.eval_shape(function, point).shape[0]

        def along(axes: JaxArray) -> JaxArray:
            touched: JaxArray = jax.vmap(lambda a: jax.jvp(function, (point,), (a,))[1] != 0)(axes)
            return touched

        compiled, k, step = jax.jit(along), len(point), max(1, min(len(point), BUNDLE // n))
        terms, effects = [], []
        for first in range(0, k, step):
            axes = np.eye(step, k, first)  # zero below the last
            columns, rows = np.nonzero(np.asarray(compiled(axes)))
            terms.append(rows)
            effects.append(columns + first)
    entries = (np.concatenate(terms), np.concatenate(effects))
    return coo_array((np.ones(len(entries[0])), entries), shape=(n, k)).tocsr()


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


def _quadratic(
    terms: Terms, groups: EffectGroups, effects: Array, scale: Array
) -> Callable[[JaxArray], tuple[JaxArray, JaxArray, JaxArray]]:
    """Return a function of theta: groups' values, slopes (G, d) and precisions (G, d, d).

    By differences, which are exact for a quadratic; the j-th effects of all groups move at once, as
    groups do not meet.
    """
    jax = import_jax()
    jnp, G, d, values = jax.numpy, groups.count, groups.width, _values(terms, groups)
    there = groups.effects < G
    steps = np.zeros((d, len(effects)))
    steps[groups.slots[there], np.flatnonzero(there)] = scale[there]
    pairs = np.column_stack(np.tril_indices(d, -1))
    moves = np.vstack([np.zeros((1, len(effects))), steps, -steps, steps[pairs].sum(axis=1)])
    absent = np.ones((G, d))
    absent[groups.effects[there], groups.slots[there]] = 0.0
    many = max(1, BUNDLE // len(groups.terms))

    def local(theta: JaxArray) -> tuple[JaxArray, JaxArray, JaxArray]:
        moved = jax.lax.map(lambda move: values(theta, effects + move), moves, batch_size=many)
        (middle,), ahead, back, both = jnp.split(moved, (1, d + 1, 2 * d + 1))
        bend = 2 * middle - ahead - back
        cross = ahead[pairs[:, 0]] + ahead[pairs[:, 1]] - middle - both
        precision = jnp.zeros((G, d, d)).at[:, pairs[:, 0], pairs[:, 1]].set(cross.T)
        precision += precision.transpose(0, 2, 1) + jnp.eye(d) * (bend.T + absent)[:, :, None]
        return middle, 0.5 * (ahead - back).T, precision

    return local


def is_quadratic(
    terms: Terms, groups: EffectGroups, theta: Array, effects: Array, scale: Array
) -> bool:
    """Return whether the log density is quadratic in the effects: curvature constant, downwards.

    Compared are the curvatures at `effects` and at a random point about `scale` (k,) away.
    """
    jit, away = import_jax().jit, np.random.default_rng(0).standard_normal(len(effects))
    with double_precision():
        (middle, _, here), (_, _, there) = (
            map(np.asarray, jit(_quadratic(terms, groups, point, scale))(theta))
            for point in (effects, effects + scale * away)
        )
    if not (np.isfinite(here).all() and eigvalsh(here).min() > 0):
        return False
    size = np.abs(here).max(axis=(1, 2)) + np.abs(middle)
    return bool(np.all(np.abs(there - here) <= CONSTANT * size[:, None, None]))


def closed_form(terms: Terms, groups: EffectGroups, effects: Array, scale: Array) -> Function:
    r"""Return the groups' marginal losses (G,) as a function of theta, for a quadratic density.

    With slope s and precision P at any point,
    :math:`\log\int e^{T_g} = T_g + \tfrac12 s^\top P^{-1}s - \tfrac12\log|P/2\pi|`, exactly.
    The point `effects` and the steps `scale` (k,) matter for rounding only.
    """
    jax, local = import_jax(), _quadratic(terms, groups, effects, scale)
    volume = np.bincount(groups.effects, np.log(np.sqrt(2 * np.pi) * scale), groups.count + 1)[:-1]

    def losses(theta: JaxArray) -> JaxArray:
        middle, slope, precision = local(theta)
        lower = jax.numpy.linalg.cholesky(precision)
        half = jax.scipy.linalg.solve_triangular(lower, slope[..., None], lower=True)[..., 0]
        logs = jax.numpy.log(jax.numpy.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        marginal: JaxArray = middle + 0.5 * (half**2).sum(axis=1) - logs + volume
        return -marginal

    return losses


def gauss_hermite(terms: Terms, groups: EffectGroups, effects: Array, nodes: int = 25) -> Function:
    r"""Return the groups' marginal losses (G,) as a function of theta, for one effect per group.

    Nodes sit around the group's mode :math:`\hat u`, scaled by its curvature. The integral does not
    depend on where they sit, so derivatives in theta are taken with the nodes held fixed: they are
    the same quadrature of the integrand's derivatives, and as exact as the values.

    `groups` have one effect each at most; the search for the modes starts at `effects` (k,).
    """
    jax = import_jax()
    jnp, G, values = jax.numpy, groups.count, _values(terms, groups)
    points, weights = np.polynomial.hermite.hermgauss(nodes)
    log_weights = np.log(weights) + points**2

    def spread(per_group: JaxArray) -> JaxArray:
        per_effect: JaxArray = jnp.append(per_group, 0.0)[groups.effects]
        return per_effect

    def mode(theta: JaxArray) -> tuple[JaxArray, JaxArray]:
        """Newton steps, per group shortened until the density rises."""

        def both(v: JaxArray) -> tuple[JaxArray, JaxArray]:
            each = values(theta, v)
            return each.sum(), each

        def move(state: tuple[JaxArray, ...]) -> tuple[JaxArray, ...]:
            u, step, value, bend, shorten, _, count = state
            new = u + spread(shorten * step)
            (slopes, logs), (bends, _) = jax.jvp(
                jax.grad(both, has_aux=True), (new,), (jnp.ones(len(u)),)
            )
            slope, curve = (
                jnp.zeros(G).at[groups.effects].set(m, mode="drop") for m in (slopes, bends)
            )
            down = curve < 0
            ahead = jnp.where(down, -slope / jnp.where(down, curve, 1.0), jnp.sign(slope))
            rises = logs >= value - 1e-12 * jnp.abs(value)
            keep = functools.partial(jnp.where, rises)
            bend = keep(jnp.where(down, -curve, 2.0), bend)
            gap = jnp.max(keep(jnp.abs(ahead) * jnp.sqrt(bend), jnp.inf))
            shorten = keep(jnp.minimum(1.0, 2 * shorten), shorten / 4)
            u = jnp.where(spread(rises) > 0, new, u)
            return u, keep(ahead, step), keep(logs, value), bend, shorten, gap, count + 1

        unit, low = jnp.ones(G), jnp.full(G, -1e300)
        start = (jnp.asarray(effects), 0 * unit, low, unit, unit, jnp.inf, 0)
        u, _, _, bend, *_ = jax.lax.while_loop(
            lambda state: (state[6] < STEPS) & (state[5] > NEAR), move, start
        )
        return u, jnp.sqrt(2.0 / bend)

    def losses(theta: JaxArray) -> JaxArray:
        u, scale = (jax.lax.stop_gradient(m) for m in mode(jax.lax.stop_gradient(theta)))

        def node(point: JaxArray) -> JaxArray:
            return values(theta, u + spread(point * scale))

        many = max(1, BUNDLE // len(groups.terms))
        at_nodes = jax.lax.map(jax.checkpoint(node), jnp.asarray(points), batch_size=many)
        whole = jax.scipy.special.logsumexp(at_nodes + log_weights[:, None], axis=0)
        marginal: JaxArray = jnp.where(groups.sizes > 0, whole + jnp.log(scale), at_nodes[0])
        return -marginal

    return losses
