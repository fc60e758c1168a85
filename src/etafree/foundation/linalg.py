"""Factors, roots and conditioning of small dense matrices, each answering with our own errors.

Every factorisation of the library goes through the functions here. LAPACK's answer to a matrix that
is singular to rounding, or not finite, depends on the processor: an exception, an infinity or a
number. Here such a matrix is an error that names it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from etafree.errors import CalibrationWarning, InputError, NotPositiveDefiniteError
from etafree.foundation.arguments import Array, as_array, as_choice
from etafree.foundation.terminal import counted_noun

T = TypeVar("T")

ROOTS = ("affine", "paper", "cholesky", "shaby")
CONDITION_WARN = 1e8
CONDITION_FAIL = 1e12
SMALLEST_PIVOT = 1e-7
UNDETERMINED = "a direction is not determined: drop or combine parameters, or add a penalty"


def cholesky(matrix: Array, what: str = "matrix", advice: str = UNDETERMINED) -> Array:
    """Return the lower Cholesky factors of matrices (..., p, p).

    Raises
    ------
    NotPositiveDefiniteError
        One of them has none; `what` names it, `advice` says what to do.

    Examples
    --------
    >>> cholesky(np.array([[4.0, 0.0], [0.0, 9.0]]))
    array([[2., 0.],
           [0., 3.]])
    >>> cholesky(np.array([[1.0, 2.0], [2.0, 1.0]]), "Hessian", "add a penalty")
    Traceback (most recent call last):
        ...
    etafree.errors.NotPositiveDefiniteError: Hessian: is not positive definite (smallest eigenvalue
    -1); add a penalty
    """
    return _answer(np.linalg.cholesky, matrix, what=what, advice=advice)


def cholesky_or_none(matrix: Array) -> Array | None:
    """Return the lower Cholesky factors of matrices (..., p, p), None if one of them has none."""
    if not np.isfinite(matrix).all():
        return None
    try:
        lower: Array = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    return lower


def safe_factor(matrix: Array) -> tuple[Array, Array] | None:
    """Return scales d (p,) and a lower triangular L with M = (dL)(dL)', None if M is not safe.

    Safe is a matrix whose correlation form has pivots above 1e-7, far above rounding, so that the
    answer is the same on every processor.
    """
    diagonal = np.diagonal(matrix)
    if not np.isfinite(matrix).all() or np.any(diagonal <= 0):
        return None
    sd = np.sqrt(diagonal)
    lower = cholesky_or_none(matrix / sd / sd[:, None])
    if lower is None or np.min(np.diagonal(lower)) < SMALLEST_PIVOT:
        return None
    return sd, lower


def inv(matrix: Array, what: str = "matrix", advice: str = UNDETERMINED) -> Array:
    """Return the inverses of matrices (..., p, p); a singular one is an error that names it."""
    return _answer(np.linalg.inv, matrix, what=what, advice=advice)


def solve(matrix: Array, right: Array, what: str = "matrix", advice: str = UNDETERMINED) -> Array:
    """Return the solutions of linear systems; a singular matrix is an error that names it."""
    return _answer(np.linalg.solve, matrix, right, what=what, advice=advice)


def eigh(matrix: Array, what: str = "matrix") -> tuple[Array, Array]:
    """Return eigenvalues (..., p), ascending, and eigenvectors of symmetric matrices."""
    values, vectors = _answer(np.linalg.eigh, matrix, what=what)
    return values, vectors


def eigvalsh(matrix: Array, what: str = "matrix") -> Array:
    """Return the eigenvalues (..., p) of symmetric matrices, ascending."""
    return _answer(np.linalg.eigvalsh, matrix, what=what)


def least_squares(X: Array, y: Array, cutoff: float | None = None, what: str = "X") -> Array:
    """Return the coefficients of y on X, of least norm where the columns are collinear.

    Singular values below `cutoff` times the largest count as zero; by default rounding does.
    """
    return _answer(lambda x: np.linalg.lstsq(x, y, rcond=cutoff)[0], X, what=what)


def orthonormal(matrix: Array, what: str = "Z") -> tuple[Array, Array]:
    """Return Q (..., m, q), columns orthonormal, and R (..., q, q) with M = QR, m at least q."""
    basis, factor = _answer(np.linalg.qr, matrix, what=what)
    return basis, factor


def rank(matrix: Array, tolerance: float | None = None, what: str = "matrix") -> int:
    """Return how many singular values are above `tolerance`, by default above rounding."""
    return int(_answer(lambda m: np.linalg.matrix_rank(m, tol=tolerance), matrix, what=what))


def null_direction(rows: Array, what: str = "X") -> Array:
    """Return the unit vector (1, p) that rows (m, p) say least about, m below p or at it."""
    return _answer(lambda x: np.linalg.svd(x)[2][-1:], rows, what=what)


def _answer(
    factor: Callable[..., T], matrix: Array, *right: Array, what: str, advice: str = UNDETERMINED
) -> T:
    """Return what a routine of LAPACK makes of a matrix, or say what is wrong with the matrix."""
    if not np.isfinite(matrix).all():
        raise InputError(what, "has entries that are not finite", "rescale data or parameters")
    try:
        return factor(matrix, *right)
    except np.linalg.LinAlgError:
        pass
    if matrix.shape[-1] == matrix.shape[-2]:
        with contextlib.suppress(np.linalg.LinAlgError):
            symmetric = 0.5 * (matrix + np.swapaxes(matrix, -1, -2))
            smallest = float(np.min(np.linalg.eigvalsh(symmetric)))
            raise NotPositiveDefiniteError(what, smallest, advice)
    raise InputError(what, "is beyond double precision", "rescale data or parameters")


def correlation_eigenvalues(matrix: Array) -> tuple[Array, Array]:
    r"""Return the eigenvalues (ascending) and eigenvectors of the correlation form.

    :math:`R = D^{-1/2} M D^{-1/2}` with :math:`D = \mathrm{diag}(M)` does not depend on the
    units of the parameters, so its condition number is about collinearity alone.
    """
    diagonal = np.diagonal(matrix)
    if np.any(diagonal <= 0):
        return np.array([float(diagonal.min())]), np.eye(len(matrix))[:, [int(diagonal.argmin())]]
    sd = np.sqrt(diagonal)
    return eigh(matrix / sd / sd[:, None], "correlation matrix")


def surely_conditioned(matrix: Array, limit: float) -> bool:
    r"""Return whether the correlation form's condition number is below a limit, at little cost.

    True if :math:`R-(p/c)I` has a Cholesky factor: the smallest eigenvalue is then above
    :math:`p/c`, and the largest at most the trace, p. False may mean either.

    Examples
    --------
    >>> surely_conditioned(np.diag([1e-30, 1.0]), 1e8), surely_conditioned(np.ones((2, 2)), 1e8)
    (True, False)
    """
    diagonal = np.diagonal(matrix)
    if not np.all(diagonal > 0):
        return False
    sd = np.sqrt(diagonal)
    correlation = matrix / sd / sd[:, None]
    correlation.flat[:: len(sd) + 1] -= len(sd) / limit
    return cholesky_or_none(correlation) is not None


def rounding(size: int) -> float:
    """Return below which share of the largest one an eigenvalue of a p x p matrix is zero."""
    return 10 * size * float(np.finfo(np.float64).eps)


def _symmetric(value: object, argument: str, size: int | None) -> Array:
    """Return `value` as a symmetric matrix."""
    plain = type(value) is np.ndarray and value.dtype == np.float64 and np.isfinite(value).all()
    matrix: Array = value if plain else as_array(value, argument)  # type: ignore[assignment]
    if matrix.ndim == 0 and size in (None, 1):
        matrix = matrix.reshape(1, 1)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(argument, f"has shape {matrix.shape} but must be a square matrix")
    if size is not None and len(matrix) != size:
        raise InputError(
            argument, f"is {len(matrix)} x {len(matrix)} for {counted_noun(size, 'parameter')}"
        )
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
    return 0.5 * (matrix + matrix.T)


def check_covariance(
    value: object, argument: str, size: int | None = None, advice: str | Callable[[], str] = ""
) -> Array:
    """Return `value` as a symmetric positive definite matrix, or say which eigenvalue is wrong.

    Warns above a correlation condition number of 1e8 and refuses above 1e12. Advice that takes work
    is a function, called if it is needed.

    Examples
    --------
    >>> check_covariance([[2.0, 0.0], [0.0, 1.0]], "covariance")
    array([[2., 0.],
           [0., 1.]])
    """
    matrix = _symmetric(value, argument, size)
    if surely_conditioned(matrix, CONDITION_WARN):
        return matrix
    eigenvalues, _ = correlation_eigenvalues(matrix)
    smallest, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    if smallest <= rounding(len(matrix)) * largest:
        remedy = advice() if callable(advice) else advice
        raise NotPositiveDefiniteError(argument, float(eigvalsh(matrix)[0]), remedy)
    condition = largest / smallest
    if condition > CONDITION_FAIL:
        remedy = advice() if callable(advice) else advice
        problem = f"has correlation condition number {condition:.2g}, above {CONDITION_FAIL:.0e}"
        default = "drop or combine the parameters that determine each other"
        raise InputError(argument, problem, remedy or default)
    if condition > CONDITION_WARN:
        warnings.warn(
            f"{argument}: correlation condition number {condition:.2g}; some directions are "
            "accurate to only a few digits",
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
    values, vectors = eigh(matrix)
    if values[0] <= 0:
        advice = "" if argument == "matrix" else "draws and target differ too much in a direction"
        raise NotPositiveDefiniteError(argument, float(values[0]), advice)
    root: Array = (vectors * values**power) @ vectors.T
    return 0.5 * (root + root.T)


def whitener(matrix: Array, what: str = "Hessian") -> Array:
    """Return W, lower triangular, with W M W' = I for a positive definite M of any units."""
    diagonal = np.diagonal(matrix)
    sd = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    with np.errstate(invalid="ignore"):  # what is not finite is refused by name
        return inv(cholesky(matrix / sd / sd[:, None], what), what) / sd


def relative_eigenvalues(matrix: Array, base: Array, what: str = "Hessian") -> Array:
    """Return the eigenvalues of W M W', ascending, with W the whitener of `base`."""
    whiten = whitener(base, what)
    return eigvalsh(whiten @ matrix @ whiten.T)


def transport(covariance: Array, target: Array, root: str = "affine") -> Array:
    r"""Return :math:`\Omega` with :math:`\Omega S \Omega^\top = V`.

    Parameters
    ----------
    covariance : (p, p) array
        :math:`S`, the covariance of what is mapped.
    target : (p, p) array
        :math:`V`, the covariance to reach.
    root : {"affine", "paper", "cholesky", "shaby"}
        ``affine``: the principal square root of :math:`V S^{-1}`, computed as
        :math:`L (L^{-1} V L^{-\top})^{1/2} L^{-1}` with :math:`S = LL^\top`. It commutes with every
        invertible linear change of parameters, so units do not matter. ``paper``:
        :math:`V^{1/2} S^{-1/2}` with symmetric roots, equation (3) of Tamano and Tomo
        (arXiv 2511.15320). ``cholesky``: :math:`L_V L_S^{-1}`, which depends on the order of the
        parameters. ``shaby``: :math:`H^{-1}P^{1/2}H^{1/2}` with :math:`H=S^{-1}` and
        :math:`P=HVH`, symmetric roots (Shaby 2014).

    Examples
    --------
    >>> transport(np.eye(2), 4 * np.eye(2))
    array([[2., 0.],
           [0., 2.]])
    """
    if not isinstance(root, str) or root not in ROOTS:
        as_choice(root, "root", ROOTS)
    if root == "paper":
        after = symmetric_root(target, argument="covariance")
        return after @ symmetric_root(covariance, -0.5, "draws")
    if root == "shaby":  # S P^(1/2) = LZW' for V = LL' and HL = W s Z': nothing is squared
        lower = cholesky(target, "covariance")
        left, _, right = _answer(np.linalg.svd, solve(covariance, lower, "draws"), what="draws")
        half: Array = lower @ (left @ right).T
        return half @ symmetric_root(covariance, -0.5, "draws")
    sd = np.sqrt(np.diagonal(covariance))
    lower = cholesky(covariance / sd / sd[:, None])
    scaled = target / sd / sd[:, None]
    if root == "cholesky":
        standard = solve(lower.T, cholesky(scaled).T).T
    else:
        half = solve(lower, scaled)
        middle = solve(lower, half.T)
        middle = symmetric_root(0.5 * (middle + middle.T), argument="covariance")
        standard = solve(lower.T, (lower @ middle).T).T
    return standard * (sd[:, None] / sd)


def absolute(matrices: Array, floor: float = 0.0) -> Array:
    """Return matrices (..., p, p) with their eigenvalues' absolute values, at least `floor`."""
    values, vectors = eigh(matrices)
    size = np.abs(values)
    most = size.max(axis=-1, keepdims=True)
    size = np.maximum(size, floor * np.where(most > 0, most, 1.0))
    return (vectors * size[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def majorized(hessian: Array, scale: Array, floor: float) -> Array:
    """Return a safe positive Hessian: absolute eigenvalues where parameters have these scales."""
    if not np.isfinite(hessian).all():
        return hessian
    unit = np.where(scale > 0, scale, 1.0)  # eigenvalues without units
    return absolute(hessian / unit / unit[:, None], floor) * unit * unit[:, None]
