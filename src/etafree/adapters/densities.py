"""A model's log densities in JAX, and which of its observed variables are the observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.pytrees import double_precision, import_jax
from etafree.validation import Array

__all__ = ["Density", "Function", "observations", "over_draws", "refuse_silent"]

#: z (q,) to a number or a vector, written in JAX.
Function = Callable[[Any], Any]
#: Draws that a compiled function takes at a time.
BATCH = 64


@dataclass(frozen=True, eq=False)
class Density:
    """A model in JAX, over the flat vector z (q,) of its free variables, unconstrained.

    Attributes
    ----------
    package : str
    shapes : mapping
        Free variables and the shapes they have in z, in its order.
    labels : mapping
        Names of the entries of every free variable in z.
    dims : mapping
        Observed variables and the names of their dimensions, None if they have none.
    log_likelihood : callable
        z to log-likelihoods of the observed variables, by name, an entry per observation.
    log_prior : callable
        (z, jacobian) to log densities of the free variables, by name: on the model's own scale, or
        with the Jacobian of the transform.
    constrain : callable
        z to the model's variables, by name, computed ones too.
    unconstrain : callable
        Values of free variables, by name, to their entries of z, by name.
    """

    package: str
    shapes: Mapping[str, tuple[int, ...]]
    labels: Mapping[str, tuple[str, ...]]
    dims: Mapping[str, tuple[str | None, ...] | None]
    log_likelihood: Callable[[Any], dict[str, Any]]
    log_prior: Callable[[Any, bool], dict[str, Any]]
    constrain: Callable[[Any], dict[str, Any]]
    unconstrain: Callable[[dict[str, Any]], dict[str, Any]]

    @property
    def size(self) -> int:
        """Length of z."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def place(self, names: Any) -> NDArray[np.intp]:
        """Return where the named variables are in z."""
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes.values())])
        where = dict(zip(self.shapes, pairwise(ends), strict=True))
        parts = [np.arange(*where[name]) for name in self.shapes if name in names]
        return np.concatenate([np.zeros(0, dtype=np.intp), *parts])


def over_draws(function: Callable[[Any], Any], points: Any) -> dict[str, Array]:
    """Return by name what a JAX function makes of many points (D, ...), or of arrays by name."""
    jax = import_jax()
    with double_precision():
        made = jax.jit(lambda all_: jax.lax.map(function, all_, batch_size=BATCH))(points)
        return {name: np.asarray(value) for name, value in made.items()}


def observations(
    density: Density, chosen: str | Sequence[str] | None
) -> tuple[str, Function, Function | None, int]:
    """Return the observations' name, log-likelihoods (n,), the sum of the others', and n.

    All observed variables are chosen by None or "sum"; then there are no others.
    """
    jax = import_jax()
    with double_precision():
        made = jax.eval_shape(density.log_likelihood, jax.numpy.zeros(density.size))
    shapes = {name: value.shape for name, value in made.items()}
    if not shapes:
        raise InputError("model", "has no observed variables", "pass the model with its data")
    if chosen is None or (chosen == "sum" and "sum" not in shapes):
        chosen = list(shapes)
    used = [chosen] if isinstance(chosen, str) else list(dict.fromkeys(chosen))
    if not used or not set(used) <= set(shapes):
        raise InputError("log_likelihood", f"is {chosen!r}", f"choose from {', '.join(shapes)}")
    advice = ("name the one whose entries are observations and depend on all parameters, "
              "log_likelihood=...; the others then count with the prior")  # fmt: skip
    if len({shapes[name] for name in used}) > 1:
        found = ", ".join(f"{name} {shapes[name]}" for name in used)
        raise InputError("model", f"has observed variables of different lengths, which do not add "
                         f"up observation by observation: {found}", advice)  # fmt: skip
    if len({density.dims[name] for name in used}) > 1:
        found = ", ".join(f"{name} {density.dims[name]}" for name in used)
        raise InputError("model", f"has observed variables along different dims: {found}",
                         f"give them the same dims if of the same units, or {advice}")  # fmt: skip
    n = int(np.prod(shapes[used[0]]))
    if n < 2:
        raise InputError("model", f"gives one log-likelihood for all of {used[0]}, so nothing "
                         "says how its parts vary", "write the likelihood observation by "
                         "observation")  # fmt: skip

    def rows(z: Any) -> Any:
        values = density.log_likelihood(z)
        return sum(values[name].reshape(-1) for name in used)

    def rest(z: Any) -> Any:
        values = density.log_likelihood(z)
        return sum(values[name].sum() for name in shapes if name not in used)

    return " + ".join(used), rows, rest if len(used) < len(shapes) else None, n


def refuse_silent(losses: Function, theta: Array, names: Sequence[str], title: str) -> None:
    """Refuse losses that do not depend on some parameters, seen by their slope at theta (p,)."""
    jax = import_jax()
    with double_precision():
        weights = np.random.default_rng(1).standard_normal(jax.eval_shape(losses, theta).shape)
        slope = np.asarray(jax.jit(jax.grad(lambda t: weights @ losses(t)))(theta))
    silent = [name for name, entry in zip(names, slope, strict=True) if entry == 0]
    if silent:
        raise InputError("log_likelihood", f"{title} says nothing about {', '.join(silent)}",
                         "leave log_likelihood out, or list all that do")  # fmt: skip
