"""Bambi models: their PyMC model, with the intercept as Bambi reports it.

Bambi centres predictors and turns the intercept into that of the uncentred ones after sampling, so
that ``Intercept`` in a posterior is not the one of its PyMC model.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.data.pytrees import import_jax
from etafree.errors import InputError
from etafree.fits import Fit
from etafree.fits.model import Density, ModelOptions, fit_of
from etafree.fits.pymc import check_model, remembered_density
from etafree.fits.trees import as_tree
from etafree.foundation.arguments import Array

if TYPE_CHECKING:
    from typing import Unpack

    import pandas as pd
    from jax import Array as JaxArray

    from etafree.fits.model import Variables

#: A bambi.Model, which has no types.
Model = Any
#: An intercept, the terms whose predictors are centred, and the means of these.
Centred = tuple[str, list[str], Array]


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
