"""Symmetric roots, positive-definiteness and conditioning of small dense matrices."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from etafree.errors import CalibrationWarning, InputError, NotPositiveDefiniteError
from etafree.validation import Array, as_array, as_choice

__all__ = [
    "ROOTS",
    "absolute",
    "check_covariance",
    "correlation_eigenvalues",
    "majorized",
    "relative_eigenvalues",
    "symmetric_root",
    "transport",
]

ROOTS = ("affine", "paper", "cholesky")
CONDITION_WARN = 1e8
CONDITION_FAIL = 1e12


def correlation_eigenvalues(matrix: Array) -> tuple[Array, Array]:
    r"""Return the eigenvalues (ascending) and eigenvectors of the correlation form.

    :math:`R = D^{-1/2} M D^{-1/2}` with :math:`D = \mathrm{diag}(M)` does not depend on the
    units of the parameters, so its condition number is about collinearity alone.
    """
    diagonal = np.diagonal(matrix)
    if np.any(diagonal <= 0):
        return np.array([float(diagonal.min())]), np.eye(len(matrix))[:, [int(diagonal.argmin())]]
    sd = np.sqrt(diagonal)
    values, vectors = np.linalg.eigh(matrix / sd / sd[:, None])
    return values, vectors


def check_covariance(value: Any, argument: str, size: int | None = None, advice: str = "") -> Array:
    """Return `value` as a symmetric positive definite matrix, or say which eigenvalue is wrong.

    Warns above a correlation condition number of 1e8 and refuses above 1e12.

    Examples
    --------
    >>> check_covariance([[2.0, 0.0], [0.0, 1.0]], "covariance")
    array([[2., 0.],
           [0., 1.]])
    """
    matrix = as_array(value, argument)
    if matrix.ndim == 0 and size in (None, 1):
        matrix = matrix.reshape(1, 1)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(argument, f"has shape {matrix.shape} but must be a square matrix")
    if size is not None and len(matrix) != size:
        raise InputError(argument, f"is {len(matrix)} x {len(matrix)} for {size} parameter(s)")
    if matrix.size == 0:
        raise InputError(argument, "is empty")
    if np.abs(matrix).max() > 1e150:
        raise InputError(argument, f"reaches {np.abs(matrix).max():.1g}", "change the units")
    scale = np.sqrt(np.abs(np.outer(np.diagonal(matrix), np.diagonal(matrix))))
    gap = np.abs(matrix - matrix.T)
    if np.any(gap > 1e-8 * np.maximum(scale, np.abs(matrix))):
        raise InputError(
            argument,
            f"is not symmetric (largest difference {gap.max():.3g})",
            "pass (M + M.T) / 2 if the difference is rounding",
        )
    matrix = 0.5 * (matrix + matrix.T)
    eigenvalues, _ = correlation_eigenvalues(matrix)
    smallest, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    if smallest <= 0:
        raise NotPositiveDefiniteError(argument, float(np.linalg.eigvalsh(matrix)[0]), advice)
    condition = largest / smallest
    if condition > CONDITION_FAIL:
        raise InputError(
            argument,
            f"has correlation condition number {condition:.2g}, above {CONDITION_FAIL:.0e}",
            advice or "drop or combine the parameters that determine each other",
        )
    if condition > CONDITION_WARN:
        warnings.warn(
            f"{argument}: correlation condition number {condition:.2g}; some directions are "
            "known to few digits only",
            CalibrationWarning,
            stacklevel=2,
        )
    return matrix


def symmetric_root(matrix: Array, power: float = 0.5, argument: str = "matrix") -> Array:
    r"""Return :math:`M^{q}` of a symmetric positive definite matrix, itself symmetric.

    Examples
    --------
    >>> symmetric_root(np.array([[4.0, 0.0], [0.0, 9.0]]))
    array([[2., 0.],
           [0., 3.]])
    """
    values, vectors = np.linalg.eigh(matrix)
    if values[0] <= 0:
        advice = "" if argument == "matrix" else "draws and target differ too much in a direction"
        raise NotPositiveDefiniteError(argument, float(values[0]), advice)
    root: Array = (vectors * values**power) @ vectors.T
    return 0.5 * (root + root.T)


def relative_eigenvalues(matrix: Array, base: Array) -> Array:
    r"""Return the eigenvalues of :math:`L^{-1} M L^{-\top}` with base :math:`= LL^\top`."""
    inverse = np.linalg.inv(np.linalg.cholesky(base))
    values: Array = np.linalg.eigvalsh(inverse @ matrix @ inverse.T)
    return values


def transport(covariance: Array, target: Array, root: str = "affine") -> Array:
    r"""Return :math:`\Omega` with :math:`\Omega S \Omega^\top = V`.

    Parameters
    ----------
    covariance : (p, p) array
        :math:`S`, the covariance of what is mapped.
    target : (p, p) array
        :math:`V`, the covariance to reach.
    root : {"affine", "paper", "cholesky"}
        ``affine``: the principal square root of :math:`V S^{-1}`, computed as
        :math:`L (L^{-1} V L^{-\top})^{1/2} L^{-1}` with :math:`S = LL^\top`. It commutes with every
        invertible linear change of parameters, so units do not matter. ``paper``:
        :math:`V^{1/2} S^{-1/2}` with symmetric roots, equation (3) of Tamano and Tomo
        (arXiv 2511.15320). ``cholesky``: :math:`L_V L_S^{-1}`, which depends on the order of the
        parameters.

    Examples
    --------
    >>> transport(np.eye(2), 4 * np.eye(2))
    array([[2., 0.],
           [0., 2.]])
    """
    as_choice(root, "root", ROOTS)
    if root == "paper":
        after = symmetric_root(target, argument="covariance")
        return after @ symmetric_root(covariance, -0.5, "draws")
    sd = np.sqrt(np.diagonal(covariance))
    correlation = covariance / sd / sd[:, None]
    lower = np.linalg.cholesky(correlation)
    scaled = target / sd / sd[:, None]
    if root == "cholesky":
        standard = np.linalg.solve(lower.T, np.linalg.cholesky(scaled).T).T
    else:
        half = np.linalg.solve(lower, scaled)
        middle = np.linalg.solve(lower, half.T)
        middle = symmetric_root(0.5 * (middle + middle.T), argument="covariance")
        standard = np.linalg.solve(lower.T, (lower @ middle).T).T
    omega: Array = standard * (sd[:, None] / sd)
    return omega


def absolute(matrices: Array, floor: float = 0.0) -> Array:
    """Return matrices (..., p, p) with their eigenvalues' absolute values, at least `floor`."""
    values, vectors = np.linalg.eigh(matrices)
    size = np.abs(values)
    most = size.max(axis=-1, keepdims=True)
    size = np.maximum(size, floor * np.where(most > 0, most, 1.0))
    made: Array = (vectors * size[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    return made


def majorized(hessian: Array, scale: Array, floor: float) -> Array:
    """Return a safe positive Hessian: absolute eigenvalues where parameters have these scales."""
    if not np.isfinite(hessian).all():
        return hessian
    unit = np.where(scale > 0, scale, 1.0)  # eigenvalues without units
    made: Array = absolute(hessian / unit / unit[:, None], floor) * unit * unit[:, None]
    return made
