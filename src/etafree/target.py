r"""The target of a calibration: a centre, a covariance and the distribution of its quantiles.

From few clusters a variance is estimated with error; `Satterthwaite` has its degrees of freedom,
per contrast and for joint tests.

References
----------
Bell, R. M. and McCaffrey, D. F. (2002). Survey Methodology 28, 169-181. Pustejovsky, J. E. and
Tipton, E. (2018). J. Bus. Econ. Statist. 36, 672-683.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.foundation.arguments import (
    Array,
    as_array,
    as_bool,
    as_mapping,
    as_names,
    as_number,
    as_positive,
    axis_names,
    in_order,
    owned,
    renamed,
)
from etafree.foundation.check import Finding
from etafree.foundation.linalg import (
    check_covariance,
    cholesky,
    eigh,
    rounding,
    solve,
    transport,
    whitener,
)
from etafree.foundation.terminal import counted_noun

if TYPE_CHECKING:
    from etafree.criterion import Criterion
    from etafree.dependence.base import Dependence


class Law(NamedTuple):
    r"""Reference laws of contrasts whose variances were estimated, under the working model.

    Where scores vary as the Hessian says, the estimated variance of a contrast is about
    :math:`\kappa` times the true one, and varies like :math:`\chi^2_\nu/\nu`: quantiles are those
    of :math:`t_\nu/\sqrt\kappa`.
    """

    dof: Array  #: nu (q,).
    inflation: Array  #: kappa (q,), one for a variance without bias.

    def quantile(self, probability: float) -> Array:
        """Return the quantile (q,) of every t ratio."""
        from scipy.special import ndtri, stdtrit

        finite = np.isfinite(self.dof)
        out = np.full(self.dof.shape, float(ndtri(probability)))
        out[finite] = stdtrit(self.dof[finite], probability)
        out /= np.sqrt(self.inflation)
        return out

    def tail(self, ratio: Array) -> Array:
        """Return the probability (q,) that a t ratio is larger than this one."""
        from scipy.special import ndtr, stdtr

        finite, beyond = np.isfinite(self.dof), -ratio * np.sqrt(self.inflation)
        tail: Array = np.where(finite, stdtr(np.where(finite, self.dof, 1.0), beyond), ndtr(beyond))
        return tail

    def coverage(self, reach: Array) -> Array:
        """Return how often an estimate plus or minus `reach` standard errors covers."""
        return 1.0 - 2.0 * self.tail(reach)


class Laws(Protocol):
    """The laws of any contrasts, not of single coefficients only."""

    def single(self, contrasts: Array) -> Law:
        """Return the law of each contrast of (q, p)."""

    def joint(self, contrasts: Array) -> tuple[float, Array]:
        r"""Return the parameters of Hotelling's distribution of several contrasts jointly.

        Degrees of freedom, and the matrix L (q, q) that takes the estimated covariance C of the
        contrasts to one without bias under the working model, :math:`LCL^\top`.
        """


@dataclass(frozen=True, eq=False)
class Satterthwaite:
    r"""Degrees of freedom of a variance corrected for leverage, contrast by contrast.

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

    def single(self, contrasts: Array) -> Law:
        """Return the law of each contrast of (q, p)."""
        rows = [row[None] for row in np.atleast_2d(contrasts)]
        bias = [float(self._expected(row)[0, 0] / self._truth(row)[0, 0]) for row in rows]
        return Law(np.array([self.dof(row) for row in rows]), np.array(bias))

    def joint(self, contrasts: Array) -> tuple[float, Array]:
        """Return degrees of freedom, and what takes the bias of the covariance away (q, q)."""
        rows = np.atleast_2d(contrasts)
        return self.dof(rows), transport(self._expected(rows), self._truth(rows), "affine")

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

    def _truth(self, rows: Array) -> Array:
        """Return the variance (q, q) of several contrasts under the working model."""
        turned = rows @ self.whiten.T
        truth: Array = turned @ self.total @ turned.T
        return truth

    def _own(self, a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
        own: Array = np.einsum("gi,gi->g", a[0], b[1][:, -a[0].shape[1] :])
        return own

    def _diagonal(self, a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
        shared: Array = np.einsum("gi,ij,gj->g", a[1], self._middle, b[1])
        return self._own(a, b) + shared

    def _hadamard(
        self,
        a: tuple[Array, Array],
        b: tuple[Array, Array],
        c: tuple[Array, Array],
        d: tuple[Array, Array],
    ) -> float:
        """Return the sum over g, h of Lambda^{ab}_gh Lambda^{cd}_gh without a G x G matrix."""
        own_ab, own_cd = self._own(a, b), self._own(c, d)
        low_ab, low_cd = self._diagonal(a, b) - own_ab, self._diagonal(c, d) - own_cd
        middle = self._middle
        both = np.trace(middle @ (b[1].T @ d[1]) @ middle.T @ (c[1].T @ a[1]))
        return float(own_ab @ own_cd + own_ab @ low_cd + low_ab @ own_cd + both)


@dataclass(frozen=True, eq=False)
class ScoreLaws:
    r"""Degrees of freedom of a variance where no working model says how scores vary.

    The variance of a contrast is :math:`\sum_gz_g^2` over m rows or clusters, with :math:`z_g` what
    each adds to the estimate. The variance of that sum is estimated from its terms, and matched to
    a scaled :math:`\chi^2_\nu` (Pan and Wall 2002):
    :math:`\nu=2(\sum z_g^2)^2/\{\tfrac m{m-1}\sum(z_g^2-\overline{z^2})^2\}`, at most m - 1.
    """

    influences: Array  #: Of rows or clusters on the parameters, corrected for leverage, (m, p).

    def single(self, contrasts: Array) -> Law:
        """Return the law of each contrast of (q, p)."""
        rows = np.atleast_2d(contrasts)
        return Law(np.array([self.joint(row)[0] for row in rows]), np.ones(len(rows)))

    def joint(self, contrasts: Array) -> tuple[float, Array]:
        r"""Return degrees of freedom, and no bias.

        With y the influences where the covariance of q contrasts is the identity, matching the sum
        of variances of all its entries: :math:`\nu=q(q+1)/\{\tfrac m{m-1}(\sum|y_g|^4-q/m)\}`.
        """
        rows = np.atleast_2d(contrasts)
        z = self.influences @ rows.T
        m, q = z.shape
        y = z @ whitener(z.T @ z, "contrasts").T
        spread = m / (m - 1) * (np.square(np.square(y).sum(axis=1)).sum() - q / m)
        return float(q * (q + 1) / max(spread, q * (q + 1) / (m - 1))), np.eye(q)


@dataclass(frozen=True, eq=False)
class PartLaws:
    """Laws of contrasts of some of the parameters that other laws are of."""

    laws: Laws
    places: NDArray[np.intp]  #: Where the some are among all.
    p: int  #: How many all are.

    def single(self, contrasts: Array) -> Law:
        """Return the law of each contrast of (q, some)."""
        return self.laws.single(self._among_all(contrasts))

    def joint(self, contrasts: Array) -> tuple[float, Array]:
        """Return the parameters of Hotelling's distribution of several contrasts jointly."""
        return self.laws.joint(self._among_all(contrasts))

    def _among_all(self, contrasts: Array) -> Array:
        rows = np.atleast_2d(contrasts)
        among: Array = np.zeros((len(rows), self.p))
        among[:, self.places] = rows
        return among


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


@dataclass(frozen=True, eq=False)
class Target:
    r"""The target of a calibration: centre, covariance and reference distribution.

    Attributes
    ----------
    center : (p,) array
        The estimate.
    covariance : (p, p) array
        Covariance of the estimator in absolute units, the paper's :math:`V/s_n`.
    names : tuple of str
        Parameter names; by default those of a Series or DataFrame among the two.
    dof : (p,) array
        Degrees of freedom of each parameter's t distribution, infinite for the normal (default).
        One number counts for all.
    hessian, meat : (p, p) arrays or None
        :math:`A` and :math:`B`, sums over observations.
    center_kind, correction : str
        Choices that made it, such as ``"map"`` and ``"CR3"``.
    centered : bool
        Whether scores were centred at observation level.
    clusters : int or None
        Number of independent clusters or PSUs, the smallest if there are several ways.
    design : str
        Which observations may depend on each other, in words.
    cluster_label : str
        Name of the column that clusters were read from, empty if it is not known.
    n : int or None
        Number of rows.
    size : float or None
        The effective scale :math:`s_n`.
    estimand : str
        What an interval covers, in words.
    plug_ins : mapping
        Nuisance values estimated beforehand.
    stacked : tuple of str
        Those of them whose own equations are part of the covariance: :math:`B` is then the variance
        of the scores of both. The others are taken as known.
    method : str
        "sandwich" from a criterion's derivatives, or "infinitesimal jackknife" from draws.
    se_error : (p,) array or None
        Relative Monte Carlo error of the standard errors, where draws made them.
    inflation : (p,) array
        By what factor each variance is too large if the working model is right, one by default:
        the t ratio has the law of Student's t over its root.
    joint_dof : float or None
        Degrees of freedom of Hotelling's law for several contrasts, where it is not that of single
        ones.
    laws : Laws or None
        The laws of contrasts of several parameters (HC2, HC3, CR2, CR3).
    findings : tuple of Finding
        Numbers found on the way, of which diagnostics make checks.
    criterion : Criterion or None
        Whose target it is; of a penalty with a kink, its active block.
    dependence : etafree.dependence.base.Dependence or None
        Which of its rows may depend on each other.

    Raises
    ------
    InputError
        Shapes do not fit together, or a covariance of the user's own is not positive definite.

    See Also
    --------
    etafree.target : The target of a criterion.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> t = ef.target(ef.Criterion(ef.losses.Squared(), data=(X, y)), correction="HC1")
    >>> t
    Target(1 parameter: theta[0]; sandwich, independent observations, HC1, normal)
    >>> t.se.round(3), t.dof_of(np.array([1.0])), t.in_words()
    (array([1.08]), inf, 'independent observations, normal quantiles')
    >>> ef.Target([0.0, 1.0], np.eye(2), ["a", "b"]).describe()  # from another package
    'covariance given by the user'
    >>> few = ef.Target([0.0, 1.0], np.eye(2), dof=[9, 20])
    >>> few.law().quantile(0.975).round(2), few.joint_law(np.eye(2))[0]
    (array([2.26, 2.09]), 9.0)
    """

    center: Array
    covariance: Array
    names: tuple[str, ...] = ()
    dof: Array = field(default_factory=lambda: np.array(np.inf))
    hessian: Array | None = None
    meat: Array | None = None
    center_kind: str = "given"
    correction: str = "given"
    centered: bool = True
    clusters: int | None = None
    design: str = ""
    cluster_label: str = ""
    n: int | None = None
    size: float | None = None
    estimand: str = "whatever the given centre estimates"
    plug_ins: Mapping[str, float] = field(default_factory=dict)
    stacked: tuple[str, ...] = ()
    method: str = "sandwich"
    se_error: Array | None = None
    inflation: Array = field(default_factory=lambda: np.array(1.0))
    joint_dof: float | None = None
    laws: Laws | None = field(default=None, repr=False)
    findings: tuple[Finding, ...] = field(default=(), repr=False)
    criterion: Criterion | None = field(default=None, repr=False)
    dependence: Dependence | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._check_kinds()
        labels: Sequence[str] | None = self.names
        if labels is None or (isinstance(labels, tuple) and not labels):
            labels = axis_names(self.center) or axis_names(self.covariance)
        center, labels = renamed(self.center, labels, "center")
        point = as_array(center, "center").reshape(-1)
        if point.size == 0:
            raise InputError("center", "is empty")
        names, p = as_names(labels, len(point)), len(point)
        dof, inflation = (self._each(name, names) for name in ("dof", "inflation"))
        numbers = as_mapping(self.plug_ins, "plug_ins")
        fields: dict[str, object] = {
            "names": names,
            "center": owned(point),
            "dof": owned(dof),
            "inflation": owned(inflation),
            "plug_ins": {name: as_number(value, name) for name, value in numbers.items()},
            "stacked": self._names_of(numbers),
        }
        covariance = in_order(self.covariance, names, "covariance", (0, 1))
        if not self.design:  # of the user's own
            covariance = check_covariance(covariance, "covariance", p)
        fields["covariance"] = owned(as_array(covariance, "covariance", shape=(p, p)))
        for name, axes in (("hessian", (0, 1)), ("meat", (0, 1)), ("se_error", (-1,))):
            if getattr(self, name) is not None:
                value = in_order(getattr(self, name), names, name, axes)
                fields[name] = owned(as_array(value, name, shape=(p,) * len(axes)))
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _each(self, name: str, names: tuple[str, ...]) -> Array:
        """Return a number above zero for every parameter; one number counts for all."""
        p, endless = len(names), name == "dof"
        value = as_array(in_order(getattr(self, name), names, name), name, finite=not endless)
        value = value if value.ndim else np.full(p, value)
        value = as_array(value, name, shape=(p,), finite=not endless)
        if not np.all(value > 0):
            normal = ", numpy.inf for the normal" if endless else ""
            raise InputError(name, f"are {value.tolist()}", f"pass numbers above zero{normal}")
        return value

    def _names_of(self, plug_ins: Mapping[str, object]) -> tuple[str, ...]:
        """Return the names of stacked plug-ins; refuse one that is none."""
        names = self.stacked if isinstance(self.stacked, tuple | list) else (None,)
        if not all(isinstance(name, str) and name in plug_ins for name in names):
            raise InputError("stacked", f"is {self.stacked!r:.60}", "pass names of plug_ins")
        return tuple(self.stacked)

    def _check_kinds(self) -> None:
        """Refuse what is no text, no number and no finding where one belongs."""
        for name in ("center_kind", "correction", "design", "cluster_label", "estimand", "method"):
            if not isinstance(getattr(self, name), str):
                raise InputError(name, f"is a {type(getattr(self, name)).__name__}", "pass text")
        if self.laws is not None and not all(hasattr(self.laws, m) for m in ("single", "joint")):
            raise InputError("laws", f"is a {type(self.laws).__name__}", "leave it out")
        tuples = isinstance(self.findings, tuple)
        if not tuples or not all(isinstance(finding, Finding) for finding in self.findings):
            raise InputError("findings", "are not a tuple of Finding", "leave them out")
        as_bool(self.centered, "centered")
        for name in ("clusters", "n", "size", "joint_dof"):
            if getattr(self, name) is not None:
                as_positive(getattr(self, name), name)

    @property
    def se(self) -> Array:
        """Standard errors (p,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def p(self) -> int:
        """Number of parameters."""
        return len(self.center)

    def _rows(self, contrasts: Array) -> Array:
        """Return contrasts as rows (q, p)."""
        rows = np.atleast_2d(as_array(contrasts, "contrast"))
        if rows.ndim != 2 or rows.shape[1] != self.p or not len(rows):
            raise InputError("contrast", f"has shape {rows.shape}", f"pass (q, {self.p})")
        return rows

    def law(self, contrasts: Array | None = None) -> Law:
        """Return the law of each contrast, degrees of freedom and inflation.

        Where nothing is known of a contrast, the fewest degrees of freedom of the coefficients that
        it is of, and the smallest inflation, one at most.

        Parameters
        ----------
        contrasts : (p,) or (q, p) array, optional
            By default every coefficient.

        Returns
        -------
        Law
            With ``quantile``, ``tail`` and ``coverage`` of t ratios.
        """
        if contrasts is None:
            return Law(self.dof, self.inflation)
        rows = self._rows(contrasts)
        used = rows != 0
        alone = used.sum(axis=1) == 1
        dof = np.where(used, self.dof, np.inf).min(axis=1)
        own = np.where(used, self.inflation, 1.0)
        inflation = np.where(alone, own.prod(axis=1), own.min(axis=1))
        if self.laws is not None and not alone.all():
            several = self.laws.single(rows[~alone])
            dof[~alone], inflation[~alone] = several
        return Law(dof, inflation)

    def joint_law(self, contrasts: Array) -> tuple[float, Array]:
        r"""Return the parameters of Hotelling's distribution of several contrasts jointly.

        Parameters
        ----------
        contrasts : (p,) or (q, p) array
            Tested together.

        Returns
        -------
        dof : float
            Degrees of freedom.
        unbiased : (q, q) array
            L, which takes the bias off their covariance C: :math:`LCL^\top`.
        """
        rows = self._rows(contrasts)
        if len(rows) == 1:
            law = self.law(rows)
            return float(law.dof[0]), np.array([[law.inflation[0] ** -0.5]])
        if self.joint_dof is not None or self.laws is None:
            few = float(np.where(np.any(rows != 0, axis=0), self.dof, np.inf).min())
            return few if self.joint_dof is None else self.joint_dof, np.eye(len(rows))
        return self.laws.joint(rows)

    def dof_of(self, contrast: Array) -> float:
        """Return the degrees of freedom for a `contrast` (p,), or for several at once (q, p)."""
        return self.joint_law(contrast)[0]

    def describe(self) -> str:
        """Return in words how the covariance was made."""
        if not self.design:
            return "covariance given by the user"
        printed = "" if self.centered else ", scores not centred"
        return f"{self.method}, {self.design}, {self.correction}, {self._quantiles()}{printed}"

    def _quantiles(self) -> str:
        """Return in words where quantiles come from."""
        dof = self.dof
        if np.isinf(dof).all():
            return "normal"
        if np.ptp(dof) < 0.05:
            return f"t with {round(float(dof[0]), 1):g} degrees of freedom"
        return f"t with {dof.min():.1f} to {dof.max():.1f} degrees of freedom"

    def in_words(self) -> str:
        """Return which rows may depend on each other, and where quantiles come from."""
        design = self.design or "covariance given by the user"
        if self.cluster_label:
            design = f"clustered by {self.cluster_label} ({design})"
        quantiles = self._quantiles()
        return f"{design}, {'normal quantiles' if quantiles == 'normal' else quantiles}"

    def __repr__(self) -> str:
        first = ", ".join(self.names[:6]) + (", ..." if self.p > 6 else "")
        return f"Target({counted_noun(self.p, 'parameter')}: {first}; {self.describe()})"


def degrees_of_freedom(given: object, default: float | Array, p: int) -> Array:
    if given is None:
        return np.broadcast_to(np.asarray(default, dtype=np.float64), (p,)).copy()
    number = as_number(given, "dof")
    if not number >= 1:
        raise InputError("dof", f"is {number!r}", "pass at least 1, or numpy.inf for the normal")
    return np.full(p, number)
