"""Errors and advice in the words of the shell: ``--eta`` where Python says ``eta=``."""

from __future__ import annotations

import re

from etafree.errors import InputError

#: What the shell calls arguments of Python that no option is named after.
ARGUMENTS = {"draws": "fit", "var_names": "--var", "newdata": "--predict"}
#: Python's words in advice, and the shell's.
WORDS = {
    "details() says how this was made.": "How this was made:",
    "ef.from_arviz(fit, latent=None)": "pass --conditional",
    "pass what idata.to_netcdf() wrote": "pass what idata.to_netcdf() wrote, CmdStan's CSV files "
    "or a table of draws: in R write.csv(posterior::as_draws_df(fit), file)",
    "dependence=ef.TimeSeries(...)": "--time",
    "var_names= of a fit, Draws.select() of draws": "--var",
    "pass model= or a criterion": "in Python pass model= or a criterion",
    "pass model=": "in Python pass model=",
    "or model=": "or in Python pass model=",
    "var_names=": "--var",
}
PYTHON = re.compile("|".join(map(re.escape, WORDS)))  # longer ones stand first
#: Keywords of Python that are options of the same name.
KEYWORD = re.compile(r"\b(clusters|eta|level|correction|link|log_likelihood)=(?![\w\"'\[(=])")


def in_shell_words(text: str) -> str:
    """Return a text about Python's arguments as one about options.

    Examples
    --------
    >>> in_shell_words("check eta=, or pass model= or a criterion; here eta=2")
    'check --eta, or in Python pass model= or a criterion; here eta=2'
    """
    text = PYTHON.sub(lambda match: WORDS[match[0]], text)
    return KEYWORD.sub(lambda match: "--" + match[1].replace("_", "-"), text)


def error_line(error: Exception, options: frozenset[str]) -> str:
    """Return an error as one line that names the option, where it is about one.

    Examples
    --------
    >>> error_line(InputError("keep_all", "goes with --out"), frozenset({"keep_all"}))
    '--keep-all: goes with --out'
    """
    line = in_shell_words(str(error).replace("\n", " "))
    if not isinstance(error, InputError):
        return line
    name = error.argument.partition("[")[0]  # of clusters['school']
    option = "--" + name.replace("_", "-") if name in options else ARGUMENTS.get(name, name)
    return option + line.removeprefix(name) if line.startswith(name) else line
