"""etafree: generalized posteriors whose spread does not depend on the learning rate."""

from etafree import losses, penalties
from etafree.criterion import Criterion
from etafree.optimize import Fit, minimise

__all__ = ["Criterion", "Fit", "losses", "minimise", "penalties"]
