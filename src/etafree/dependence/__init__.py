"""Which rows may depend on each other, and the variance of the total score that follows.

A formula of :math:`B` per file: clusters (and independent rows), several ways, surveys,
replicate weights, time, panels.
"""

from etafree.dependence.base import Dependence
from etafree.dependence.clusters import Clusters, as_structure, bind
from etafree.dependence.panel import Panel
from etafree.dependence.replicates import ReplicateWeights
from etafree.dependence.survey import Survey
from etafree.dependence.time import TimeSeries

__all__ = [
    "Clusters",
    "Dependence",
    "Panel",
    "ReplicateWeights",
    "Survey",
    "TimeSeries",
    "as_structure",
    "bind",
]
