r"""Quadratic forms of groups' scores corrected for leverage, and the laws of contrasts that follow.

Clusters square their scores one by one. Strata square deviations from their means, a series squares
cosines: for a contrast with scores :math:`z_g = p_g^\top\hat\psi_g` of groups g, the variance is
:math:`z^\top Mz` with a matrix M that the structure knows. Scores are those of the jackknife,
:math:`(I-A_gA^{-1})^{-1}\psi_g`. Under the working model, where scores vary as the Hessian says,

.. math:: \nu = \frac{\mathrm{tr}(M\Lambda)^2}{\mathrm{tr}(M\Lambda M\Lambda)},\qquad
    \kappa = \frac{\mathrm{tr}(M\Lambda)}{\sum_g s_g\,\ell^\top A^{-1}Q_gA^{-1}\ell},\qquad
    \Lambda_{gh} = p_g^\top\mathrm{cov}(\hat\psi_g,\hat\psi_h)p_h,

with :math:`s_g` the share of a group's variance that is there, below one in a finite population.
:math:`\Lambda = D + ZKZ^\top` is diagonal plus a matrix of rank 2p, so that no G x G matrix is
needed: of M it is enough to know its diagonal, its product with a matrix, and
:math:`\sum_{gh}M_{gh}^2x_gy_h`.

References
----------
Bell, R. M. and McCaffrey, D. F. (2002). Survey Methodology 28, 169-181. Pustejovsky, J. E. and
Tipton, E. (2018). J. Bus. Econ. Statist. 36, 672-683. Welch, B. L. (1947). Biometrika 34, 28-35.
Nel, D. G. and van der Merwe, C. A. (1986). Comm. Statist. A 15, 3719-3735.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from etafree.data.groups import Groups
from etafree.dependence.base import Point
from etafree.dependence.clusters import SINGULAR, whitened_blocks
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.target import Law, Laws, working_covariance_of_residuals

#: Numbers of groups' parts that are held at a time.
HELD = 20_000_000
#: Products of groups and cubed parameters up to which laws under the working model are computed.
WORK = 300_000_000


class Quadratic(Protocol):
    """A symmetric matrix M (G, G) that squares groups' scores, never formed."""

    @property
    def diagonal(self) -> Array:
        """Return its diagonal (G,)."""

    def times(self, columns: Array) -> Array:
        """Return its product with a matrix (G, k)."""

    def hadamard(self, left: Array, right: Array) -> float:
        """Return the sum over g, h of M_gh^2 left_g right_h."""


class Identity:
    """The form of independent groups."""

    diagonal = np.array(1.0)

    def times(self, columns: Array) -> Array:
        """Return its product with a matrix (G, k)."""
        return columns

    def hadamard(self, left: Array, right: Array) -> float:
        """Return the sum over g of left_g right_g."""
        return float(left @ right)


def left_out(hessians: Array, vectors: Array) -> Array:
    r"""Return :math:`(I-A_g)^{-1}v` of vectors (g, p, k) or (p, k), where A is the identity.

    A group that alone determines a coefficient (its own dummy, say) has no score along it: there
    the generalised inverse leaves it zero.
    """
    left = np.eye(hessians.shape[1]) - hessians
    same = np.broadcast_to(vectors, (len(left), *vectors.shape[-2:]))
    if linalg.cholesky_or_none(left - SINGULAR * np.eye(left.shape[1])) is not None:
        return linalg.solve(left, same, "groups' Hessians")
    values, turn = linalg.eigh(left, "groups' Hessians")
    inverse = np.where(values > SINGULAR, 1.0 / np.where(values > SINGULAR, values, 1.0), 0.0)
    corrected: Array = (turn * inverse[:, None, :]) @ (turn.transpose(0, 2, 1) @ same)
    return corrected


def larger_hessians(at: Point, groups: Groups, larger: Groups) -> Array:
    """Return the Hessians (C, p, p) of larger groups, where A is I; `larger` has groups' codes."""
    hessians = np.zeros((len(larger), at.criterion.p, at.criterion.p))
    for block in whitened_blocks(at, groups):
        np.add.at(hessians, larger.codes[block.first :][: len(block.scores)], block.hessians)
    return hessians


def corrected_scores(
    at: Point, groups: Groups, larger: Groups | None = None
) -> tuple[Array, Array]:
    """Return score sums (G, p) corrected for leverage, where A is I, and weights (G,).

    The leverage is that of `larger` groups if these have a code for every group.
    """
    scores, weights = np.zeros((len(groups), at.criterion.p)), np.zeros(len(groups))
    whole = None if larger is None else larger_hessians(at, groups, larger)[larger.codes]
    for block in whitened_blocks(at, groups):
        rows = slice(block.first, block.first + len(block.scores))
        leaving = block.hessians if whole is None else whole[rows]
        scores[rows] = left_out(leaving, block.scores[:, :, None])[:, :, 0]
        weights[rows] = block.weights
    added = at.added(groups)
    return scores if added is None else scores + added, weights


def affordable(at: Point, groups: Groups) -> bool:
    """Return whether laws are asked for, and those of all coefficients take seconds at most."""
    return at.laws and len(groups) * at.criterion.p**3 <= WORK


class Parts(NamedTuple):
    """What groups hold of contrasts: p_g (q, G, p), and (A_g p_g, Q_g p_g), (q, G, 2p)."""

    directions: Array
    factors: Array

    def own(self, s: int, t: int) -> Array:
        """Return the variances (G,) of scores before the fit, p_gs' Q_g p_gt."""
        p = self.directions.shape[2]
        return np.asarray(np.einsum("gi,gi->g", self.directions[s], self.factors[t][:, p:]))


class NominalLaws(NamedTuple):
    """The same degrees of freedom for all contrasts, and no bias."""

    dof: float

    def single(self, contrasts: Array) -> Law:
        """Return the law of each contrast of (q, p)."""
        many = len(np.atleast_2d(contrasts))
        return Law(np.full(many, self.dof), np.ones(many))

    def joint(self, contrasts: Array) -> tuple[float, Array]:
        """Return the parameters of Hotelling's distribution of several contrasts jointly."""
        return self.dof, np.eye(len(np.atleast_2d(contrasts)))


@dataclass(frozen=True, eq=False)
class FormLaws:
    """Laws of contrasts whose variances are a quadratic form of leverage-corrected scores."""

    at: Point
    groups: Groups
    form: Quadratic
    shares: Array | None = None  #: Of each group's variance (G,), one by default.
    larger: Groups | None = None  #: Groups of groups, whose leverage corrects scores.

    def single(self, contrasts: Array) -> Law:
        """Return the law of each contrast of (q, p)."""
        laws = []
        for parts, working, truth in self._each(np.atleast_2d(contrasts)):
            K = working_covariance_of_residuals(working)
            for s in range(len(parts.factors)):
                mean = self._mean(parts, K, s, s)
                laws.append((mean**2 / self._product(parts, K, (s, s, s, s)), mean / truth[s, s]))
        dof, inflation = np.array(laws).T
        return Law(dof, inflation)

    def joint(self, contrasts: Array) -> tuple[float, Array]:
        """Return the parameters of Hotelling's distribution of several contrasts jointly."""
        rows, p = np.atleast_2d(contrasts), self.at.criterion.p
        parts, working, truth = self._parts(rows)
        K, q = working_covariance_of_residuals(working), len(rows)
        mean = np.array([[self._mean(parts, K, s, t) for t in range(q)] for s in range(q)])
        mean = 0.5 * (mean + mean.T)
        turn = linalg.inv(linalg.cholesky(mean, "contrasts"), "contrasts")  # to mean I
        parts = Parts(
            np.einsum("st,tgi->sgi", turn, parts.directions.reshape(q, -1, p)),
            np.einsum("st,tgi->sgi", turn, parts.factors),
        )
        spread = sum(
            self._product(parts, K, (s, s, t, t)) + self._product(parts, K, (s, t, s, t))
            for s in range(q)
            for t in range(q)
        )
        return q * (q + 1) / spread, linalg.transport(mean, truth, "affine")

    def _each(self, rows: Array) -> Iterator[tuple[Parts, Array, Array]]:
        """Yield the parts of as many contrasts as may be held at a time."""
        many = max(1, HELD // (3 * len(self.groups) * self.at.criterion.p))
        for first in range(0, len(rows), many):
            yield self._parts(rows[first : first + many])

    def _parts(self, rows: Array) -> tuple[Parts, Array, Array]:
        """Return the parts of contrasts (q, p), the working variance and their true one (q, q)."""
        p, whiten, count = self.at.criterion.p, self.at.whiten, len(self.groups)
        aim = whiten @ rows.T  # (p, q)
        directions, factors = np.zeros((len(rows), count, p)), np.zeros((len(rows), count, 2 * p))
        working, kept, larger = np.zeros((p, p)), np.zeros((p, p)), self.larger
        whole = None if larger is None else larger_hessians(self.at, self.groups, larger)
        for block in whitened_blocks(self.at, self.groups):
            here = slice(block.first, block.first + len(block.scores))
            leaving = block.hessians
            if whole is not None and larger is not None:
                leaving = whole[larger.codes[here]]
            towards = left_out(leaving, aim)  # (g, p, q)
            variances = whiten @ block.variances @ whiten.T
            directions[:, here] = towards.transpose(2, 0, 1)
            factors[:, here, :p] = (block.hessians @ towards).transpose(2, 0, 1)
            factors[:, here, p:] = (variances @ towards).transpose(2, 0, 1)
            working += variances.sum(axis=0)
            if self.shares is not None:
                kept += np.einsum("g,gij->ij", self.shares[here], variances)
        truth = aim.T @ (working if self.shares is None else kept) @ aim
        return Parts(directions, factors), working, truth

    def _mean(self, parts: Parts, K: Array, s: int, t: int) -> float:
        """Return tr(M Lambda^st), the expectation of an estimated covariance."""
        inner = parts.factors[t].T @ self.form.times(parts.factors[s])
        own = np.sum(self.form.diagonal * parts.own(s, t))
        return float(own + np.einsum("ij,ji->", K, inner))

    def _product(self, parts: Parts, K: Array, which: tuple[int, int, int, int]) -> float:
        """Return tr(M Lambda^ab M Lambda^cd)."""
        a, b, c, d = which
        factors, first, second = parts.factors, parts.own(a, b), parts.own(c, d)
        at_a, at_b = self.form.times(factors[a]), self.form.times(factors[b])
        at_c, at_d = self.form.times(factors[c]), self.form.times(factors[d])
        total = self.form.hadamard(first, second)
        total += np.einsum("ij,ji->", K, (at_d.T * first) @ at_c)
        total += np.einsum("ij,ji->", K, (at_b.T * second) @ at_a)
        both = K @ (at_b.T @ factors[c]) @ K @ (at_d.T @ factors[a])
        return float(total + np.trace(both))


def welch(parts: Iterable[tuple[Array, Law]]) -> Law:
    """Return the laws of sums of independent variances (q,), each with its own (Welch)."""
    variances, laws = zip(*parts, strict=True)
    total = np.sum(variances, axis=0)
    unbiased = [v / law.inflation for v, law in zip(variances, laws, strict=True)]
    fair = np.sum(unbiased, axis=0)
    spread = np.sum([v**2 / law.dof for v, law in zip(unbiased, laws, strict=True)], axis=0)
    return Law(np.square(fair) / spread, total / fair)


@dataclass(frozen=True, eq=False)
class SumLaws:
    r"""Laws of contrasts whose variance is a sum of independent parts (Welch, Satterthwaite).

    For q contrasts with covariances :math:`C=\sum_kC_k` the sum is matched to a Wishart matrix:
    :math:`\nu = q(q+1)/\sum_k\{\mathrm{tr}(W_k^2)+\mathrm{tr}(W_k)^2\}/\nu_k` with
    :math:`W_k=C^{-1}C_k` (Nel and van der Merwe).
    """

    parts: tuple[tuple[Array, Laws], ...]  #: Covariances (p, p) with their own laws.

    @property
    def covariance(self) -> Array:
        """Return the sum (p, p)."""
        return np.asarray(sum(covariance for covariance, _ in self.parts))

    def single(self, contrasts: Array) -> Law:
        """Return the law of each contrast of (q, p)."""
        rows = np.atleast_2d(contrasts)
        return welch(
            (np.einsum("qi,ij,qj->q", rows, covariance, rows), laws.single(rows))
            for covariance, laws in self.parts
        )

    def joint(self, contrasts: Array) -> tuple[float, Array]:
        """Return the parameters of Hotelling's distribution of several contrasts jointly."""
        rows = np.atleast_2d(contrasts)
        q, each = len(rows), []
        for covariance, laws in self.parts:
            dof, turn = laws.joint(rows)
            each.append((turn @ rows @ covariance @ rows.T @ turn.T, dof))
        fair = np.asarray(sum(matrix for matrix, _ in each))
        shares = [(linalg.solve(fair, matrix, "contrasts"), dof) for matrix, dof in each]
        spread = sum((np.trace(w @ w) + np.trace(w) ** 2) / dof for w, dof in shares)
        total = rows @ self.covariance @ rows.T
        return float(q * (q + 1) / spread), linalg.transport(total, fair, "affine")
