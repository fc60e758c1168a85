r"""Losses of one observation over a linear predictor, with derivatives in closed form.

Each loss is a function :math:`\ell(u, y)` of the linear predictor :math:`u = x^\top\theta + o` and
the response. `values`, `first` and `second` return :math:`\ell`, :math:`\partial\ell/\partial u`
and :math:`\partial^2\ell/\partial u^2`; they broadcast, so `u` may hold many parameter values
at once, observations along the last axis. `majorizer` returns the curvature of a quadratic that
touches the loss at `u` and lies above it where there is one: the weights of iteratively reweighted
least squares, a safe Newton matrix far from the solution.
"""

from etafree.losses.base import LinearLoss, Loss
from etafree.losses.glm import Gamma, Logistic, NegativeBinomial, Poisson
from etafree.losses.kinked import Check, Hinge, KinkedLoss
from etafree.losses.modal import Modal
from etafree.losses.normal_laplace import NormalLaplace
from etafree.losses.quantile import Quantile
from etafree.losses.residual import Huber, PseudoHuber, ResidualLoss, Squared, StudentT

__all__ = [
    "Check",
    "Gamma",
    "Hinge",
    "Huber",
    "KinkedLoss",
    "LinearLoss",
    "Logistic",
    "Loss",
    "Modal",
    "NegativeBinomial",
    "NormalLaplace",
    "Poisson",
    "PseudoHuber",
    "Quantile",
    "ResidualLoss",
    "Squared",
    "StudentT",
]
