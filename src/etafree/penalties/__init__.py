r"""Convex penalties in :math:`L = M + \lambda_n s_n\rho`: smooth ones, and ones with kinks."""

from etafree.penalties.active import ActivePenalty
from etafree.penalties.kinks import L1, ElasticNet, GroupL1, KinkedPenalty
from etafree.penalties.smooth import (
    NoPenalty,
    Penalty,
    Ridge,
    SmoothPenalty,
    Strength,
    huberized_l1,
)

__all__ = [
    "L1",
    "ActivePenalty",
    "ElasticNet",
    "GroupL1",
    "KinkedPenalty",
    "NoPenalty",
    "Penalty",
    "Ridge",
    "SmoothPenalty",
    "Strength",
    "huberized_l1",
]
