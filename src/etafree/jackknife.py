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
tell the Monte Carlo error of every standard error.

References
----------
Giordano, R. and Broderick, T. (2023). The Bayesian infinitesimal jackknife for variance.
arXiv:2305.06466.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from etafree.checks import Check, check
from etafree.dependence import Clusters, Dependence, Series, Survey, Ways
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.influence import (
    Curvature,
    PointwiseLosses,
    batch_edges,
    curvature,
    group_sums,
    scores_by_batch,
    total_losses,
)
from etafree.linalg import check_covariance, correlation_eigenvalues
from etafree.meat import PLAIN_CR, Meat, check_count, clustered, finish, whitener
from etafree.multiway import multiway
from etafree.serial import long_run, newey_west_lag
from etafree.sums import Groups
from etafree.survey import stratified
from etafree.targets import Target, degrees_of_freedom
from etafree.threads import one_blas_thread
from etafree.validation import Array, as_choice, as_positive

__all__ = ["influences", "jackknife_target", "without_noise"]

NAME = "infinitesimal jackknife"
#: Condition of all parameters' correlation above which only the reported ones are used.
COLLINEAR = 1e8

#: From influences (G, p), where the Hessian is the identity, to a covariance; quadratic.
Form = Callable[[Array], Array]


@one_blas_thread
def jackknife_target(
    draws: Draws, losses: PointwiseLosses, dependence: Dependence | None = None, *,
    eta: float = 1.0, every: Draws | None = None, correction: str | None = None,
    bandwidth: Any = None, dof: float | None = None,
) -> Target:  # fmt: skip
    """Return the target of these draws' parameters, with the noise of the draws taken off.

    Parameters
    ----------
    draws : Draws
        Of the parameters to report.
    losses : PointwiseLosses
        Loss of every observation at every draw: minus the log-likelihood, say.
    dependence : Dependence, optional
        Which observations depend on each other; independent by default.
    eta : float
        Learning rate of the draws.
    every : Draws, optional
        Of all parameters, those to report among them.
    correction : str, optional
        "HC0", "HC1" (default) for independent rows, "CR0", "CR1" (default), "CR1S" for clusters;
        others as for `etafree.target`. CR2 and CR3 need a cluster's share of the Hessian.
    bandwidth, dof : optional
        As for `etafree.target`.

    Examples
    --------
    Draws at two sigma points of a mean's posterior give HC0 exactly.

    >>> from etafree.influence import PointwiseArray
    >>> y, sd = np.array([0.0, 1.0, 2.0, 5.0]), 0.5 * np.sqrt(15 / 16)
    >>> theta = 2 + sd * np.tile([1.0, -1.0], 8)
    >>> losses = PointwiseArray(0.5 * (y - theta[:, None]) ** 2)
    >>> t = jackknife_target(Draws.of(theta), losses, correction="HC0")
    >>> t.covariance.round(12)
    array([[0.875]])
    """
    eta = as_positive(eta, "eta")
    n, p = losses.n, draws.p
    if isinstance(dependence, Clusters):
        check_count(len(dependence.groups), p)
    elif dependence is None and n <= p:
        raise InputError("log_likelihood", f"has {n} observations for {p} parameters",
                         "report fewer parameters (var_names=)")  # fmt: skip
    correction = _correction(correction, bandwidth, dependence)
    groups = Groups(np.arange(n), np.arange(n)) if dependence is None else dependence.groups
    parts, spread, found = influences(draws, losses, groups, eta, every)
    whiten = whitener(np.linalg.inv(spread))
    back = np.linalg.inv(whiten)
    for part in parts:  # scores, where A = I
        part[:] = part @ back
    mean = parts.mean(axis=0)
    made, form = _form(mean, whiten, dependence, correction, bandwidth, n)
    covariance, error = without_noise(parts, mean, form)
    still = [draws.names[j] for j in np.flatnonzero(~((error >= 0) & (error < 0.5)))]
    if still:
        raise InputError("log_likelihood", f"moves {still[:8]} by no more than the noise of the "
                         "draws", "leave them out (var_names=), or draw more")  # fmt: skip
    tied = np.abs(correlation_eigenvalues(covariance)[1][:, 0]) > 0.1
    names = [name for name, is_tied in zip(draws.names, tied, strict=True) if is_tied][:8]
    advice = f"{names} are computed from one another, or the draws are too few: leave some out "
    covariance = check_covariance(covariance, NAME, p, advice + "(var_names=), or draw more")
    return Target(
        center=draws.mean, covariance=covariance, names=draws.names,
        dof=degrees_of_freedom(dof, made.dof, p), center_kind="mean", correction=made.correction,
        clusters=made.clusters, design=made.design, n=n, size=float(n), method=NAME,
        estimand="the minimiser of the expected loss, minus the stored log-likelihood",
        se_error=error,
        checks=(*made.checks, *_agreement(found, eta, draws), *_checks(draws, eta * n, error)),
    )  # fmt: skip


def influences(
    draws: Draws, losses: PointwiseLosses, groups: Groups, eta: float, every: Draws | None = None
) -> tuple[Array, Array, Curvature | None]:
    """Return influences of groups on these parameters by batch (K, G, p), and the inverse Hessian.

    By batch to first order: what a batch says of slopes and curvature, others as they are. With
    them the curvature of the total loss over the draws, which is used where it agrees with theirs.
    """
    spread = draws.covariance()
    full = _usable(draws, every)
    edges = batch_edges(full, len(groups) * full.p)
    lower = np.linalg.cholesky(full.covariance())
    z = (full.array - full.mean) @ np.linalg.inv(lower).T
    energy = eta * total_losses(losses, len(z))
    found = curvature(z, energy, edges, full.effective_size())
    if found is None or not found.agrees:
        edges = batch_edges(draws, len(groups) * draws.p)
        parts = scores_by_batch(draws.array, losses, groups, edges)
        parts *= eta
        return parts, eta * spread, found
    matrix, changes = found.matrix, found.changes
    parts = scores_by_batch(z, losses, groups, edges)
    slopes = parts.mean(axis=0)
    inverse = np.linalg.inv(matrix)
    where = [full.names.index(name) for name in draws.names]
    report = eta * inverse @ lower.T[:, where]
    out = parts if full.p == draws.p else np.empty((len(parts), len(groups), draws.p))
    for b, (first, last) in enumerate(pairwise(edges)):
        own = z[first:last].T @ z[first:last] * (len(parts) / (len(z) - 1))
        off = own - np.eye(full.p) + inverse @ changes[b]
        out[b] = (parts[b] - slopes @ off) @ report
    hessian_inverse = eta * lower @ inverse @ lower.T
    return out, hessian_inverse[np.ix_(where, where)], found


def _usable(draws: Draws, every: Draws | None) -> Draws:
    """Return all parameters, or those to report where all together are collinear or too many."""
    if every is None or len(every) < 20 * every.p:
        return draws
    values, _ = correlation_eigenvalues(np.cov(every.array.T, ddof=1).reshape(every.p, every.p))
    return every if values[0] * COLLINEAR > values[-1] else draws


def without_noise(parts: Array, mean: Array, form: Form) -> tuple[Array, Array]:
    """Return a form of the batches' mean less its noise, and the relative error of its roots.

    The error is that of the square roots of the diagonal, from the batches' first-order effects.
    """
    base = form(mean)
    noise, turned = np.zeros_like(base), np.zeros(len(base))
    for part in parts:
        off = part - mean
        square = form(off)
        noise += square
        turned += np.square(np.diagonal(form(part) - base - square))  # twice the product
    many = len(parts) * (len(parts) - 1)
    covariance = base - noise / many
    error: Array = 0.5 * np.sqrt(turned / many) / np.diagonal(covariance)
    return covariance, error


def _agreement(found: Curvature | None, eta: float, draws: Draws) -> tuple[Check, ...]:
    """Return the check of the draws' spread against the log-likelihood's curvature.

    A log-concave prior can only make draws narrower than the log-likelihood says.
    """
    if found is None:
        return ()
    middle, largest = np.median(found.eigenvalues), float(found.eigenvalues[-1])
    value, off = np.log(max(largest, 1e-300)), -np.log(max(float(middle), 1e-300))
    room = 0.25 + 3 * np.sqrt(draws.p / draws.effective_size())
    if value > room or off < np.log(2.0):
        advice = (
            f"the draws' variance is up to {largest:.2g} times what eta = {eta:g} and this "
            f"log-likelihood allow: was eta about {eta / max(float(middle), 1e-300):.2g}, or are "
            "these not their log-likelihoods?"
        )
        return (check("draws against log-likelihood", max(value, 0.0), room, advice, 0.7 + room),)
    advice = (
        "the draws are narrower than this log-likelihood makes them: an informative prior, parts "
        f"of the likelihood that are not stored, or eta about {eta / float(middle):.2g}"
    )
    return (check("draws against log-likelihood", off, np.log(2.0), advice),)


def _checks(draws: Draws, size: float, error: Array) -> tuple[Check, ...]:
    worst = int(np.argmax(error))
    need, ess = max(1000.0, 20.0 * draws.p), draws.effective_size()
    few = Check(
        "jackknife: eta n", size, 100.0, "ok" if size >= 100 else "warn",
        "" if size >= 100 else "eta n is small: the jackknife describes the posterior mean, which "
        "is then no minimiser of the loss",
    )  # fmt: skip
    return (
        check("jackknife: Monte Carlo error of se", float(error[worst]), 0.05,
              f"the se of {draws.names[worst]!r} is known to {100 * error[worst]:.0f} % only: draw "
              "more"),
        check("jackknife: needed over effective", need / ess, 1.0,
              f"{ess:.0f} effective draws; the jackknife asks for {need:.0f}"),
        few,
    )  # fmt: skip


def _correction(
    correction: str | None, bandwidth: Any, dependence: Dependence | None
) -> str | None:
    """Return the correction by name, the jackknife's own for independent rows and clusters."""
    if bandwidth is not None and not isinstance(dependence, Series):
        raise InputError("bandwidth", "is for dependence in time", "pass time=")
    if correction in ("HC2", "HC3", "CR2", "CR3"):
        raise InputError(
            "correction", f"is {correction!r}, which needs each row's share of the Hessian; draws "
            "and log-likelihood have none", "use 'HC1' or 'CR1', or pass model=",
        )  # fmt: skip
    if dependence is None:
        return as_choice("HC1" if correction is None else correction, "correction", ("HC0", "HC1"))
    if isinstance(dependence, Clusters):
        return as_choice("CR1" if correction is None else correction, "correction", PLAIN_CR)
    return correction


def _form(
    mean: Array, whiten: Array, dependence: Dependence | None, correction: str | None,
    bandwidth: Any, n: int,
) -> tuple[Meat, Form]:  # fmt: skip
    """Return the meat of the influences, and the quadratic form that made its covariance."""
    p = mean.shape[1]
    if dependence is None:
        assert correction is not None
        factor = n / (n - p) if correction == "HC1" else 1.0

        def plain(x: Array) -> Array:
            return finish(factor * x.T @ x, whiten)[1]

        return Meat(*finish(factor * mean.T @ mean, whiten), np.inf, correction), plain
    ones = np.bincount(dependence.groups.codes, minlength=len(dependence.groups)).astype(float)
    make: Callable[[Array], Meat]
    match dependence:
        case Clusters():
            used = correction or "CR1"
            make = lambda x: clustered(x, whiten, ones, used, n)  # noqa: E731
        case Survey():
            make = lambda x: stratified(x, whiten, ones, dependence, correction)  # noqa: E731
        case Series():
            if correction in ("Bartlett", "DK") and bandwidth in (None, "newey-west"):
                bandwidth = newey_west_lag(mean @ np.linalg.inv(whiten).T)
            lag = bandwidth
            make = lambda x: long_run(x, whiten, dependence, correction, lag, None)  # noqa: E731
        case Ways():
            made = multiway(mean, whiten, ones, dependence, correction, n)
            whole = made.checks[0].verdict == "ok"
            return made, _signed_sum(dependence, whole, whiten, ones, made.correction, n)
    return make(mean), lambda x: make(x).covariance


def _signed_sum(
    ways: Ways, whole: bool, whiten: Array, ones: Array, correction: str, n: int
) -> Form:
    """Return the form of several ways: every set of them with its sign, or single ways only."""
    sets = []
    for size in range(1, len(ways.ways) + 1 if whole else 2):
        for chosen in combinations(ways.ways, size):
            codes = np.column_stack([way.codes for way in chosen])
            _, group = np.unique(codes, axis=0, return_inverse=True)
            labels = np.arange(group.max() + 1)
            sets.append(((-1.0) ** (size + 1), Groups(group.reshape(-1), labels)))

    def form(x: Array) -> Array:
        out = np.zeros((x.shape[1], x.shape[1]))
        for sign, group in sets:
            sums = np.column_stack([group_sums(column, group) for column in x.T])
            out += sign * clustered(sums, whiten, group_sums(ones, group), correction, n).covariance
        return out

    return form
