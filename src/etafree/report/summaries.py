r"""What a result shows: estimates, errors and draws before and after, of the variables of interest.

A model's fit is calibrated on the unconstrained scale and shown on its own: the estimate is the
image of the centre, limits are quantiles of the image of the draws, and the standard error comes
from the delta method, :math:`\{\mathrm{diag}(DVD^\top)\}^{1/2}` with D the derivative of the
variables at the centre. Variables that are linear in the parameters have t ratios; of one that is
transformed, as a scale, zero is no hypothesis, and it has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from etafree.fits import Fit
from etafree.fits.trees import flat_names
from etafree.foundation.arguments import Array, as_choice
from etafree.foundation.terminal import counted_noun
from etafree.inference import derivative, equal_tails, neighbours, two_sided
from etafree.target import Law, Target

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from etafree.result import Calibration

#: How far linear variables may be off their derivative, in standard errors.
LINEAR = 1e-6


@dataclass(frozen=True, eq=False)
class Shown:
    """k variables by name with their estimates (k,) and draws (draw, k).

    `se_error` is the relative Monte Carlo error of `se`, the largest of the parameters that a
    variable depends on.
    """

    names: tuple[str, ...]
    estimate: Array
    se: Array
    law: Law  #: Of the t ratios.
    before: Array
    after: Array
    se_error: Array | None = None
    slope: Array | None = None  #: Derivative of the variables at the centre (k, p).
    linear: Array | None = None  #: Which are linear in the parameters (k,), all for None.

    @property
    def t_ratios(self) -> Array:
        """Return estimates over their standard errors (k,), NaN of transformed variables."""
        ratios = self.estimate / self.se
        return ratios if self.linear is None else np.where(self.linear, ratios, np.nan)

    @property
    def p_values(self) -> Array:
        """Return two-sided p-values (k,) of no effect by the law of the t ratios."""
        return two_sided(self.law, self.t_ratios)

    def limits(self, level: float, kind: str) -> tuple[Array, Array]:
        """Return equal-tailed limits, quantiles of the "draws" or "wald"."""
        if as_choice(kind, "kind", ("draws", "wald")) == "wald":
            half = self.law.quantile(1 - 0.5 * (1 - level)) * self.se
            return self.estimate - half, self.estimate + half
        lower, upper = equal_tails(self.after, level)
        return lower, upper

    def columns(self, names: Sequence[str]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the draws before and after of the variables of these names."""
        places = {name: self.names.index(name) for name in names}
        before, after = ({n: a[:, j] for n, j in places.items()} for a in (self.before, self.after))
        return before, after


def summary_table(shown: Shown, level: float, kind: str) -> pd.DataFrame:
    """Return a row per variable: estimate, se, t, p, limits and what they were before."""
    import pandas as pd

    before, (lower, upper) = shown.before, shown.limits(level, kind)
    low, high = equal_tails(before, level)
    columns = {
        "estimate": shown.estimate,
        "se": shown.se,
        **({} if shown.se_error is None else {"se_error": shown.se_error}),
        "t": shown.t_ratios,
        "p": shown.p_values,
        "lower": lower,
        "upper": upper,
        "dof": shown.law.dof,
        "mean_before": before.mean(axis=0),
        "sd_before": before.std(axis=0, ddof=1),
        "lower_before": low,
        "upper_before": high,
        "ratio": (upper - lower) / (high - low),
    }
    return pd.DataFrame(columns, index=pd.Index(shown.names, name="parameter"))


def flat_variables(fit: Fit, theta: Array) -> tuple[tuple[str, ...], Array, Mapping[str, Array]]:
    """Return the model's variables at parameters (..., p): names and entries (..., k), and whole.

    Of the variables that the fit was asked for, without those of one value per observation.
    """
    assert fit.constrain is not None
    posterior: xr.Dataset = fit.tree["posterior"].to_dataset()
    whole = {name: np.asarray(v) for name, v in fit.constrain(theta).items() if name in posterior}
    shown = [name for name in whole if is_shown(fit, name)]
    names = tuple(entry for name in shown for entry in flat_names(name, posterior[name]))
    entries = [whole[name].reshape(*theta.shape[:-1], -1) for name in shown]
    return names, np.concatenate(entries, axis=-1), whole


def is_shown(fit: Fit, name: str) -> bool:
    """Return whether tables show a variable: one that was asked for, or not one per observation."""
    if fit.shown or fit.criterion is None:
        return not fit.shown or name in fit.shown
    rows = fit.criterion.rows  # of a marginal likelihood the criterion has groups
    observations = rows.original if rows.kept is None else len(rows.kept)
    return len(flat_names(name, fit.tree["posterior"][name])) != observations


def constrained(fit: Fit, center: Array, target: Target, before: Array, after: Array) -> Shown:
    """Return a fit's variables on the model's own scale; constant entries are left out.

    `before` and `after` are parameters (draw, p) on the calibrated scale.
    """
    points = before, after, neighbours(center, target.se)
    (names, old, _), (_, new, _), (_, near, _) = (flat_variables(fit, theta) for theta in points)
    estimate, slope = near[0], derivative(near, target.se)
    variance = np.einsum("ki,ij,kj->k", slope, target.covariance, slope)
    moving = np.flatnonzero((np.ptp(old, axis=0) > 0) & (variance > 0))
    se, error = np.sqrt(variance), None
    if target.se_error is not None:
        reach = np.abs(slope) * target.se > 1e-6 * se[:, None]
        error = np.max(np.where(reach, target.se_error, 0.0), axis=1)[moving]
    kept = tuple(names[j] for j in moving)
    scaled = np.where(np.abs(slope) * target.se > 1e-6 * se[:, None], slope, 0.0)[moving]
    law = target.law(scaled)
    off = old - estimate - (before - center) @ slope.T
    linear = (np.abs(off).max(axis=0) <= LINEAR * se)[moving]
    shown = estimate[moving], se[moving], law, old[:, moving], new[:, moving]
    return Shown(kept, *shown, error, slope[moving], linear)


def headline(result: Calibration) -> list[str]:
    """Return lines that say what intervals a Calibration has, and what to beware of."""
    t, fit, shown = result.target, result.fit, result.shown
    level = float(result.settings["level"])
    count = counted_noun(len(shown.names), "parameter")
    lines = [
        f"{100 * level:g} % intervals for {count}, {t.in_words()}",
        width_in_words(summary_table(shown, level, "draws")["ratio"]),
        f"covers: {t.estimand}, not the parameter of the process that generated the data",
    ]
    if fit is not None and fit.latent:
        lines.append(f"integrated out: {', '.join(fit.latent)} (see group_effects())")
    lines += [f"{c.name}: {c.advice}" for c in result.checks if c.name.startswith("left out")]
    if result.inactive:
        lines.append(f"no interval: {', '.join(result.inactive)} (exactly zero at this penalty)")
    lines.append(f"diagnostics: {result.flags()}")
    lines += [f"  {c.name}: {c.advice}" for c in result.checks if c.verdict != "ok"]
    return lines


#: By how much widths may differ by chance, and how many parameters are named one by one.
ALIKE, NAMED = 1.05, 3


def width_in_words(ratios: pd.Series) -> str:
    """Return by how much the posterior was too narrow or too wide, from widths after over before.

    Examples
    --------
    >>> import pandas as pd
    >>> print(width_in_words(pd.Series({"x": 2.4, "z": 1.1, "one": 0.5})))
    the posterior was 2.4 times too narrow for x, 1.1 times for z; 2 times too wide for one
    >>> width_in_words(pd.Series([0.1, 0.2, 0.3, 0.4], index=list("abcd")))
    'the posterior was 2.5 to 10 times too wide for 4 parameters'
    """
    known = ratios[np.isfinite(ratios) & (ratios > 0)].sort_values(ascending=False, kind="stable")
    groups = {
        "too narrow": known[known > ALIKE],
        "too wide": (1 / known[known < 1 / ALIKE]).sort_values(ascending=False, kind="stable"),
    }
    parts = []
    for word, factors in groups.items():
        times = [f"{factor:.2g}" for factor in factors]
        if len(times) > NAMED:
            span = times[0] if times[0] == times[-1] else f"{times[-1]} to {times[0]}"
            parts.append(f"{span} times {word} for {len(times)} parameters")
        elif times:
            first, *rest = zip(times, factors.index, strict=True)
            more = "".join(f", {factor} times for {name}" for factor, name in rest)
            parts.append(f"{first[0]} times {word} for {first[1]}{more}")
    right = [str(name) for name in known.index[(known <= ALIKE) & (known >= 1 / ALIKE)]]
    if right:
        some = ", ".join(right) if len(right) <= NAMED else f"{len(right)} parameters"
        parts.append(f"about right for {some}")
    return f"the posterior was {'; '.join(parts) or 'of unknown width'}"


class Text(str):
    """A text that shows as it prints."""

    __repr__ = str.__str__


def details(result: Calibration) -> Text:
    """Return lines that say in the method's terms how a Calibration was made."""
    s, t, draws = result.settings, result.target, result.original
    moved = s["kind"] != "scale" and t.center_kind != "mean"
    shift = f", at most {np.max(np.abs(result.center_shift)):.2g} se from the posterior mean"
    eta = "unknown eta" if draws.eta is None else f"eta = {draws.eta:g}"
    lines = [
        f"draws: {len(draws)} at {eta}, {draws.sampler}, moved by one affine map",
        f"map: {s['kind']}, root {s['root']}, from the {s['working']}",
        f"centre: {center(result)}{shift if moved else ''}",
        f"spread: {t.describe()}",
    ]
    if t.n is not None:
        lines.append(f"rows: {t.n}")
    if t.size is not None:
        lines.append(f"effective scale: {t.size:g}")
    if t.se_error is not None:
        lines.append(f"Monte Carlo error of se: {100 * t.se_error.max():.1f} % at most")
    lines += [f"{role}: {values}" for role, values in plug_ins(t).items() if values]
    return Text("\n".join(lines))


#: Centres in words; a target's own is "given".
CENTERS = {
    "map": "the minimiser of loss plus penalty (MAP)",
    "one_step": "one Newton step from the posterior mean",
    "mean": "the posterior mean",
}


def center(result: Calibration) -> str:
    """Return in words where calibrated draws are centred."""
    if result.settings["kind"] == "scale":
        return f"{CENTERS['mean']} (open-faced sandwich)"
    return CENTERS.get(result.target.center_kind, result.target.center_kind)


def plug_ins(target: Target) -> dict[str, str]:
    """Return the target's nuisance values in words, by what it makes of them."""
    shown = {k: f"{k} = {v:.4g}" for k, v in target.plug_ins.items()}
    return {
        "estimated with it": ", ".join(shown[k] for k in target.stacked),
        "taken as known": ", ".join(v for k, v in shown.items() if k not in target.stacked),
    }


def record(result: Calibration) -> dict[str, object]:
    """Return how a Calibration was made, as attributes that any file format takes."""
    t, draws = result.target, result.original
    attributes = {f"calibration_{k}": v for k, v in result.settings.items()}
    attributes["calibrated_by"] = f"etafree {attributes.pop('calibration_version')}"
    attributes |= {
        "calibration_target": t.describe(),
        "calibration_covers": t.estimand,
        "calibration_correction": t.correction,
        "calibration_center": t.center_kind,
        "calibration_diagnostics": result.flags(),
    }
    attributes |= {"draws_seed": draws.info["seed"]} if "seed" in draws.info else {}
    attributes |= {} if draws.eta is None else {"calibration_eta": float(draws.eta)}
    return attributes
