r"""The location-scale map, :math:`\theta \mapsto c + \Omega(\theta - m)`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etafree.draws import Draws
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import (
    Array,
    as_array,
    as_choice,
    as_names,
    check_finite,
    in_order,
    in_shape_of,
    owned,
    renamed,
)
from etafree.foundation.linalg import ROOTS, check_covariance, transport
from etafree.foundation.storage import damaged, load_arrays, save_arrays
from etafree.foundation.terminal import counted_noun
from etafree.foundation.threads import own_settings
from etafree.target import Law, Target

KINDS = ("location-scale", "scale")
WORKING = ("draws", "curvature")

#: Numbers mapped at a time: a block and its image stay in the fastest cache.
BLOCK = 12800


@dataclass(frozen=True)
class Map:
    r"""Which map takes draws to their target; ``map="paper"`` is short for ``Map("paper")``.

    Parameters
    ----------
    root : {"affine", "paper", "cholesky", "shaby"}
        Which :math:`\Omega`; only "affine" does not depend on units.
    kind : {"location-scale", "scale"}
        "scale" is the open-faced sandwich: the draws stay centred at their own mean. Shaby's
        version has the root "shaby", :math:`A^{-1}B^{1/2}A^{1/2}` if the draws' covariance is A
        inverse.
    working : {"draws", "curvature"}
        Covariance that is mapped: the draws' own, or :math:`(\eta A)^{-1}`, the paper's population
        map.

    Raises
    ------
    InputError
        One of them is not one of its choices.

    See Also
    --------
    etafree.calibrate : Pass it as ``map=``.
    etafree.LocationScaleMap : The map itself, with its matrix.

    Examples
    --------
    >>> import etafree as ef
    >>> draws = np.random.default_rng(0).standard_normal((4000, 1)) + 3.0
    >>> target = ef.Target([0.0], 4 * np.eye(1))
    >>> ef.calibrate(draws, target, map=ef.Map(kind="scale")).draws.mean.round()
    array([3.])
    """

    root: str = "affine"
    kind: str = "location-scale"
    working: str = "draws"

    def __post_init__(self) -> None:
        for name, options in (("root", ROOTS), ("kind", KINDS), ("working", WORKING)):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in options:
                as_choice(value, name, options)


def as_map(given: object) -> Map:
    """Return a map that was given, or named by its root."""
    if isinstance(given, str) and given in ROOTS:
        return Map(given)
    return given if isinstance(given, Map) else Map(as_choice(given, "map", ROOTS))


@dataclass(frozen=True, eq=False)
class LocationScaleMap:
    r"""An invertible affine map of draws, :math:`\theta\mapsto c+\Omega(\theta-m)`.

    Call it on draws to map them: ``map(draws)``.

    Attributes
    ----------
    mean : (p,) array
        :math:`m`, which is subtracted.
    offset : (p,) array
        :math:`c`, which is added.
    scale : (p, p) array
        :math:`\Omega`.
    names : tuple of str
        Parameter names.

    Raises
    ------
    InputError
        Shapes do not fit together, or `scale` is singular.

    See Also
    --------
    etafree.calibrate : The map to a sandwich, and draws with t tails.

    References
    ----------
    Tamano, S. and Tomo, Y. (2025). Location-scale calibration for generalized posterior.
    arXiv:2511.15320. Shaby, B. A. (2014). The open-faced sandwich adjustment for MCMC using
    estimating functions. J. Comput. Graph. Statist. 23, 853-876.

    Examples
    --------
    >>> import etafree as ef
    >>> m = ef.LocationScaleMap.between(np.zeros(1), np.eye(1), np.array([5.0]), 4 * np.eye(1))
    >>> m(np.array([[1.0], [-1.0]]))
    array([[7.],
           [3.]])
    >>> m.inverse(m(np.array([[0.25]])))
    array([[0.25]])
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ef.LocationScaleMap.load(m.save(pathlib.Path(folder, "map.npz"))).scale
    array([[2.]])
    """

    mean: Array
    offset: Array
    scale: Array
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        p = len(as_names(self.names, None))
        as_array(self.mean, "mean", shape=(p,))
        as_array(self.offset, "offset", shape=(p,))
        scale = as_array(self.scale, "scale", shape=(p, p))
        rows = np.abs(scale).max(axis=1, keepdims=True, initial=0.0)
        if p == 0 or np.any(rows == 0) or not _full_rank(scale / rows):
            raise InputError(
                "scale", "is singular, so the map cannot be undone", "pass an invertible matrix"
            )
        for name in ("mean", "offset", "scale"):
            object.__setattr__(self, name, owned(as_array(getattr(self, name), name)))

    @classmethod
    def between(
        cls,
        mean: object,
        covariance: object,
        center: object,
        target: object,
        root: str = "affine",
        names: Sequence[str] | None = None,
    ) -> LocationScaleMap:
        r"""Return the map from mean and covariance to centre and target covariance.

        Parameters
        ----------
        mean : (p,) array
            :math:`m`.
        covariance : (p, p) array
            :math:`S`, of the draws.
        center : (p,) array
            :math:`c`.
        target : (p, p) array
            :math:`V=\Omega S\Omega^\top`.
        root : {"affine", "paper", "cholesky", "shaby"}
            Which of the matrices :math:`\Omega`; only "affine" does not depend on units.
        names : sequence of str, optional
            Parameter names.

        Returns
        -------
        LocationScaleMap
            With mean :math:`m`, offset :math:`c` and scale :math:`\Omega`.

        Raises
        ------
        InputError
            Shapes differ, or a covariance is not positive definite.
        """
        mean, names = renamed(mean, names, "mean")
        m = as_array(mean, "mean").reshape(-1)
        if len(m) == 0:
            raise InputError("mean", "is empty")
        known, both = as_names(names, len(m) if names is None else None), (0, 1)
        S = check_covariance(in_order(covariance, known, "covariance", both), "covariance", len(m))
        V = check_covariance(in_order(target, known, "target", both), "target", len(m))
        c = as_array(in_order(center, known, "center"), "center").reshape(-1)
        if len(c) != len(m):
            raise InputError(
                "center", f"has {len(c)} entries for {counted_noun(len(m), 'parameter')}"
            )
        return cls(m, c, transport(S, V, root), as_names(known, len(m)))

    def __call__(self, draws: object, out: Array | None = None) -> Any:
        """Map draws.

        Parameters
        ----------
        draws : Draws, DataFrame, or array (..., p)
            Of the map's parameters; names of columns and coordinates count, not their order.
        out : C-contiguous float64 array, optional
            Of the shape of the draws, written to. After an error its contents are undefined.

        Returns
        -------
        Draws, DataFrame or array
            As `draws`.

        Raises
        ------
        InputError
            A parameter is missing, or there are others.
        """
        return self._apply(draws, self.scale, self.offset - self.scale @ self.mean, out)

    def inverse(self, draws: object, out: Array | None = None) -> Any:
        """Undo the map.

        Parameters
        ----------
        draws : Draws, DataFrame, or array (..., p)
            Mapped draws.
        out : C-contiguous float64 array, optional
            As for a call.

        Returns
        -------
        Draws, DataFrame or array
            As `draws`.
        """
        back = linalg.inv(self.scale, "map")
        return self._apply(draws, back, self.mean - back @ self.offset, out)

    @own_settings
    def _apply(self, draws: object, scale: Array, shift: Array, out: Array | None) -> Any:
        if isinstance(draws, Draws):
            if draws.names != self.names:
                raise InputError(
                    "draws",
                    f"are of {list(draws.names)}, the map of {list(self.names)}",
                    "choose and order them by draws.select(names)",
                )
            return replace(draws, values=self._apply(draws.values, scale, shift, out))
        if hasattr(draws, "iloc") or hasattr(draws, "dims"):  # pandas and xarray
            if out is not None:
                raise InputError("out", "is for arrays", "leave it out, or pass an array of draws")
            ordered = as_array(in_order(draws, self.names, "draws"), "draws", finite=False)
            return in_shape_of(self._apply(ordered, scale, shift, None), draws, self.names)
        array = as_array(in_order(draws, self.names, "draws"), "draws", finite=False)
        p = len(self.mean)
        if array.ndim == 0 or array.shape[-1] != p:
            raise InputError("draws", f"has shape {array.shape}", f"the last axis must be {p} long")
        if out is None:
            out = np.empty(array.shape)
        else:
            _check_out(out, array)
        rows, image = array.reshape(-1, p), out.reshape(-1, p)
        turned = np.ascontiguousarray(scale.T)
        step = max(1, BLOCK // p)
        shifts = np.tile(shift, min(step, len(rows)))  # adding along one axis is twice as fast
        for start in range(0, len(rows), step):
            source, block = rows[start : start + step], image[start : start + step]
            check_finite(source, "draws")
            np.matmul(source, turned, out=block)
            flat = block.reshape(-1)
            flat += shifts[: flat.size]
        return out

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the map to an ``.npz`` file at `path` and return its path."""
        arrays = {"mean": self.mean, "offset": self.offset, "scale": self.scale}
        return save_arrays(path, "map", arrays, {"names": list(self.names)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LocationScaleMap:
        """Return the map that `save` wrote to `path`."""
        arrays, meta = load_arrays(path, "map", {"mean", "offset", "scale"}.__contains__)
        with damaged(path):
            return cls(names=tuple(meta["names"]), **arrays)

    def __repr__(self) -> str:
        return f"LocationScaleMap({', '.join(self.names)})"


def _full_rank(matrix: Array) -> bool:
    """Return whether a matrix with rows of size one has independent columns in any units."""
    columns = np.abs(matrix).max(axis=0)
    return bool(np.all(columns > 0) and linalg.rank(matrix / columns) == len(matrix))


def _check_out(out: object, array: Array) -> None:
    if not isinstance(out, np.ndarray) or out.shape != array.shape or out.dtype != np.float64:
        raise InputError("out", "must be a C-contiguous float64 array of the draws' shape")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise InputError("out", "must be a C-contiguous float64 array that can be written to")
    same = out.ctypes.data == array.ctypes.data and out.strides == array.strides
    if not same and np.may_share_memory(out, array):
        raise InputError("out", "overlaps the draws", "pass the draws themselves, or a new array")


def working_covariance(working: str, draws: Draws, target: Target) -> Array:
    r"""Return the covariance that is mapped: the draws', or :math:`(\eta A)^{-1}`."""
    if working == "draws":
        return draws.covariance()
    if target.hessian is None:
        raise InputError("working", "'curvature' needs a Hessian", "pass a criterion")
    assert draws.eta is not None  # calibrate() has asked for it
    return linalg.inv(draws.eta * target.hessian, "Hessian")


def student_factors(law: Law, count: int, rng: np.random.Generator) -> Array:
    r"""Return factors :math:`\{\nu/(\kappa\chi^2_\nu)\}^{1/2}`, (count, p): normal to Student-t.

    One uniform per draw, stratified so that the factors' distribution is matched closely, gives the
    chi-square of every parameter by its quantile: with equal degrees of freedom the factor is one
    scalar per draw, with Satterthwaite's each parameter has the tails of its own.
    """
    dof, inflation = law
    out = np.ones((count, len(dof)))
    if not np.isinf(dof).all():
        order = rng.permutation(count)
        for nu in np.unique(dof[np.isfinite(dof)]):
            out[:, dof == nu] = student_factor_grid(count, float(nu))[order, None]
    out /= np.sqrt(inflation)
    return out


@lru_cache(maxsize=16)
def student_factor_grid(count: int, nu: float) -> Array:
    """Return the factors at `count` equally spaced probabilities, in a row (count,)."""
    from scipy.special import gammainccinv

    uniform = (np.arange(count) + 0.5) / count
    factors: Array = np.sqrt(0.5 * nu / gammainccinv(0.5 * nu, uniform))
    return factors


def move_draws(
    draws: Draws, target: Target, how: Map, rng: np.random.Generator
) -> tuple[LocationScaleMap, Array]:
    """Return the map of draws to a target, and their images (chain, draw, p) with its t tails."""
    omega = transport(working_covariance(how.working, draws, target), target.covariance, how.root)
    offset = draws.mean if how.kind == "scale" else target.center
    mapping = LocationScaleMap(draws.mean, offset, omega, draws.names)
    values = mapping(draws.values)
    law = target.law()
    if not (np.isinf(law.dof).all() and (law.inflation == 1.0).all()):
        flat = values.reshape(-1, draws.p)
        flat -= offset
        flat *= student_factors(law, len(flat), rng)
        flat += offset
    return mapping, values


class PaperMatrices(NamedTuple):
    r"""The paper's matrices, per unit of effective scale :math:`s_n`.

    Attributes
    ----------
    J, K : (p, p) array
        Hessian of the penalized loss and variance of its score, :math:`A/s_n` and :math:`B/s_n`.
    H0 : (p, p) array
        Precision of the draws, :math:`(s_nS)^{-1}`.
    V : (p, p) array
        Target covariance, :math:`J^{-1}KJ^{-1}`.
    Omega : (p, p) array
        The map's scale.

    See Also
    --------
    etafree.Calibration.paper : What returns it.

    Examples
    --------
    >>> import etafree as ef
    >>> data = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> post = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), data), eta=1.0)
    >>> print(ef.calibrate(ef.sample(post, seed=0), post).paper())  # doctest: +ELLIPSIS
    J_lambda =
    [[1.]]
    K =
    ...
    """

    J: Array
    K: Array
    H0: Array
    V: Array
    Omega: Array

    def __str__(self) -> str:
        labels = ("J_lambda", "K", "H_0", "V_target", "Omega")
        with np.printoptions(precision=5, suppress=True):
            return "\n".join(
                f"{label} =\n{matrix}" for label, matrix in zip(labels, self, strict=True)
            )
