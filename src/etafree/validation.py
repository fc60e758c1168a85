"""Turn arguments into checked arrays, or raise an `InputError` that says what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError

__all__ = [
    "Array",
    "as_array",
    "as_bool",
    "as_choice",
    "as_count",
    "as_level",
    "as_mapping",
    "as_names",
    "as_number",
    "as_positive",
    "as_rng",
    "as_seeds",
    "check_finite",
    "owned",
    "refuse_masked",
]

Array = NDArray[np.floating[Any]]
T = TypeVar("T", bound=np.generic)

#: Largest count of draws and the like, and largest number whose square is one too.
MOST, FAR = 10**9, 1e150


def as_array(
    value: Any,
    argument: str,
    *,
    ndim: int | None = None,
    shape: tuple[int, ...] | None = None,
    finite: bool = True,
) -> Array:
    """Return `value` as a float64 array of the asked dimension or shape, finite unless told."""
    refuse_masked(value, argument)
    try:
        raw = np.asarray(value)
        if raw.dtype.kind not in "biufO":
            raise TypeError(f"dtype {raw.dtype}")
        if raw.dtype.kind == "O" and any(isinstance(v, str | bytes) for v in raw.flat):
            raise TypeError("text")
        array = np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(argument, f"cannot be read as numbers ({error})",
                         "pass real numbers, or an array of them") from None  # fmt: skip
    if ndim is not None and array.ndim != ndim:
        raise InputError(
            argument, f"has {array.ndim} dimension(s), shape {array.shape}, but must have {ndim}"
        )
    if shape is not None and array.shape != shape:
        raise InputError(argument, f"has shape {array.shape} but must have shape {shape}")
    if finite:
        check_finite(array, argument)
    return array


def refuse_masked(value: Any, argument: str) -> None:
    """Raise an `InputError` for masked entries, which numpy would read as if they were there.

    Examples
    --------
    >>> refuse_masked([np.ma.masked_equal([1.0, 2.0], 2.0)], "draws")
    Traceback (most recent call last):
    etafree.errors.InputError: draws: has masked entries; drop or fill them first (see fits)
    """
    if _has_masked(value):
        raise InputError(argument, "has masked entries", "drop or fill them first")


def _has_masked(value: Any, depth: int = 32) -> bool:
    """Return whether an entry is masked, in lists of masked arrays too."""
    inside: Iterable[Any] = ()
    if isinstance(value, list | tuple) and depth:
        inside = (part for part in value if isinstance(part, list | tuple | np.ndarray))
    elif isinstance(value, np.ndarray) and value.dtype == object and not np.ma.isMA(value):
        inside = (part for part in value.flat if part is np.ma.masked)
    return bool(np.ma.is_masked(value)) or any(_has_masked(part, depth - 1) for part in inside)


def owned(array: NDArray[T]) -> NDArray[T]:
    """Return a read-only array that nobody else can write to, a copy unless it is one already.

    What a caller does to an array after passing it changes nothing then.

    Examples
    --------
    >>> mine = np.zeros(2)
    >>> kept = owned(mine)
    >>> mine[:] = 1.0
    >>> kept, owned(kept) is kept
    (array([0., 0.]), True)
    """
    part: Any = array
    while isinstance(part, np.ndarray) and not part.flags.writeable:
        part = part.base
    if part is None:
        return array
    copy = np.array(array)
    copy.setflags(write=False)
    return copy


def check_finite(array: Array, argument: str) -> None:
    """Raise an `InputError` for NaN or infinity, in one pass without a mask of the array's size."""
    with np.errstate(over="ignore", invalid="ignore"):
        flat = array.reshape(-1) if array.flags.c_contiguous else None
        if np.isfinite(array.sum() if flat is None else flat @ flat):  # so is every entry
            return
    if not np.isfinite(array).all():
        bad = int(array.size - np.isfinite(array).sum())
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(array))[0])
        raise InputError(
            argument,
            f"has {bad} entries that are NaN or infinite, the first at index {where}",
            "drop or impute them first",
        )


def as_number(value: Any, argument: str, wanted: str = "a number") -> float:
    """Return `value` as a float, NaN and infinity included."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(argument, f"is {_short(value)} but must be {wanted}") from None


def as_positive(value: Any, argument: str) -> float:
    """Return `value` as a finite float above zero."""
    number = as_number(value, argument, "a number above zero")
    if not (np.isfinite(number) and number > 0):
        raise InputError(argument, f"is {number!r} but must be a finite number above zero")
    if not 1 / FAR <= number <= FAR:
        raise InputError(argument, f"is {number!r}, whose square no computer holds",
                         "change the units")  # fmt: skip
    return number


def _short(value: Any) -> str:
    """Return a value's repr, cut where it would drown the message."""
    try:
        text = repr(value)
    except ValueError:  # integers of thousands of digits
        return f"a {type(value).__name__} that is too large"
    return text if len(text) <= 80 else text[:77] + "..."


def as_count(value: Any, argument: str, least: int = 1) -> int:
    """Return a whole number of at least `least`.

    Examples
    --------
    >>> as_count(3.0, "draws")
    3
    """
    number = as_number(value, argument, f"a whole number of at least {least}")
    if number != np.floor(number) or not least <= number <= MOST:
        raise InputError(argument, f"is {_short(value)}",
                         f"pass a whole number of at least {least}, up to {MOST:.0e}")  # fmt: skip
    return int(number)


def as_level(value: Any, argument: str = "level") -> float:
    """Return `value` as a probability strictly between 0 and 1."""
    number = as_number(value, argument, "a number strictly between 0 and 1")
    if not 0.0 < number < 1.0:
        raise InputError(
            argument, f"is {number!r} but must lie strictly between 0 and 1", "for example 0.95"
        )
    return number


def as_choice(value: Any, argument: str, options: Sequence[str]) -> str:
    """Return `value` if it is one of `options`."""
    if not isinstance(value, str) or value not in options:
        raise InputError(
            argument, f"is {value!r}", "choose one of " + ", ".join(map(repr, options))
        )
    return value


def as_bool(value: Any, argument: str) -> bool:
    """Return `value` if it is true or false and nothing else."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(argument, f"is {_short(value)}", "pass True or False")
    return bool(value)


def as_mapping(value: Any, argument: str) -> dict[str, Any]:
    """Return a copy of a mapping from names.

    Examples
    --------
    >>> as_mapping({"scale": 1.0}, "plug_ins")
    {'scale': 1.0}
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InputError(argument, f"is {_short(value)}", "pass a dict with names as keys")
    return dict(value)


def as_names(
    value: Sequence[str] | None, count: int | None, prefix: str = "theta"
) -> tuple[str, ...]:
    """Return `count` distinct parameter names, made up as ``theta[0], ...`` when not given."""
    if value is None and count is not None:
        return tuple(f"{prefix}[{j}]" for j in range(count))
    single = isinstance(value, str | bytes | set | frozenset) or getattr(value, "ndim", 1) == 0
    if single or not isinstance(value, Iterable):
        raise InputError(
            "names", f"is {_short(value)}", "pass a list of strings, one per parameter"
        )
    names = tuple(str(name) for name in value)
    if count is not None and len(names) != count:
        raise InputError("names", f"has {len(names)} entries for {count} parameters",
                         "pass one name per parameter")  # fmt: skip
    if len(set(names)) != len(names):
        raise InputError("names", "has duplicates", "give every parameter its own name")
    if any("\ud800" <= character <= "\udfff" for name in names for character in name):
        raise InputError("names", "has half a character, which no file can hold")
    return names


def told_seed(seed: Any, used: np.random.Generator | np.random.SeedSequence) -> int | str:
    """Return what gives the same random numbers again, a number or in words.

    `used` is what `as_rng` or `as_seeds` made of the seed.

    Examples
    --------
    >>> told_seed(3, as_rng(3)), told_seed(np.random.SeedSequence(3, spawn_key=(1,)), as_rng(3))
    (3, 'SeedSequence(3, spawn_key=(1,))')
    """
    if isinstance(seed, int | np.integer):
        return int(seed) if seed < 2**63 else str(seed)
    if isinstance(seed, np.random.Generator):
        return "a Generator"  # in a state that only the caller knows
    sequence: Any = seed if isinstance(seed, np.random.SeedSequence) else used
    if isinstance(sequence, np.random.Generator):
        sequence = sequence.bit_generator.seed_seq
    key = f", spawn_key={sequence.spawn_key}" if sequence.spawn_key else ""
    return f"SeedSequence({sequence.entropy}{key})"


def as_seeds(seed: Any) -> np.random.SeedSequence:
    """Return a SeedSequence from an int, SeedSequence, Generator or None."""
    if isinstance(seed, np.random.SeedSequence):
        return seed
    words = as_rng(seed).integers(0, 2**32, size=4, dtype=np.uint32)
    return np.random.SeedSequence([int(word) for word in words])


def as_rng(seed: Any) -> np.random.Generator:
    """Return a Generator from an int, SeedSequence, Generator or None."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InputError(
            "seed", f"is {seed!r}", "pass an int, a SeedSequence or a Generator"
        ) from None
