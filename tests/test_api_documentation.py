"""Every public name says what it is, what goes in and comes out and what is refused, and shows it.

Names in an ``__all__`` have all of it. Methods with several arguments describe each of them and
what they return; those with one or none may say it in a sentence; a property is a sentence. What a
user calls is called in an example, its own or its class's.
"""

from __future__ import annotations

import ast
import dataclasses
import doctest
import functools
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import validate

import etafree as ef
from etafree.foundation.check import Check
from etafree.inference import Functional, Region, WaldTest, WildBootstrap
from etafree.learning_rates import Information
from etafree.map import PaperMatrices

MODULES = (ef, ef.losses, ef.penalties, ef.errors)

#: What methods return, which has no public path of its own.
RETURNED = (Check, Functional, Information, PaperMatrices, Region, WaldTest, WildBootstrap)

#: Names by their public path; aliases of types have no docstring to look at.
NAMES: dict[str, Any] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in MODULES
    for name in module.__all__
    if inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name))
} | {f"{cls.__module__}.{cls.__name__}": cls for cls in RETURNED}
CLASSES = {name: found for name, found in NAMES.items() if inspect.isclass(found)}
EXCEPTIONS = {name for name, found in CLASSES.items() if issubclass(found, Exception)}

TEMPLATE = Path(__file__).parents[1] / "docs" / "_templates" / "autosummary" / "class.rst"
#: Methods that the rest of the library calls and a user does not: the pages leave them out.
PLUMBING = set(re.search(r'plumbing = "(.+?)"', TEMPLATE.read_text())[1].split(", "))
#: Arguments that the library fills in.
FILLED_IN = {"estimated", "kinks", "chosen"}

#: numpydoc's findings: sections, their order, the summary line, parameters and their types.
STRUCTURE = {
    *("GL03", "GL05", "GL06", "GL07", "GL08", "GL10", "SS01", "SS02", "SS03", "SS04", "SS06"),
    *("PR02", "PR04", "PR05", "PR06", "PR10", "RT02", "RT05", "SA04"),
}


def members() -> dict[str, tuple[type, str, Any]]:
    """Return public methods and properties, by the class whose docstring describes them.

    A method that only fills in what a base class has promised is described there.
    """
    kinds = (classmethod, staticmethod, property, functools.cached_property)
    found = {}
    for cls in CLASSES.values():
        for name in (n for n in dir(cls) if not n.startswith("_") or n == "__call__"):
            owners = [c for c in cls.__mro__ if name in vars(c)]
            if not owners[0].__module__.startswith("etafree."):
                continue
            told = [c for c in owners if getattr(vars(c)[name], "__doc__", None)]
            owner = (told or owners)[0]
            member = vars(owner)[name]
            if isinstance(member, kinds) or inspect.isfunction(member):
                found[f"{owner.__name__}.{name}"] = (owner, name, member)
    return found


MEMBERS = members()
METHODS = {
    key: found
    for key, found in MEMBERS.items()
    if not isinstance(found[2], property | functools.cached_property)
}
PROPERTIES = {key: found for key, found in MEMBERS.items() if key not in METHODS}


def described(text: str) -> set[str]:
    """Return the parameters and attributes that a docstring has a line for."""
    parsed = NumpyDocString(text)
    rows = [*parsed["Parameters"], *parsed["Other Parameters"], *parsed["Attributes"]]
    return {name.strip("* ") for row in rows for name in row.name.split(",")}


def arguments(function: Any) -> list[str]:
    """Return the names a caller fills in."""
    signature = inspect.signature(function)
    return [name for name in signature.parameters if name not in ("self", *FILLED_IN)]


def examples(text: str | None) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(text or "")


def raises(function: Any) -> bool:
    """Return whether a function itself raises an error of the library's."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    thrown = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc]
    made = [
        call.func.id
        for call in thrown
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    ]
    return any(name in ef.errors.__all__ for name in made)


def checks_arguments(cls: type) -> bool:
    """Return whether building an object can fail, by a constructor of the library's own."""
    own = [c for c in cls.__mro__ if c.__module__.startswith("etafree.")]
    hand_written = any("__init__" in vars(c) and not dataclasses.is_dataclass(c) for c in own)
    return hand_written or any(
        "__post_init__" in vars(c)
        or (dataclasses.is_dataclass(c) and not c.__dataclass_params__.init)
        for c in own
    )


def complaints(path: str, codes: set[str]) -> list[str]:
    """Return what numpydoc finds wrong with the docstring at an import path."""
    return [f"{code}: {text}" for code, text in validate(path)["errors"] if code in codes]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_modules_say_what_they_hold(module: Any) -> None:
    assert len(module.__doc__.splitlines()[0]) > 30


@pytest.mark.parametrize("path", NAMES)
def test_structure(path: str) -> None:
    assert complaints(path, STRUCTURE) == []


@pytest.mark.parametrize("path", NAMES)
def test_parameters_are_described(path: str) -> None:
    if path in EXCEPTIONS and "__init__" not in vars(NAMES[path]):
        return  # a message and nothing else
    assert not set(arguments(NAMES[path])) - described(inspect.getdoc(NAMES[path]))


@pytest.mark.parametrize("path", NAMES)
def test_returns_and_errors_are_described(path: str) -> None:
    found, parsed = NAMES[path], NumpyDocString(inspect.getdoc(NAMES[path]))
    if inspect.isfunction(found):
        assert parsed["Returns"]
        assert parsed["Raises"]
    elif path not in EXCEPTIONS and checks_arguments(found):
        assert parsed["Raises"]


@pytest.mark.parametrize("path", NAMES)
def test_examples_show_something_and_run(path: str) -> None:
    """An example prints what it says, and pytest finds it with the module's doctests."""
    found = NAMES[path]
    assert NumpyDocString(inspect.getdoc(found))["Examples"]
    assert any(example.want for example in examples(inspect.getdoc(found)))
    module = importlib.import_module(found.__module__)
    assert vars(module)[found.__name__] is found


@pytest.mark.parametrize("path", NAMES)
def test_there_is_something_to_read_next(path: str) -> None:
    parsed = NumpyDocString(inspect.getdoc(NAMES[path]))
    assert parsed["References"] or parsed["See Also"]


@pytest.mark.parametrize(
    "path", [p for p in NAMES if p.startswith(("etafree.losses.", "etafree.penalties."))]
)
def test_losses_and_penalties_have_a_formula(path: str) -> None:
    assert re.search(r":math:|\.\. math::", inspect.getdoc(NAMES[path]))


@pytest.mark.parametrize("key", MEMBERS)
def test_member_structure(key: str) -> None:
    owner, name, _ = MEMBERS[key]
    assert complaints(f"{owner.__module__}.{owner.__qualname__}.{name}", STRUCTURE) == []


@pytest.mark.parametrize("key", METHODS)
def test_methods_describe_arguments_and_results(key: str) -> None:
    owner, name, _ = METHODS[key]
    method = getattr(owner, name)
    text, taken = inspect.getdoc(method), arguments(method)
    parsed = NumpyDocString(text)
    if name in PLUMBING:
        return
    if len(taken) > 1 and "u" not in taken:  # u and y of a loss are described with the class
        assert not set(taken) - described(text)
        assert parsed["Returns"]
    else:
        for argument in taken:
            everywhere = text + inspect.getdoc(owner)
            assert argument in described(text) or f"`{argument}`" in everywhere, argument
        assert parsed["Returns"] or re.search(r"\b[Rr]eturn\b", text)


@pytest.mark.parametrize("key", METHODS)
def test_methods_say_what_they_refuse(key: str) -> None:
    owner, name, member = METHODS[key]
    if raises(getattr(member, "__func__", member)) and name not in PLUMBING:
        text = inspect.getdoc(getattr(owner, name))
        assert NumpyDocString(text)["Raises"] or "`InputError`" in text


@pytest.mark.parametrize("key", [key for key in METHODS if METHODS[key][1] not in PLUMBING])
def test_methods_are_called_in_an_example(key: str) -> None:
    owner, name, _ = METHODS[key]
    shown = examples(inspect.getdoc(getattr(owner, name)))
    for cls in (owner, *(c for c in CLASSES.values() if issubclass(c, owner))):
        shown += examples(cls.__doc__)
    called = r"\w\(" if name == "__call__" else rf"\.{name}\("
    assert any(re.search(called, example.source) for example in shown)


def test_help_fits_on_a_screen() -> None:
    """Forty lines show the signature, an example, the main arguments and the result."""
    signature = f"{ef.calibrate.__name__}{inspect.signature(ef.calibrate)}"
    lines = textwrap.wrap(signature, 100) + inspect.getdoc(ef.calibrate).splitlines()
    example = next(k for k, line in enumerate(lines) if line.startswith(">>>"))
    parameters, returned, rest = (
        lines.index(title) for title in ("Parameters", "Returns", "Other Parameters")
    )
    assert example < parameters < returned < rest <= 40
