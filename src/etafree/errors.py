"""The library's own errors: each names the argument, what was wrong with it and what to do."""

from __future__ import annotations

from typing import Any

__all__ = [
    "CalibrationWarning",
    "ConvergenceError",
    "EtafreeError",
    "InputError",
    "MissingExtraError",
    "NotPositiveDefiniteError",
]


class EtafreeError(Exception):
    """Base of every error that etafree raises on purpose."""


class InputError(EtafreeError, ValueError):
    """An argument cannot be used.

    Parameters
    ----------
    argument : str
        Name of the argument as the caller wrote it.
    problem : str
        What was wrong, with the offending value.
    advice : str, optional
        What to do about it.

    Examples
    --------
    >>> print(InputError("eta", "is -1.0 but must be positive", "pass eta > 0"))
    eta: is -1.0 but must be positive; pass eta > 0
    """

    def __init__(self, argument: str, problem: str, advice: str = "") -> None:
        self.argument = argument
        self.problem = problem
        self.advice = advice
        super().__init__(f"{argument}: {problem}" + (f"; {advice}" if advice else ""))

    def __reduce__(self) -> tuple[Any, ...]:  # so that it crosses from a worker process
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[Exception], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class NotPositiveDefiniteError(InputError):
    """A matrix that must be positive definite is not; `eigenvalue` is the offending one."""

    def __init__(self, argument: str, eigenvalue: float, advice: str = "") -> None:
        self.eigenvalue = eigenvalue
        super().__init__(
            argument, f"is not positive definite (smallest eigenvalue {eigenvalue:.3g})", advice
        )


class ConvergenceError(EtafreeError, RuntimeError):
    """A minimiser or sampler has no answer to give; the message says why and what to change."""


class MissingExtraError(EtafreeError, ImportError):
    """An optional dependency is not installed.

    Examples
    --------
    >>> print(MissingExtraError("jax", "your own losses"))
    your own losses need an extra: pip install "etafree[jax]"
    """

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f'{purpose} need an extra: pip install "etafree[{extra}]"')

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


class CalibrationWarning(UserWarning):
    """Something was computed, but with a caveat that changes how far to trust it."""
