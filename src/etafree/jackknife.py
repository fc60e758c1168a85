r"""The target from draws and pointwise losses alone: the infinitesimal jackknife.

Whoever stored the pointwise log-likelihood of a fit has the influence of every observation on the
posterior mean,

.. math:: I_i = \eta\,\mathrm{cov}_d(\theta, \ell_i) = A^{-1}s_i,\qquad
   A^{-1} = \eta S,\quad s_i = S^{-1}\mathrm{cov}_d(\theta,\ell_i),

the regression slope of a loss on the draws being its score. Centred sums of influences over
clusters, ways, strata or periods give the sandwich. Slopes are over all parameters; those that are
not reported drop out of the answer, not out of the computation.

Two kinds of noise are taken off. The draws' covariance S is known to :math:`(2/D)^{1/2}` only; a
quadratic regression of the *total* loss on the draws gives A almost without noise, and replaces
:math:`(\eta S)^{-1}` where the two agree within the noise of S, that is, unless the prior or the
shape of the posterior matters. And squares of noise add up over observations (a relative bias of
(p + 1)/D for independent draws): the draws are cut into K batches with influences :math:`I_{ib}` of
mean :math:`I_i`, and the same quadratic form Q of the batches' deviations is subtracted,
:math:`Q(I)-\sum_b Q(I_b-I)/\{K(K-1)\}`, which holds for autocorrelated chains too. The same batches
give the Monte Carlo error of every standard error.

In coordinates z in which the draws have mean 0 and covariance I, scores are
:math:`\mathrm{cov}_d(z,\ell_i)` and influences :math:`M^{-1}s_i`, with M the curvature of the total
loss. Losses of a criterion's rows are computed for a block of rows at a time, and summed.

References
----------
Giordano, R. and Broderick, T. (2023). The Bayesian infinitesimal jackknife for variance.
arXiv:2305.06466.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.dependence.base import Dependence, Form, GroupScores, Meat, finish
from etafree.dependence.clusters import Independent
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_positive
from etafree.foundation.check import Finding
from etafree.foundation.terminal import counted_noun
from etafree.foundation.threads import own_settings
from etafree.optimize.many import outer_products, unpacked
from etafree.target import Target
from etafree.totals.linear import (
    BLOCK,
    COMPILE_FROM,
    LinearTotal,
    PredictorTotal,
    add_group_sums,
    row_blocks,
)

NAME = "infinitesimal jackknife"
FEWER = "report fewer parameters (var_names= of a fit, Draws.select() of draws)"
#: Losses that are held at a time: what fits the outer cache.
HELD_LOSSES = 1 << 17
#: Batches of draws, how few are enough, and how many effective draws one should hold.
BATCHES, FEWEST, PER_BATCH = 40, 8, 10
#: Numbers read at a time, and numbers that all batches together may hold (half a GB).
READ_NUMBERS, HELD = 1 << 23, 1 << 26
#: Condition of parameters' correlation from which on they do not help to find slopes.
COLLINEAR = 1e8
#: Where batches of draws start, and the last ends.
Edges = NDArray[np.intp]


class PointwiseLosses(Protocol):
    """Losses of n observations at every draw, read in blocks of draws."""

    @property
    def n(self) -> int:
        """Number of observations."""

    def blocks(self, most: int) -> Iterator[Array]:
        """Yield the losses (draws, n) of consecutive draws, chain after chain, `most` at most."""


@dataclass(frozen=True, eq=False)
class PointwiseArray:
    """Losses (draw, n) of a log-likelihood that is in memory and stays as it is."""

    log_likelihood: NDArray[np.floating]

    @property
    def n(self) -> int:
        """Number of observations."""
        return int(self.log_likelihood.shape[1])

    def blocks(self, most: int) -> Iterator[Array]:
        """Yield the losses of consecutive draws."""
        for first in range(0, len(self.log_likelihood), most):
            yield np.negative(self.log_likelihood[first : first + most], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class RowLosses:
    """Losses of a total over a linear predictor at draws (D, p), in memory or read in parts."""

    # Steps of a pass may be sent to other machines: they hold arrays, and never the total.
    total: PredictorTotal
    thetas: Array
    rows: Rows
    estimand: str = ""
    findings: tuple[Finding, ...] = ()

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.total.n

    @cached_property
    def totals(self) -> Array:
        """Every draw's total loss less the first draw's, which keeps digits; a pass."""
        thetas = self.thetas

        def add(part: LinearTotal, out: Array) -> None:
            losses = part.totals(thetas)
            with np.errstate(invalid="ignore"):  # refused below
                out += losses - losses[0]

        (totals,) = self.total.fold(add, np.zeros(len(thetas)))
        if not np.isfinite(totals).all():
            self.total.fold(lambda part: _refuse_infinite(part, thetas))
        return np.asarray(totals)

    def scores_by_batch(self, deviation: Array, groups: Groups, edges: Edges) -> Array:
        """Return what the function of this name does, by a pass over the rows."""
        thetas, batches, p = self.thetas, len(edges) - 1, deviation.shape[1]
        compiled = self.total.n * batches * p >= COMPILE_FROM

        def add(part: LinearTotal, out: Array) -> None:
            codes = part.codes(groups)
            for rows, losses in blocks_of_rows(part, thetas):
                products = batch_products(deviation, losses, edges).reshape(batches * p, -1)
                flat = np.ascontiguousarray(products.T)
                add_group_sums(out, codes[rows], np.ones(len(flat)), flat, compiled)

        (sums,) = self.total.fold(add, np.zeros((len(groups), batches * p)), groups=groups)
        scores: Array = sums.reshape(len(groups), batches, p).transpose(1, 0, 2)
        weight = groups.weights(self.total.weights)
        scores -= scores.sum(axis=1, keepdims=True) * (weight / weight.sum())[:, None]
        return scores


Losses = PointwiseLosses | RowLosses


def blocks_of_rows(part: LinearTotal, thetas: Array) -> Iterator[tuple[slice, Array]]:
    """Yield rows and their weighted losses (D, m) at every draw."""
    for rows in row_blocks(part.n, max(1, BLOCK * len(thetas) // HELD_LOSSES)):
        u = thetas @ part.X[rows].T
        if part.offset is not None:
            u += part.offset[rows]
        losses = part.loss.values(u, part.y[rows])
        if part.weights is not None:
            w = part.weights[rows]
            losses[:, w == 0] = 0.0
            losses *= w
        yield rows, losses


def _refuse_infinite(part: LinearTotal, thetas: Array) -> None:
    for rows, losses in blocks_of_rows(part, thetas):
        bad = np.flatnonzero(~np.isfinite(losses).all(axis=0))
        if len(bad):
            problem = f"is not finite at row {part.first + rows.start + bad[0]}"
            raise InputError("log_likelihood", problem, "drop it, or use a loss finite there")


def batch_products(deviation: Array, losses: Array, edges: Edges) -> Array:
    """Return covariances of centred draws (D, p) with losses (D, m) by batch, (K, p, m)."""
    (many, p), batches = deviation.shape, len(edges) - 1
    centred = losses - np.full(many, 1 / many) @ losses
    if np.ptp(np.diff(edges)) == 0:
        cut = deviation.reshape(batches, -1, p).transpose(0, 2, 1)
        products: Array = cut @ centred.reshape(batches, many // batches, -1)
    else:
        products = np.stack([deviation[a:b].T @ centred[a:b] for a, b in pairwise(edges.tolist())])
    products *= batches / (many - 1)
    return products


def _checked(losses: PointwiseLosses, draws: int) -> Iterator[Array]:
    """Yield blocks of losses that are finite and as many as the draws."""
    left, advice = draws, "compute it again from these draws"
    for block in losses.blocks(max(1, READ_NUMBERS // losses.n)):
        left -= len(block)
        if block.ndim != 2 or block.shape[1] != losses.n or left < 0:
            problem = "does not have the posterior's chains and draws"
            raise InputError("log_likelihood", problem, advice)
        if not np.isfinite(block.sum()) and not np.isfinite(block).all():
            bad = np.flatnonzero(~np.isfinite(block).all(axis=0))
            places = counted_noun(len(bad), "observation")
            problem = f"is not finite at {places}, the first at position {bad[0]}"
            raise InputError("log_likelihood", problem, "drop them, or mend the likelihood")
        yield block
    if left:
        problem = f"has {draws - left} draws, the parameters {draws}"
        raise InputError("log_likelihood", problem, advice)


def total_losses(losses: Losses, draws: int) -> Array:
    """Return the total loss of every draw (D,), up to a constant."""
    if isinstance(losses, RowLosses):
        return losses.totals
    return np.concatenate([b.sum(axis=1, dtype=np.float64) for b in _checked(losses, draws)])


def batch_edges(draws: Draws, size: int) -> Edges:
    """Return edges of batches of `size` numbers, parts of chains longer than autocorrelation."""
    chains, length, _ = draws.values.shape
    room = min(BATCHES, draws.ess / PER_BATCH, HELD / size)
    each = min(max(int(room) // chains, -(-FEWEST // chains)), max(1, length // 2))
    if each * chains < 2:
        raise InputError("draws", f"are {length} in {counted_noun(chains, 'chain')}", "draw more")
    inner = np.linspace(0, length, each + 1).astype(np.intp)[:-1]
    starts = (np.arange(chains)[:, None] * length + inner).reshape(-1)
    return np.append(starts, chains * length)


def scores_by_batch(z: Array, losses: Losses, groups: Groups, edges: Edges) -> Array:
    """Return covariances of z (D, p) with groups' losses by batch (K, G, p), less their share."""
    many, p = z.shape
    deviation = z - z.mean(axis=0)
    if isinstance(losses, RowLosses):
        return losses.scores_by_batch(deviation, groups, edges)
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
                out[batch] = [groups.weights(column) for column in product]
                product[:] = 0.0
                batch += 1
    level = groups.weights(total / many)
    share = groups.weights(np.full(losses.n, 1 / losses.n))
    lean = np.add.reduceat(deviation, edges[:-1], axis=0)
    for scores, tilt in zip(out, lean, strict=True):
        scores -= tilt[:, None] * level
        scores *= len(out) / (many - 1)
        scores -= scores.sum(axis=1, keepdims=True) * share
    return out.transpose(0, 2, 1)


class Curvature(NamedTuple):
    """Curvature of an energy over draws of covariance I, which should be I, too."""

    matrix: Array  # (p, p)
    changes: Array  # by batch (K, p, p)
    eigenvalues: Array
    agrees: bool  # within the noise of the draws' covariance


def curvature(z: Array, energy: Array, edges: Edges, ess: float) -> Curvature | None:
    """Return the curvature by a quadratic regression on draws (D, p), None if undetermined."""
    many, p = z.shape
    if 8 * (1 + p + p * (p + 1) // 2) > ess:
        return None
    centred, value = z - z.mean(axis=0), energy - energy.mean()
    design = np.column_stack([np.ones(many), centred, outer_products(centred)])
    gram = design.T @ design
    if linalg.safe_factor(gram) is None:  # a variable is a square of another, or has two values
        return None
    coefficients = linalg.solve(gram, design.T @ value, "draws")
    terms = design * (value - design @ coefficients)[:, None]
    sums = np.add.reduceat(terms, edges[:-1], axis=0) * (len(edges) - 1)
    changes = linalg.solve(gram, sums.T, "draws").T
    second = unpacked(np.vstack([coefficients, changes])[:, p + 1 :], p) * (1 + np.eye(p))
    eigenvalues = linalg.eigvalsh(second[0], "curvature")
    room = 3 * np.sqrt(p / ess)  # three errors of the logarithm of an eigenvalue
    agrees = eigenvalues[0] > 0 and np.abs(np.log(eigenvalues)).max() <= room
    return Curvature(second[0], second[1:], eigenvalues, bool(agrees))


class Slopes(NamedTuple):
    """What makes influences of scores."""

    z: Array  # coordinates (D, p) of the draws
    edges: Edges
    spread: Array  # inverse Hessian of the reported parameters
    report: Array  # takes scores to influences on them
    turns: Array | None  # first-order changes by batch (K, p, p), where the curvature is used
    curvature: Curvature | None  # of the total loss over the draws

    def influences(self, scores: Array) -> Array:
        """Return influences (K, g, q) of scores (K, g, p), to first order; it overwrites scores."""
        if self.turns is None:
            scores *= self.report
            return scores
        mean, q = scores.mean(axis=0), self.report.shape[1]
        out = scores if q == scores.shape[2] else np.empty((*scores.shape[:2], q))
        for influence, score, turn in zip(out, scores, self.turns, strict=True):
            influence[:] = (score - mean @ turn) @ self.report
        return out


def find_slopes(
    draws: Draws, losses: Losses, groups: int, eta: float, every: Draws | None = None
) -> Slopes:
    """Return the slopes for influences of so many groups, over these parameters and others."""
    energy, bend = eta * total_losses(losses, len(draws)), None
    for full in _together(draws, every):  # what is computed from parameters has no curvature
        edges = batch_edges(full, groups * full.p)
        lower = linalg.cholesky(full.covariance(), "draws")
        z = (full.array - full.mean) @ linalg.inv(lower, "draws").T
        bend = curvature(z, energy, edges, full.ess)
        if bend is not None and bend.agrees:
            break
    if bend is None or not bend.agrees:
        edges = batch_edges(draws, groups * draws.p)
        return Slopes(draws.array, edges, eta * draws.covariance(), np.array(eta), None, bend)
    inverse = linalg.inv(bend.matrix, "curvature")
    own = batch_products(z, z, edges)
    spread = (eta * lower @ inverse @ lower.T)[: draws.p, : draws.p]
    report = eta * inverse @ lower.T[:, : draws.p]
    return Slopes(z, edges, spread, report, own - np.eye(full.p) + inverse @ bend.changes, bend)


def _together(draws: Draws, every: Draws | None) -> Iterator[Draws]:
    """Yield these parameters with all others, without one variable, without several, alone."""
    # packages store what is computed after the parameters, so the last are left out first
    others = {} if every is None else _others(draws, every)
    names = list(dict.fromkeys(map(_variable, others)))
    subsets = [names, *([name for name in names if name != one] for one in reversed(names))]
    subsets += [names[:k] for k in range(len(names) - 2, 0, -1)]
    for variables in filter(None, subsets):
        chosen = {name: x for name, x in others.items() if _variable(name) in variables}
        values = [*draws.values.transpose(2, 0, 1), *chosen.values()]
        full = Draws(np.stack(values, axis=2), (*draws.names, *chosen))
        eigenvalues, _ = linalg.correlation_eigenvalues(np.cov(full.array.T))
        if eigenvalues[0] * COLLINEAR > eigenvalues[-1]:
            yield full
    yield draws


def _variable(entry: str) -> str:
    """Return the variable that an entry is of: ``beta`` for ``beta[0]``."""
    return entry.partition("[")[0]


def _others(draws: Draws, every: Draws) -> dict[str, Array]:
    """Return other parameters (chain, draw) by name, standardised, few and not collinear."""
    many, others = len(draws), {}
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
                others[name] = column.reshape(draws.values.shape[:2])
    return others


@own_settings
def jackknife_target(
    draws: Draws,
    losses: Losses,
    dependence: Dependence | None = None,
    *,
    eta: float = 1.0,
    every: Draws | None = None,
    correction: str | None = None,
) -> Target:
    """Return the target of these draws' parameters, with the noise of the draws taken off.

    `every` holds draws of all parameters, those to report among them. Corrections are those of
    `etafree.target` that need no shares of the Hessian, by default HC1 and CR1.
    """
    eta = as_positive(eta, "eta")
    n, p = losses.n, draws.p
    dependence = Independent(n) if dependence is None else dependence
    dependence.check_draws()
    dependence.check_size(None, p, f"{FEWER}:")
    if dependence.independent and n <= p:
        problem = f"has {n} observations for {p} parameters"
        raise InputError("log_likelihood", problem, f"{FEWER}: at most {n - 1}")
    correction = dependence.correction(
        correction,
        ("draws and log-likelihood have none", f"use {dependence.defaults[1]!r}, or pass model="),
    )
    rows = losses if isinstance(losses, RowLosses) else None
    count, size = (float(n), float(n)) if rows is None else (rows.total.count, rows.total.size)
    alone = rows if dependence.independent else None
    groups = dependence.summed(correction)
    groups = dependence.groups if groups is None else groups
    held = len(groups) if alone is None else 1  # sums over rows hold no row
    slopes = find_slopes(draws, losses, held, eta, every)
    whiten = linalg.whitener(linalg.inv(slopes.spread, "draws"), "draws")
    if alone is not None:
        meat, covariance, error = _over_rows(alone, slopes, whiten, correction)
    else:
        scores = slopes.influences(scores_by_batch(slopes.z, losses, groups, slopes.edges))
        back = linalg.inv(whiten, "draws")
        for batch in scores:  # from influences to scores, where A = I
            batch[:] = batch @ back
        mean = scores.mean(axis=0)
        weights = groups.weights(None if rows is None else rows.total.weights)
        meat, form = dependence.form(GroupScores(mean, whiten, weights, count), correction)
        covariance, error = without_noise(scores, mean, form)
    still = [draws.names[j] for j in np.flatnonzero(~((error >= 0) & (error < 0.5)))]
    if still:
        problem = f"moves {still[:8]} by no more than the noise of the draws"
        raise InputError("log_likelihood", problem, f"{FEWER}, or draw more")

    def advice() -> str:
        tied = np.flatnonzero(np.abs(linalg.correlation_eigenvalues(covariance)[1][:, 0]) > 0.1)
        names = [draws.names[j] for j in tied[:8]]
        tied_by = f"{names} are computed from one another, or the draws are too few"
        return f"{tied_by}: {FEWER}, or draw more"

    agreement = [] if slopes.curvature is None else [_spread(slopes.curvature, eta)]
    return Target(
        center=draws.mean,
        covariance=linalg.check_covariance(covariance, NAME, p, advice),
        names=draws.names,
        dof=np.broadcast_to(meat.dof, (p,)),
        inflation=np.broadcast_to(meat.inflation, (p,)),
        laws=meat.laws,
        center_kind="mean",
        correction=meat.correction,
        clusters=meat.clusters,
        design=meat.design,
        cluster_label=dependence.label,
        n=n,
        size=size,
        method=NAME,
        estimand="the minimiser of the expected loss (minus the stored log-likelihood)",
        se_error=error,
        dependence=dependence,
        findings=(*meat.findings, *agreement, Finding("jackknife: eta n", eta * count)),
    )


def _spread(bend: Curvature, eta: float) -> Finding:
    """Return how many times as wide draws are as the log-likelihood's curvature makes them."""
    middle, most = float(np.median(bend.eigenvalues)), float(bend.eigenvalues[-1])
    return Finding("draws against log-likelihood", most, {"middle": middle, "eta": eta})


def without_noise(scores: Array, mean: Array, form: Form) -> tuple[Array, Array]:
    """Return a form of the batches' mean less its noise, and the relative error of its roots."""
    base = form(mean)
    squares = np.array([form(batch - mean) for batch in scores])
    whole = np.array([form(batch) for batch in scores])
    return _less_noise(base, squares, np.diagonal(whole - base - squares, axis1=1, axis2=2))


def _less_noise(base: Array, squares: Array, turned: Array) -> tuple[Array, Array]:
    """Return the same from forms of deviations (K, p, p) and of twice their products (K, p)."""
    many = len(squares) * (len(squares) - 1)
    covariance: Array = base - squares.sum(axis=0) / many
    error: Array = 0.5 * np.sqrt(np.square(turned).sum(axis=0) / many) / np.diagonal(covariance)
    return covariance, error


def _over_rows(
    losses: RowLosses, slopes: Slopes, whiten: Array, correction: str
) -> tuple[Meat, Array, Array]:
    """Return the meat of independent rows, and `without_noise` of it, from sums over the rows."""
    total, thetas, frequency = losses.total, losses.thetas, losses.total.frequency
    edges, back = slopes.edges, linalg.inv(whiten, "draws")
    deviation = slopes.z - slopes.z.mean(axis=0)
    share = batch_products(deviation, losses.totals[:, None], edges) / total.weight

    def add(part: LinearTotal, base: Array, squares: Array, products: Array) -> None:
        for rows, row_losses in blocks_of_rows(part, thetas):
            w = None if part.weights is None else part.weights[rows]
            scores = batch_products(deviation, row_losses, edges)
            scores -= share if w is None else share * w  # a row's share of the total
            scores = slopes.influences(scores.transpose(0, 2, 1)) @ back
            if w is not None and frequency:  # copies of a row are rows
                scores *= np.where(w > 0, w, np.inf)[:, None] ** -0.5
            mean = scores.mean(axis=0)
            scores -= mean
            base += mean.T @ mean
            squares += scores.transpose(0, 2, 1) @ scores
            products += mean.T @ scores

    p, batches = len(whiten), len(edges) - 1
    zeros = np.zeros((p, p)), np.zeros((batches, p, p)), np.zeros((batches, p, p))
    base, squares, products = total.fold(add, *zeros)
    factor = total.small_sample_factor() if correction == "HC1" else 1.0
    meat = Meat(*finish(factor * base, whiten), np.inf, correction)
    squares = factor * whiten.T @ squares @ whiten
    turned = 2 * factor * np.diagonal(whiten.T @ products @ whiten, axis1=1, axis2=2)
    return meat, *_less_noise(meat.covariance, squares, turned)
