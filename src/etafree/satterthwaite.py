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

from etafree.linalg import cholesky, eigh, rounding, solve
from etafree.validation import Array

__all__ = ["Satterthwaite", "sampling_adjustment"]


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
    spread: Array
    total: Array

    @classmethod
    def of(cls, whiten: Array, adjust: Array, hessians: Array, variances: Array) -> Satterthwaite:
        """Return them for scores adjusted by matrices (G, p, p), from what a cluster's scores hold.

        Hessians :math:`A_g` and working variances :math:`Q_g`, (G, p, p), where A is the identity.
        """
        spread = np.concatenate([hessians, variances], axis=1)
        return cls(whiten, adjust, spread, variances.sum(axis=0))

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
        """Return directions p_g (G, k) and factors z_g = (A_g p_g, Q_g p_g), (G, 2p)."""
        direction = self.adjust @ (self.whiten @ contrast)
        return direction, np.einsum("gij,gj->gi", self.spread, direction)

    @cached_property
    def _middle(self) -> Array:
        """K in cov(psi_g, psi_h) = [g = h] Q_g + (A_g, Q_g) K (A_h, Q_h)'."""
        return working_covariance_of_residuals(self.total)

    def _expected(self, rows: Array) -> Array:
        """Return the expectation (q, q) of the estimated variance of several contrasts."""
        parts = [self._parts(row) for row in rows]
        return np.array([[float(self._diagonal(a, b).sum()) for b in parts] for a in parts])

    def _own(self, a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
        own: Array = np.einsum("gi,gi->g", a[0], b[1][:, -a[0].shape[1] :])
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


def working_covariance_of_residuals(total: Array) -> Array:
    r"""Return K (2p, 2p) with :math:`(I-H)(I-H)^\top = I + UKU^\top`, where A is the identity.

    H is the hat matrix of weighted rows, :math:`U = (X, WX)`, and `total` is
    :math:`Q = X^\top W^2X`.
    """
    p = len(total)
    middle: Array = np.block([[total, -np.eye(p)], [-np.eye(p), np.zeros((p, p))]])
    return middle


def sampling_adjustment(grams: Array, total: Array) -> Array:
    r"""Return Bell and McCaffrey's adjustment under sampling weights, (G, 2p, p).

    Rows with sampling weights have one variance, not one that falls with the weight. Residuals of
    cluster g then have the covariance :math:`I+U_gKU_g^\top` with :math:`U_g=(X_g, W_gX_g)`, and
    its inverse root :math:`I + U_gF_gU_g^\top` makes the estimate unbiased if variances are equal.
    The adjusted score is :math:`C_g^\top(X_g^\top e_g, X_g^\top W_ge_g)` with
    :math:`C_g = (0, I)^\top + F_gG_g(0, I)^\top`.

    Parameters
    ----------
    grams : (G, 2p, 2p) array
        :math:`G_g = U_g^\top U_g`, where A is the identity.
    total : (p, p) array
        :math:`\sum_g X_g^\top W_g^2X_g`.
    """
    p = len(total)
    values, vectors = eigh(grams, "clusters' Hessians")
    there = values > rounding(2 * p) * values[:, -1:]
    size = np.sqrt(np.where(there, values, 0.0))
    reach = vectors * size[:, None, :]  # U = (orthonormal) reach'
    inner = (
        np.eye(2 * p) + np.swapaxes(reach, 1, 2) @ working_covariance_of_residuals(total) @ reach
    )
    spectrum, turn = eigh(inner, "clusters' Hessians")
    safe = np.maximum(spectrum, rounding(2 * p))
    back = vectors * np.where(there, 1.0 / np.where(there, size, 1.0), 0.0)[:, None, :] @ turn
    factor = (back * (safe**-0.5 - 1.0)[:, None, :]) @ np.swapaxes(back, 1, 2)
    adjust: Array = np.eye(2 * p)[:, p:] + factor @ grams[:, :, p:]
    return adjust
