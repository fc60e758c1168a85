"""Bambi models: their PyMC model, with the intercept as Bambi reports it.

Bambi centres predictors and turns the intercept into that of the uncentred ones after sampling, so
that ``Intercept`` in a posterior is not the one of its PyMC model.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.data.pytrees import import_jax
from etafree.errors import InputError
from etafree.fits import Fit, Predicted
from etafree.fits.model import Density, ModelOptions, fit_of
from etafree.fits.pymc import check_model, remembered_density
from etafree.fits.trees import SAMPLE_DIMS, as_kind, as_tree, with_values
from etafree.foundation.arguments import Array, as_table
from etafree.foundation.terminal import counted_noun

if TYPE_CHECKING:
    from typing import Unpack

    import pandas as pd
    import xarray as xr
    from jax import Array as JaxArray

    from etafree.fits.model import Variables

#: A bambi.Model, which has no types.
Model = Any
#: An intercept, the terms whose predictors are centred, and the means of these.
Centred = tuple[str, list[str], Array]
#: A link function and its inverse.
Links = tuple[Callable[[Array], Array], Callable[[Array], Array]]


def bambi_fit(fit: object, model: Model | Built, **options: Unpack[ModelOptions]) -> Fit:
    """Read a Bambi fit with exact losses on the unconstrained scale."""
    own = model if isinstance(model, Built) else built(model)
    tree = as_tree(fit)
    check_model(tree, own.model)
    density, centred = remembered_density(own.model), own.centred
    key = tuple((name, *terms, means.tobytes()) for name, terms, means in centred)
    uncentred = density.once(("uncentred", key), lambda: _uncentred(density, centred))
    return fit_of(uncentred, tree, **options)


@dataclass(frozen=True, eq=False)
class Built:
    """The PyMC model of a Bambi model, with what is centred in it.

    A Bambi model keeps all names of the place where it was written, open files among them, so that
    it may not pickle; this does.
    """

    model: object
    centred: list[Centred]


def built(model: Model) -> Built:
    """Return a Bambi model as PyMC has it, built if it is not."""
    if not hasattr(model, "backend"):
        raise InputError("model", f"is a {type(model).__name__}", "pass the bambi.Model")
    if not model.built:
        model.build()
    return Built(model.backend.model, _centred(model))


def kept_rows(model: Model, n: int) -> tuple[pd.DataFrame | None, NDArray[np.intp] | None]:
    """Return the data of a model and the positions of its n rows in use; None if not known.

    With ``dropna=True`` Bambi leaves rows with missing values out.
    """
    data: pd.DataFrame = model.data
    if len(data) == n:
        return data, None
    newer = hasattr(model, "conditional_parameters")  # Bambi 0.21 has another name for them
    components = model.conditional_parameters if newer else model.distributional_components
    for component in components.values():
        for matrix in ("common", "response", "group"):
            used = getattr(getattr(component.design, matrix, None), "data", None)
            if used is not None and len(used) == n and data.index.is_unique:
                return data, data.index.get_indexer(used.index)
    return None, None


@dataclass(frozen=True, eq=False)
class Predictor:
    """A Bambi model as it predicts, by its own ``predict``."""

    model: Model
    posterior: xr.Dataset  #: Its draws, for their dimensions.
    data: pd.DataFrame  #: Its rows in use.
    latent: bool  #: Whether group effects are no parameters.

    def __call__(
        self, newdata: object, variable: str | None, group_effects: bool | None
    ) -> Predicted:
        """Return the rows of new data, or its own, at which a parameter of the response is said."""
        if self.model is None:
            problem = "does not travel with a pickled result"
            raise InputError("model", f"of Bambi {problem}", "calibrate again in this process")
        table = self.data if newdata is None else as_table(newdata, "newdata")
        formulas = [self.model.formula.main, *self.model.formula.additionals]
        right = " ".join(formula.partition("~")[2] for formula in formulas)
        groups = re.findall(r"\|([^)]*)\)", right)
        plain = re.sub(r"\|[^)]*\)", ")", right)
        if group_effects is not None and not groups:
            raise InputError("group_effects", "are none in this model", "leave it out")
        effects = bool(groups) and group_effects is not False
        needed = _named([plain, *groups] if effects else [plain], self.data)
        if missing := [name for name in needed if name not in table]:
            raise InputError("newdata", f"lacks {missing}", f"the model has {needed}")
        if newdata is not None and (holes := int(table[list(needed)].isna().any(axis=1).sum())):
            advice = "fill them in, or drop these rows"
            raise InputError(
                "newdata", f"has missing values in {counted_noun(holes, 'row')}", advice
            )
        name, links = self._parameter(variable)
        own = newdata is None

        def at(variables: Mapping[str, Array], other: pd.DataFrame) -> Array:
            data = None if own and other is table else other
            return self._predictions(variables, data, name, effects)

        return Predicted(
            table,
            _named([plain], self.data),
            at,
            self.data,
            frozenset(_named(re.findall(r"\bC\(([^)]*)", plain), self.data)),
            self.latent and effects,
            links,
        )

    def _parameter(self, variable: str | None) -> tuple[str, Links | None]:
        """Return the name of the predicted parameter of the response, and its link."""
        model, parent = self.model, self.model.family.likelihood.parent
        newer = hasattr(model, "conditional_parameters")
        components = model.conditional_parameters if newer else model.distributional_components
        names = {component.alias or name: name for name, component in components.items()}
        default = next(shown for shown, name in names.items() if name == parent)
        if variable is not None and variable not in names:
            raise InputError("variable", f"is {variable!r}", f"choose from {', '.join(names)}")
        shown = variable or default
        link = model.family.link[names[shown]]
        return shown, (link.link, link.linkinv)

    def _predictions(
        self, variables: Mapping[str, Array], data: pd.DataFrame | None, name: str, effects: bool
    ) -> Array:
        """Return predictions (d, m) of Bambi."""
        import xarray as xr

        posterior = with_values(self.posterior, variables)
        older = "InferenceData" in dir(importlib.import_module("arviz"))
        tree = xr.DataTree.from_dict({"posterior": posterior})
        idata = as_kind(tree, "InferenceData" if older else "DataTree")
        try:
            self.model.predict(idata, data=data, include_group_specific=effects, inplace=True)
        except Exception as error:  # Bambi, formulae and xarray raise errors of many kinds
            problem = f"is not taken by Bambi ({type(error).__name__}: {_first_line(error)})"
            advice = "it needs the columns and the categories of the data"
            advice += "; new groups need group_effects=False" if effects else ""
            raise InputError("newdata", problem, advice) from error
        made = idata["posterior"][name].transpose(*SAMPLE_DIMS, "__obs__", ...)
        if made.ndim != 3:
            problem = f"{name} has several values per row"
            raise InputError("variable", problem, "use Bambi's own predict with to_arviz()")
        return np.asarray(made[0], dtype=np.float64)

    def __getstate__(self) -> dict[str, object]:
        """Return what travels: a Bambi model keeps all names of where it was written."""
        return {**self.__dict__, "model": None}

    def __deepcopy__(self, memo: object) -> Predictor:
        return self  # nothing in it changes


def _named(formulas: Iterable[str], data: pd.DataFrame) -> tuple[str, ...]:
    """Return the columns of the data that are named in parts of formulas, in order."""
    words = re.findall(r"`([^`]+)`|([^\W\d]\w*)", " ".join(formulas))
    names = dict.fromkeys(quoted or plain for quoted, plain in words)
    return tuple(name for name in names if name in data.columns)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def _uncentred(density: Density, centred: list[Centred]) -> Density:
    """Return the density in the intercepts that Bambi reports; the model's lie at the means."""

    def moved(z: JaxArray) -> JaxArray:
        values = density.constrain(z)
        for intercept, terms, means in centred:
            slopes = import_jax().numpy.concatenate([values[name].reshape(-1) for name in terms])
            z = z.at[density.place([intercept])].add(slopes @ means)
        return z

    def constrain(z: JaxArray) -> Variables:
        own = {intercept: z[density.place([intercept])][0] for intercept, _, _ in centred}
        return {**density.constrain(moved(z)), **own}

    return replace(
        density,
        package="bambi",
        log_likelihood=lambda z: density.log_likelihood(moved(z)),
        log_prior=lambda z, jacobian: density.log_prior(moved(z), jacobian),
        constrain=constrain,
        compiled={},
    )


def _centred(model: Model) -> list[Centred]:
    """Return intercepts with the terms whose predictors are centred, and the means of these."""
    name_of = importlib.import_module("bambi.utils").get_aliased_name
    pymc_model = model.backend.model
    centred: list[Centred] = []
    for component in model.backend.distributional_components.values():
        own = component.component
        if not (model.center_predictors and own.intercept_term and own.common_terms):
            continue
        intercept = name_of(own.intercept_term)
        variable = pymc_model[intercept]
        if variable.ndim or pymc_model.rvs_to_transforms[variable] is not None:
            why = f"{intercept} is bounded or of a response with several columns"
            advice = "build it with center_predictors=False"
            raise InputError("model", f"has centred predictors and {why}", advice)
        means = np.asarray(component.design_matrix_without_intercept).mean(axis=0)
        centred.append((intercept, [name_of(term) for term in own.common_terms.values()], means))
    return centred
