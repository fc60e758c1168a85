r"""The learning rate whose posterior is closest to a reference posterior of another loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_choice, as_count
from etafree.learning_rates.gpc import effective_share, reweighted
from etafree.learning_rates.problem import LearningRate, Problem
from etafree.optimize import Minimum, minimise
from etafree.posterior import GeneralizedPosterior
from etafree.samplers import sample

#: Rounds of drawing anew at the last answer, and how far one round may move.
ROUNDS, REACH = 8, 4.0
#: Shares of effective draws that are enough, and below which the answer is noise.
ESS_ENOUGH, ESS_NOISY = 0.5, 0.1
BATCHES = 20
#: A divergence at a learning rate, from a subset of the draws.
Divergence = Callable[[float, NDArray[np.intp]], float]


def gaussian_rate(
    A: Array, P: Array, shift: Array | None = None, direction: str = "forward"
) -> float:
    r"""Return the closest normal posterior's learning rate.

    :math:`\mathrm{KL}\{N(m,(\eta A)^{-1})\,\|\,N(m_0,P^{-1})\}` is smallest at
    :math:`\mathrm{tr}(PA^{-1})/p` (forward), the divergence the other way round at
    :math:`p/\{\mathrm{tr}(AP^{-1})+(m-m_0)^\top A(m-m_0)\}` (reverse).
    """
    p = len(A)
    if direction == "forward":
        return float(np.trace(linalg.solve(A, P, "Hessian")) / p)
    distance = 0.0 if shift is None else float(shift @ A @ shift)
    return float(p / (np.trace(linalg.solve(P, A, "reference")) + distance))


def kl_to_bayes(
    problem: Problem,
    reference: object = None,
    window: int | None = None,
    direction: str = "forward",
    approximation: str = "auto",
    draws: int = 4000,
) -> LearningRate:
    r"""Return :math:`\arg\min_\eta\mathrm{KL}(\pi_\eta\,\|\,\pi_{\mathrm{ref}})`.

    The reference is usually the Bayes posterior of a model that is right at first. It does not
    depend on the units of the parameters, and aims at the reference, not at coverage.

    Parameters
    ----------
    reference : GeneralizedPosterior
        Of another loss over the same rows and parameters: the same loss gives one trivially.
    window : int, optional
        Rows at the beginning that both posteriors are computed from; all if not given.
    direction : {"forward", "reverse"}
        ``reverse`` minimises :math:`\mathrm{KL}(\pi_{\mathrm{ref}}\|\pi_\eta)`.
    approximation : {"auto", "normal", "draws"}
        ``normal``: both posteriors by mode and curvature, which is exact where both are normal.
        ``draws``: by draws at one learning rate that are reweighted to others and drawn anew at the
        answer, so that random numbers are common. ``auto``: normal where that is exact.
    draws : int

    References
    ----------
    Altamirano, M., Briol, F.-X. and Knoblauch, J. (2023). Robust and scalable Bayesian online
    changepoint detection. ICML 40, PMLR 202, 642-663.
    """
    as_choice(direction, "direction", ("forward", "reverse"))
    as_choice(approximation, "approximation", ("auto", "normal", "draws"))
    count = as_count(draws, "draws", least=200)
    criterion, other = _windows(problem, reference, window)
    problem = replace(problem, criterion=criterion)
    fit, theirs = problem.fit, minimise(other.energy)
    precision, shift = other.eta * theirs.hessian, fit.theta - theirs.theta
    eta = gaussian_rate(fit.hessian, precision, shift, direction)
    if approximation == "auto":
        exact = _quadratic(criterion, fit) and _quadratic(other.energy, theirs)
        approximation = "normal" if exact and problem.log_prior is None else "draws"
    elif approximation == "normal" and problem.log_prior is not None:
        raise InputError("approximation", "'normal' is without log_prior only", "use 'draws'")
    facts: dict[str, object] = {"direction": direction, "reference": repr(other.criterion.loss)}
    facts |= {"window": window, "computed": approximation}
    if approximation == "draws":
        return _by_draws(problem, other, eta, count, facts)
    return problem.rate("kl_to_bayes", "reference", eta, diagnostics=facts)


def _windows(
    problem: Problem, reference: object, window: int | None
) -> tuple[Criterion, GeneralizedPosterior]:
    """Return criterion and reference over the same first rows, checked."""
    criterion = problem.criterion
    if not isinstance(reference, GeneralizedPosterior):
        advice = "pass an ef.GeneralizedPosterior of another loss, such as Squared"
        raise InputError("reference", f"is a {type(reference).__name__}", advice)
    theirs = reference.criterion
    if (theirs.n, theirs.p) != (criterion.n, criterion.p):
        other = f"has {theirs.n} rows and {theirs.p} parameters for {criterion.n} and {criterion.p}"
        raise InputError("reference", other, "use the same data")
    if theirs.loss == criterion.loss:
        same = f"has the same loss, {criterion.loss!r}: its own eta would be the answer"
        raise InputError("reference", same, "use another loss")
    if window is None:
        return criterion, reference
    first = as_count(window, "window", least=criterion.p + 1)
    if first > criterion.n:
        raise InputError("window", f"is {first} of {criterion.n} rows", "leave it out for all")
    both = []
    for one in (criterion, theirs):
        own, kind = one.total.weights, "frequency" if one.total.frequency else "sampling"
        inside = np.where(np.arange(one.n) < first, 1.0 if own is None else own, 0.0)
        both.append(one.reweighted(inside, kind))
    return both[0], GeneralizedPosterior(both[1], reference.eta, reference.log_prior)


def _quadratic(energy: Criterion, fit: Minimum) -> bool:
    """Return whether a criterion has the same Hessian three posterior deviations away."""
    sd = np.sqrt(np.diagonal(fit.hessian))
    signs = 1.0, -1.0, np.where(np.arange(len(sd)) % 2, 1.0, -1.0)
    changes = [energy.hessian(fit.theta + 3 * sign / sd) - fit.hessian for sign in signs]
    return bool(np.all(np.abs(changes) <= 1e-8 * np.outer(sd, sd)))


def _by_draws(
    problem: Problem, other: GeneralizedPosterior, eta: float, count: int, facts: dict[str, object]
) -> LearningRate:
    """Minimise the divergence over reweighted draws, drawn anew until they lie where it ends."""
    criterion, (ours, theirs) = problem.criterion, problem.seeds.spawn(2)
    reference = sample(other, count, seed=np.random.default_rng(theirs)).array
    reference_losses = criterion.values_at(reference)
    trace: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        base, posterior = eta, GeneralizedPosterior(criterion, eta, problem.log_prior)
        theta = sample(posterior, count, seed=np.random.default_rng(ours)).array
        losses = criterion.values_at(theta)
        excess = None  # log prior less the reference's log density
        if facts["direction"] == "forward":
            excess = posterior.log_density(theta) + base * losses - other.log_density(theta)
        divergence = _divergence(losses, base, excess, reference_losses)
        rows = np.arange(len(losses))
        eta = _lowest(divergence, base, rows, REACH)
        tried = [*np.geomspace(base / REACH, base * REACH, 9), eta]
        trace += [(float(rate), divergence(rate, rows)) for rate in tried]
        share = float(effective_share(losses, eta - base))
        edge = abs(np.log(eta / base)) > 0.99 * np.log(REACH)
        if share >= ESS_ENOUGH and not edge:
            break
    status = "converged" if share >= ESS_ENOUGH else ("noisy" if share >= ESS_NOISY else "max_iter")
    status = "boundary" if edge else status
    batches = np.random.default_rng(0).permutation(len(losses)) % BATCHES
    without = [_lowest(divergence, eta, np.flatnonzero(batches != k), 2.0) for k in range(BATCHES)]
    error = float(np.sqrt((BATCHES - 1) * np.var(without)))  # the jackknife's, over batches
    facts["ess_share"] = share
    columns = dict(zip(("eta", "divergence"), np.transpose(trace), strict=True))
    return problem.rate("kl_to_bayes", "reference", eta, error, columns, facts, status=status)


def _lowest(divergence: Divergence, base: float, rows: NDArray[np.intp], reach: float) -> float:
    """Return where the divergence of a subset of draws is smallest, within a factor of `base`."""
    from scipy.optimize import minimize_scalar

    minimum = minimize_scalar(
        lambda t: divergence(base * np.exp(t), rows),
        bounds=(-np.log(reach), np.log(reach)),
        method="bounded",
        options={"xatol": 1e-7},
    )
    return float(base * np.exp(minimum.x))


def _divergence(losses: Array, base: float, excess: Array | None, reference: Array) -> Divergence:
    """Return KL(pi_eta | reference), or without `excess` the other way, up to a constant."""

    def divergence(eta: float, rows: NDArray[np.intp]) -> float:
        loss = losses[rows] - losses.mean()
        power = (base - eta) * loss
        log_mean = power.max() + np.log(np.mean(np.exp(power - power.max())))
        if excess is not None:
            return float(reweighted(loss, eta - base) @ (excess[rows] - eta * loss) - log_mean)
        mean = reference[rows % len(reference)].mean() - losses.mean()
        return float(eta * mean + log_mean)

    return divergence
