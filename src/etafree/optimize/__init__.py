"""Minimise a criterion: by Newton steps where the penalty is smooth, by proximal ones at a kink."""

from etafree.optimize.newton import Minimum, minimise, subset_starts

__all__ = ["Minimum", "minimise", "subset_starts"]
