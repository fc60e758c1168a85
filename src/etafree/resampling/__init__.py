"""Data sets drawn anew from the data, as observation weights, and what is made of each."""

from etafree.resampling.bayesbag import bayesbag
from etafree.resampling.minimisers import (
    Resamples,
    bootstrap,
    loss_likelihood_bootstrap,
    martingale_posterior,
    resampled_targets,
    resamples,
)
from etafree.resampling.weights import resampled_groups, weight_blocks

__all__ = [
    "Resamples",
    "bayesbag",
    "bootstrap",
    "loss_likelihood_bootstrap",
    "martingale_posterior",
    "resampled_groups",
    "resampled_targets",
    "resamples",
    "weight_blocks",
]
