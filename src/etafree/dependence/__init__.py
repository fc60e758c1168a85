"""Which rows may depend on each other, and the variance of the total score that follows.

A formula of :math:`B` per file: clusters (and independent rows), several ways, surveys, time.
"""

from __future__ import annotations

from etafree.data.rows import Rows
from etafree.dependence.base import Dependence, Structure
from etafree.dependence.clusters import Clusters, Independent
from etafree.dependence.survey import Survey
from etafree.dependence.time import Panel, TimeSeries
from etafree.errors import InputError

__all__ = ["Clusters", "Dependence", "Panel", "Survey", "TimeSeries", "as_structure", "bind"]


def as_structure(clusters: object, dependence: object) -> Structure | None:
    """Return the structure that a call names; None for independent rows."""
    if dependence is None:
        return None if clusters is None else Clusters(clusters)
    if clusters is not None:
        raise InputError("clusters", "cannot be combined with dependence=", "pass one of them")
    if not isinstance(dependence, Structure):
        raise InputError(
            "dependence",
            f"is {dependence!r:.60}",
            "pass ef.Clusters, ef.Survey, ef.TimeSeries or ef.Panel; labels go to clusters=",
        )
    return dependence


def bind(structure: Structure | None, rows: Rows, copies: bool) -> Dependence:
    """Return a structure bound to rows; `copies` says that weights repeat rows.

    Without a structure these are the clusters that the rows were said to come in, if any.
    """
    if structure is None and rows.clusters is not None:
        structure = Clusters(rows.clusters)
    return Independent(rows.used) if structure is None else structure.bind(rows, copies)
