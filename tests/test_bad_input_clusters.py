"""Bad cluster labels are refused: missing, too few, of another length or index."""

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused
from etafree import losses

N, P = 40, 3
RNG = np.random.default_rng(23)
X = np.column_stack([np.ones(N), RNG.standard_normal((N, P - 1))])
Y = X @ [1.0, 2.0, -1.0] + RNG.standard_normal(N)
CRITERION = ef.Criterion(losses.Squared(), (X, Y))
TABLE = ef.Criterion(losses.Squared(), (pd.DataFrame(X), pd.Series(Y)))
DRAWS = RNG.standard_normal((300, P))
GROUPS = np.arange(N) % 10


def replaced(label, dtype=object):
    out = np.array([f"g{k}" for k in GROUPS], dtype=object) if dtype is object else GROUPS
    out = out.astype(dtype)
    out[3] = label
    return out


CLUSTERS = [
    ("missing labels, first at row 3", replaced(None)),
    ("missing labels, first at row 3", replaced(np.nan)),
    ("missing labels, first at row 3", replaced(pd.NaT)),
    ("missing labels, first at row 3", replaced(pd.NA)),
    ("missing labels, first at row 3", replaced(np.nan, float)),
    ("missing labels, first at row 3", replaced(np.datetime64("NaT", "D"), "M8[D]")),
    ("m", pd.array([None, *GROUPS[1:]], dtype="Int64")),
    ("missing labels", pd.Series([None, *map(str, GROUPS[1:])], dtype="string")),
    ("missing labels", pd.Categorical([None, *map(str, GROUPS[1:])])),
    ("39 entries for 40 rows", GROUPS[1:]),
    ("41 entries for 40 rows", np.append(GROUPS, 0)),
    ("0 entries for 40 rows", []),
    ("one value per row", "group"),
    ("one value per row", 3),
    ("are 3 for 3 parameters", np.arange(N) % 3),
    ("are 2 for 3 parameters", np.arange(N) % 2),
]


@pytest.mark.parametrize(("fragment", "clusters"), CLUSTERS)
def test_clusters_that_are_missing_few_or_of_another_length_are_refused(fragment, clusters):
    refused("clusters", fragment, lambda: ef.target(CRITERION, clusters=clusters))
    refused("clusters", fragment, lambda: ef.calibrate(DRAWS, CRITERION, clusters=clusters))


@pytest.mark.parametrize("correction", ["CR0", "CR1", "CR1S"])
def test_one_cluster_is_refused(correction):
    one = ["all"] * N
    refused(
        "clusters",
        "only one cluster",
        lambda: ef.target(CRITERION, clusters=one, correction=correction),
    )


def test_a_cluster_that_alone_determines_a_coefficient_is_named():
    alone = ef.Criterion(losses.Squared(), (np.column_stack([X, GROUPS == 4]), Y))
    away = np.full(alone.p, 0.1)  # at the minimum it is left out, and the others are reported
    refused("clusters", "cluster 4 alone", lambda: ef.target(alone, clusters=GROUPS, center=away))
    row = ef.Criterion(losses.Squared(), (np.column_stack([X, np.arange(N) == 7]), Y))
    refused("correction", "row 7 has leverage one", lambda: ef.target(row))


def test_labels_with_an_index_must_cover_the_index_of_the_data():
    def clustered(index):
        return ef.target(TABLE, clusters=pd.Series(GROUPS, index=index))

    refused("clusters", "for example index 0", lambda: clustered(range(1, N + 1)))
    refused("clusters", "duplicates", lambda: clustered([0] * N))
