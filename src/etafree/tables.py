"""Criteria from tables: a formula and a DataFrame, or a table that is read in parts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from etafree.errors import InputError
from etafree.formula import design
from etafree.labels import StreamedRows, column_name
from etafree.losses import LinearLoss
from etafree.parts import BATCH, as_source
from etafree.passes import Reader, find_recipe
from etafree.penalties import KinkedPenalty, NoPenalty, Penalty
from etafree.streamed import StreamedTotal
from etafree.validation import as_bool, as_choice, as_count, as_names
from etafree.weights import KINDS

__all__ = ["FromTables", "check_penalty"]


class FromTables:
    """The ways from a table to a `Criterion`, which inherits them."""

    @classmethod
    def from_formula(
        cls,
        formula: str,
        data: Any,
        loss: LinearLoss,
        penalty: Penalty | None = None,
        *,
        weights: Any = None,
        weight_kind: str | None = None,
        offset: Any = None,
        trials: Any = None,
        penalize_intercept: bool = False,
        context: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the criterion of a formula such as ``"y ~ x1 + C(region)"`` and a DataFrame.

        Rows with missing values are dropped, and a printed calibration says how many; whatever is
        passed later with one value per original row (clusters, say) is cut to the same rows, and
        may be a column name too. Categories that no row has make no column.

        Parameters
        ----------
        formula : str
            Response and terms; an intercept is added unless the formula has ``- 1``.
        data : DataFrame
            With a row per observation.
        loss : LinearLoss
            For example ``ef.losses.Huber(1.345)``.
        penalty : Penalty, optional
            For example ``ef.penalties.Ridge(0.5)``.
        weights, offset, trials : (n,) array or column name, optional
            As for the criterion.
        weight_kind : {"frequency", "sampling"}
            What weights are.
        penalize_intercept : bool
            By default ridge and kinked penalties leave the intercept alone (a ridge with an
            explicit Q, and any other penalty, is taken as it is).
        context : mapping, optional
            Functions of your own that the formula calls.

        Returns
        -------
        Criterion
            Its names are those of the design matrix.

        Examples
        --------
        >>> import etafree as ef, pandas as pd
        >>> df = pd.DataFrame({"y": [1.0, 2.0, 4.0], "x": [0.0, 1.0, 2.0]})
        >>> ef.Criterion.from_formula("y ~ x", df, ef.losses.Squared()).names
        ('Intercept', 'x')
        """
        as_bool(penalize_intercept, "penalize_intercept")
        made = design(formula, data, context)

        def column(value: Any, argument: str) -> Any:
            return None if value is None else made.rows.align(value, argument)

        intercept = None if penalize_intercept else made.intercept
        if isinstance(penalty, Penalty):
            penalty = penalty.fitted_to(len(made.names), intercept)
        criterion: Any = cls(  # type: ignore[call-arg]
            loss,
            (made.X, made.y),
            penalty,
            weights=column(weights, "weights"),
            weight_kind=weight_kind,
            offset=column(offset, "offset"),
            trials=column(trials, "trials"),
            names=made.names,
        )
        made_rows = replace(made.rows, advice=criterion.rows.advice)
        criterion = criterion._replaced(rows=made_rows, intercept=intercept)
        made_criterion: Self = criterion
        return made_criterion

    @classmethod
    def from_parts(
        cls,
        loss: LinearLoss,
        data: Any,
        formula: str,
        penalty: Penalty | None = None,
        *,
        clusters: str | Sequence[str] = (),
        weights: str | None = None,
        weight_kind: str | None = None,
        offset: str | None = None,
        trials: str | None = None,
        penalize_intercept: bool = False,
        context: Mapping[str, Any] | None = None,
        batch: int = BATCH,
        scheduler: Any = None,
    ) -> Self:
        """Return the criterion of a formula and a table larger than memory, read in parts.

        Everything is a sum over parts, so results are those of `from_formula`. What needs all rows
        at once is refused: arrays with a value per row (name a column), scale="mad", kinks.

        Parameters
        ----------
        loss : LinearLoss
            For example ``ef.losses.Huber(1.345)``.
        data : path, Arrow dataset or table, Dask DataFrame, or DataFrames
            Parquet files or folders; an iterable of DataFrames that can be run through again, or a
            function that returns one. A Dask DataFrame is worked on where its partitions are.
        formula : str
            As for `from_formula`.
        penalty : Penalty, optional
            A smooth one.
        clusters : str or sequence of str
            Columns whose labels the first pass collects; others take a pass when they are used.
        weights, offset, trials : str, optional
            Columns.
        weight_kind, penalize_intercept, context : optional
            As for `from_formula`.
        batch : int
            Most rows of a part of a Parquet file or Arrow table.
        scheduler : distributed.Client or address, optional
            Where the parts of a Parquet file or Dask DataFrame are worked on. A client stays open.

        Returns
        -------
        Criterion
            Every evaluation is a pass over the parts.

        Raises
        ------
        InputError
            A column is missing, the loss or penalty needs all rows, or a file cannot be read.

        Examples
        --------
        >>> import etafree as ef, pandas as pd
        >>> parts = [pd.DataFrame({"y": [1.0, 2.0]}), pd.DataFrame({"y": [6.0]})]
        >>> criterion = ef.Criterion.from_parts(ef.losses.Squared(), parts, "y ~ 1")
        >>> criterion.n, ef.minimise(criterion).theta
        (3, array([3.]))
        """
        if not isinstance(loss, LinearLoss):
            raise InputError("loss", f"is {loss!r}", "pass a loss such as ef.losses.Huber(1.345)")
        check_penalty(penalty)
        if isinstance(penalty, KinkedPenalty):
            raise InputError("penalty", f"{type(penalty).__name__} has kinks, and the data are "
                             "read in parts", "use ef.penalties.huberized_l1")  # fmt: skip
        if trials is not None and not loss.takes_trials:
            raise InputError("trials", f"means nothing to {type(loss).__name__}", "drop it")
        if weights is not None or weight_kind is not None:
            as_choice(weight_kind, "weight_kind", KINDS)
        source = as_source(data, as_count(batch, "batch"), scheduler)
        named = {"weights": weights, "offset": offset, "trials": trials}
        for argument, name in named.items():
            if name is not None:
                column_name(name, source.columns, argument)
        as_bool(penalize_intercept, "penalize_intercept")
        if not isinstance(clusters, Iterable) or getattr(clusters, "ndim", 1) == 0:
            raise InputError("clusters", f"is {clusters!r}", "pass names of columns, or leave it "
                             "out")  # fmt: skip
        labels = (clusters,) if isinstance(clusters, str) else tuple(clusters)
        found = {column_name(name, source.columns, "clusters"): "clusters" for name in labels}
        recipe = find_recipe(source, formula, context)
        reader = Reader(recipe, weights, weight_kind != "sampling", offset, trials)
        total, known = StreamedTotal.of(loss, source, reader, found)
        rows = StreamedRows(total.census.rows, table=source.columns, in_use=total.n,
                            find=total.groups, known=known,
                            missing=total.census.rows - total.n)  # fmt: skip
        intercept = None if penalize_intercept else recipe.intercept
        criterion: Any = cls.__new__(cls)
        fitted = (penalty or NoPenalty()).fitted_to(total.p, intercept)
        criterion._set(total, fitted, as_names(recipe.names, total.p), rows, intercept)
        made: Self = criterion
        return made

    @classmethod
    def from_parquet(
        cls, loss: LinearLoss, path: Any, formula: str, penalty: Penalty | None = None,
        **options: Any,
    ) -> Self:  # fmt: skip
        """Return the criterion of a Parquet file or folder, or of several.

        Every file's footer is read first: one that is cut short, or has not the columns that are
        used, is an error that names it.

        Parameters
        ----------
        loss : LinearLoss
            For example ``ef.losses.Huber(1.345)``.
        path : str or path, or a list of them
            A file, or a folder of files.
        formula : str
            As for `from_formula`.
        penalty : Penalty, optional
            A smooth one.
        **options : optional
            As for `from_parts`.

        Returns
        -------
        Criterion
            As of `from_parts`.

        Raises
        ------
        InputError
            `path` is none, or what `from_parts` refuses.

        Examples
        --------
        >>> import etafree as ef, pandas as pd, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "y.parquet")
        ...     pd.DataFrame({"y": [1.0, 2.0, 6.0]}).to_parquet(path)
        ...     criterion = ef.Criterion.from_parquet(ef.losses.Squared(), path, "y ~ 1")
        ...     ef.minimise(criterion).theta
        array([3.])
        """
        several = path if isinstance(path, list | tuple) and path else [path]
        if not all(isinstance(name, str | os.PathLike) for name in several):
            raise InputError(
                "path", f"is a {type(path).__name__}", "pass a path, or use from_parts"
            )
        return cls.from_parts(loss, path, formula, penalty, **options)


def check_penalty(penalty: Any) -> None:
    """Refuse what is neither a penalty nor None."""
    if penalty is not None and not isinstance(penalty, Penalty):
        raise InputError("penalty", f"is {penalty!r}", "pass ef.penalties.Ridge(...) or None")
