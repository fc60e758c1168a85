"""A posterior drawn afresh at other learning rates, before and after calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from etafree.calibration import move_draws
from etafree.draws import Draws
from etafree.errors import ConvergenceError, EtafreeError, InputError
from etafree.linear import LinearTotal
from etafree.penalties import ActivePenalty
from etafree.posterior import GeneralizedPosterior
from etafree.samplers import sample
from etafree.samplers.importance import trustworthy
from etafree.summaries import flat_variables
from etafree.validation import Array, as_array, as_positive

__all__ = ["DRAWS", "FACTORS", "SEED", "Sweep", "learning_rates", "sweep"]

#: Learning rates as multiples of the fit's.
FACTORS = np.logspace(-2, 2, 13)
#: Draws at each of them, all with one seed: what moves is not the luck of the draw.
DRAWS, SEED = 2000, 0
#: Rows times parameters times draws times learning rates: half a minute for the slowest losses.
BUDGET = 1e10


class Sweep(NamedTuple):
    """Intervals of a posterior drawn afresh at several learning rates.

    `before` and `after` have (3, k) lower limits, middles and upper limits of the k variables that
    the result shows per learning rate, None where drawing failed for the reason given.
    """

    etas: tuple[float, ...]
    before: tuple[Array | None, ...]
    after: tuple[Array | None, ...]
    reasons: tuple[str, ...]


def learning_rates(result: Any, etas: Sequence[float] | None = None) -> tuple[list[float], str]:
    """Return the slider's learning rates, or why there are none."""
    wanted = None if etas is None else as_array(etas, "etas", ndim=1)
    if wanted is not None and len(wanted) == 0:
        return [], ""
    c, posterior, why = result.criterion, result.posterior, ""
    if c is None:
        why = "no criterion is known here, only draws and a target"
    elif posterior is None and isinstance(c.penalty, ActivePenalty):
        why = "the posterior of the parameters that the penalty sets to zero is not known"
    elif posterior is not None and posterior.log_prior is not None and c is posterior.energy:
        why = "the target contains the log prior over η, and so moves with η itself"
    elif result.fit is not None and result.original.eta != 1:
        why = "η may multiply the model's prior or not, and this fit's is not 1"
    if why and wanted is not None:
        raise InputError("etas", f"cannot be drawn at: {why}", "leave etas out")
    if c is None or why:
        return [], why
    own = result.original.eta
    if wanted is not None:
        grid = {as_positive(eta, "etas") for eta in wanted}
        return sorted(grid | ({own} if own else set())), ""
    terms = max(c.n, c.size) if c.total.weights is None else c.n  # size: the number of pairs
    if terms * c.p * DRAWS * len(FACTORS) > BUDGET:
        return [], "drawing the posterior again at every learning rate would take long"
    return [float(factor * (own or 1.0)) for factor in FACTORS], ""


def sweep(result: Any, etas: Sequence[float]) -> Sweep:
    """Draw the posterior at each learning rate and calibrate to the same target again.

    Fresh draws everywhere, with one seed; nothing is interpolated. The result needs a criterion.
    """
    posterior, tail = result.posterior, 0.5 * (1 - result.settings["level"])
    criterion = result.criterion if posterior is None else posterior.criterion
    prior = None if posterior is None else posterior.log_prior
    assert criterion is not None
    before: list[Array | None] = []
    after: list[Array | None] = []
    reasons = []
    how = {key: result.settings[key] for key in ("kind", "root", "working")}
    for eta in etas:
        try:
            made = _draws(GeneralizedPosterior(criterion, eta, prior))
            made = made.select(result.target.names)
            mapping, values = move_draws(
                made, result.target, **how, rng=np.random.default_rng(SEED)
            )
        except EtafreeError as error:
            old, new, reason = None, None, str(error)
        else:
            with np.errstate(over="ignore", invalid="ignore"):  # the exp of a wide posterior
                flat = values.reshape(-1, values.shape[-1])  # chain after chain
                points = np.concatenate([made.array, flat, mapping.offset[None]])
                parts = np.split(_variables(result, points), [len(made), 2 * len(made)])
                old = _limits(parts[0], parts[0].mean(axis=0), tail)
                new = _limits(parts[1], parts[2][0], tail)
            reason = "" if np.isfinite([old, new]).all() else "limits there are not finite"
        before.append(None if reason else old)
        after.append(None if reason else new)
        reasons.append(reason)
    return Sweep(tuple(etas), tuple(before), tuple(after), tuple(reasons))


def _draws(posterior: GeneralizedPosterior) -> Draws:
    """Draw, from a model that is not linear only where importance sampling does: chains are slow.

    Raises an error where the posterior is too far from normal for that.
    """
    if posterior.criterion.p == 1 or isinstance(posterior.criterion.total, LinearTotal):
        return sample(posterior, DRAWS, SEED)
    made = sample(posterior, DRAWS, SEED, "importance")
    if not trustworthy(made):
        raise ConvergenceError(
            "the posterior is too far from normal for quick draws (Pareto k = "
            f"{made.info['pareto_k']:.2f}, {made.info['weights_ess']:.0f} of {DRAWS} effective)"
        )
    return made


def _limits(values: Array, middle: Array, tail: float) -> Array:
    low, high = np.quantile(values, [tail, 1 - tail], axis=0)
    return np.array([low, middle, high])


def _variables(result: Any, theta: Array) -> Array:
    """Return what the result shows (D, k) at parameters (D, p)."""
    if result.fit is None or result.fit.constrain is None:
        return theta
    names, flat, _ = flat_variables(result.fit, theta)
    return flat[:, [names.index(name) for name in result.shown.names]]
