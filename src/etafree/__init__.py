"""etafree: draws of generalized posteriors whose spread does not depend on the learning rate.

Public names are imported when they are first asked for: a script that needs two of them does not
wait for the others, nor does the help of the command line.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from etafree import errors
from etafree._version import __version__

if TYPE_CHECKING:  # what editors and type checkers read; `HOMES` says the same
    from etafree import losses, penalties
    from etafree.calibrate import calibrate
    from etafree.criterion import Criterion
    from etafree.dependence import Clusters, Panel, ReplicateWeights, Survey, TimeSeries
    from etafree.draws import Draws
    from etafree.fits import Fit, from_arviz, from_bambi, from_numpyro, from_pymc, from_stan
    from etafree.foundation.threads import threads
    from etafree.learning_rates import LearningRate, select
    from etafree.map import LocationScaleMap, Map
    from etafree.optimize import Minimum, minimise
    from etafree.paper.random_effects import RandomEffects
    from etafree.paper.random_intercept import RandomIntercept
    from etafree.posterior import GeneralizedPosterior, LogPrior
    from etafree.q_posterior import q_posterior
    from etafree.report.table import ResultTable, table
    from etafree.resampling import (
        bayesbag,
        bootstrap,
        loss_likelihood_bootstrap,
        martingale_posterior,
    )
    from etafree.result import Calibration
    from etafree.samplers import sample
    from etafree.sandwich import target
    from etafree.target import Target
    from etafree.totals.cox import Cox
    from etafree.totals.jax import JaxLoss
    from etafree.totals.moments import Moments
    from etafree.totals.pairs import PairLoss, PairwiseDifference, Wilcoxon
    from etafree.totals.tuples import TupleLoss

__all__ = [
    "Calibration",
    "Clusters",
    "Cox",
    "Criterion",
    "Draws",
    "Fit",
    "GeneralizedPosterior",
    "JaxLoss",
    "LearningRate",
    "LocationScaleMap",
    "LogPrior",
    "Map",
    "Minimum",
    "Moments",
    "PairLoss",
    "PairwiseDifference",
    "Panel",
    "RandomEffects",
    "RandomIntercept",
    "ReplicateWeights",
    "ResultTable",
    "Survey",
    "Target",
    "TimeSeries",
    "TupleLoss",
    "Wilcoxon",
    "__version__",
    "bayesbag",
    "bootstrap",
    "calibrate",
    "errors",
    "from_arviz",
    "from_bambi",
    "from_numpyro",
    "from_pymc",
    "from_stan",
    "loss_likelihood_bootstrap",
    "losses",
    "martingale_posterior",
    "minimise",
    "penalties",
    "q_posterior",
    "sample",
    "select",
    "table",
    "target",
    "threads",
]
#: Modules and the public names that they have.
HOMES = {
    "calibrate": "calibrate",
    "criterion": "Criterion",
    "dependence": "Clusters Panel ReplicateWeights Survey TimeSeries",
    "draws": "Draws",
    "fits": "Fit from_arviz from_bambi from_numpyro from_pymc from_stan",
    "foundation.threads": "threads",
    "learning_rates": "LearningRate select",
    "map": "LocationScaleMap Map",
    "optimize": "Minimum minimise",
    "paper.random_effects": "RandomEffects",
    "paper.random_intercept": "RandomIntercept",
    "posterior": "GeneralizedPosterior LogPrior",
    "q_posterior": "q_posterior",
    "report.table": "ResultTable table",
    "resampling": "bayesbag bootstrap loss_likelihood_bootstrap martingale_posterior",
    "result": "Calibration",
    "samplers": "sample",
    "sandwich": "target",
    "target": "Target",
    "totals.cox": "Cox",
    "totals.jax": "JaxLoss",
    "totals.moments": "Moments",
    "totals.pairs": "PairLoss PairwiseDifference Wilcoxon",
    "totals.tuples": "TupleLoss",
}
MODULE_OF = {name: module for module, names in HOMES.items() for name in names.split()}
#: Public modules that are imported when they are asked for.
MODULES = ("losses", "penalties")


class _Package(ModuleType):
    """This package; some functions have the name of the module that they are in."""

    def __getattr__(self, name: str) -> object:
        if name in MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{MODULE_OF[name]}"), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if name in MODULE_OF and isinstance(value, ModuleType):
            return  # Python binds a module that was imported to its name, here the function's
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(__all__)

    def __reduce__(self) -> tuple[object, tuple[str]]:  # functions that mention it go to workers
        return import_module, (__name__,)


sys.modules[__name__].__class__ = _Package
