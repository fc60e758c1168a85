r"""Do draws of group effects cover? Parameters calibrated, effects drawn from the model given them.

A data set has G groups. Parameters :math:`\theta` are drawn from the normal approximation of the
marginal posterior and calibrated; effects are drawn from :math:`p(u_g\mid y_g,\theta)`, which is
what `Calibration.group_effects` does. Integrals and draws are those of `etafree.fits.marginal`,
written for one group, so that all data sets share what JAX compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from etafree.calibrate import calibrate
from etafree.criterion import Criterion
from etafree.data.pytrees import double_precision
from etafree.errors import InputError
from etafree.fits.marginal import (
    CANDIDATES,
    NODES,
    EffectGroups,
    Rule,
    closed_form,
    conditional_draws,
    quadrature,
)
from etafree.foundation.arguments import Array, as_count
from etafree.foundation.linalg import inv
from etafree.optimize import minimise
from etafree.paper.study import Arrays, Cell, How, Parameters, run_study
from etafree.totals.jax import JaxLoss

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DESIGNS", "effects_markdown", "run_effects"]

BLOCK, DRAWS, GROUPS = 25, 1000, 50
#: Rows of the population whose fit is the truth where there is no closed form.
POPULATION = 20_000
#: Every how many data sets effects are drawn where that takes seconds, by resampling.
EVERY = 5
METHODS = ("the model's posterior", "calibrated")


def _normal(x: Any, log_sd: Any) -> Any:
    import jax.numpy as jnp

    return -0.5 * (x * jnp.exp(-log_sd)) ** 2 - log_sd - 0.5 * np.log(2 * np.pi)


def _gaussian(theta: Any, u: Any, row: Any) -> Any:
    """Return the log density of a group's responses and of its intercept."""
    import jax.numpy as jnp

    mean = theta["mu"] + theta["beta"] * row["x"] + u[0]
    rows = _normal(row["y"] - mean, theta["log sigma"])
    return jnp.append(rows, _normal(u[0], theta["log tau"]))


def _poisson(theta: Any, u: Any, row: Any) -> Any:
    """Return the same for counts, without factors that are constant."""
    import jax.numpy as jnp

    log_mean = theta["mu"] + theta["beta"] * row["x"] + u[0]
    rows = row["y"] * log_mean - jnp.exp(log_mean)
    return jnp.append(rows, _normal(u[0], theta["log tau"]))


def _slopes(theta: Any, u: Any, row: Any) -> Any:
    """Return the log density of a group with an intercept and a slope, independent."""
    import jax.numpy as jnp

    mean = theta["mu"] + u[0] + (theta["beta"] + u[1]) * row["x"]
    rows = _normal(row["y"] - mean, theta["log sigma"])
    own = [_normal(u[0], theta["log tau"]), _normal(u[1], theta["log tau of slopes"])]
    return jnp.concatenate([rows, jnp.stack(own)])


@dataclass(frozen=True, eq=False)
class Model:
    """A hierarchical model of one group: its log density, `size` rows, how many effects.

    `start` are parameters by name. The j-th effect is a group's deviation from the j-th of
    `centers`, and their sum is what an interval is for.
    """

    terms: Callable[[Any, Any, Any], Any]
    size: int
    start: Mapping[str, float]
    gaussian: bool
    centers: tuple[str, ...] = ("mu",)

    @cached_property
    def groups(self) -> EffectGroups:
        """One group with all rows and effects."""
        d, zeros = len(self.centers), np.zeros
        terms = zeros(self.size + d, dtype=np.intp)
        slots = np.arange(d, dtype=np.intp)
        return EffectGroups(terms[: self.size], terms, zeros(d, dtype=np.intp), slots, 1)

    @cached_property
    def loss(self) -> JaxLoss:
        """A group's marginal loss, its row being the data of the group."""
        d = len(self.centers)
        rule = Rule.hermite(NODES[d][0], d)

        def marginal(theta: Any, row: Any) -> Any:
            terms = lambda t, u: self.terms(t, u, row)  # noqa: E731
            if self.gaussian:
                return closed_form(terms, self.groups, np.zeros(d), np.ones(d))(theta)[0]
            return quadrature(terms, self.groups, np.zeros(d), rule)(theta)[0]

        return JaxLoss(marginal, name="marginal likelihood")

    @cached_property
    def effects(self) -> Callable[..., Any]:
        """Effects (draw, group, d) of parameters (draw,), data of groups and a random key."""
        import jax

        many = 1 if self.gaussian else CANDIDATES

        def one(theta: Any, row: Any, key: Any) -> Any:
            terms = lambda t, u: self.terms(t, u, row)  # noqa: E731
            start = np.zeros(len(self.centers))
            return conditional_draws(terms, self.groups, start, many)(theta, key)

        over_groups = jax.vmap(one, (None, 0, 0))

        def draws(theta: Any, data: Any, key: Any) -> Any:
            count, groups = len(theta["mu"]), len(data["y"])
            keys = jax.random.split(key, count * groups).reshape(count, groups, -1)
            return jax.lax.map(lambda point: over_groups(point[0], data, point[1]), (theta, keys))

        return jax.jit(draws)

    def criterion(self, data: Mapping[str, Array]) -> Criterion:
        """Return the criterion whose rows are groups; its parameters are in the table's order."""
        return Criterion(self.loss, dict(data), start=dict(sorted(self.start.items())))


INTERCEPTS = {"mu": 1.0, "beta": 0.5, "log tau": 0.0}
LINEAR = Model(_gaussian, 5, {**INTERCEPTS, "log sigma": 0.0}, gaussian=True)
COUNTS = Model(_poisson, 4, INTERCEPTS, gaussian=False)
SLOPES = Model(
    _slopes,
    8,
    {**INTERCEPTS, "log sigma": 0.0, "log tau of slopes": -0.5},
    gaussian=True,
    centers=("mu", "beta"),
)


@dataclass(frozen=True, eq=False)
class Sample:
    """Data of groups, their effects (G, d), the parameters' truth by name, and groups to look at.

    `watched` (G,) marks groups where the model is most wrong.
    """

    data: dict[str, Array]
    effects: Array
    truth: Mapping[str, float]
    watched: Array = field(default_factory=lambda: np.zeros(GROUPS, dtype=bool))


def _linear(effects: Array, errors: Array, rng: np.random.Generator) -> dict[str, Array]:
    x = rng.standard_normal(errors.shape)
    return {"x": x, "y": 1.0 + 0.5 * x + effects[:, :1] + errors}


def right(rng: np.random.Generator) -> Sample:
    """Return a linear model that is right."""
    u = rng.standard_normal((GROUPS, 1))
    data = _linear(u, rng.standard_normal((GROUPS, LINEAR.size)), rng)
    return Sample(data, u, LINEAR.start)


def heavy_tails(rng: np.random.Generator) -> Sample:
    """Return effects from a t distribution with five degrees of freedom and variance one."""
    u = rng.standard_t(5, (GROUPS, 1)) * np.sqrt(3 / 5)
    data = _linear(u, rng.standard_normal((GROUPS, LINEAR.size)), rng)
    return Sample(data, u, LINEAR.start)


def unequal_errors(rng: np.random.Generator) -> Sample:
    """Return groups whose error variances are lognormal with mean one."""
    u, variance = rng.standard_normal((GROUPS, 1)), np.exp(rng.normal(-0.5, 1.0, GROUPS))
    errors = np.sqrt(variance)[:, None] * rng.standard_normal((GROUPS, LINEAR.size))
    watched = variance >= np.quantile(variance, 0.75)
    return Sample(_linear(u, errors, rng), u, LINEAR.start, watched)


def correlated_errors(rng: np.random.Generator, phi: float = 0.6) -> Sample:
    r"""Return errors that follow an AR(1) within groups.

    Of the groups' covariance S the closest :math:`\sigma^2I+\tau^211^\top` in the Gaussian loss has
    the same eigenvalue along 1 and the same trace.
    """
    m = LINEAR.size
    S = phi ** np.abs(np.subtract.outer(np.arange(m), np.arange(m))) + 1.0
    along = S.sum() / m
    variance = (np.trace(S) - along) / (m - 1)
    truth = {
        **LINEAR.start,
        "log sigma": 0.5 * np.log(variance),
        "log tau": 0.5 * np.log((along - variance) / m),
    }
    u = rng.standard_normal((GROUPS, 1))
    errors = rng.multivariate_normal(np.zeros(m), S - 1.0, GROUPS)
    return Sample(_linear(u, errors, rng), u, truth)


def slopes(rng: np.random.Generator) -> Sample:
    """Return random intercepts and slopes of a linear model that is right."""
    u = rng.standard_normal((GROUPS, 2)) * np.exp([0.0, -0.5])
    errors = rng.standard_normal((GROUPS, SLOPES.size))
    data = _linear(u, errors, rng)
    data["y"] = data["y"] + u[:, 1:] * data["x"]
    return Sample(data, u, SLOPES.start)


def _counts(rng: np.random.Generator, groups: int, shape: float) -> tuple[dict[str, Array], Array]:
    """Return counts of groups and their effects; means are gamma around the model's."""
    u = rng.standard_normal((groups, 1))
    x = rng.standard_normal((groups, COUNTS.size))
    mean = np.exp(1.0 + 0.5 * x + u)
    if np.isfinite(shape):
        mean = mean * rng.gamma(shape, 1 / shape, x.shape)
    return {"x": x, "y": rng.poisson(mean).astype(float)}, u


def poisson(rng: np.random.Generator) -> Sample:
    """Return counts of a model that is right."""
    return Sample(*_counts(rng, GROUPS, np.inf), COUNTS.start)


def overdispersed(rng: np.random.Generator) -> Sample:
    """Return counts that are negative binomial given the effects."""
    return Sample(*_counts(rng, GROUPS, 3.0), _overdispersed_truth())


@lru_cache(maxsize=1)
def _overdispersed_truth() -> dict[str, float]:
    """Return the fit to a large population; its standard errors are a twentieth of a data set's."""
    criterion = COUNTS.criterion(_counts(np.random.default_rng(20261118), POPULATION, 3.0)[0])
    return dict(zip(criterion.names, minimise(criterion).theta.tolist(), strict=True))


#: Label, model and simulation.
DESIGNS: dict[str, tuple[Model, Callable[[np.random.Generator], Sample]]] = {
    "linear, intercepts": (LINEAR, right),
    "linear, intercepts and slopes": (SLOPES, slopes),
    "Poisson, intercepts": (COUNTS, poisson),
    "linear, effects t(5)": (LINEAR, heavy_tails),
    "linear, error variances lognormal": (LINEAR, unequal_errors),
    "linear, errors AR(1) with 0.6": (LINEAR, correlated_errors),
    "Poisson, counts overdispersed": (COUNTS, overdispersed),
}


def work(parameters: Parameters, seed: np.random.SeedSequence) -> Arrays:
    """Return coverage and width by data set of effects and parameters, methods first.

    Of effects (some of the replicates, method, d or watched, 2) averages over groups; of parameters
    (replicate, 2, p, 2) the model's posterior and the calibrated one.
    """
    model, simulate = DESIGNS[parameters["design"]]
    of_effects, of_parameters = [], []
    for k, stream in enumerate(seed.spawn(parameters["count"])):
        rng = np.random.default_rng(stream)
        sample = simulate(rng)
        criterion = model.criterion(sample.data)
        fit = minimise(criterion)
        spread = inv(criterion.hessian(fit.theta), "Hessian")
        before = rng.multivariate_normal(fit.theta, spread, DRAWS)
        after = calibrate(before, criterion, eta=1.0, seed=rng).draws.array
        own = np.array([sample.truth[name] for name in criterion.names])
        of_parameters.append([_inside(draws, own).T for draws in (before, after)])
        if model.gaussian or k % EVERY == 0:
            of_effects.append(_of_effects(model, sample, criterion.names, (before, after), rng))
    return {"effects": np.array(of_effects), "parameters": np.array(of_parameters)}


def _of_effects(
    model: Model,
    sample: Sample,
    names: tuple[str, ...],
    parameters: tuple[Array, Array],
    rng: np.random.Generator,
) -> Array:
    """Return coverage and width of the groups' own values (method, d or watched, 2)."""
    import jax

    place = [names.index(name) for name in model.centers]
    realised = np.array([model.start[name] for name in model.centers]) + sample.effects
    of_effects = []
    for theta in parameters:
        with double_precision():
            key = jax.random.PRNGKey(int(rng.integers(1 << 31)))
            named = dict(zip(names, theta.T, strict=True))
            effects = np.asarray(model.effects(named, sample.data, key))
        each = _inside(theta[:, None, place] + effects, realised)  # (2, G, d)
        rows = [*np.moveaxis(each.mean(axis=1), 0, 1)]
        if sample.watched.any():
            rows.append(each[:, sample.watched].mean(axis=(1, 2)))
        of_effects.append(rows)
    return np.array(of_effects)


def _inside(draws: Array, truth: Array) -> Array:
    """Return whether 95 % intervals of draws (D, ...) hold the truth, and their width (2, ...)."""
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    return np.array([(low <= truth) & (truth <= high), high - low], dtype=float)


def run_effects(
    out: Path | str,
    *,
    replicates: int = 200,
    seed: int = 1,
    only: str | None = None,
    **how: Unpack[How],
) -> pd.DataFrame:
    """Run the study, resuming what `out` holds, write ``effects.csv`` there and return the table.

    A row per design, quantity and method: coverage, its Monte Carlo error over data sets, mean
    width, and replicates.
    """
    import pandas as pd

    count = as_count(replicates, "replicates", least=2)
    names = [name for name in DESIGNS if only is None or only in name]
    if not names:
        raise InputError("only", f"is {only!r}", f"designs are {list(DESIGNS)}")
    cells = [
        Cell(
            f"{list(DESIGNS).index(name):02d}-{first:06d}-{min(BLOCK, count - first)}",
            {"design": name, "count": min(BLOCK, count - first)},
        )
        for name in names
        for first in range(0, count, BLOCK)
    ]
    settings = {"replicates": count, "designs": names, "draws": DRAWS, "groups": GROUPS}
    results = run_study("effects", settings, cells, work, out, seed=seed, **how)
    rows: list[dict[str, object]] = []
    for name in names:
        blocks = [results[cell.key] for cell in cells if cell.parameters["design"] == name]
        arrays = {key: np.concatenate([b[key] for b in blocks]) for key in blocks[0]}
        rows += _rows(name, **arrays)
    table = pd.DataFrame(rows)
    table.to_csv(Path(out) / "effects.csv", index=False, float_format="%.6g")
    return table


def _rows(name: str, effects: Array, parameters: Array) -> list[dict[str, object]]:
    model = DESIGNS[name][0]
    quantities = [f"{center} + effect" for center in model.centers]
    quantities += ["the quarter of groups with the largest errors"]
    every = [(quantities[j], effects[:, :, j]) for j in range(effects.shape[2])]
    every += [(named, parameters[:, :, j]) for j, named in enumerate(sorted(model.start))]
    shown = [(q, m, values[:, k]) for q, values in every for k, m in enumerate(METHODS)]
    rows: list[dict[str, object]] = []
    for quantity, method, values in shown:
        inside, width = values.T
        noise = np.sqrt(max(inside.var(ddof=1), 0.5 / len(inside) ** 2) / len(inside))
        rows.append(
            {
                "design": name,
                "quantity": quantity,
                "method": method,
                "coverage": inside.mean(),
                "coverage_se": noise,
                "width": width.mean(),
                "replicates": len(inside),
            }
        )
    return rows


def effects_markdown(table: pd.DataFrame) -> str:
    """Return the table as the guide shows it: a row per design and quantity."""
    lines = ["| data | interval for | the model's posterior | calibrated |", "|---|---|---|---|"]
    for (design, quantity), rows in table.groupby(["design", "quantity"], sort=False):
        shares = zip(rows["coverage"], rows["coverage_se"], strict=True)
        cells = [f"{share:.3f} ({noise:.3f})" for share, noise in shares]
        lines.append(f"| {' | '.join([str(design), str(quantity), *cells])} |")
    return "\n".join(lines)
