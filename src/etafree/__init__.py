"""etafree: draws of generalized posteriors whose spread does not depend on the learning rate."""

from etafree import errors, losses, penalties
from etafree._version import __version__
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
from etafree.resampling import bayesbag, bootstrap, loss_likelihood_bootstrap, martingale_posterior
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


def __dir__() -> list[str]:
    return sorted(__all__)
