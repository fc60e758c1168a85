"""Degrees of freedom of variance estimates from few clusters.

References
----------
Bell, R. M. and McCaffrey, D. F. (2002). Survey Methodology 28, 169-181. Pustejovsky, J. E. and
Tipton, E. (2018). J. Bus. Econ. Statist. 36, 672-683.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from etafree.linalg import cholesky, solve
from etafree.validation import Array

__all__ = ["Satterthwaite"]


@dataclass(frozen=True, eq=False)
class Satterthwaite:
    r"""Degrees of freedom of a CR2 variance, contrast by contrast.

    Under the working model where scores vary as the Hessian says, the variance estimate of a
    contrast is :math:`\sum_g (p_g^\top\hat\psi_g)^2`; matching its mean and variance to a scaled
    chi-square gives :math:`\nu = \mathrm{tr}(\Lambda)^2/\mathrm{tr}(\Lambda^2)` with
    :math:`\Lambda_{gh} = p_g^\top\mathrm{cov}(\hat\psi_g, \hat\psi_h)p_h`. For least squares these
    are the values of Bell and McCaffrey (2002). For q contrasts the estimate is matched to a
    Wishart matrix, :math:`\nu = q(q+1)/\sum_{st}\mathrm{var}(T_{st})` with T standardised to mean
    I: the approximate Hotelling test (HTZ) of Pustejovsky and Tipton (2018).
    """

    whiten: Array
    adjust: Array
    hessians: Array
    variances: Array

    def dof(self, contrast: Array) -> float:
        """Return the degrees of freedom for a contrast (p,), or for several at once (q, p)."""
        rows = np.atleast_2d(contrast)
        expected = self._expected(rows)
        rows = solve(cholesky(expected, "contrast"), rows)  # E of the estimate is I
        parts = [self._parts(row) for row in rows]
        q = len(rows)
        total = sum(
            self._hadamard(parts[s], parts[s], parts[t], parts[t])
            + self._hadamard(parts[s], parts[t], parts[t], parts[s])
            for s in range(q)
            for t in range(q)
        )
        return q * (q + 1) / total

    def _parts(self, contrast: Array) -> tuple[Array, Array]:
        """Return directions p_g (G, p) and factors z_g = (A_g p_g, Q_g p_g), (G, 2p)."""
        direction = self.adjust @ (self.whiten @ contrast)
        e = np.einsum("gij,gj->gi", self.hessians, direction)
        f = np.einsum("gij,gj->gi", self.variances, direction)
        return direction, np.hstack([e, f])

    @cached_property
    def _middle(self) -> Array:
        """K in cov(psi_g, psi_h) = [g = h] Q_g + (A_g, Q_g) K (A_h, Q_h)'."""
        total = self.variances.sum(axis=0)
        p = len(total)
        middle: Array = np.block([[total, -np.eye(p)], [-np.eye(p), np.zeros((p, p))]])
        return middle

    def _expected(self, rows: Array) -> Array:
        """Return the expectation (q, q) of the estimated variance of several contrasts."""
        parts = [self._parts(row) for row in rows]
        return np.array([[float(self._diagonal(a, b).sum()) for b in parts] for a in parts])

    def _own(self, a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
        p = a[0].shape[1]
        own: Array = np.einsum("gi,gi->g", a[0], b[1][:, p:])
        return own

    def _diagonal(self, a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
        shared: Array = np.einsum("gi,ij,gj->g", a[1], self._middle, b[1])
        return self._own(a, b) + shared

    def _hadamard(
        self, a: tuple[Array, Array], b: tuple[Array, Array], c: tuple[Array, Array],
        d: tuple[Array, Array],
    ) -> float:  # fmt: skip
        """Return the sum over g, h of Lambda^{ab}_gh Lambda^{cd}_gh without a G x G matrix."""
        own_ab, own_cd = self._own(a, b), self._own(c, d)
        low_ab, low_cd = self._diagonal(a, b) - own_ab, self._diagonal(c, d) - own_cd
        middle = self._middle
        both = np.trace(middle @ (b[1].T @ d[1]) @ middle.T @ (c[1].T @ a[1]))
        return float(own_ab @ own_cd + own_ab @ low_cd + low_ab @ own_cd + both)
