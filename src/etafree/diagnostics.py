"""When not to trust a calibration: named checks, their thresholds in one table, and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from etafree.criterion import Criterion
from etafree.data.groups import Groups
from etafree.dependence.base import LEVERAGE, Point
from etafree.dependence.clusters import carriers, concentration, contrast_laws, influences, point_of
from etafree.dependence.ways import POSITIVE
from etafree.draws import Draws
from etafree.errors import EtafreeError, InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.foundation.check import NOTHING, Check, Details, Finding, run_checks, unknown
from etafree.foundation.linalg import relative_eigenvalues
from etafree.losses import ResidualLoss
from etafree.optimize import minimise, subset_starts
from etafree.penalties import ActivePenalty
from etafree.posterior import GeneralizedPosterior
from etafree.skewness import asymmetry, limit_shifts, third_moments
from etafree.target import Target
from etafree.totals.base import Total
from etafree.totals.linear import LinearTotal, PredictorTotal, RankOneBlock, is_linear


class Threshold(NamedTuple):
    """Where a check warns and where it fails, on which side."""

    warn: float
    fail: float = np.inf
    below: bool = False


#: Every check by name: where it warns, above the threshold unless it says below. Some functions add
#: room for Monte Carlo error.
THRESHOLDS = {
    # the centre and the curvature there
    "Newton offset": Threshold(0.1),  # in standard errors
    "curvature noise": Threshold(0.15, fail=0.2),  # relative error of the Hessian, given X
    "rival mode": Threshold(2.5, below=True),  # in standard errors of the loss
    "smoothing bias": Threshold(0.25),  # in standard errors
    "effective parameters": Threshold(0.15, fail=0.4),  # of p >= n, per row
    "selection": Threshold(3.0, below=True),  # of an active coefficient, in standard errors
    "unscaled prior": Threshold(0.1),  # in standard errors, or of the Hessian
    "quadrature": Threshold(1e-6, fail=1e-2),  # of a group's loss
    "Laplace approximation": Threshold(0.1, fail=1.0),  # in standard errors of the model
    "overidentification": Threshold(0.01, below=True),  # p value
    # what may depend on what
    "implied coverage": Threshold(0.935, below=True),  # of the 95 % intervals shown
    "skewness": Threshold(0.2),  # by which limits are off, in standard errors
    "clusters": Threshold(40.0, below=True),  # where leverage is not known
    "serial dependence": Threshold(3.5),  # z-score of lag-1 products, for one coefficient
    "neighbouring clusters": Threshold(3.5),  # the same for score totals of clusters
    "persistence": Threshold(0.1),  # relative bias of the long-run variance
    "time gaps": Threshold(0.0),
    "multiway eigenvalue": Threshold(POSITIVE, below=True),
    "log-likelihoods held fixed": Threshold(0.0),
    # the draws
    "shape": Threshold(0.01),  # of the draws' 95 % interval, in coverage
    "draws against curvature": Threshold(0.25),  # log ratio of variances
    "draws against log-likelihood": Threshold(0.25, fail=0.95),  # the same, wider
    "draws inside the log-likelihood": Threshold(np.log(2.0)),  # the same, narrower
    "draws: needed over effective": Threshold(1.0),
    "draws: Pareto k": Threshold(0.7),
    "draws: R-hat": Threshold(1.01, fail=1.05),
    "jackknife: Monte Carlo error of se": Threshold(0.05),
    "jackknife: needed over effective": Threshold(1.0),
    "jackknife: eta n": Threshold(100.0, below=True),
}


#: What to do about a check that does not pass; functions fill in the details.
ADVICE = {
    "Newton offset": "the centre does not solve the penalized estimating equation: use {other} "
    "(the posterior mean is off at small eta, and with a prior that eta does not multiply)",
    "curvature noise": "other responses to the same design would give a Hessian that differs by "
    "{percent:.0f} %: use a smoother loss or more data",
    "rival mode": "another minimum fits about as well: the estimate may jump between them, for "
    "which normal intervals do not allow; add a penalty or use a convex loss",
    "smoothing bias": "fits at h and 1.5 h differ: the bias towards the smoothed mode is not small "
    "relative to the standard error; use a smaller bandwidth, or target='smoothed'",
    "effective parameters": "there are {value:.2f} effective parameters per row: so many pull the "
    "penalized fit away from the minimiser of the expected loss, which intervals then miss; use a "
    "stronger penalty or fewer columns",
    "selection": "{who} {value:.1f} standard errors from {edge}: another sample might {other}, and "
    "intervals do not allow for that",
    "unscaled prior": "the log prior is not weak relative to eta times the loss: the posterior "
    "mode depends on eta; calibration targets the penalized estimator and uses only the shape of "
    "the draws",
    "quadrature": "the integral over a group effect is inaccurate: heavy tails or several modes",
    "Laplace approximation": "with exact integrals over the effects the estimate would be about "
    "{value:.2f} standard errors away: groups have few observations for their effects; drop the "
    "effects that vary least, so that at most three per group are left",
    "overidentification": "Hansen's test rejects the overidentifying restrictions ({extra}, "
    "statistic {statistic:.1f}): not all moments are zero at once, which standard errors assume; "
    "leave out doubtful moments, or compare estimates",
    "implied coverage": "the 95 % interval for {name!r} covers about {value:.1%} even if the model "
    "is right, because its variance has {dof:.1f} degrees of freedom{carried}; {remedy}",
    "skewness": "the contributions of rows or clusters to {name!r} are skewed: its interval is "
    "about {value:.2f} standard errors too {side}, and misses on the other side more often than "
    "it should; use interval(kind='bootstrap-t')",
    "clusters": "{value:.0f} clusters are few: {better}keep t quantiles, and be most careful with "
    "joint regions",
    "serial dependence": "neighbouring rows are correlated: if rows are in the order of time or "
    "groups, they are not independent; pass clusters=, or dependence=ef.TimeSeries(...)",
    "neighbouring clusters": "totals of neighbouring clusters are correlated: are they parts of "
    "larger units (classes in schools, say)? Then pass the larger units as clusters=",
    "persistence": "the scores are so persistent that the variance is about {percent:.0f} % too "
    "small: pass a smaller bandwidth= (EWC) or more lags, or model the dynamics",
    "time gaps": "{value:.0f} {what}; neighbours are treated as one period apart",
    "multiway eigenvalue": "the sum with intersection terms has relative eigenvalue {value:.2g}, "
    "so it is not a variance matrix: they were left out, and intervals are somewhat wide; cluster "
    "in fewer dimensions if you can",
    "log-likelihoods held fixed": "{names} informed the draws but count as fixed: standard errors "
    "do not include their variation; log_likelihood='sum' adds them",
    "shape": "the draws of {name!r} are far from normal at this learning rate (eta n is small): "
    "their 95 % interval covers {covered:.1%} of a normal distribution; use interval(kind='wald'), "
    "or draw at a larger eta",
    "draws against curvature": "the draws' variance differs from 1/(eta x Hessian) by up to a "
    "factor of {factor:.2g}: check eta=, the penalty and the loss; other causes are a prior not "
    "multiplied by eta and a posterior far from normal (see shape)",
    "draws against log-likelihood": "the draws' variance is up to {largest:.2g} times what eta = "
    "{eta:g} and this log-likelihood imply: was eta about {likely:.2g}, or does the "
    "log-likelihood belong to other draws?",
    "draws inside the log-likelihood": "the draws are narrower than this log-likelihood implies: "
    "an informative prior, parts of the likelihood that are not stored, or eta about {likely:.2g}",
    "draws: needed over effective": "{ess:.0f} effective draws are few for quantiles; take at "
    "least {need:.0f}",
    "draws: Pareto k": "use sampler='elliptical'",
    "draws: R-hat": "the chains disagree; run them longer",
    "jackknife: Monte Carlo error of se": "the se of {name!r} has a Monte Carlo error of "
    "{percent:.0f} %: take more draws",
    "jackknife: needed over effective": "{ess:.0f} effective draws; the jackknife needs {need:.0f}",
    "jackknife: eta n": "eta n is small: the jackknife describes the posterior mean, which is then "
    "not near the minimiser of the loss",
}
#: Products of rows and pairs of parameters, per coefficient, that `implied_coverage` may take, and
#: all of `skewness`.
LAWS = 4e9
#: Third moments of influences, over the cubed standard error, below which `skewness` looks no
#: further, and the z-score of their asymmetry that is not chance (one in a hundred).
THIRD, CHANCE = 0.1, 2.33


def judge(
    name: str, value: float, details: Details = NOTHING, *, kind: str = "", room: float = 0.0
) -> Check:
    """Return the check of a value by the threshold and the advice of its name, or its `kind`."""
    warn, fail, below = THRESHOLDS[kind or name]
    beyond, failed = (value < warn, False) if below else (value > warn + room, value > fail + room)
    verdict, advice = "fail" if failed else "warn" if beyond else "ok", ""
    if verdict != "ok":
        percent = 100 * min(value, 1.0)
        advice = ADVICE[kind or name].format(value=value, percent=percent, **details)
    side = "below" if below else "above"
    return Check(name, float(value), float(warn + room), side, verdict, advice)


def every_check(
    original: Draws,
    target: Target,
    mapping: Callable[[Array], Array],
    offset: Array,
    posterior: GeneralizedPosterior | None,
) -> list[Check]:
    """Compute all checks of a calibration; a function whose check does not apply gives none.

    `mapping` is the affine map without any Student-t factor, `offset` where it takes the mean.
    """
    c, t = target.criterion, target
    planned: list[tuple[str, Callable[[], Check | Iterable[Check]]]] = []
    if c is not None and t.hessian is not None:
        planned += [
            ("Newton offset", lambda: newton_offset(c, t, offset)),
            ("implied coverage", lambda: implied_coverage(c, t)),
            ("skewness", lambda: skewness(c, t)),
            ("neighbouring clusters", lambda: fine_clusters(c, t)),
            ("curvature noise", lambda: curvature_noise(c, t, _coarsest(t))),
            ("serial dependence", lambda: serial_dependence(c, t)),
            ("rival mode", lambda: rival_mode(c, t)),
            ("selection", lambda: fragile_selection(c, t)),
            ("smoothing bias", lambda: smoothing_bias(c, t)),
            ("overidentification", lambda: overidentification(c, t)),
        ]
    planned += [(finding.name, partial(judged, finding, original)) for finding in t.findings]
    planned += [
        ("jackknife", lambda: jackknife_error(original, t.se_error)),
        ("clusters", lambda: few_clusters(t)),
        ("shape", lambda: shape(mapping(original.array), t, offset, original)),
        ("draws against curvature", lambda: curvature_agreement(original, t.hessian)),
        ("draws: needed over effective", lambda: effective_draws(original)),
        ("draws: Pareto k", lambda: if_known("draws: Pareto k", original.info.get("pareto_k"))),
        ("draws: R-hat", lambda: if_known("draws: R-hat", original.r_hat)),
        ("unscaled prior", lambda: prior_weight(posterior, t)),
    ]
    return run_checks(planned)


def _coarsest(target: Target) -> Groups | None:
    """Return the fewest groups of rows that may depend on each other; None for single rows."""
    groups = {} if target.dependence is None else target.dependence.row_groups()
    return min(groups.values(), key=len, default=None)


def judged(finding: Finding, original: Draws) -> Check:
    """Return the check of a finding."""
    name, value, details = finding
    if "failed" in details:
        return unknown(name, f"could not be computed: {details['failed']}", THRESHOLDS[name].warn)
    if name.startswith("left out"):  # is said, not judged
        return Check(name, float(value), np.inf, "above", "ok", str(details["advice"]))
    if name == "draws against log-likelihood":
        return _spread(value, float(details["middle"]), float(details["eta"]), original)
    return judge(name, value, details)


def _spread(largest: float, middle: float, eta: float, original: Draws) -> Check:
    """Return the check of the draws' spread against the log-likelihood's curvature.

    A log-concave prior can only make draws narrower than the log-likelihood says.
    """
    name, inside = "draws against log-likelihood", "draws inside the log-likelihood"
    likely = eta / max(middle, 1e-300)
    wider, narrower = np.log(max(largest, 1e-300)), -np.log(max(middle, 1e-300))
    room = 3 * np.sqrt(original.p / original.ess)
    if wider > THRESHOLDS[name].warn + room or narrower < THRESHOLDS[inside].warn:
        details = {"largest": largest, "eta": eta, "likely": likely}
        return judge(name, max(wider, 0.0), details, room=room)
    return judge(name, narrower, {"likely": likely}, kind=inside)


def jackknife_error(original: Draws, error: Array | None) -> tuple[Check, ...]:
    """Return the checks of the Monte Carlo error of the jackknife's standard errors."""
    if error is None:
        return ()
    worst, ess = int(np.argmax(error)), original.ess
    need = max(1000.0, 20.0 * original.p)
    return (
        judge("jackknife: Monte Carlo error of se", error[worst], {"name": original.names[worst]}),
        judge("jackknife: needed over effective", need / ess, {"ess": ess, "need": need}),
    )


def _single_rows(total: Total) -> Groups:
    return Groups(np.arange(total.n), np.arange(total.n))


def effective_draws(original: Draws) -> Check:
    """Compare the number of effective draws with what quantiles need.

    Mapped draws have the target's covariance exactly, so quantiles of many parameters need no more
    draws than those of one, only enough for a covariance of full rank.
    """
    need, ess = max(400.0, 2.0 * original.p), original.ess
    return judge("draws: needed over effective", need / ess, {"ess": ess, "need": need})


def if_known(name: str, value: float | None) -> tuple[Check, ...]:
    """Return the check of a number of the draws if they have it; below zero it counts as zero."""
    return () if value is None else (judge(name, max(value, 0.0)),)


def shape(mapped: Array, target: Target, offset: Array, original: Draws) -> Check:
    """Return how far the normal coverage of the draws' 95 % interval is from 95 %.

    `mapped` are the draws after the affine map. The room is for the Monte Carlo error of two tail
    quantiles, the worst of p of them.
    """
    from scipy.special import ndtr, ndtri

    z = (mapped - offset) / target.se
    low, high = ndtr(np.quantile(z, [0.025, 0.975], axis=0))
    off = np.abs(high - low - 0.95)
    worst = int(np.argmax(off))
    error = np.sqrt(2 * 0.025 * 0.975 / original.ess)
    details = {"name": target.names[worst], "covered": high[worst] - low[worst]}
    return judge("shape", off[worst], details, room=float(ndtri(1 - 0.0228 / target.p)) * error)


def curvature_agreement(original: Draws, hessian: Array | None) -> tuple[Check, ...]:
    """Compare the draws' covariance with the inverse curvature that eta and the loss imply."""
    if hessian is None or original.eta is None or original.source is not None:
        return ()
    implied = linalg.inv(original.eta * hessian, "Hessian")
    value = np.max(np.abs(np.log(relative_eigenvalues(original.covariance(), implied))))
    room = 2 * np.sqrt(original.p / original.ess)
    return (judge("draws against curvature", value, {"factor": np.exp(value)}, room=room),)


def newton_offset(criterion: Criterion, target: Target, offset: Array) -> Check:
    """Return how far a Newton step would move the centre, in standard errors."""
    other = "center='map'" if target.center_kind != "map" else "map='affine'"
    here = criterion.derivatives(offset)
    try:
        step = linalg.solve(here.hessian, here.gradient, "Hessian")
    except InputError:  # so far off that the loss is flat
        step = np.full(criterion.p, np.inf)
    return judge("Newton offset", np.max(np.abs(step) / target.se), {"other": other})


def few_clusters(target: Target) -> tuple[Check, ...]:
    """Return the check of the number of clusters, where their leverage is not known."""
    criterion, count = target.criterion, target.clusters
    known = criterion is not None and "leverage" in criterion.total.traits
    if count is None or known or target.laws is not None:
        return ()
    better = "" if criterion is not None else "pass model= or a criterion, which have CR3; "
    return (judge("clusters", count, {"better": better}),)


def implied_coverage(criterion: Criterion, target: Target) -> tuple[Check, ...]:
    """Return the coverage of the least reliable 95 % interval if the model is right.

    Nothing where neither rows nor clusters are independent of each other. A coefficient may be
    identified by few of them whatever their number: its variance then has few degrees of freedom.
    """
    dependence, traits = target.dependence, criterion.total.traits
    if dependence is None or target.hessian is None or "leverage" not in traits:
        return ()
    if target.laws is not None:  # quantiles are those of the very law
        return (judge("implied coverage", 0.95),)
    units: dict[str, Groups | None] = dict(dependence.row_groups())
    if dependence.independent:
        units = {"row": None}
    if not units:
        return ()
    at = point_of(target)
    least = [(*_least_covered(at, target, groups), kind) for kind, groups in units.items()]
    value, j, dof, kind = min(least)
    groups, carried = units[kind], ""
    if value < THRESHOLDS["implied coverage"].warn and (groups is not None or "memory" in traits):
        share = carriers(at, groups, leverage_of(target, groups), np.eye(target.p)[j])
        labels = np.arange(len(share)) if groups is None else groups.labels
        most = ", ".join(f"{labels[g]!s} ({share[g]:.0%})" for g in np.argsort(share)[::-1][:3])
        carried = f": {kind}s {most} have most of its variance"
    details: Details = {"name": target.names[j], "dof": dof, "carried": carried}
    return (judge("implied coverage", value, {**details, "remedy": _remedy(target)}),)


def _least_covered(at: Point, target: Target, groups: Groups | None) -> tuple[float, int, float]:
    """Return the coverage of the least reliable interval, its coefficient and dof."""
    p = target.p
    coefficients, affordable = np.arange(p), int(np.clip(LAWS / (at.criterion.n * p**2), 1, p))
    if affordable < p:  # those that fewest rows or clusters carry
        coefficients = np.argsort(concentration(at, groups))[-affordable:]
    law = contrast_laws(at, groups, leverage_of(target, groups), np.eye(p)[coefficients])
    coverage = law.coverage(target.law().quantile(0.975)[coefficients])
    j = int(np.argmin(coverage))
    return float(coverage[j]), int(coefficients[j]), float(law.dof[j])


def overidentification(criterion: Criterion, target: Target) -> tuple[Check, ...]:
    """Return the p value of Hansen's test that more moments than parameters hold together."""
    total = criterion.total
    if "moments" not in total.traits or criterion.strength > 0:
        return ()
    statistic, extra = total.overidentification(target.center, _coarsest(target))
    if extra == 0:
        return ()
    from scipy.special import chdtrc

    details: Details = {"extra": extra, "statistic": statistic}
    return (judge("overidentification", float(chdtrc(extra, statistic)), details),)


def skewness(criterion: Criterion, target: Target) -> tuple[Check, ...]:
    """Return by how many standard errors skewness displaces the worst 95 % interval.

    Nothing where neither rows nor clusters are independent of each other, or weights count copies.
    Zero where third moments are small after one pass over the rows, or influences not more
    asymmetric than by chance. Of 50 lognormal values it warns in 19 samples of 20, of 50 values of
    t with three degrees of freedom in one of 25; see `etafree.skewness` and docs/tournament.md.
    """
    dependence, total, name = target.dependence, criterion.total, "skewness"
    if dependence is None or total.copies or not _row_influences(total):
        return ()
    groups = dependence.clusters
    if groups is None and not dependence.independent:
        return ()
    at = point_of(target)
    thirds, scores = third_moments(at, groups)
    columns = np.flatnonzero(np.abs(thirds) > THIRD)
    each: Array = np.zeros((0, criterion.p))
    scores = scores[columns]
    if len(columns) and (groups is not None or "memory" in total.traits):
        each = influences(at, groups, "CR0")
        scores = asymmetry(each[:, columns])
    certain = np.abs(scores) > CHANCE
    columns, scores = columns[certain], scores[certain]
    if not len(columns):
        return (judge(name, 0.0),)
    terms, reason = max(criterion.n, criterion.size), ""  # tuples are more than rows
    if "memory" not in total.traits:
        reason = "third moments are large, and more passes are needed; check a sample of the rows"
    elif terms * criterion.p**2 * 4 * (criterion.p + len(columns)) > LAWS:
        reason = "it would take too long"
    if reason:
        return (unknown(name, f"not computed: {reason}", THRESHOLDS[name].warn),)
    sets = _single_rows(total) if groups is None else groups
    shifts = limit_shifts(at, sets, each, columns, z=1.96)
    shifts[shifts * scores > 0] = 0.0  # what the bulk does not bear out
    worst = int(np.argmax(np.abs(shifts)))
    side = "high" if shifts[worst] > 0 else "low"
    details: Details = {"name": target.names[columns[worst]], "side": side}
    return (judge(name, np.abs(shifts[worst]), details),)


def _row_influences(total: Total) -> bool:
    """Return whether influences of rows under other weights are known."""
    held = "memory" in total.traits and {"moments", "units"} & total.traits
    return "rows" in total.traits or bool(held)


def leverage_of(target: Target, groups: Groups | None) -> str:
    """Return the correction that an estimated variance is judged by, for rows or for clusters."""
    known = ("HC0", "HC1", "HC2", "HC3") if groups is None else ("CR0", "CR1", "CR1S", "CR2", "CR3")
    return target.correction if target.correction in known else ("HC1", "CR1")[groups is not None]


def _remedy(target: Target) -> str:
    """Return what to do about few degrees of freedom, of what is not done yet."""
    if target.dependence is None or target.dependence.defaults[0] not in LEVERAGE:
        return "see corrections(), and a fit without them"
    own, better = target.correction, target.dependence.defaults[0]
    argument = "dof=" if own in LEVERAGE else "correction="
    return f"leave out {argument}: the degrees of freedom of {better} allow for it"


def fine_clusters(criterion: Criterion, target: Target) -> tuple[Check, ...]:
    """Return the largest z-score of lag-1 products of clusters' score totals, in row order.

    Left out are coefficients by whose scores the clusters are sorted, as tables often are: totals
    are then alike at any distance, where those of parts of larger units are alike nearby, or rise
    or stay as they are for long, where others turn at two places in three.
    """
    groups = None if target.dependence is None else target.dependence.clusters
    if groups is None or "memory" not in criterion.total.traits:  # no row has a place
        return ()
    total = criterion.total.group_sums(target.center, groups)
    mean = total.sums.sum(axis=0) / total.weights.sum()
    order = groups.in_row_order()
    sums = (total.sums - total.weights[:, None] * mean)[order][total.weights[order] > 0]
    far = len(sums) // 4
    if far < 2:
        return ()
    product = sums[far:] * sums[:-far]
    distant = product.sum(axis=0) / np.sqrt(np.maximum(np.square(product).sum(axis=0), 1e-300))
    steps = np.diff(sums, axis=0)
    turning = np.mean(steps[1:] * steps[:-1] < 0, axis=0)
    mixed = (distant < THRESHOLDS["neighbouring clusters"].warn) & (turning > 0.3)
    if not mixed.any():
        return ()
    products = LagProducts(int(mixed.sum()))
    products.add(sums[:, mixed])
    return (_lagged("neighbouring clusters", products),)


def curvature_noise(
    criterion: Criterion, target: Target, groups: Groups | None
) -> tuple[Check, ...]:
    r"""Return the largest relative standard error of the Hessian along the parameters' directions.

    That of the noise only, which comes with the response: how second derivatives differ with the
    design is known. With :math:`h_g=v^\top A_gv` of a row or cluster, :math:`\psi_g` its score and
    :math:`b_g\propto(v^\top\psi_g)^2` scaled to the same sum, both have the same mean given the
    design, if scores vary as the Hessian says, and so :math:`\sum_g h_gb_g` estimates
    :math:`\sum_g E(h_g)^2`. What is left of :math:`\sum_g h_g^2` is noise,

    .. math:: \sum_g d_g,\qquad d_g = (h_g-m_g)(h_g-b_g),

    with :math:`m_g` what the mean curvature and the rows of a linear predictor make, else the mean
    of :math:`h_g`. If curvature is small where scores are large (Huber's loss), that is too much,
    and :math:`\sum_g(h_g-m_g)^2` is nearer; the smaller of the two is taken, each less its standard
    error, :math:`(\sum_gd_g^2)^{1/2}`, so that one row far out in the design is no noise.
    """
    total, noise = criterion.total, 0.0
    if "rows" not in total.traits:  # pairs: a row has no Hessian of its own
        return ()
    if criterion.loss.random_curvature and target.hessian is not None:
        inverse = linalg.inv(target.hessian, "Hessian")
        directions = inverse / np.sqrt(np.diagonal(inverse))  # columns v_j with v_j' A v_j = 1
        at = target.center, directions, groups
        left, square = _predictor_noise(total, *at) if is_linear(total) else _noise(total, *at)
        least = np.min(left - np.sqrt(square), axis=0)
        noise = float(np.sqrt(np.max(least, initial=0.0)))
    return (judge("curvature noise", noise),)


def _predictor_noise(
    total: PredictorTotal, center: Array, directions: Array, groups: Groups | None
) -> tuple[Array, Array]:
    """Return both sums (2, p), and those of the squares of their terms, for a linear predictor."""
    p = len(center)
    mean = total.derivatives(center).gradient / total.weight

    def average(part: LinearTotal, mass: Array, held: Array, spread: Array) -> None:
        for block in part.row_terms(center):
            reach, slope = _along(block, directions, mean)
            mass += block.weights @ reach
            held += (block.weights * block.curvature) @ reach
            spread += _squared_weights(part, block.weights) @ np.square(slope)

    def stray(part: LinearTotal, left: Array, square: Array) -> None:
        for block in part.row_terms(center):
            reach, slope = _along(block, directions, mean)
            once = np.sign(block.weights) if part.frequency else block.weights
            bent, known = block.curvature[:, None] * reach, bend * reach
            each = _noise_terms(bent, known, factor * once[:, None] * np.square(slope))
            weight = _squared_weights(part, block.weights)
            left += weight @ each
            square += (weight * np.square(once)) @ np.square(each)

    def gather(part: LinearTotal, sums: Array) -> None:
        assert groups is not None
        codes = part.codes(groups)
        for block in part.row_terms(center):
            reach, slope = _along(block, directions, mean)
            first = block.first - part.first
            bent = block.curvature[:, None] * reach
            three = block.weights[:, None] * np.hstack([bent, bend * reach, slope])
            np.add.at(sums, codes[first : first + len(three)], three)

    mass, held, spread = total.fold(average, np.zeros(p), np.zeros(p), np.zeros(p))
    bend, factor = held / np.maximum(mass, 1e-300), held / np.maximum(spread, 1e-300)
    if groups is None:
        left, square = total.fold(stray, np.zeros((2, p)), np.zeros((2, p)))
        return left, square
    (sums,) = total.fold(gather, np.zeros((len(groups), 3 * p)), groups=groups)
    return _left_over(*np.split(sums, 3, axis=1))


def _along(block: RankOneBlock, directions: Array, mean: Array) -> tuple[Array, Array]:
    """Return squared rows and centred scores of rows (b, p) along directions."""
    z = block.rows @ directions
    return np.square(z), block.slope[:, None] * z - mean @ directions


def _noise(
    total: Total, center: Array, directions: Array, groups: Groups | None
) -> tuple[Array, Array]:
    """Return the same for a loss without a linear predictor, from each row's own Hessian."""
    mean = total.derivatives(center).gradient / total.weight
    parts = []
    for block in total.cluster_blocks(center, _single_rows(total) if groups is None else groups):
        along = np.einsum("ij,gik,kj->gj", directions, block.hessians, directions, optimize=True)
        parts.append((along, (block.scores - block.weights[:, None] * mean) @ directions))
    along, slope = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return _left_over(along, along.mean(axis=0), slope)


def _left_over(along: Array, known: Array, slope: Array) -> tuple[Array, Array]:
    """Return the same from h_g, m_g and v'psi_g, all (G, p)."""
    total, square = along.sum(axis=0), np.square(slope)
    implied = square * (total / np.maximum(square.sum(axis=0), 1e-300))
    each = _noise_terms(along, known, implied)
    return each.sum(axis=1), np.square(each).sum(axis=1)


def _noise_terms(along: Array, known: Array, implied: Array) -> Array:
    """Return (h - m)(h - b) and (h - m)^2, (2, G, p)."""
    off = along - known
    return np.stack([off * (along - implied), np.square(off)])


def _squared_weights(total: Total, weights: Array) -> Array:
    """Return what a square counts: copies once each, other weights squared."""
    return weights if total.frequency else np.square(weights)


def serial_dependence(criterion: Criterion, target: Target) -> tuple[Check, ...]:
    r"""Return the largest z-score of lag-1 products of the scores in row order.

    :math:`|\sum_t\psi_t\psi_{t-1}|/(\sum_t\psi_t^2\psi_{t-1}^2)^{1/2}` is standard normal for
    independent rows whatever their variances.
    """
    if target.dependence is not None and not target.dependence.independent:
        return ()
    total, center = criterion.total, target.center
    if is_linear(total):
        mean = total.derivatives(center).gradient / total.weight

        def add(part: LinearTotal, products: LagProducts) -> None:
            for block in part.row_terms(center):
                there = block.weights > 0
                scores = block.slope[there, None] * block.rows[there] - mean
                products.add(scores * block.weights[there, None])

        (products,) = total.fold(add, LagProducts(criterion.p))
    else:
        scores, products = total.scores(center), LagProducts(criterion.p)
        w = np.ones(total.n) if total.weights is None else total.weights
        products.add((scores - w[:, None] * (scores.sum(axis=0) / total.weight))[w > 0])
    return (_lagged("serial dependence", products),)


class LagProducts:
    """Sums of lag-1 products of rows (n, p) and of their squares, row after row."""

    def __init__(self, p: int) -> None:
        self.lagged, self.square = np.zeros(p), np.zeros(p)
        self.first, self.last = np.zeros((0, p)), np.zeros((0, p))

    def add(self, scores: Array) -> None:
        """Add the rows that come next."""
        joined = np.vstack([self.last, scores])
        product = joined[1:] * joined[:-1]
        self.lagged += product.sum(axis=0)
        self.square += np.square(product).sum(axis=0)
        self.first = self.first if len(self.first) else joined[:1]
        self.last = joined[-1:]

    def __iadd__(self, later: LagProducts) -> LagProducts:
        self.add(later.first)
        self.lagged += later.lagged
        self.square += later.square
        self.last = later.last if len(later.last) else self.last
        return self


def _lagged(name: str, products: LagProducts) -> Check:
    """Return the check of the largest of p z-scores, as improbable by chance as that of one."""
    from scipy.special import ndtr, ndtri

    value = np.max(np.abs(products.lagged) / np.sqrt(np.maximum(products.square, 1e-300)))
    one = THRESHOLDS[name].warn
    room = float(ndtri(1 - (1 - ndtr(one)) / len(products.lagged))) - one
    return judge(name, value, room=room)


def rival_mode(criterion: Criterion, target: Target, starts: int = 12) -> tuple[Check, ...]:
    r"""Return by how many standard errors the best minimum beats the next (non-convex losses).

    :math:`z = \sum d_i/\{\sum(d_i-\bar d)^2\}^{1/2}` with :math:`d_i` the difference of an
    observation's loss between the two minima. Starts are exact fits to random p-subsets of rows.
    """
    total, center = criterion.total, target.center
    if criterion.loss.convex:
        return ()
    if "memory" not in total.traits:
        reason = (
            "not searched for: every start would take several passes over the data; "
            "fit a sample of the rows in memory and see its diagnostics"
        )
        return (unknown("rival mode", reason, THRESHOLDS["rival mode"].warn, "below"),)
    best = criterion.derivatives(center).value
    weights = np.ones(total.n) if total.weights is None else total.weights
    kept = weights > 0
    base, smallest = total.values(center)[kept] / weights[kept], np.inf
    if isinstance(criterion.loss, ResidualLoss):
        points = subset_starts(criterion, starts)
    else:  # around the centre, a few standard errors to far away
        reach = 3.0 * 2.0 ** np.arange(starts // 2)[:, None] * target.se
        normal = np.random.default_rng(0).standard_normal((starts // 2, total.p))
        points = list(center + reach * normal)
    for start in points:
        try:
            fit = minimise(criterion, start)
            if np.max(np.abs(fit.theta - center) / target.se) < 0.5:
                continue
            d = total.values(fit.theta)[kept] / weights[kept] - base
        except EtafreeError:  # no minimum is found from here, or no loss is finite there
            continue
        off = np.square(d - weights[kept] @ d / weights.sum())
        spread = float(np.sqrt(_squared_weights(total, weights[kept]) @ off))
        smallest = min(smallest, (fit.value - best) / max(spread, 1e-300))
    return (judge("rival mode", smallest),)


def fragile_selection(criterion: Criterion, target: Target) -> tuple[Check, ...]:
    """Return how many standard errors from zero, or from a tie, the weakest coefficient is."""
    if not isinstance(criterion.penalty, ActivePenalty):
        return ()
    gaps = criterion.penalty.gaps
    se = np.sqrt(np.einsum("ki,ij,kj->k", gaps, target.covariance, gaps))
    size = np.append(np.abs(gaps @ target.center) / se, np.inf)
    weakest = int(size.argmin())
    row = gaps[weakest] if weakest < len(gaps) else np.zeros(target.p)
    names = [repr(target.names[j]) for j in np.flatnonzero(row)]
    details = {"who": f"{''.join(names)} is", "edge": "zero", "other": "not select it"}
    if len(names) > 1:
        details = {"who": f"{' and '.join(names)} are", "edge": "a tie", "other": "tie them"}
    return (judge("selection", size[weakest], details),)


def smoothing_bias(criterion: Criterion, target: Target) -> tuple[Check, ...]:
    """Return the bias of a bandwidth, which grows with its square, from a fit at 1.5 times it."""
    wider = criterion.loss.curvature()
    if wider is None:
        return ()
    moved = minimise(criterion.with_loss(wider[0]), target.center).theta - target.center
    return (judge("smoothing bias", np.max(np.abs(moved) / 1.25 / target.se)),)


def prior_weight(posterior: GeneralizedPosterior | None, target: Target) -> tuple[Check, ...]:
    """Return how far an unscaled log prior shifts the mode, in standard errors, or bends it.

    Or how far its bounds move the mean: of a normal law with a bound z standard deviations away,
    by the inverse Mills ratio of z.
    """
    hessian, prior = target.hessian, None if posterior is None else posterior.log_prior
    if posterior is None or prior is None or target.criterion is None or hessian is None:
        return ()
    if posterior.energy is target.criterion:  # the prior is part of the target
        return ()
    n = posterior.criterion.size
    slope = prior.gradient(target.center, n) / posterior.eta
    move = np.max(np.abs(linalg.solve(hessian, slope, "Hessian")) / target.se)
    bend = relative_eigenvalues(prior.hessian(target.center, n) / posterior.eta, hessian)
    found = [move, np.max(np.abs(bend))]
    if posterior.bounds is not None:
        from scipy.special import log_ndtr

        sd = np.sqrt(np.diagonal(linalg.inv(posterior.eta * hessian, "Hessian")))
        z = np.abs(posterior.bounds - target.center[:, None]) / sd[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            mills = np.exp(-0.5 * z**2 - log_ndtr(z)) / np.sqrt(2 * np.pi)
        found.append(float(np.max(mills)))
    return (judge("unscaled prior", max(found)),)
