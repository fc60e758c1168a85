"""What every loss provides, and what a loss over a linear predictor adds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from etafree.foundation.arguments import Array

#: A kernel, and what it computes.
COMPILED = {"kernel", "values", "first", "second"}
#: A compiled function of a strip of rows, and the numbers that it takes.
Kernel = tuple[Any, tuple[float, ...]]
#: Parts of class names that stay as they are, being names of people.
PROPER = ("Huber", "Laplace", "Poisson", "Student", "Wilcoxon")


def name_in_words(name: str) -> str:
    """Return the name of a class as an adjective.

    Examples
    --------
    >>> [name_in_words(name) for name in ("Huber", "Logistic", "PseudoHuber", "StudentT")]
    ['Huber', 'logistic', 'pseudo-Huber', 'Student-t']
    """
    words = re.findall(r"[A-Z]+[0-9]*(?![a-z])|[A-Z]?[^A-Z]+", name)
    kept = (word in PROPER or any(map(str.isdigit, word)) for word in words)
    return "-".join(w if keep else w.lower() for w, keep in zip(words, kept, strict=True))


class Loss:
    r"""Base of every loss: what the rest of the library asks of :math:`\ell`.

    Attributes
    ----------
    convex : bool
        Without it minimisers look for rival minima, and fits have status ``local``.
    starts : int
        How many random starts they take then.

    See Also
    --------
    LinearLoss : A loss over a linear predictor.
    etafree.JaxLoss : Any loss, written in JAX.

    Examples
    --------
    >>> from etafree.losses import Huber, StudentT
    >>> Huber().convex, StudentT().convex
    (True, False)
    >>> Huber().describe()
    'the expected Huber loss'
    """

    convex: ClassVar[bool] = True
    #: Whether the second derivative depends on the response, not only on the predictor.
    random_curvature: ClassVar[bool] = True
    #: Whether the predictor has no units (log odds, log mean) and may run off to infinity.
    unit_free: ClassVar[bool] = False
    #: Whether a number of trials may come with the response.
    takes_trials: ClassVar[bool] = False
    starts: ClassVar[int] = 2
    #: Whether the best value of a parameter may be at the end of its range.
    bounded: ClassVar[bool] = False
    #: What to do where no minimiser is found.
    way_out: ClassVar[str] = "add a penalty or pass another start="

    @property
    def tail_exponent(self) -> float:
        """Exponent k when exp(-loss) falls like ``|u|**-k``; infinite when it falls faster."""
        return np.inf

    @property
    def effective_unit(self) -> float:
        """What an observation counts in the effective scale: one, or a kernel's bandwidth."""
        return 1.0

    def curvature(self) -> tuple[Loss, float] | None:
        """Return a loss and a factor whose Hessian replaces this one's in the sandwich."""
        return None

    def refuse_boundary(
        self,
        value: Callable[[Array], float],
        theta: Array,
        gaps: Array,
        hessian: Array,
        names: Sequence[str],
    ) -> None:
        """Raise if the penalized total `value` has its minimum at the end of a parameter's range.

        `gaps` (p,) are the gradient in units of its terms where the search stopped, at theta (p,).
        """

    def plug_ins(self) -> dict[str, float]:
        """Return nuisance values that were estimated beforehand."""
        return {}

    def describe(self) -> str:
        """Return what is minimised, in words."""
        return f"the expected {name_in_words(type(self).__name__)} loss"


class LinearLoss(Loss):
    r"""A loss over a linear predictor, :math:`\ell(u, y)` with :math:`u = x^\top\theta + o`.

    A subclass defines `values`, `first` and `second`, from the predictor `u`, (n,) or (..., n), and
    the response `y`, (n,), to arrays of the shape of `u`; `majorizer` too where `second` may be
    negative or vanish. `kernel` may name a compiled function of all three, which large data take.

    See Also
    --------
    ResidualLoss : The same for a scaled residual.
    etafree.JaxLoss : A loss whose derivatives JAX takes.

    Examples
    --------
    >>> import etafree as ef
    >>> class LogCosh(ef.losses.LinearLoss):
    ...     def values(self, u, y):
    ...         return np.log(np.cosh(y - u))
    ...     def first(self, u, y):
    ...         return -np.tanh(y - u)
    ...     def second(self, u, y):
    ...         return np.cosh(y - u) ** -2
    >>> LogCosh().second(np.array([0.0]), np.array([0.0]))
    array([1.])
    >>> X, y = np.ones((3, 1)), np.array([0.0, 1.0, 5.0])
    >>> ef.minimise(ef.Criterion(LogCosh(), data=(X, y))).theta.round(4)
    array([1.175])
    """

    #: Whether the second derivative is one everywhere, so that the Hessian is :math:`X^\top WX`.
    quadratic: ClassVar[bool] = False

    def values(self, u: Array, y: Array) -> Array:
        """Return the loss at predictors `u`, (n,) or (..., n), and responses `y`, (n,)."""
        raise TypeError(f"{type(self).__name__} must define values(u, y)")

    def sums(self, u: Array, y: Array, weights: Array | None = None) -> Array:
        """Return the weighted loss summed over observations, (..., n) -> (...); `u` is scratch."""
        value = self.values(u, y)
        if weights is not None:
            value[..., weights == 0] = 0.0
        return value.sum(axis=-1) if weights is None else value @ weights

    def first(self, u: Array, y: Array) -> Array:
        """Return the first derivative in the predictor at `u` and `y`, of the shape of `u`."""
        raise TypeError(f"{type(self).__name__} must define first(u, y)")

    def second(self, u: Array, y: Array) -> Array:
        """Return the second derivative in the predictor at `u` and `y`, of the shape of `u`."""
        raise TypeError(f"{type(self).__name__} must define second(u, y)")

    def kernel(self) -> Kernel | None:
        """Return a compiled function of `values`, `first` and `second` at once, and its numbers.

        Of the type that `etafree.losses.kernels` describes; None if there is none.
        """
        return None

    def compiled(self) -> Kernel | None:
        """Return the kernel, None if a subclass has changed what it computes."""
        lineage = (c for c in type(self).__mro__ if COMPILED & vars(c).keys())
        return self.kernel() if "kernel" in vars(next(lineage)) else None

    def response(self, u: Array) -> Array:
        """Return what is predicted at `u`: the predictor itself, unless a link lies between."""
        return u

    def response_slope(self, u: Array) -> Array:
        """Return the derivative of `response`."""
        return np.ones_like(u)

    def majorizer(self, u: Array, y: Array) -> Array:
        """Return the curvature of a safe quadratic model at `u`."""
        return self.second(u, y)

    def start(self, y: Array) -> Array:
        """Return a rough guess of each observation's predictor, to start a minimiser."""
        return y

    def check(self, y: Array) -> None:
        """Raise an `InputError` for a response that this loss has no meaning for."""
