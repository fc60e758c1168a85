"""Plug-in calibration: estimated curvature, variability and nuisance values.

Run it to write plug-in.png and plug-in.txt beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

import etafree as ef
from etafree.paper.random_intercept import Design

SIZES = (100, 400, 1600, 6400)
ETA, SLOPE, SHAPE = 0.2, 0.5, 2.0
#: Huber's threshold; scale and location that MAD and Huber have jointly for exponential errors.
TUNING, SCALE, LOCATION = 1.345, 0.8334123737, 0.8623896746


def sandwich_limit() -> float:
    r"""Return :math:`V^\star=K/J^2` of the slope below.

    With m = exp(bx) and x one of -1 and 1: :math:`J = E(m x^2) = \cosh b` and
    :math:`K = E\{(m + m^2/k)x^2\} = \cosh b + \cosh(2b)/k`.
    """
    return float((np.cosh(SLOPE) + np.cosh(2 * SLOPE) / SHAPE) / np.cosh(SLOPE) ** 2)


def overdispersed(n: int, rng: np.random.Generator) -> ef.Criterion:
    """Return the Poisson loss of negative binomial counts, one slope on the log scale."""
    x = rng.choice([-1.0, 1.0], n)
    mean = np.exp(SLOPE * x)
    y = rng.negative_binomial(SHAPE, SHAPE / (SHAPE + mean)).astype(float)
    return ef.Criterion(ef.losses.Poisson(), (x[:, None], y), names=["x"])


class Errors(NamedTuple):
    """Mean relative errors over data sets at one n."""

    target: float  # of V
    working: float  # of the draws' covariance against 1 / (eta A)
    calibrated: float  # of the calibrated draws' covariance against the estimated V


def errors(n: int, datasets: int = 200, draws: int = 4000, seed: int = 1) -> Errors:
    """Return how far the estimated parts are from their limits."""
    limit, made = sandwich_limit(), []
    for stream in np.random.SeedSequence([seed, n]).spawn(datasets):
        problem = overdispersed(n, np.random.default_rng(stream))
        target = ef.target(problem)
        before = ef.sample(ef.GeneralizedPosterior(problem, ETA), draws, seed=stream)
        after = ef.calibrate(before, target).map(before)
        assert target.hessian is not None
        V, S = n * target.covariance[0, 0], before.covariance()[0, 0]
        made.append(
            [
                V / limit,
                ETA * target.hessian[0, 0] * S,
                after.covariance()[0, 0] / target.covariance[0, 0],
            ]
        )
    return Errors(*(float(e) for e in np.mean(np.abs(np.array(made) - 1), axis=0)))


def printed_meat(groups: int, seed: int = 1) -> tuple[float, float]:
    """Return the printed variance over the centred one in the paper's model, and the prediction.

    For groups of m: B printed = B centred + n m (strength * slope)^2, exactly.
    """
    design = Design(groups=groups)
    model = design.model(np.random.default_rng(seed))
    centred = model.target(correction="CR0")
    printed = model.target(correction="CR0", centered=False)
    assert centred.meat is not None
    added = groups * design.size**2 * (design.strength * centred.center[0]) ** 2
    ratio = printed.covariance[0, 0] / centred.covariance[0, 0]
    return float(ratio), float(1 + added / centred.meat[0, 0])


class Nuisance(NamedTuple):
    """Location and slope when there is a scale too: (2,) arrays."""

    ratio: np.ndarray  # standard deviation over mean standard error
    coverage: np.ndarray


def nuisance(skewed: bool, way: str, n: int = 200, datasets: int = 1000, seed: int = 1) -> Nuisance:
    """Return how a scale that is "stacked", "taken as known" or "given" affects Huber regression.

    One that is taken as known is estimated first and then passed as a number.
    """
    truth = np.array([LOCATION if skewed else 0.0, 0.5])
    centers, ses = np.empty((datasets, 2)), np.empty((datasets, 2))
    for k, stream in enumerate(np.random.SeedSequence([seed, skewed]).spawn(datasets)):
        rng = np.random.default_rng(stream)
        X = np.column_stack([np.ones(n), rng.standard_normal(n)])
        error = rng.exponential(1.0, n) if skewed else rng.standard_t(3, n)
        scale, data = SCALE if way == "given" else "mad", (X, 0.5 * X[:, 1] + error)
        problem = ef.Criterion(ef.losses.Huber(TUNING, scale=scale), data)
        if way == "taken as known":
            problem = ef.Criterion(ef.losses.Huber(TUNING, scale=problem.loss.scale), data)
        made = ef.target(problem)
        centers[k], ses[k] = made.center, made.se
    inside = np.abs(centers - truth) <= 1.959964 * ses
    return Nuisance(centers.std(axis=0, ddof=1) / ses.mean(axis=0), inside.mean(axis=0))


def main(folder: Path = Path(__file__).parent) -> None:
    from matplotlib.figure import Figure

    made = {n: errors(n) for n in SIZES}
    lines = [f"{'mean relative error':<48}" + "".join(f"{f'n = {n:,}':>11}" for n in SIZES)]
    labels = (
        "estimated V against V*",
        "draws' variance against 1 / (eta A)",
        "calibrated draws' variance against estimated V",
    )
    for k, label in enumerate(labels):
        lines.append(f"{label:<48}" + "".join(f"{e[k]:>11.1e}" for e in made.values()))
    lines += ["", f"{'printed over centred variance':<48}{'measured':>11}{'predicted':>11}"]
    for groups in (100, 400, 1600):
        ratio, predicted = printed_meat(groups)
        lines.append(f"{f'{groups:,} groups of 5':<48}{ratio:>11.3f}{predicted:>11.3f}")
    lines += [
        "",
        f"{'a scale that is':<36}{'sd / se':>19}{'coverage':>19}",
        f"{'':<36}" + f"{'location':>10}{'slope':>9}" * 2,
    ]
    for skewed, errors_are in ((False, "t errors"), (True, "exponential errors")):
        for way in ("stacked", "taken as known", "given"):
            (a, b), (c, d) = nuisance(skewed, way)
            numbers = f"{a:>10.2f}{b:>9.2f}{c:>10.3f}{d:>9.3f}"
            lines.append(f"{f'{way}, {errors_are}':<36}{numbers}")
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    ax = figure.subplots()
    for k, (label, colour) in enumerate(zip(labels[:2], ("#1f5a94", "#c77d2e"), strict=True)):
        ax.loglog(
            SIZES,
            [e[k] for e in made.values()],
            "o-",
            color=colour,
            label=label.replace("eta", "η"),
        )
    ax.loglog(SIZES, 3 * np.array(SIZES) ** -0.5, ":", color="0.6", label="slope −1/2")
    ax.loglog(SIZES, 0.6 / np.array(SIZES), "--", color="0.6", label="slope −1")
    ax.set_xticks(SIZES, [f"{n:,}" for n in SIZES])
    ax.set_xticks([], minor=True)
    ax.set_xlabel("n (observations)")
    ax.set_ylabel("mean relative error of a variance")
    ax.set_title("Both parts of the map are consistent: their errors fall with n")
    ax.legend(frameon=False, loc="lower left", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "plug-in.png", dpi=110)
    text = "\n".join(line.rstrip() for line in lines)
    (folder / "plug-in.txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
