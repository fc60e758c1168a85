r"""Convex penalties in :math:`L = M + \lambda_n s_n\rho`: smooth ones, and ones with kinks."""

from etafree.penalties.kinked import (
    L1,
    ActivePenalty,
    ElasticNet,
    GroupL1,
    KinkedPenalty,
    NormPenalty,
)
from etafree.penalties.polyhedral import Fused, NonNegative, PolyhedralPenalty, Slope
from etafree.penalties.smooth import NoPenalty, Penalty, Ridge, SmoothPenalty, huberized_l1
from etafree.penalties.smooth import Strength as _Strength

__all__ = [
    "L1",
    "ActivePenalty",
    "ElasticNet",
    "Fused",
    "GroupL1",
    "KinkedPenalty",
    "NoPenalty",
    "NonNegative",
    "NormPenalty",
    "Penalty",
    "PolyhedralPenalty",
    "Ridge",
    "Slope",
    "SmoothPenalty",
    "Strength",
    "huberized_l1",
]

#: A penalty's strength: a number :math:`\lambda`, or a function of the effective scale :math:`s_n`
#: that returns :math:`\lambda_n`, such as ``lambda n: n**-0.5``.
Strength = _Strength
