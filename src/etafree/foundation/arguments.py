r"""Turn arguments into checked arrays, or raise an `InputError` that says what to do.

Axes that carry the parameters' names: what pandas and xarray hold goes by name, in any order.

A vector, draws or a matrix of named parameters are put in the order of the names; a name that is
missing, unknown or there twice is refused. Labels 0, 1, ... are positions and no names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.foundation.terminal import counted_noun

if TYPE_CHECKING:
    import pandas as pd

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.floating[Any]]
#: Labels and other columns of any type.
Labels = NDArray[Any]
T = TypeVar("T", bound=np.generic)

#: Largest count of draws and the like, and largest number whose square is one too.
MOST, FAR = 10**9, 1e150

#: Attributes by which tables and columns say that others can read them, and those of lazy tables.
PROTOCOLS = ("__arrow_c_stream__", "__arrow_c_array__", "collect_schema")
#: Rows of a matrix that are put together at a time: they stay in cache.
STRIP = 4096
#: Half a character.
SURROGATE = re.compile("[\ud800-\udfff]")


def as_array(
    value: object,
    argument: str,
    *,
    ndim: int | None = None,
    shape: tuple[int, ...] | None = None,
    finite: bool = True,
) -> Array:
    """Return `value` as a float64 array of the asked dimension or shape, finite by default."""
    if type(value) is np.ndarray and value.dtype == np.float64:
        array: Array = value
    else:
        array = _as_floats(value, argument)
    if ndim is not None and array.ndim != ndim:
        axes = counted_noun(array.ndim, "dimension")
        problem = f"has {axes}, shape {array.shape}, but must have {ndim}"
        raise InputError(argument, problem)
    if shape is not None and array.shape != shape:
        raise InputError(argument, f"has shape {array.shape} but must have shape {shape}")
    if finite:
        check_finite(array, argument)
    return array


def _as_floats(value: object, argument: str) -> Array:
    """Return numbers of any kind as a float64 array."""
    refuse_masked(value, argument)
    try:
        raw = _as_numpy(value)
        if raw.dtype.kind not in "biufO":
            raise TypeError(f"dtype {raw.dtype}")
        if raw.dtype.kind == "O" and any(isinstance(v, str | bytes) for v in raw.flat):
            raise TypeError("text")
        return np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        problem = f"cannot be read as numbers ({error})"
        raise InputError(argument, problem, "pass real numbers, or an array of them") from None


def _as_numpy(value: Any) -> NDArray[Any]:
    """Return any value as numpy has it, a DataFrame of numbers row after row."""
    frame = hasattr(value, "iloc") and hasattr(value, "dtypes") and getattr(value, "ndim", 0) == 2
    return as_matrix(value) if frame else np.asarray(value)


def is_numeric(kind: Any) -> bool:
    """Return whether a type of a pandas column is that of numbers, truth values left out."""
    return getattr(kind, "kind", "O") in "iuf"


def as_floats(column: pd.Series[Any]) -> Array:
    """Return a column of numbers or truth values in floating point, NaN where there is none."""
    if isinstance(column.dtype, np.dtype):
        return np.asarray(column, dtype=np.float64)
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def side_by_side(columns: Sequence[NDArray[Any] | None], rows: int) -> Array:
    """Return columns as a matrix (rows, p), row after row in memory; None is a column of ones."""
    matrix = np.empty((rows, len(columns)))
    for start in range(0, rows, STRIP):
        strip = slice(start, start + STRIP)
        for j, column in enumerate(columns):
            matrix[strip, j] = 1.0 if column is None else column[strip]
    return matrix


def as_matrix(frame: pd.DataFrame) -> NDArray[Any]:
    """Return a DataFrame as an array: numbers row after row, without a copy if they are so."""
    if not all(is_numeric(kind) or getattr(kind, "kind", "O") == "b" for kind in frame.dtypes):
        return np.asarray(frame)
    columns = [as_floats(column) for _, column in frame.items()]
    if all(column.strides != (column.itemsize,) for column in columns):
        return np.asarray(frame)  # which is a view of them
    return side_by_side(columns, len(frame))


def refuse_masked(value: object, argument: str) -> None:
    """Raise an `InputError` for masked entries, which numpy would read as if they were there.

    Examples
    --------
    >>> refuse_masked([np.ma.masked_equal([1.0, 2.0], 2.0)], "draws")
    Traceback (most recent call last):
    etafree.errors.InputError: draws: has masked entries; drop or fill them first (see fits)
    """
    if _has_masked(value):
        raise InputError(argument, "has masked entries", "drop or fill them first")


def _has_masked(value: object, depth: int = 32) -> bool:
    """Return whether an entry is masked, in lists of masked arrays too."""
    if type(value) is np.ndarray and value.dtype != object:
        return False
    inside: Iterable[object] = ()
    if isinstance(value, list | tuple) and depth:
        inside = (entry for entry in value if isinstance(entry, list | tuple | np.ndarray))
    elif isinstance(value, np.ndarray) and value.dtype == object and not np.ma.isMA(value):
        inside = (entry for entry in value.flat if entry is np.ma.masked)
    return bool(np.ma.is_masked(value)) or any(_has_masked(entry, depth - 1) for entry in inside)


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
    base: object = array
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base
    if base is None:
        return array
    copy = np.array(array)
    copy.setflags(write=False)
    return copy


def check_finite(array: Array, argument: str) -> None:
    """Raise an `InputError` for NaN or infinity, in one pass without a mask of the array's size."""
    ordered = array.flags.c_contiguous or array.flags.f_contiguous
    flat = array.ravel(order="K") if ordered else None  # where the numbers are
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum() if flat is None else flat @ flat):  # so is every entry
            return
    if not np.isfinite(array).all():
        bad = int(array.size - np.isfinite(array).sum())
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(array))[0])
        problem = f"has {bad} entries that are NaN or infinite, the first at index {where}"
        raise InputError(argument, problem, "drop or impute them first")


def as_number(value: object, argument: str, wanted: str = "a number") -> float:
    """Return `value` as a float, NaN and infinity included."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InputError(argument, f"is {_short(value)} but must be {wanted}") from None


def as_positive(value: object, argument: str) -> float:
    """Return `value` as a finite float above zero."""
    number = as_number(value, argument, "a number above zero")
    if not (np.isfinite(number) and number > 0):
        raise InputError(argument, f"is {number!r} but must be a finite number above zero")
    if not 1 / FAR <= number <= FAR:
        problem = f"is {number!r}, whose square no computer holds"
        raise InputError(argument, problem, "change the units")
    return number


def _short(value: object) -> str:
    """Return a value's repr, cut where it would drown the message."""
    try:
        text = repr(value)
    except ValueError:  # integers of thousands of digits
        return f"a {type(value).__name__} that is too large"
    return text if len(text) <= 80 else text[:77] + "..."


def as_count(value: object, argument: str, least: int = 1) -> int:
    """Return a whole number of at least `least`.

    Examples
    --------
    >>> as_count(3.0, "draws")
    3
    """
    number = as_number(value, argument, f"a whole number of at least {least}")
    if number != np.floor(number) or not least <= number <= MOST:
        advice = f"pass a whole number of at least {least}, up to {MOST:.0e}"
        raise InputError(argument, f"is {_short(value)}", advice)
    return int(number)


def as_level(value: object, argument: str = "level") -> float:
    """Return `value` as a probability strictly between 0 and 1."""
    number = as_number(value, argument, "a number strictly between 0 and 1")
    if not 0.0 < number < 1.0:
        problem = f"is {number!r} but must lie strictly between 0 and 1"
        raise InputError(argument, problem, "for example 0.95")
    return number


def as_choice(value: object, argument: str, options: Sequence[str]) -> str:
    """Return `value` if it is one of `options`."""
    if not isinstance(value, str) or value not in options:
        advice = "choose one of " + ", ".join(map(repr, options))
        raise InputError(argument, f"is {value!r}", advice)
    return value


def as_bool(value: object, argument: str) -> bool:
    """Return `value` if it is true or false and nothing else."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(argument, f"is {_short(value)}", "pass True or False")
    return bool(value)


def as_mapping(value: object, argument: str) -> dict[str, Any]:
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
        advice = "pass a list of strings, one per parameter"
        raise InputError("names", f"is {_short(value)}", advice)
    names = tuple(map(str, value))
    if count is not None and len(names) != count:
        problem = f"has {len(names)} entries for {count} parameters"
        raise InputError("names", problem, "pass one name per parameter")
    if len(set(names)) != len(names):
        raise InputError("names", "has duplicates", "give every parameter its own name")
    if SURROGATE.search("".join(names)):
        raise InputError("names", "has an incomplete character, which no file can hold")
    return names


def places_of(
    names: Sequence[str], var_names: object, filter_vars: object = None, argument: str = "var_names"
) -> list[int]:
    """Return where the parameters are that `var_names` asks for, with ArviZ's meaning; None: all.

    A name is that of a parameter or of a vector with all its entries, ``"~name"`` leaves one out,
    and `filter_vars` "like" or "regex" takes names as parts or as regular expressions.

    Examples
    --------
    >>> names = ["Intercept", "x", "x:z", "b[0]", "b[1]"]
    >>> places_of(names, ["x", "b"]), places_of(names, "~b"), places_of(names, ["b", "~b[0]"])
    ([1, 3, 4], [0, 1, 2], [4])
    >>> places_of(names, "x", "like"), places_of(names, r"^b|pt$", "regex")
    ([1, 2], [0, 3, 4])
    """
    if filter_vars is not None:
        as_choice(filter_vars, "filter_vars", ("like", "regex"))
        if var_names is None:
            raise InputError(
                "filter_vars", f"says how {argument}= is read", f"pass {argument}= too"
            )
    if var_names is None:
        return list(range(len(names)))
    asked, where = _asked(var_names, argument), {name: j for j, name in enumerate(names)}
    left_out = [name for name in asked if name.startswith("~") and name not in where]
    kept = [name for name in asked if name not in left_out]

    def found(name: str) -> list[int]:
        known = filter_vars is None and name in where
        return [where[name]] if known else _places(names, name, filter_vars, argument)

    away = set(chain.from_iterable(found(name[1:]) for name in left_out))
    places = list(chain.from_iterable(map(found, kept))) if kept else list(range(len(names)))
    if filter_vars is not None:
        places = sorted(set(places))
    if len(set(places)) < len(places):
        raise InputError(argument, "names a parameter twice", "name each once")
    chosen = [j for j in places if j not in away]
    if not chosen:
        raise InputError(argument, "leaves no parameter", f"choose from {_listed(names)}")
    return chosen


def _asked(var_names: object, argument: str) -> list[str]:
    """Return names, one or several, as a list."""
    single = isinstance(var_names, bytes | set | frozenset) or getattr(var_names, "ndim", 1) == 0
    asked: list[Any] = [var_names] if isinstance(var_names, str) else []
    if isinstance(var_names, Iterable) and not asked and not single:
        asked = list(var_names)
    if not asked or not all(isinstance(name, str) for name in asked):
        raise InputError(argument, f"is {_short(var_names)}", "pass a list of names")
    return asked


def _places(names: Sequence[str], name: str, filter_vars: object, argument: str) -> list[int]:
    """Return where one part of var_names is found, among names of entries and of vectors."""
    try:
        pattern = re.compile(name if filter_vars == "regex" else re.escape(name))
    except re.error as error:
        raise InputError(
            argument, f"{name!r:.60} is not a valid regular expression: {error}"
        ) from None
    found = pattern.fullmatch if filter_vars is None else pattern.search
    vectors = [own.partition("[")[0] if own.endswith("]") else own for own in names]
    exact = [j for j, own in enumerate(names) if found(own)]
    whole = [j for j, own in enumerate(vectors) if found(own)]
    places = sorted({*exact, *whole}) if filter_vars is not None else exact or whole
    if not places:
        raise InputError(
            argument, f"{name!r:.60} is not a parameter", f"choose from {_listed(names)}"
        )
    return places


def told_seed(seed: object, used: np.random.Generator | np.random.SeedSequence) -> int | str:
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


def as_seeds(seed: object) -> np.random.SeedSequence:
    """Return a SeedSequence from an int, SeedSequence, Generator or None."""
    if isinstance(seed, np.random.SeedSequence):
        return seed
    words = as_rng(seed).integers(0, 2**32, size=4, dtype=np.uint32)
    return np.random.SeedSequence([int(word) for word in words])


def as_rng(seed: object) -> np.random.Generator:
    """Return a Generator from an int, SeedSequence, Generator or None."""
    try:
        return np.random.default_rng(seed)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        advice = "pass an int, a SeedSequence or a Generator"
        raise InputError("seed", f"is {seed!r}", advice) from None


def as_pandas(value: Any) -> Any:
    """Return a table of polars, PyArrow and the like as a DataFrame, a column as an array.

    Anything else is returned as it is, and nothing is imported for it.

    Examples
    --------
    >>> import pyarrow as pa
    >>> as_pandas(pa.table({"x": [1.0, None], "s": ["a", "b"]}))
         x  s
    0  1.0  a
    1  NaN  b
    >>> as_pandas(pa.chunked_array([[1, 2]])), as_pandas("x")
    (array([1, 2]), 'x')
    """
    kind = type(value)
    known = hasattr(kind, "iloc") or hasattr(kind, "dims")  # pandas and xarray
    if known or not any(hasattr(kind, name) for name in PROTOCOLS):
        return value
    from etafree.foundation.tables import converted

    return converted(value)


def as_table(value: object, argument: str) -> pd.DataFrame:
    """Return a table, or a dict of columns and single values, as a DataFrame.

    Examples
    --------
    >>> as_table({"x": [0.0, 1.0], "g": "a"}, "newdata")
         x  g
    0  0.0  a
    1  1.0  a
    """
    import pandas as pd

    table = as_pandas(value)
    if isinstance(table, Mapping):
        columns = {name: as_pandas(column) for name, column in table.items()}
        single = all(np.ndim(column) == 0 for column in columns.values())
        try:
            return pd.DataFrame(columns, index=[0] if single else None)
        except ValueError as error:
            raise InputError(
                argument, f"is not a table: {error}", "give one value per row"
            ) from None
    if not isinstance(table, pd.DataFrame):
        problem = f"is a {type(value).__name__}"
        raise InputError(argument, problem, "pass a DataFrame, or a dict of columns")
    return table


def axis_names(value: object, axis: int = -1) -> tuple[str, ...] | None:
    """Return the names along an axis of a pandas or xarray object, None if it has none.

    Examples
    --------
    >>> import pandas as pd
    >>> axis_names(pd.DataFrame([[1.0, 2.0]], columns=["a", "b"])), axis_names(np.ones(2))
    (('a', 'b'), None)
    """
    labels: Any = None
    if hasattr(value, "dims") and hasattr(value, "coords"):
        many = getattr(value, "ndim", 0)  # a Dataset has variables of several
        if -many <= axis < many:
            labels = value.coords.get(value.dims[axis])
            labels = None if labels is None else labels.values
    elif hasattr(value, "columns"):
        labels = value.columns if axis % 2 else getattr(value, "index", None)
    else:
        labels = getattr(value, "index", None)  # of a Series; of a list it is a method
    if labels is None or callable(labels) or _are_positions(labels):
        return None
    return tuple(str(label) for label in labels)


def _are_positions(labels: Iterable[object]) -> bool:
    return all(isinstance(label, int | np.integer) and label == k for k, label in enumerate(labels))


def in_order(
    value: object, names: Sequence[str], argument: str, axes: tuple[int, ...] = (-1,)
) -> Any:
    """Return a value whose named axes have the order of `names`; one without names as it is.

    Where `names` are the default ones (``theta[0]``, ...) and the value has none of them, positions
    count.

    Examples
    --------
    >>> import pandas as pd
    >>> in_order(pd.Series({"b": 2.0, "a": 1.0}), ["a", "b"], "center")
    array([1., 2.])
    """
    if type(value) is np.ndarray:  # at every step of a minimiser
        return value
    value, wanted = as_pandas(value), tuple(names)
    labels = [axis_names(value, axis) for axis in axes]
    known = next((own for own in labels if own is not None), None)
    default = wanted == as_names(None, len(wanted))
    if known is None or (default and not set(known) & set(wanted)):
        return value
    array = np.asarray(value)
    for axis, own in zip(axes, labels, strict=True):  # an axis without names is as the other
        array = np.take(array, _positions(own or known, wanted, argument), axis=axis)
    return array


def _positions(given: tuple[str, ...], wanted: tuple[str, ...], argument: str) -> list[int]:
    missing = [name for name in wanted if name not in given]
    if missing:
        problem = f"has no {_listed(missing)}; its names are {_listed(given)}"
        raise InputError(argument, problem, "name every parameter, or pass a plain array")
    surplus = [name for name in given if name not in wanted]
    if surplus:
        problem = f"has {_listed(surplus)} besides the parameters"
        raise InputError(argument, problem, f"choose the columns {_listed(wanted)}")
    if len(given) > len(wanted):
        raise InputError(argument, f"has a name twice, in {_listed(given)}", "drop one")
    return [given.index(name) for name in wanted]


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:8])
    return f"{shown}" if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def in_shape_of(image: Array, value: Any, names: Sequence[str]) -> Any:
    """Return an array in the order of `names` as the kind of object that `value` is.

    Examples
    --------
    >>> import pandas as pd
    >>> in_shape_of(np.array([1.0, 2.0]), pd.Series({"b": 0.0, "a": 0.0}), ["a", "b"]).to_dict()
    {'b': 2.0, 'a': 1.0}
    """
    given = axis_names(value)
    if given is not None and set(given) == set(names):
        image = np.take(image, [list(names).index(name) for name in given], axis=-1)
    if hasattr(value, "dims") and hasattr(value, "coords"):
        return value.copy(data=image)
    if not hasattr(value, "iloc"):  # neither pandas nor xarray
        return image
    axes = {"columns": value.columns} if hasattr(value, "columns") else {"name": value.name}
    return type(value)(image, index=value.index, **axes)


def renamed(
    value: object, names: Sequence[str] | None, argument: str
) -> tuple[Any, Sequence[str] | None]:
    """Return a value and its names: those given are new ones, or the order of those it has."""
    value = as_pandas(value)
    own = axis_names(value)
    if names is None or own is None:
        return value, own if names is None else names
    wanted = as_names(names, None)
    return (in_order(value, wanted, argument) if set(wanted) & set(own) else value), wanted
