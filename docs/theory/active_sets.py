"""Active sets: calibration of the coefficients that an L1 penalty leaves, and what the others do.

Run it to write active-sets.png and active-sets.txt beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

import etafree as ef

BETA = np.array([2.0, -1.5, 1.0, 0.0, 0.0, 0.0])
STRENGTH, CORRELATION = 0.3, 0.5
ACTIVE = BETA != 0
WAYS = ("active block", "all p x p matrices", "posterior mean as centre", "uncalibrated")


def simulate(n: int, rng: np.random.Generator) -> ef.Criterion:
    """Return least squares with an L1 penalty, error variance growing with the first covariate."""
    p = len(BETA)
    X = np.sqrt(1 - CORRELATION) * rng.standard_normal((n, p))
    X += np.sqrt(CORRELATION) * rng.standard_normal((n, 1))
    y = X @ BETA + np.sqrt(0.5 + X[:, 0] ** 2) * rng.standard_normal(n)
    return ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.L1(STRENGTH))


def pseudo_true() -> tuple[np.ndarray, np.ndarray]:
    r"""Return the minimiser of the expected penalized loss and the subgradient there, by KKT.

    With covariance matrix C: :math:`\theta_A = \beta_A - \lambda C_{AA}^{-1}\mathrm{sign}(\beta_A)`
    and zero elsewhere, which holds if :math:`|C(\beta-\theta)|_j < \lambda` for the others.
    """
    C = (1 - CORRELATION) * np.eye(len(BETA)) + CORRELATION
    theta = np.zeros(len(BETA))
    sign = np.sign(BETA[ACTIVE])
    theta[ACTIVE] = BETA[ACTIVE] - STRENGTH * np.linalg.solve(C[np.ix_(ACTIVE, ACTIVE)], sign)
    pull = C @ (BETA - theta)
    assert np.all(np.sign(theta[ACTIVE]) == sign)
    assert np.all(np.abs(pull[~ACTIVE]) < STRENGTH)
    return theta, pull


class Coverage(NamedTuple):
    """Coverage of the active coefficients together, by ways; and the mean width."""

    coverage: np.ndarray
    width: np.ndarray
    selected: float  # share of data sets whose active set is the population's


def coverage(eta: float, n: int = 400, datasets: int = 300, seed: int = 1) -> Coverage:
    """Return coverage over data sets in which the active set is the population's."""
    truth = pseudo_true()[0][ACTIVE]
    inside, width, kept = np.zeros((4, 3)), np.zeros((4, 3)), 0
    for stream in np.random.SeedSequence([seed, n]).spawn(datasets):
        problem = simulate(n, np.random.default_rng(stream))
        before = ef.sample(ef.GeneralizedPosterior(problem, eta), 500, seed=stream)
        result = ef.calibrate(before, problem)
        if len(result.inactive) != 3 or result.draws.array[:, ~ACTIVE].any():
            continue
        kept += 1
        plain = problem.with_penalty(ef.penalties.NoPenalty())
        full = ef.target(plain, center=result.center).se[ACTIVE]
        array = before.array[:, ACTIVE]
        ways = [
            (result.target.center, 1.959964 * result.target.se),
            (result.target.center, 1.959964 * full),
            (array.mean(axis=0), 1.959964 * result.target.se),
            (array.mean(axis=0), 1.959964 * array.std(axis=0, ddof=1)),
        ]
        for k, (center, half) in enumerate(ways):
            inside[k] += np.abs(center - truth) <= half
            width[k] += 2 * half
    return Coverage(inside.mean(axis=1) / kept, width.mean(axis=1) / kept, kept / datasets)


def inactive_draws(n: int, eta: float, draws: int = 4000, seed: int = 1) -> np.ndarray:
    """Return eta n times the posterior draws (draws,) of the last coefficient, before the map."""
    problem = simulate(n, np.random.default_rng([seed, n]))
    before = ef.sample(ef.GeneralizedPosterior(problem, eta), draws, seed=seed)
    return eta * n * before.array[:, -1]


def laplace(x: np.ndarray, pull: float) -> np.ndarray:
    """Return the limit of their density: rates strength + pull to the left, - pull to the right."""
    left, right = STRENGTH + pull, STRENGTH - pull
    height = left * right / (left + right)
    return height * np.exp(np.where(x < 0, left, -right) * x)


def laplace_mean_size(pull: float) -> float:
    """Return E|x| under that density."""
    left, right = STRENGTH + pull, STRENGTH - pull
    return float((left / right + right / left) / (left + right))


def main(folder: Path = Path(__file__).parent) -> None:
    from matplotlib.figure import Figure

    theta, pull = pseudo_true()
    etas = (0.1, 1.0, 10.0, 100.0)
    made = {eta: coverage(eta) for eta in etas}
    shown = " ".join(f"{value:.3f}" for value in theta)
    head = "".join(f"{f'eta = {eta:g}':>11}" for eta in etas)
    lines = [
        f"minimiser of the expected penalized loss: {shown}",
        f"active set found in {made[1.0].selected:.1%} of data sets (n = 400)",
        "",
        f"{'coverage of active coefficients':<34}{head}   width at 1",
    ]
    for k, way in enumerate(WAYS):
        numbers = "".join(f"{c.coverage[k]:>11.3f}" for c in made.values())
        lines.append(f"{way:<34}{numbers}{made[1.0].width[k]:>13.3f}")
    lines += ["", f"{'mean of eta n |inactive draw|':<34}" + "".join(f"{e:>11g}" for e in etas)]
    for n in (400, 6400):
        numbers = "".join(f"{np.abs(inactive_draws(n, eta)).mean():>11.2f}" for eta in etas)
        lines.append(f"{f'n = {n:,}':<34}{numbers}")
    lines.append(f"{'limit':<34}{laplace_mean_size(float(pull[-1])):>11.2f}")
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = ("#1f5a94", "#6c8f3d", "#7a7a7a", "#c77d2e")
    for k, (way, colour) in enumerate(zip(WAYS, colours, strict=True)):
        values = [c.coverage[k] for c in made.values()]
        left.semilogx(etas, values, "o-", color=colour, label=way, zorder=9 - k)
    left.axhline(0.95, color="0.6", ls=":")
    left.set_xlabel("learning rate η")
    left.set_ylabel("coverage of active coefficients")
    left.set_ylim(0, 1.02)
    left.legend(frameon=False, fontsize=8)
    x = np.linspace(-20, 20, 401)
    right.hist(
        inactive_draws(6400, 10.0, 20000),
        bins=np.linspace(-20, 20, 81),
        density=True,
        color="#c9d9ea",
        label="draws, n = 6,400, η = 10",
    )
    right.plot(x, laplace(x, float(pull[-1])), color="#1f5a94", label="two-sided exponential")
    right.set_xlabel("η n × an inactive coefficient, before calibration")
    right.set_ylabel("density")
    right.set_yticks([])
    figure.suptitle("The active block covers at every η; inactive draws are not even near normal")
    right.legend(frameon=False, fontsize=8)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "active-sets.png", dpi=110)
    text = "\n".join(lines)
    (folder / "active-sets.txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
