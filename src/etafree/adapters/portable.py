"""Models' functions that pickle: what is stored is the model, and they are made from it again.

The functions that an adapter makes are closures over compiled graphs, which neither pickle nor
copy. A `Recipe` holds what made them, and a `FromModel` is one of them by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from etafree.errors import InputError
from etafree.fits import Fit

__all__ = ["portable"]


@dataclass(frozen=True, eq=False)
class Recipe:
    """What made a model's functions: an adapter, the fit, the model and options."""

    adapter: Callable[..., Fit]
    tree: Any
    model: Any
    options: Mapping[str, Any]

    @cached_property
    def functions(self) -> dict[str, Callable[..., Any] | None]:
        """The functions by name, made again where this comes from a pickle."""
        return functions_of(self.adapter(self.tree, self.model, **self.options))

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "functions"}
        if importlib.util.find_spec("cloudpickle") is not None:  # models hold lambdas and partials
            dumps: Any = importlib.import_module("cloudpickle").dumps
            try:
                state["model"] = Stored(dumps(self.model))
            except Exception as error:  # whatever the model refers to
                told = str(error).partition("\n")[0]
                raise InputError("model", f"does not pickle ({told})",
                                 "use save() and load()") from error  # fmt: skip
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        model = state["model"]
        loaded = pickle.loads(model.text) if isinstance(model, Stored) else model
        self.__dict__.update(state, model=loaded)

    def __deepcopy__(self, memo: Any) -> Recipe:
        return self  # nothing in it changes


@dataclass(frozen=True)
class Stored:
    """A pickled model."""

    text: bytes


@dataclass(frozen=True, eq=False)
class FromModel:
    """One function of a recipe."""

    recipe: Recipe
    name: str

    def __call__(self, *args: Any) -> Any:
        """Return what the function returns."""
        function = self.recipe.functions[self.name]
        assert function is not None
        return function(*args)


def functions_of(fit: Fit) -> dict[str, Callable[..., Any] | None]:
    """Return the functions of a model's fit by name."""
    assert fit.criterion is not None
    penalty: Any = fit.criterion.penalty
    return {
        "losses": fit.criterion.loss.function,
        "function": penalty.function,
        "slope": penalty.slope,
        "curvature": penalty.curvature,
        "constrain": fit.constrain,
        "pointwise": fit.pointwise,
    }


def portable(adapter: Callable[..., Fit], fit: Any, model: Any, **options: Any) -> Fit:
    """Return the fit that an adapter makes of a model, in a form that pickles and copies."""
    made = adapter(fit, model, **options)
    assert made.criterion is not None
    recipe = Recipe(adapter, made.tree, model, options)
    recipe.__dict__["functions"] = functions_of(made)
    ours = {name: None if function is None else FromModel(recipe, name)
            for name, function in recipe.functions.items()}  # fmt: skip
    total = made.criterion.total
    penalty: Any = made.criterion.penalty
    criterion = made.criterion._replaced(
        total=replace(total, loss=total.loss.with_function(ours["losses"])),
        penalty=replace(penalty, **{k: ours[k] for k in ("function", "slope", "curvature")}),
    )
    return replace(
        made, criterion=criterion, constrain=ours["constrain"], pointwise=ours["pointwise"]
    )
