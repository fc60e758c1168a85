r"""Minimise a criterion by damped Newton steps until its gradient is zero to rounding.

Why not `scipy.optimize`: its tests stop at a decrease of the value that drowns in rounding long
before the gradient does, it needs the value, gradient and Hessian in separate passes over the data,
and importing it costs more than a small fit.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import numpy as np

from etafree.criterion import Criterion
from etafree.errors import ConvergenceError, InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.foundation.linalg import CONDITION_FAIL, correlation_eigenvalues, surely_conditioned
from etafree.foundation.threads import own_settings
from etafree.losses import Huber, KinkedLoss, ResidualLoss
from etafree.penalties import KinkedPenalty
from etafree.totals.base import Derivatives
from etafree.totals.linear import has_design, is_linear

#: A gradient this small against the terms it sums is zero.
TOLERANCE = 1e-12
MAX_ITERATIONS = 200
#: Large data are first fitted to every so manieth row, with so many rows for each parameter.
SAMPLE_EVERY, SAMPLE_ROWS = 31, 200
#: The same of a vertex, whose rows are solved for.
NEARLY = 1e-8


@dataclass(frozen=True)
class Minimum:
    """Minimiser of a criterion, as `minimise` returns it.

    Attributes
    ----------
    theta : (p,) array
        The minimiser.
    value : float
        L at the minimiser.
    hessian : (p, p) array
        Hessian of L there.
    gap : float
        Largest gradient coordinate relative to the terms it sums.
    iterations : int
        Newton or proximal steps taken.
    status : {"converged", "local"}
        ``local``: the loss is not convex; this is the best minimum of several starts.

    See Also
    --------
    etafree.minimise : What returns it.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> fit = ef.minimise(ef.Criterion(ef.losses.Squared(), data=(X, y)))
    >>> fit.theta, fit.value, fit.hessian, fit.status
    (array([2.]), 7.0, array([[4.]]), 'converged')
    """

    theta: Array
    value: float
    hessian: Array
    gap: float
    iterations: int
    status: str


@own_settings
def minimise(criterion: Criterion, start: object = None, *, threads: int | None = None) -> Minimum:
    r"""Return the minimiser of the penalized total loss, :math:`\hat\theta = \arg\min L`.

    Newton steps with the exact Hessian, halved until the value falls; where the Hessian is not
    positive definite or the step fails, the loss's majorizer takes its place (iteratively
    reweighted least squares, which always descends). A loss that is not convex is minimised from a
    least-squares, a Huber and two random starts; the best minimum has status ``local``. Penalties
    with a kink (L1, elastic net, groups) take proximal steps. Both stop when the gradient, or the
    smallest subgradient, is zero to rounding. Losses with a kink are minimised by linear
    programming.

    Parameters
    ----------
    criterion : Criterion
        What is minimised.
    start : (p,) array, optional
        First point; found from the data if not given.
    threads : int, optional
        How many threads work on the rows; the result is the same. See `etafree.threads`.

    Returns
    -------
    Minimum
        With ``theta`` (p,), the Hessian there and whether the minimum is known to be global.

    Raises
    ------
    InputError
        Collinear columns without a penalty; the message names them.
    ConvergenceError
        No finite minimiser, as for separated logistic data.

    See Also
    --------
    target : The minimiser with its standard errors.

    Examples
    --------
    >>> import numpy as np, etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> ef.minimise(ef.Criterion(ef.losses.Squared(), data=(X, y))).theta
    array([2.])
    """
    if not isinstance(criterion, Criterion):
        raise InputError("criterion", f"is a {type(criterion).__name__}", "pass an ef.Criterion")
    if isinstance(criterion.loss, KinkedLoss):
        return _vertex(criterion)
    if isinstance(criterion.penalty, KinkedPenalty):
        from etafree.optimize.proximal import proximal_minimise  # which takes Newton steps too

        return proximal_minimise(criterion, start)
    with np.errstate(over="ignore", invalid="ignore"):  # a step that overflows is rejected
        if start is not None:
            return _newton(criterion, criterion.point(start, "start"))
        if not is_linear(criterion.total):
            return _newton(criterion, criterion.point(criterion.start, "start"))
        if criterion.loss.convex:
            return _from_sample(criterion) or _newton(criterion, _least_squares(criterion))
        starts = [_least_squares(criterion)]
        if isinstance(criterion.loss, ResidualLoss):
            huber = criterion.with_loss(Huber(1.345, scale=criterion.loss.scale_value))
            with contextlib.suppress(ConvergenceError):  # flat where the data fall into two halves
                starts.append(_newton(huber, starts[0]).theta)
            starts += subset_starts(criterion, criterion.loss.starts)
        return _best(criterion, starts)


def _from_sample(criterion: Criterion) -> Minimum | None:
    r"""Return the minimum from the minimiser of a few rows; None for few rows, or if that fails.

    With m of n rows the start is :math:`(p/m)^{1/2}` standard deviations of a predictor away, where
    every Newton step doubles the digits.
    """
    total = criterion.total
    enough = total.n >= SAMPLE_EVERY * SAMPLE_ROWS * criterion.p
    if criterion.loss.quadratic or not enough or not has_design(total):
        return None
    rows = np.arange(0, total.n, SAMPLE_EVERY)
    with contextlib.suppress(InputError, ConvergenceError):
        sample = replace(criterion, total=total.take(rows))
        return _newton(criterion, _newton(sample, _least_squares(sample)).theta)
    return None


def _vertex(criterion: Criterion) -> Minimum:
    """Return the minimiser of a total with kinks, exact whatever the start."""
    name = type(criterion.loss).__name__
    if criterion.strength > 0:
        advice = "leave penalty and log prior out, or use ef.losses.Quantile(tau, bandwidth)"
        raise InputError("penalty", f"needs a smooth loss, and {name} has a kink", advice)
    check_collinear(criterion, finite_moments(criterion)[0])
    theta = criterion.total.vertex()
    state = criterion.derivatives(theta)
    if not state.value > 1e-12 * criterion.size:  # a hinge loss of nothing: separated classes
        raise separated(criterion, theta)
    if (gap := _gap(state)) > NEARLY:
        raise ConvergenceError(f"the linear program of {name} stops at a gradient of {gap:.1e}")
    return Minimum(theta, state.value, state.hessian, gap, 1, "converged")


def _least_squares(criterion: Criterion) -> Array:
    """Return the minimiser of penalized least squares, a start for any loss."""
    gram, moment = finite_moments(criterion)
    if criterion.strength > 0:
        weight, zero = criterion.strength * criterion.size, np.zeros(criterion.p)
        gram = gram + weight * criterion.penalty.hessian(zero)
        moment = moment - weight * criterion.penalty.gradient(zero)
    if not np.isfinite(gram).all():
        raise InputError("penalty", "is so strong that its Hessian overflows", "weaken it")
    check_collinear(criterion, gram)
    return linalg.solve(gram, moment, "X'X")


def finite_moments(criterion: Criterion) -> tuple[Array, Array]:
    """Return X'X (p, p) and X'y (p,), or refuse columns so large that they overflow."""
    gram, moment = criterion.total.least_squares()
    if not (np.isfinite(gram).all() and np.isfinite(moment).all()):
        raise InputError("X", "is so large that X'X overflows", "rescale its columns")
    return gram, moment


def subset_starts(criterion: Criterion, count: int) -> list[Array]:
    """Return exact fits to `count` random subsets of p rows: starts spread like the data."""
    total, rng = criterion.total, np.random.default_rng(0)
    there = np.arange(total.n) if total.weights is None else np.flatnonzero(total.weights)
    size = min(len(there), total.p)
    subsets = [rng.choice(there, size=size, replace=False) for _ in range(count)]
    taken = total.take(np.concatenate(subsets))
    response = taken.y if taken.offset is None else taken.y - taken.offset
    cuts = [slice(k * size, (k + 1) * size) for k in range(count)]
    return [linalg.least_squares(taken.X[rows], response[rows]) for rows in cuts]


def _best(criterion: Criterion, starts: list[Array]) -> Minimum:
    """Return the lowest of the minima reached; a start that leads nowhere is passed over."""
    fits: list[Minimum] = []
    failure: ConvergenceError | None = None
    for start in starts:
        try:
            fits.append(_newton(criterion, start))
        except ConvergenceError as error:
            failure = error
    if failure is not None and not fits:
        raise failure
    return min(fits, key=lambda fit: fit.value)


def _newton(criterion: Criterion, theta: Array) -> Minimum:
    state = criterion.derivatives(theta)
    if not np.isfinite(state.value):
        raise InputError("start", "is where the loss is not finite", "pass another start=")
    column_rms = criterion.total.column_norms / np.sqrt(criterion.n)
    for iteration in range(MAX_ITERATIONS):
        gap = _gap(state)
        step = _newton_step(state)
        reach = np.inf if step is None else float(np.max(np.abs(step) * column_rms))
        settled = not criterion.loss.unit_free or reach <= 1e-6
        if gap <= TOLERANCE and step is not None and settled:
            return _done(criterion, theta, state, iteration)
        if criterion.loss.unit_free and reach > 0.1 and (gap <= TOLERANCE or iteration >= 60):
            raise separated(criterion, theta)
        moved = _downhill(criterion, theta, state, step)
        if moved is None:
            spread = float(np.sum(np.abs(theta) * column_rms))
            if _is_rounding(gap, reach, spread):  # nothing else is left to gain
                return _done(criterion, theta, state, iteration)
            _refuse_boundary(criterion, theta, state)
            raise _stuck(criterion, theta, gap, reach)
        theta, state = moved
    _refuse_boundary(criterion, theta, state)
    if criterion.loss.unit_free:
        raise separated(criterion, theta)
    raise ConvergenceError(
        f"not converged after {MAX_ITERATIONS} Newton steps (relative gradient {_gap(state):.1e}); "
        f"{criterion.loss.way_out}"
    )


def _done(criterion: Criterion, theta: Array, state: Derivatives, iterations: int) -> Minimum:
    """Return the fit, unless the Hessian there says that columns are collinear."""
    _refuse_boundary(criterion, theta, state)
    check_collinear(criterion, state.hessian)
    status = "converged" if criterion.loss.convex else "local"
    return Minimum(theta, state.value, state.hessian, _gap(state), iterations, status)


def _refuse_boundary(criterion: Criterion, theta: Array, state: Derivatives) -> None:
    """Raise if the loss says that its minimum lies at the end of a parameter's range."""
    if criterion.loss.bounded:
        known = theta, _gaps(state), state.hessian, criterion.names
        criterion.loss.refuse_boundary(criterion.value, *known)


def _gaps(state: Derivatives) -> Array:
    scale = np.where(state.gradient_scale > 0, state.gradient_scale, 1.0)
    return np.asarray(np.abs(state.gradient) / scale)


def _gap(state: Derivatives) -> float:
    return float(_gaps(state).max())


def _newton_step(state: Derivatives) -> Array | None:
    """Return the Newton step, None if the Hessian is not safely positive definite."""
    factor = linalg.safe_factor(state.hessian)
    if factor is None:
        return None
    sd, _ = factor
    with np.errstate(over="ignore"):  # a curvature that nearly vanishes leads to infinity
        step = linalg.solve(state.hessian / sd / sd[:, None], -state.gradient / sd) / sd
    return step if np.isfinite(step).all() else None


def _is_rounding(gap: float, reach: float, spread: float) -> bool:
    """Return whether what keeps a point from being the minimum may be rounding alone."""
    return bool(np.isfinite(reach)) and (gap <= 1e3 * TOLERANCE or reach <= 1e-12 * spread)


def _downhill(
    criterion: Criterion, theta: Array, state: Derivatives, step: Array | None
) -> tuple[Array, Derivatives] | None:
    """Return a lower point and its derivatives, along the step or that of the majorizer."""
    moved = _search(criterion, theta, state, step, halvings=4)
    if moved is not None:
        return moved
    safe = _newton_step(criterion.derivatives(theta, majorize=True))
    return _search(criterion, theta, state, safe, halvings=40)


def _search(
    criterion: Criterion, theta: Array, state: Derivatives, step: Array | None, halvings: int
) -> tuple[Array, Derivatives] | None:
    """Return the first of theta + step / 2**k that lowers the value, with its derivatives."""
    if step is None:
        return None
    slope = float(state.gradient @ step)
    noise = 1e-13 * (abs(state.value) + float(np.max(np.abs(state.gradient_scale))) * 1e-3)
    for k in range(halvings):
        t = 0.5**k
        new = criterion.derivatives(theta + t * step)
        if not np.isfinite(new.value):
            continue
        falls = new.value <= state.value + 1e-4 * t * slope
        drowned = abs(slope) <= 1e4 * noise and new.value <= state.value + 1e3 * noise
        if (falls and slope < -noise) or (drowned and _gap(new) < _gap(state)):
            return theta + t * step, new
    return None


def _stuck(criterion: Criterion, theta: Array, gap: float, reach: float) -> ConvergenceError:
    """Return the error for a point that no step leaves downhill, or say which columns do it."""
    if criterion.loss.unit_free and reach > 0.1:
        return separated(criterion, theta)
    if is_linear(criterion.total):
        gram, _ = criterion.total.least_squares()
        share = criterion.total.weight * criterion.penalty_share(theta)
        check_collinear(criterion, gram + share)
    else:
        still = ~np.any(criterion.derivatives(theta).hessian != 0, axis=0)
        if np.any(still):
            named = [criterion.names[j] for j in np.flatnonzero(still)]
            raise InputError(
                "loss",
                f"and penalty do not depend on {named[:8]}",
                "take them out of the model, or give them a prior or a penalty",
            )
        check_collinear(criterion, criterion.derivatives(theta, majorize=True).hessian)
    return ConvergenceError(
        f"no step lowers the loss (relative gradient {gap:.1e}): the Hessian is not positive "
        f"definite there; {criterion.loss.way_out}"
    )


def check_collinear(criterion: Criterion, curvature: Array) -> None:
    if surely_conditioned(curvature, CONDITION_FAIL):
        return
    values, vectors = correlation_eigenvalues(curvature)
    if values[0] * CONDITION_FAIL > values[-1]:
        return
    loads = np.abs(vectors[:, 0])
    named = [criterion.names[j] for j in np.flatnonzero(loads > 0.1 * loads.max())]
    if not is_linear(criterion.total):
        raise InputError(
            "loss",
            f"does not tell {named} apart (its Hessian's condition number is "
            f"above {CONDITION_FAIL:.0e})",
            "fix one of them or add a penalty",
        )
    if len(named) == 1:
        raise InputError("X", f"column {named[0]!r} is zero", "drop it")
    raise InputError(
        "X",
        f"columns {named} are collinear (correlation condition number above {CONDITION_FAIL:.0e}; "
        f"n = {criterion.n}, p = {criterion.p})",
        "drop one of them; penalty=ef.penalties.Ridge(...) makes an estimate unique, but no "
        "variance can be estimated in the collinear directions",
    )


def separated(criterion: Criterion, theta: Array) -> ConvergenceError:
    """Return the error for a predictor that runs off, unless collinear columns are the reason."""
    if not is_linear(criterion.total):
        check_collinear(criterion, criterion.derivatives(criterion.start).hessian)
    size = np.abs(theta) * criterion.total.column_norms
    name = criterion.names[int(np.argmax(size))]
    return ConvergenceError(
        f"no finite minimiser: the coefficient of {name!r} runs off to infinity (separated data: a "
        "combination of columns predicts some responses or the order of events perfectly, or a "
        "value so extreme that it decides alone); add penalty=ef.penalties.Ridge(...), "
        "drop the column or look at its extremes"
    )
