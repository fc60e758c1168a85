"""The total-variation limit: how far posteriors are from their normal limit as n grows.

One parameter, so the distance is an integral on a line and has no Monte Carlo error of its own.
Run it to write total-variation.png and total-variation.txt beside it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import etafree as ef

SIZES = (50, 200, 800, 3200, 12800)
ETAS = (0.1, 1.0, 10.0)
#: The distance of a Poisson mean's posterior times the root of eta * n * mean: E|Z|^3 / 12.
CONSTANT = np.sqrt(2 / np.pi) / 6


def distance(posterior: ef.GeneralizedPosterior, criterion: ef.Criterion | None = None) -> float:
    """Return the total variation between a posterior and N(minimiser, 1 / (eta A)).

    Minimiser and A are those of `criterion`, by default the posterior's own.
    """
    criterion = posterior.criterion if criterion is None else criterion
    center = ef.minimise(criterion).theta
    sd = (posterior.eta * criterion.hessian(center)[0, 0]) ** -0.5
    u = np.sinh(np.linspace(-4.5, 4.5, 801))  # standard deviations, as far as 45 of them
    log_q = posterior.log_density((center[0] + sd * u)[:, None])
    q = np.exp(log_q - log_q.max())
    q /= np.trapezoid(q, u)
    normal = np.exp(-0.5 * u**2) / np.sqrt(2 * np.pi)
    return float(0.5 * np.trapezoid(np.abs(q - normal), u))


def poisson(n: int, rng: np.random.Generator, eta: float) -> ef.GeneralizedPosterior:
    """Counts with twice a Poisson's variance, an intercept on the log scale."""
    counts = rng.negative_binomial(2.0, 0.5, n).astype(float)
    return ef.GeneralizedPosterior(
        ef.Criterion(ef.losses.Poisson(), (np.ones((n, 1)), counts)), eta
    )


def logistic(n: int, rng: np.random.Generator, eta: float) -> ef.GeneralizedPosterior:
    """One slope, the true curve no logistic one, and a ridge."""
    x = rng.normal(1.0, 1.0, n)
    y = (x + rng.standard_cauchy(n) > 0).astype(float)
    criterion = ef.Criterion(ef.losses.Logistic(), (x[:, None], y), ef.penalties.Ridge(0.05))
    return ef.GeneralizedPosterior(criterion, eta)


def huber(n: int, rng: np.random.Generator, eta: float) -> ef.GeneralizedPosterior:
    """A location under skewed errors: two derivatives, not the three that the paper asks for."""
    y = rng.exponential(1.0, n)
    return ef.GeneralizedPosterior(ef.Criterion(ef.losses.Huber(1.0), (np.ones((n, 1)), y)), eta)


def fixed_prior(n: int, rng: np.random.Generator, eta: float) -> ef.GeneralizedPosterior:
    """The logistic posterior with a standard normal prior that eta does not multiply."""
    plain = logistic(n, rng, eta).criterion
    return ef.GeneralizedPosterior(plain, eta, ef.LogPrior.normal([0.0], [[1.0]]))


def ridge_as_prior(n: int, rng: np.random.Generator, eta: float) -> ef.GeneralizedPosterior:
    """The ridge as a prior of precision n / 20 that eta does not multiply: r_n is not small."""
    plain = logistic(n, rng, eta).criterion
    prior = ef.LogPrior.from_penalty(plain.penalty, 1)
    return ef.GeneralizedPosterior(plain.with_penalty(ef.penalties.NoPenalty()), eta, prior)


CASES = {
    "Poisson mean": poisson,
    "logistic slope, ridge": logistic,
    "Huber location": huber,
    "logistic, fixed prior": fixed_prior,
    "logistic, ridge as a prior": ridge_as_prior,
}


def one_distance(case: str, n: int, eta: float, stream: np.random.SeedSequence) -> float:
    """Return the distance for one simulated data set."""
    posterior = CASES[case](n, np.random.default_rng(stream), eta)
    if case != "logistic, ridge as a prior":
        return distance(posterior)
    return distance(posterior, posterior.criterion.with_penalty(ef.penalties.Ridge(0.05)))


def distances(
    case: str, eta: float, sizes: tuple[int, ...] = SIZES, datasets: int = 10, seed: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean distance at every n, and its standard error over data sets."""
    means, errors = np.empty(len(sizes)), np.empty(len(sizes))
    for k, n in enumerate(sizes):
        streams = np.random.SeedSequence([seed, n]).spawn(datasets)
        made = [one_distance(case, n, eta, stream) for stream in streams]
        means[k], errors[k] = np.mean(made), np.std(made, ddof=1) / np.sqrt(datasets)
    return means, errors


def slope(sizes: tuple[int, ...], values: np.ndarray) -> float:
    """Return the exponent a of n^a that fits distances."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def main(folder: Path = Path(__file__).parent) -> None:
    from matplotlib.figure import Figure

    colours = {0.1: "#c77d2e", 1.0: "#7a7a7a", 10.0: "#1f5a94"}
    lines = [f"{'posterior':<31}{'eta':>5}" + "".join(f"{n:>9,}" for n in SIZES) + "  exponent"]
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    panels = {
        "Poisson mean": 0,
        "logistic slope, ridge": 1,
        "logistic, fixed prior": 2,
        "logistic, ridge as a prior": 2,
    }
    for case in CASES:
        for eta in ETAS:
            means, _ = distances(case, eta)
            numbers = "".join(f"{v:>9.4f}" for v in means)
            lines.append(f"{case:<31}{eta:>5g}{numbers}{slope(SIZES, means):>10.2f}")
            if case in panels and (panels[case] < 2 or eta == 0.1):
                second = "as a prior" in case
                label = case.removeprefix("logistic, ") if panels[case] == 2 else f"η = {eta:g}"
                axes[panels[case]].loglog(
                    SIZES, means, "s--" if second else "o-", ms=4, color=colours[eta], label=label
                )
    titles = (
        "Poisson mean",
        "logistic slope with a ridge",
        "priors that η (here 0.1) does not multiply",
    )
    for ax, title in zip(axes, titles, strict=True):
        ax.loglog(SIZES, 1.2 * np.array(SIZES) ** -0.5, ":", color="0.6", label="slope −1/2")
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("n (observations)")
        ax.legend(frameon=False, fontsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("total variation to the normal limit")
    figure.suptitle("The distance falls like one over the root of ηn, unless a prior grows with n")
    figure.savefig(folder / "total-variation.png", dpi=110)
    text = "\n".join(lines)
    (folder / "total-variation.txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
