r"""Influences of observations on posterior means, from draws and pointwise losses.

In coordinates z in which the draws have mean 0 and covariance I, the score of a loss is its
regression slope :math:`s_i=\mathrm{cov}_d(z,\ell_i)` and its influence :math:`M^{-1}s_i`, with M
the curvature of the total loss. Everything is computed by batch of draws: deviations of batches
from their mean say how noisy it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from etafree import linalg
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.linalg import correlation_eigenvalues
from etafree.row_losses import RowLosses
from etafree.sums import Groups
from etafree.validation import Array

__all__ = [
    "PointwiseArray",
    "PointwiseLosses",
    "Slopes",
    "batch_edges",
    "curvature",
    "find_slopes",
    "scores_by_batch",
    "total_losses",
]

#: Batches of draws, how few are enough, and how many effective draws one should hold.
BATCHES, FEWEST, PER_BATCH = 40, 8, 10
#: Numbers read at a time, and numbers that all batches together may hold (half a GB).
BLOCK, HELD = 1 << 23, 1 << 26
#: Condition of parameters' correlation from which on they do not help to find slopes.
COLLINEAR = 1e8


class PointwiseLosses(Protocol):
    """Losses of n observations at every draw, read in blocks of draws."""

    @property
    def n(self) -> int:
        """Number of observations."""

    def blocks(self, most: int) -> Iterator[Array]:
        """Yield the losses (draws, n) of consecutive draws, chain after chain, `most` at most."""


@dataclass(frozen=True, eq=False)
class PointwiseArray:
    """Losses (draw, n) of a log-likelihood that is in memory and stays as it is.

    Examples
    --------
    >>> next(PointwiseArray(np.array([[-1.0, -3.0]])).blocks(10))
    array([[1., 3.]])
    """

    log_likelihood: NDArray[np.floating]

    @property
    def n(self) -> int:
        """Number of observations."""
        return int(self.log_likelihood.shape[1])

    def blocks(self, most: int) -> Iterator[Array]:
        """Yield the losses of consecutive draws."""
        for first in range(0, len(self.log_likelihood), most):
            yield np.negative(self.log_likelihood[first : first + most], dtype=np.float64)


def _checked(losses: PointwiseLosses, draws: int) -> Iterator[Array]:
    """Yield blocks of losses that are finite and as many as the draws."""
    left = draws
    for block in losses.blocks(max(1, BLOCK // losses.n)):
        left -= len(block)
        if block.ndim != 2 or block.shape[1] != losses.n or left < 0:
            raise InputError("log_likelihood", "does not have the posterior's chains and draws",
                             "compute it again from these draws")  # fmt: skip
        if not np.isfinite(block.sum()) and not np.isfinite(block).all():
            bad = np.flatnonzero(~np.isfinite(block).all(axis=0))
            raise InputError(
                "log_likelihood", f"is not finite at {len(bad)} observation(s), the first at "
                f"position {bad[0]}", "drop them, or mend the likelihood",
            )  # fmt: skip
        yield block
    if left:
        raise InputError("log_likelihood", f"has {draws - left} draws, the parameters {draws}",
                         "compute it again from these draws")  # fmt: skip


def total_losses(losses: PointwiseLosses | RowLosses, draws: int) -> Array:
    """Return the total loss of every draw (D,), up to a constant."""
    if isinstance(losses, RowLosses):
        return losses.totals
    return np.concatenate(
        [block.sum(axis=1, dtype=np.float64) for block in _checked(losses, draws)]
    )


def batch_edges(draws: Draws, size: int) -> NDArray[np.intp]:
    """Return where batches start and end: parts of chains, long against autocorrelation.

    `size` is how many numbers a batch has to hold.
    """
    chains, length, _ = draws.values.shape
    room = min(BATCHES, draws.effective_size() / PER_BATCH, HELD / size)
    each = min(max(int(room) // chains, -(-FEWEST // chains)), max(1, length // 2))
    if each * chains < 2:
        raise InputError("draws", f"are {length} in {chains} chain(s)", "draw more")
    inner = np.linspace(0, length, each + 1).astype(np.intp)[:-1]
    starts = (np.arange(chains)[:, None] * length + inner).reshape(-1)
    return np.append(starts, chains * length)


def scores_by_batch(
    z: Array, losses: PointwiseLosses | RowLosses, groups: Groups, edges: NDArray[np.intp]
) -> Array:
    """Return the covariances of z (D, p) with groups' losses by batch (K, G, p), centred.

    Their mean over batches is the covariance with divisor D - 1, less the share of the total that
    a group's observations make up.

    Examples
    --------
    >>> z = np.array([[-1.0], [1.0], [-1.0], [1.0]])
    >>> losses = PointwiseArray(-z * [1.0, 3.0])
    >>> g = Groups(np.arange(2), np.arange(2))
    >>> scores_by_batch(z, losses, g, np.array([0, 2, 4])).mean(axis=0) * 3 / 4
    array([[-1.],
           [ 1.]])
    """
    many, p = z.shape
    deviation = z - z.mean(axis=0)
    if isinstance(losses, RowLosses):
        made = losses.group_scores(deviation, groups, edges)
        weight = groups.weights(losses.total.weights)
        made -= made.sum(axis=2, keepdims=True) * (weight / weight.sum())
        return made.transpose(0, 2, 1)
    out = np.zeros((len(edges) - 1, p, len(groups)))
    total, product = np.zeros(losses.n), np.zeros((p, losses.n))
    start, batch, shift = 0, 0, None
    for block in _checked(losses, many):
        shift = block[0].astype(np.float64) if shift is None else shift
        block = block - shift  # keeps digits when losses are large and vary little
        total += block.sum(axis=0)
        while len(block):
            step = min(len(block), int(edges[batch + 1]) - start)
            product += deviation[start : start + step].T @ block[:step]
            start, block = start + step, block[step:]
            if start == edges[batch + 1]:
                out[batch] = [group_sums(column, groups) for column in product]
                product[:] = 0.0
                batch += 1
    level = group_sums(total / many, groups)
    share = group_sums(np.full(losses.n, 1 / losses.n), groups)
    lean = np.add.reduceat(deviation, edges[:-1], axis=0)
    for part, tilt in zip(out, lean, strict=True):
        part -= tilt[:, None] * level
        part *= len(out) / (many - 1)
        part -= part.sum(axis=1, keepdims=True) * share
    return out.transpose(0, 2, 1)


def group_sums(values: Array, groups: Groups) -> Array:
    """Return sums over groups."""
    return np.bincount(groups.codes, values, len(groups)).astype(np.float64, copy=False)


class Curvature(NamedTuple):
    r"""Curvature (p, p) of an energy over draws of covariance I, and changes by batch (K, p, p).

    It should be I, too: `agrees` says whether it is, within what the noise of the draws' covariance
    allows (:math:`3(p/\mathrm{ESS})^{1/2}` in logarithms of `eigenvalues`).
    """

    matrix: Array
    changes: Array
    eigenvalues: Array
    agrees: bool


def curvature(z: Array, energy: Array, edges: NDArray[np.intp], ess: float) -> Curvature | None:
    """Return the curvature of an energy over draws (D, p), None if they do not determine it.

    The second-order part of a quadratic regression, exact where the energy is quadratic.
    """
    many, p = z.shape
    rows, columns = np.tril_indices(p)
    size = 1 + p + len(rows)
    if 8 * size > ess:
        return None
    centred = z - z.mean(axis=0)
    design = np.empty((many, size))
    design[:, 0], design[:, 1 : p + 1] = 1.0, centred
    np.multiply(centred[:, rows], centred[:, columns], out=design[:, p + 1 :])
    value = energy - energy.mean()
    gram = design.T @ design
    if linalg.safe_factor(gram) is None:  # a variable is a square of another, or has two values
        return None
    found = linalg.solve(gram, design.T @ value, "draws")
    rest = value - design @ found
    parts = np.add.reduceat(design * rest[:, None], edges[:-1], axis=0) * (len(edges) - 1)
    changes = linalg.solve(gram, parts.T, "draws").T
    matrix = _symmetric(found[p + 1 :], rows, columns, p)
    eigenvalues = linalg.eigvalsh(matrix, "curvature")
    room = 3 * np.sqrt(p / ess)
    agrees = eigenvalues[0] > 0 and np.abs(np.log(eigenvalues)).max() <= room
    each = np.array([_symmetric(c[p + 1 :], rows, columns, p) for c in changes])
    return Curvature(matrix, each, eigenvalues, bool(agrees))


def _symmetric(entries: Array, rows: Any, columns: Any, p: int) -> Array:
    """Return the second derivatives of a quadratic from its coefficients."""
    out = np.zeros((p, p))
    out[rows, columns] += entries
    out[columns, rows] += entries
    return out


class Slopes(NamedTuple):
    """Coordinates (D, p) of the draws for slopes, batches of draws, and what slopes lead to.

    `spread` is the inverse Hessian of the reported parameters; `found` the curvature of the total
    loss over the draws, which is used where it agrees with theirs.
    """

    z: Array
    edges: NDArray[np.intp]
    spread: Array
    report: Array
    turns: Array | None
    found: Curvature | None

    def influences(self, scores: Array) -> Array:
        """Return influences (K, g, q) on the reported parameters of scores (K, g, p) by batch.

        To first order: what a batch says of slopes and curvature, others as they are. The scores
        are overwritten.
        """
        if self.turns is None:
            scores *= self.report
            return scores
        mean, q = scores.mean(axis=0), self.report.shape[1]
        out = scores if q == scores.shape[2] else np.empty((*scores.shape[:2], q))
        for made, part, turn in zip(out, scores, self.turns, strict=True):
            made[:] = (part - mean @ turn) @ self.report
        return out


def find_slopes(
    draws: Draws, losses: PointwiseLosses | RowLosses, held: int, eta: float,
    every: Draws | None = None,
) -> Slopes:  # fmt: skip
    """Return how influences on these parameters are found; a batch holds so many of them.

    Slopes are over the parameters to report and the others in `every`. What is computed from
    parameters is no parameter: the total loss has no curvature of its own along it, and so does not
    agree with the draws. Sets of the others are tried until both agree.
    """
    energy, found = eta * total_losses(losses, len(draws)), None
    for full in _together(draws, every):
        edges = batch_edges(full, held * full.p)
        lower = linalg.cholesky(full.covariance(), "draws")
        z = (full.array - full.mean) @ linalg.inv(lower, "draws").T
        found = curvature(z, energy, edges, full.effective_size())
        if found is not None and found.agrees:
            break
    if found is None or not found.agrees:
        edges = batch_edges(draws, held * draws.p)
        return Slopes(draws.array, edges, eta * draws.covariance(), np.array(eta), None, found)
    inverse = linalg.inv(found.matrix, "curvature")
    many = (len(edges) - 1) / (len(z) - 1)
    own = np.array([z[first:last].T @ z[first:last] * many for first, last in pairwise(edges)])
    spread = (eta * lower @ inverse @ lower.T)[: draws.p, : draws.p]
    report = eta * inverse @ lower.T[:, : draws.p]
    return Slopes(z, edges, spread, report, own - np.eye(full.p) + inverse @ found.changes, found)


def _together(draws: Draws, every: Draws | None) -> Iterator[Draws]:
    """Yield these parameters with all others, without one variable, without several, alone.

    Packages store what is computed after the parameters, so the last are left out first.
    """
    others = {} if every is None else _others(draws, every)
    known = list(dict.fromkeys(map(_variable, others)))
    without = [known, *([name for name in known if name != one] for one in reversed(known))]
    without += [known[:k] for k in range(len(known) - 2, 0, -1)]
    for variables in filter(None, without):
        chosen = {name: x for name, x in others.items() if _variable(name) in variables}
        values = [*draws.values.transpose(2, 0, 1), *chosen.values()]
        full = Draws(np.stack(values, axis=2), (*draws.names, *chosen))
        eigenvalues, _ = correlation_eigenvalues(np.cov(full.array.T))
        if eigenvalues[0] * COLLINEAR > eigenvalues[-1]:
            yield full
    yield draws


def _variable(entry: str) -> str:
    """Return the variable that an entry is of: ``beta`` for ``beta[0]``."""
    return entry.partition("[")[0]


def _others(draws: Draws, every: Draws) -> dict[str, Array]:
    """Return other parameters (chain, draw) by name, standardised, as many as a curvature takes.

    Left out is what is not finite, constant, or a linear combination of those before, and variables
    with more entries than that.
    """
    many, shape, found = len(draws), draws.values.shape[:2], {}
    most, basis = int(np.sqrt(many / 4)), np.empty((0, many))
    lengths = Counter(map(_variable, every.names))
    short = [name for name in every.names if lengths[_variable(name)] <= most]
    for name in dict.fromkeys((*draws.names, *short)):
        column = (draws if name in draws.names else every)[name]
        if len(basis) >= most:
            break
        if not np.isfinite(column).all() or np.ptp(column) <= 1e-14 * np.abs(column).max():
            continue
        column = column / np.abs(column).max()
        column = (column - column.mean()) / column.std()
        rest = column - (basis @ column) @ basis
        length = np.square(rest).sum()
        if length * COLLINEAR > many:
            basis = np.vstack([basis, rest / np.sqrt(length)])
            if name not in draws.names:
                found[name] = column.reshape(shape)
    return found
