"""The library's own errors: each names the argument, what was wrong with it and what to do."""

from __future__ import annotations

__all__ = [
    "CalibrationWarning",
    "ConvergenceError",
    "EtafreeError",
    "InputError",
    "MissingExtraError",
    "NotPositiveDefiniteError",
]

#: Pages of the site and the arguments that they explain; errors about these name the page.
PAGES = {
    "dependence": "clusters dependence fpc lonely psu strata time unit",
    "fits": "draws fit log_likelihood model var_names",
    "guides/eta": "eta log_prior prior",
    "guides/hierarchical": "latent",
    "guides/large-data": "scheduler",
    "guides/targets": "center correction estimand",
    "guides/weights": "weight_kind weights",
    "losses": "loss penalty",
}
GUIDES = {argument: page for page, arguments in PAGES.items() for argument in arguments.split()}


class EtafreeError(Exception):
    """Base of every error that etafree raises on purpose.

    See Also
    --------
    InputError : An argument cannot be used.
    ConvergenceError : There is no answer to give.

    Examples
    --------
    >>> import etafree as ef
    >>> try:
    ...     ef.losses.Huber(-1.0)
    ... except ef.errors.EtafreeError as error:
    ...     print(error)
    c: is -1.0 but must be a finite number above zero
    """

    def __reduce__(self) -> tuple[object, ...]:  # constructors take other arguments than `args`
        return _blank, (type(self), self.args), self.__dict__


def _blank(kind: type[Exception], args: tuple[object, ...]) -> Exception:
    """Make an error without calling its constructor, in the process that unpickles it."""
    return kind.__new__(kind, *args)


class InputError(EtafreeError, ValueError):
    """An argument cannot be used; `guide` is the page of the documentation that explains it.

    Parameters
    ----------
    argument, problem, advice : str
        Name of the argument as the caller wrote it, what was wrong, with the offending value, and
        what to do about it.

    See Also
    --------
    NotPositiveDefiniteError : The same about a matrix.

    Examples
    --------
    >>> import etafree as ef
    >>> print(ef.errors.InputError("eta", "is -1.0 but must be positive", "pass eta > 0"))
    eta: is -1.0 but must be positive; pass eta > 0 (see guides/eta)
    """

    def __init__(self, argument: str, problem: str, advice: str = "") -> None:
        self.argument, self.problem, self.advice = argument, problem, advice
        self.guide = GUIDES.get(argument, "")
        remedy = f"; {advice}" if advice else ""
        page = f" (see {self.guide})" if self.guide else ""
        super().__init__(f"{argument}: {problem}{remedy}{page}")


class NotPositiveDefiniteError(InputError):
    """A matrix that must be positive definite is not; `eigenvalue` is the offending one.

    Parameters
    ----------
    argument, advice : str
        Name of the matrix, and what to do about it.
    eigenvalue : float
        Its smallest eigenvalue.

    See Also
    --------
    InputError : What it is a kind of.

    Examples
    --------
    >>> import etafree as ef
    >>> print(ef.errors.NotPositiveDefiniteError("hessian", -0.5, "add a penalty"))
    hessian: is not positive definite (smallest eigenvalue -0.5); add a penalty
    """

    def __init__(self, argument: str, eigenvalue: float, advice: str = "") -> None:
        self.eigenvalue = eigenvalue
        problem = f"is not positive definite (smallest eigenvalue {eigenvalue:.3g})"
        super().__init__(argument, problem, advice)


class ConvergenceError(EtafreeError, RuntimeError):
    """A minimiser or sampler has no answer to give; the message says why and what to change.

    See Also
    --------
    etafree.minimise, etafree.sample : What raises it.

    Examples
    --------
    >>> import numpy as np, etafree as ef
    >>> X, y = np.array([[-1.0], [-2.0], [1.0], [2.0]]), np.array([0.0, 0.0, 1.0, 1.0])
    >>> try:
    ...     ef.minimise(ef.Criterion(ef.losses.Logistic(), data=(X, y)))
    ... except ef.errors.ConvergenceError as error:
    ...     print("separated" in str(error))
    True
    """


class MissingExtraError(EtafreeError, ImportError):
    """An optional dependency is not installed.

    Parameters
    ----------
    extra, purpose : str
        Name of the extra to install, and what it is for.

    See Also
    --------
    EtafreeError : Base of the library's errors.

    Examples
    --------
    >>> import etafree as ef
    >>> print(ef.errors.MissingExtraError("jax", "your own losses"))
    an extra is missing for your own losses: pip install "etafree[jax]"
    """

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f'an extra is missing for {purpose}: pip install "etafree[{extra}]"')


class CalibrationWarning(UserWarning):
    """Something was computed, but with a caveat that changes how far to trust it.

    See Also
    --------
    etafree.Calibration.diagnostics : What most caveats are reported by.

    Examples
    --------
    >>> import warnings, numpy as np, etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 0.0, 1.0, 1.0])
    >>> criterion = ef.Criterion(ef.losses.Logistic(), data=(X, y))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", ef.errors.CalibrationWarning)
    ...     draws = ef.bootstrap(criterion, draws=200, seed=1)  # some have only zeros, or ones
    >>> str(caught[0].message).split(" and ")[0]
    '26 of 200 resamples have no minimiser'
    """
