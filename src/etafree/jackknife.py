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
from itertools import combinations
from typing import Any

import numpy as np

from etafree import linalg
from etafree.checks import Check, check, run_checks
from etafree.dependence import Clusters, Dependence, Series, Survey, Ways
from etafree.draws import Draws
from etafree.errors import InputError
from etafree.influence import (
    Curvature,
    PointwiseLosses,
    Slopes,
    find_slopes,
    group_sums,
    scores_by_batch,
)
from etafree.linalg import check_covariance, correlation_eigenvalues
from etafree.meat import PLAIN_CR, Meat, check_count, clustered, finish
from etafree.multiway import multiway
from etafree.row_losses import RowLosses
from etafree.serial import AUTOMATIC, long_run, newey_west_lag
from etafree.sums import Groups
from etafree.survey import stratified
from etafree.targets import Target, degrees_of_freedom
from etafree.threads import own_settings
from etafree.validation import Array, as_choice, as_positive

__all__ = ["influences", "jackknife_target", "without_noise"]

NAME = "infinitesimal jackknife"
FEWER = "report fewer parameters (var_names= of a fit, Draws.select() of draws)"

#: From influences (G, p), where the Hessian is the identity, to a covariance; quadratic.
Form = Callable[[Array], Array]


@own_settings
def jackknife_target(
    draws: Draws, losses: PointwiseLosses | RowLosses, dependence: Dependence | None = None, *,
    eta: float = 1.0, every: Draws | None = None, correction: str | None = None,
    bandwidth: Any = None, dof: float | None = None,
) -> Target:  # fmt: skip
    """Return the target of these draws' parameters, with the noise of the draws taken off.

    Parameters
    ----------
    draws : Draws
        Of the parameters to report.
    losses : PointwiseLosses or RowLosses
        Loss of every observation at every draw: minus the log-likelihood, say; or a criterion's
        rows, of which some at a time are held.
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
    >>> losses = PointwiseArray(-0.5 * (y - theta[:, None]) ** 2)
    >>> t = jackknife_target(Draws.of(theta), losses, correction="HC0")
    >>> t.covariance.round(12)
    array([[0.875]])
    """
    eta = as_positive(eta, "eta")
    n, p = losses.n, draws.p
    if isinstance(dependence, Clusters):
        check_count(len(dependence.groups), p, f"{FEWER}:")
    elif dependence is None and n <= p:
        raise InputError("log_likelihood", f"has {n} observations for {p} parameters",
                         f"{FEWER}: at most {n - 1}")  # fmt: skip
    correction = _correction(correction, bandwidth, dependence)
    rows = losses.total if isinstance(losses, RowLosses) else None
    count, size = (float(n), float(n)) if rows is None else (rows.count, rows.size)
    if dependence is None and isinstance(losses, RowLosses):
        assert correction is not None
        slopes = find_slopes(draws, losses, 1, eta, every)
        whiten = linalg.whitener(linalg.inv(slopes.spread, "draws"), "draws")
        made, covariance, error = _over_rows(losses, slopes, whiten, correction)
    else:
        groups = Groups(np.arange(n), np.arange(n)) if dependence is None else dependence.groups
        parts, slopes = influences(draws, losses, groups, eta, every)
        whiten = linalg.whitener(linalg.inv(slopes.spread, "draws"), "draws")
        back = linalg.inv(whiten, "draws")
        for part in parts:  # scores, where A = I
            part[:] = part @ back
        mean = parts.mean(axis=0)
        weights = groups.weights(None if rows is None else rows.weights)
        made, form = _form(mean, whiten, dependence, correction, bandwidth, weights, count)
        covariance, error = without_noise(parts, mean, form)
    still = [draws.names[j] for j in np.flatnonzero(~((error >= 0) & (error < 0.5)))]
    if still:
        raise InputError("log_likelihood", f"moves {still[:8]} by no more than the noise of the "
                         "draws", f"{FEWER}, or draw more")  # fmt: skip
    tied = np.abs(correlation_eigenvalues(covariance)[1][:, 0]) > 0.1
    names = [name for name, is_tied in zip(draws.names, tied, strict=True) if is_tied][:8]
    advice = f"{names} are computed from one another, or the draws are too few: {FEWER}"
    covariance = check_covariance(covariance, NAME, p, f"{advice}, or draw more")
    return Target(
        center=draws.mean, covariance=covariance, names=draws.names,
        dof=degrees_of_freedom(dof, made.dof, p), center_kind="mean", correction=made.correction,
        clusters=made.clusters, design=made.design, n=n, size=size, method=NAME,
        estimand="the minimiser of the expected loss (minus the stored log-likelihood)",
        se_error=error,
        checks=(*made.checks, *run_checks([
            ("draws against log-likelihood", lambda: _agreement(slopes.found, eta, draws)),
            ("jackknife", lambda: _checks(draws, eta * count, error)),
        ])),
    )  # fmt: skip


def influences(
    draws: Draws, losses: PointwiseLosses | RowLosses, groups: Groups, eta: float,
    every: Draws | None = None,
) -> tuple[Array, Slopes]:  # fmt: skip
    """Return influences of groups on these parameters by batch (K, G, p), and the slopes' way."""
    slopes = find_slopes(draws, losses, len(groups), eta, every)
    return slopes.influences(scores_by_batch(slopes.z, losses, groups, slopes.edges)), slopes


def without_noise(parts: Array, mean: Array, form: Form) -> tuple[Array, Array]:
    """Return a form of the batches' mean less its noise, and the relative error of its roots.

    The error is that of the square roots of the diagonal, from the batches' first-order effects.
    """
    base, squares, turned = form(mean), [], []
    for part in parts:
        squares.append(form(part - mean))
        turned.append(np.diagonal(form(part) - base - squares[-1]))  # twice the product
    return _less_noise(base, np.array(squares), np.array(turned))


def _less_noise(base: Array, squares: Array, turned: Array) -> tuple[Array, Array]:
    many = len(squares) * (len(squares) - 1)
    covariance: Array = base - squares.sum(axis=0) / many
    error: Array = 0.5 * np.sqrt(np.square(turned).sum(axis=0) / many) / np.diagonal(covariance)
    return covariance, error


def _over_rows(
    losses: RowLosses, slopes: Slopes, whiten: Array, correction: str
) -> tuple[Meat, Array, Array]:
    """Return the meat of independent rows, and `without_noise` of it, from sums over the rows."""
    p, many, frequency = len(whiten), len(slopes.edges) - 1, losses.total.frequency
    back = linalg.inv(whiten, "draws")

    def moments(scores: Array, weights: Array | None) -> tuple[Array, ...]:
        parts = slopes.influences(scores) @ back
        if weights is not None and frequency:  # copies of a row are rows
            parts *= np.where(weights > 0, weights, np.inf)[:, None] ** -0.5
        mean = parts.mean(axis=0)
        parts -= mean
        return mean.T @ mean, parts.transpose(0, 2, 1) @ parts, mean.T @ parts

    deviation = slopes.z - slopes.z.mean(axis=0)
    zeros = np.zeros((p, p)), np.zeros((many, p, p)), np.zeros((many, p, p))
    base, squares, products = losses.sums_over_rows(deviation, slopes.edges, moments, *zeros)
    factor = losses.total.small_sample_factor() if correction == "HC1" else 1.0
    made = Meat(*finish(factor * base, whiten), np.inf, correction)
    squares = factor * whiten.T @ squares @ whiten
    turned = 2 * factor * np.diagonal(whiten.T @ products @ whiten, axis1=1, axis2=2)
    return made, *_less_noise(made.covariance, squares, turned)


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
    if isinstance(correction, str) and correction in ("HC2", "HC3", "CR2", "CR3"):
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
    bandwidth: Any, weights: Array, n: float,
) -> tuple[Meat, Form]:  # fmt: skip
    """Return the meat of the influences, and the quadratic form that made its covariance.

    `weights` are those of groups, `n` is how many observations there are.
    """
    p = mean.shape[1]
    if dependence is None:
        assert correction is not None
        factor = n / (n - p) if correction == "HC1" else 1.0

        def plain(x: Array) -> Array:
            return finish(factor * x.T @ x, whiten)[1]

        return Meat(*finish(factor * mean.T @ mean, whiten), np.inf, correction), plain
    make: Callable[[Array], Meat]
    match dependence:
        case Clusters():
            used = correction or "CR1"
            make = lambda x: clustered(x, whiten, weights, used, n)  # noqa: E731
        case Survey():
            make = lambda x: stratified(x, whiten, weights, dependence, correction)  # noqa: E731
        case Series():
            automatic = bandwidth is None or isinstance(bandwidth, str)
            if automatic and correction in ("Bartlett", "DK") and bandwidth in (None, AUTOMATIC):
                bandwidth = newey_west_lag(mean @ linalg.inv(whiten, "draws").T)
            lag = bandwidth
            make = lambda x: long_run(x, whiten, dependence, correction, lag, None)  # noqa: E731
        case Ways():
            made = multiway(mean, whiten, weights, dependence, correction, n)
            whole = made.checks[0].verdict == "ok"
            return made, _signed_sum(dependence, whole, whiten, weights, made.correction, n)
    return make(mean), lambda x: make(x).covariance


def _signed_sum(
    ways: Ways, whole: bool, whiten: Array, weights: Array, correction: str, n: float
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
            shares = group_sums(weights, group)
            out += sign * clustered(sums, whiten, shares, correction, n).covariance
        return out

    return form
