"""Draw the losses that correspond to the three samplers of the random-intercept model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import etafree as ef
from etafree.samplers.gibbs import fill_noise, update_latents, words_for

ETAS = (0.01, 1.0, 100.0)
THRESHOLD = 1.0


def published_slope(residuals: np.ndarray, eta: float, copies: int = 4000) -> np.ndarray:
    """Return E(r - t) of the published sampler's latent chain at fixed residuals, by simulation.

    For the appendix's sampler the same expectation is the derivative of its loss (Fisher's
    identity); the published one has no density, and this is the slope that its coefficients feel.
    """
    r = np.repeat(residuals, copies)
    n = len(r)
    total, kept = np.zeros(len(residuals)), 0
    t, z, noise, unit, space = (np.empty(n, np.float32) for _ in range(5))
    words, counter = np.empty(words_for(n), np.uint64), np.uint64(7)
    t[:] = r
    for step in range(400):
        counter = np.uint64(fill_noise(counter, words, z, noise, unit))
        update_latents(r, r, 0.0, r, t, z, noise, unit, space, eta, THRESHOLD, True)
        if step >= 100:
            total += (r - t).reshape(len(residuals), copies).mean(axis=1)
            kept += 1
    return total / kept


def main(path: str = "docs/three_posteriors.png") -> None:
    r = np.linspace(0, 6, 61)
    zero = np.zeros_like(r)
    figure = Figure(figsize=(12, 4), layout="constrained")
    for ax, eta in zip(figure.subplots(1, 3, sharey=True), ETAS, strict=True):
        huber = ef.losses.Huber(THRESHOLD).values(zero, r)
        appendix = ef.losses.NormalLaplace(THRESHOLD, eta).values(zero, r)
        slope = published_slope(r, eta)
        published = np.concatenate([[0.0], np.cumsum(0.5 * (slope[1:] + slope[:-1]) * np.diff(r))])
        ax.plot(r, huber, color="#1f5a94", lw=3, label="huber: Huber's loss")
        ax.plot(r, appendix - appendix[0], color="#c77d2e", lw=2, label="appendix: normal–Laplace")
        ax.plot(r, published, color="0.3", lw=2, ls="--", label="published: effective loss")
        ax.set_title(f"η = {eta:g}")
        ax.set_xlabel("whitened residual r")
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    figure.axes[0].set_ylabel("loss of one observation")
    figure.axes[0].legend(frameon=False)
    Path(path).parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
