"""The location-scale map: one covariance for every learning rate.

Run it to write location-scale.png and location-scale.txt beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

import etafree as ef

ETAS = tuple(float(eta) for eta in 10.0 ** np.arange(-2.0, 2.1, 0.5))


class Row(NamedTuple):
    """What one learning rate gives, for the slope."""

    eta: float
    sd_before: float
    sd_mapped: float
    gap: float
    shift: float
    before: ef.Draws
    after: np.ndarray


def criterion(seed: int = 1) -> tuple[ef.Criterion, np.ndarray]:
    """Return a Huber regression with a ridge on clustered data with outliers, and the clusters."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(80), 5)
    x = 0.7 * rng.standard_normal(80)[group] + rng.standard_normal(400)
    y = 1.0 + 0.5 * x + rng.standard_normal(80)[group] + rng.standard_t(2, 400)
    X = np.column_stack([np.ones(400), x])
    made = ef.Criterion(ef.losses.Huber(1.345), (X, y), ef.penalties.Ridge(0.1), names=["one", "x"])
    return made, group


def sweep(etas: tuple[float, ...] = ETAS, draws: int = 40_000) -> tuple[ef.Target, list[Row]]:
    """Return the target, and for every learning rate the draws before and after the map.

    `gap` is the largest entry of the mapped draws' covariance minus the sandwich, relative to the
    standard errors; `shift` the distance of posterior mean and centre in standard errors.
    """
    problem, group = criterion()
    target = ef.target(problem, clusters=group)
    scale = np.outer(target.se, target.se)
    rows = []
    for eta in etas:
        before = ef.sample(ef.GeneralizedPosterior(problem, eta), draws, seed=2)
        result = ef.calibrate(before, problem, clusters=group)
        mapped = result.map(before.array)  # before the Student-t factors
        gap = np.max(np.abs(np.cov(mapped.T) - target.covariance) / scale)
        sds = before.array.std(axis=0, ddof=1)[1], mapped.std(axis=0, ddof=1)[1]
        shift = float(np.abs(result.center_shift).max())
        rows.append(Row(eta, *map(float, sds), float(gap), shift, before, mapped))
    return target, rows


def same_normals(etas: tuple[float, ...] = (1e-6, 1.0, 1e6), count: int = 500) -> float:
    """Return how far apart calibrated draws are, in se, when posteriors are exactly normal.

    Squared loss and ridge: the posterior is N(minimiser, (eta A)^-1), drawn from the same normals.
    """
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(100), rng.standard_normal(100)])
    y = X @ [1.0, 2.0] + rng.standard_t(3, 100) * np.abs(X[:, 1])
    problem = ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.Ridge(0.2))
    center = ef.minimise(problem).theta
    root = np.linalg.cholesky(np.linalg.inv(problem.hessian(center)))
    z = rng.standard_normal((count, 2)) @ root.T
    every = [ef.calibrate(center + z / np.sqrt(eta), problem, eta=eta) for eta in etas]
    values = np.array([result.map(result.original.array) for result in every])
    return float(np.max(np.ptp(values, axis=0) / every[0].target.se))


def main(folder: Path = Path(__file__).parent) -> None:
    from matplotlib.figure import Figure

    target, rows = sweep()
    lines = [
        f"sandwich standard error of the slope: {target.se[1]:.5f}",
        "",
        f"{'eta':>8}{'sd before':>12}{'sd mapped':>12}{'covariance gap':>16}"
        f"{'mean - centre, se':>19}",
    ]
    lines += [
        f"{r.eta:>8.3g}{r.sd_before:>12.5f}{r.sd_mapped:>12.5f}{r.gap:>16.0e}{r.shift:>19.2f}"
        for r in rows
    ]
    lines += [
        "",
        f"squared loss, eta = 1e-6, 1, 1e6 from the same normals: calibrated draws "
        f"differ by {same_normals():.0e} se",
    ]
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    etas = [r.eta for r in rows]
    left.loglog(etas, [r.sd_before for r in rows], "o-", color="#c77d2e", label="posterior")
    left.loglog(etas, [r.sd_mapped for r in rows], "o-", color="#1f5a94", label="after the map")
    left.axhline(target.se[1], color="0.5", ls=":", label="sandwich")
    left.set_xlabel("learning rate η")
    left.set_ylabel("standard deviation of the slope")
    left.legend(frameon=False)
    for row in rows[::2]:
        for cloud, colour in ((row.before.array, "#c77d2e"), (row.after, "#1f5a94")):
            ring = ellipse(cloud.mean(axis=0), np.cov(cloud.T))
            right.plot(*ring, color=colour, lw=1.5, alpha=0.8)
    right.set_xlim(target.center[0] + np.array([-8, 8]) * target.se[0])
    right.set_ylim(target.center[1] + np.array([-8, 8]) * target.se[1])
    right.set_xlabel("intercept")
    right.set_ylabel("slope")
    right.set_title("two-sd ellipses, η = 0.01 (outermost), 0.1, 1, 10, 100", fontsize=10)
    figure.suptitle("The posterior's spread depends on η; after the map it is the sandwich's")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "location-scale.png", dpi=110)
    text = "\n".join(lines)
    (folder / "location-scale.txt").write_text(text + "\n")
    print(text)


def ellipse(center: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the curve (2, 200) of points two standard deviations from the centre."""
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = 2 * np.stack([np.cos(angle), np.sin(angle)])
    return center[:, None] + np.linalg.cholesky(covariance) @ circle


if __name__ == "__main__":
    main()
