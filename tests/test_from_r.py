"""Draws that R wrote go through the shell and come back, whatever names and order they have.

The files in tests/r were written by R 4.2.2 with brms 2.18.0, rstanarm 2.21.3 and posterior 1.4.0
(Debian 12), by tests/r/write.R, which says how. Where Rscript and rstanarm are installed the script
of the guide runs too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import etafree as ef
from conftest import refused
from etafree.cli import app, main
from etafree.cli.draws_table import read_draws
from etafree.errors import InputError
from etafree.fits.conditional import named_effects

STORED = Path(__file__).parent / "r"
GUIDE = Path(__file__).parent.parent / "docs" / "guides" / "from-r.md"
COUNTERS = [".chain", ".iteration", ".draw"]


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["calibrate", *map(str, arguments)])
    if code == 2:
        assert isinstance(done.exception, InputError), done.output
        return str(done.exception)
    assert done.exit_code in (code, 3), done.output + str(done.exception)
    return done.output


def calibrated(folder: Path, *arguments: object) -> pd.DataFrame:
    """Return the table of the shell."""
    run(*arguments, "--summary", folder / "summary.csv", "--force")
    return pd.read_csv(folder / "summary.csv", index_col="parameter")


# --- what R wrote -------------------------------------------------------------------------------


def test_a_fit_of_brms_is_what_the_same_numbers_are_in_python(tmp_path: Path) -> None:
    draws, back = STORED / "brms-draws.csv", tmp_path / "back.csv"
    asked = (draws, "--log-likelihood", STORED / "brms-loglik.csv")
    labels = f"{STORED / 'data.csv'}:school"
    found = calibrated(tmp_path, *asked, "--clusters", labels, "--csv", back)
    names = ["b_Intercept", "b_x", "sigma"]
    table = pd.read_csv(draws)
    array = table[names].to_numpy().reshape(2, -1, 3)
    stored = pd.read_csv(STORED / "brms-loglik.csv").to_numpy().reshape(2, -1, 24)
    data = pd.read_csv(STORED / "data.csv", dtype=str, keep_default_na=False)
    fitted = ef.Draws.of(array, names, 1.0)
    expected = ef.calibrate(fitted, log_likelihood=stored, clusters=data["school"].to_numpy())
    assert expected.target.clusters == 8  # "01", "1" and "NA" are schools
    assert list(found.index) == names
    for column in ("estimate", "se", "lower", "upper"):
        np.testing.assert_allclose(found[column], expected.summary()[column], rtol=1e-9)
    made = pd.read_csv(back)
    assert list(made) == COUNTERS + names
    np.testing.assert_array_equal(made[COUNTERS], table[COUNTERS])
    np.testing.assert_allclose(made[names], expected.draws.array, rtol=1e-9)


def test_one_table_of_rstanarm_holds_draws_and_log_likelihood(tmp_path: Path) -> None:
    """Names with a slash come back as R writes them; lp and mean_PPD are no parameters."""
    back = tmp_path / "back.csv"
    found = calibrated(tmp_path, STORED / "rstanarm.csv", "--csv", back)
    assert list(found.index) == ["(Intercept)", "x", "I(x^2/2)", "sigma"]
    assert list(pd.read_csv(back))[3:] == list(found.index)
    design = tmp_path / "design.csv"
    design.write_text('"","(Intercept)","I(x^2/2)"\n"a",1,0\n"b",1,2\n')
    predictions = tmp_path / "predictions.csv"
    asked = ("--predict", design, "--link", "identity", "--predictions", predictions)
    run(STORED / "rstanarm.csv", *asked)
    made = pd.read_csv(predictions)["estimate"]
    expected = found["estimate"]
    assert made[1] - made[0] == pytest.approx(2 * expected["I(x^2/2)"], rel=1e-9)


@pytest.mark.parametrize("name", ["brms-groups", "rstanarm-groups"])
def test_group_effects_are_known_by_their_names(name: str) -> None:
    tree, _ = read_draws([STORED / f"{name}.csv"])
    assert named_effects(tree["posterior"].to_dataset()) == {"r_school" if "brms" in name else "b"}


def test_a_conditional_log_likelihood_of_brms_is_refused() -> None:
    """Without clusters too; what makes it go through is said, and does."""
    asked = (STORED / "brms-groups.csv", "--log-likelihood", STORED / "brms-groups-loglik.csv")
    told = run(*asked, "--var", "b_x", code=2)
    assert "conditional on the group effects r_school" in told
    assert "calibrate a fit without these effects" in told


def test_the_script_of_the_guide_runs_where_r_is_installed(tmp_path: Path) -> None:
    r = shutil.which("Rscript")
    has = 'q(status = !all(sapply(c("rstanarm", "posterior"), requireNamespace, quietly = TRUE)))'
    if r is None or subprocess.run([r, "-e", has], capture_output=True, check=False).returncode:
        pytest.skip("R or its packages are not installed")
    script = re.search(r"```r\n(library\(rstanarm\).*?)```", GUIDE.read_text(), flags=re.S)
    assert script is not None
    shim = tmp_path / "bin" / "etafree"
    shim.parent.mkdir()
    call = "from etafree.cli import main; main()"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{call}" "$@"\n')
    shim.chmod(0o755)
    command = f'Sys.setenv(PATH = paste0("{shim.parent}:", Sys.getenv("PATH")))\n{script[1]}'
    done = subprocess.run(
        [r, "-e", command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    data = pd.read_csv(tmp_path / "schools.csv")
    criterion = ef.Criterion.from_formula("y ~ x", data, ef.losses.Squared())
    expected = ef.target(criterion, clusters="school", correction="CR1")
    found = pd.read_csv(tmp_path / "summary.csv", index_col="parameter").iloc[:2]
    assert np.all(
        np.abs(found["se"] / expected.se - 1) < 5 * found["se_error"] / found["se"] + 0.05
    )
    predictions = pd.read_csv(tmp_path / "predictions.csv")
    wanted = [found["estimate"].iloc[0], found["estimate"].sum()]
    np.testing.assert_allclose(predictions["estimate"], wanted, rtol=1e-9)


# --- names and orders ---------------------------------------------------------------------------

CHAINS, LENGTH, N = 2, 200, 12


def numbers() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return draws with R's columns, and their log-likelihood with the same."""
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((2, N))
    theta = rng.standard_normal((CHAINS * LENGTH, 2)) / np.sqrt(N)
    count = np.arange(CHAINS * LENGTH)
    where = {".chain": count // LENGTH + 1, ".iteration": count % LENGTH + 1, ".draw": count + 1}
    draws = pd.DataFrame({"b_Intercept": theta[:, 0], "beta[1]": theta[:, 1], "lp__": 1.0, **where})
    stored = -0.5 * (y - theta[:, [0]] - theta[:, [1]] * x) ** 2
    names = [f"log_lik[{k + 1}]" for k in range(N)]
    return draws, pd.DataFrame(stored, columns=names).assign(**where)


DRAWS, LOSSES = numbers()
BARE = LOSSES.drop(columns=COUNTERS)
PLACE = np.random.default_rng(0).permutation(len(DRAWS))
OTHER = np.random.default_rng(1).permutation(len(DRAWS))


def renamed(table: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    return table.rename(columns=dict(zip(COUNTERS, names, strict=True)))


def numbered(form: str) -> pd.DataFrame:
    return BARE.set_axis([form.format(k + 1) for k in range(N)], axis=1)


#: Draws and log-likelihoods that mean the same.
SAME: dict[str, tuple[list[pd.DataFrame], list[pd.DataFrame]]] = {
    "as they come": ([DRAWS], [LOSSES]),
    "no columns of places": ([DRAWS], [BARE]),
    "shuffled apart": ([DRAWS.iloc[PLACE]], [LOSSES.iloc[OTHER]]),
    "shuffled together": ([DRAWS.iloc[PLACE]], [BARE.iloc[PLACE]]),
    "without iterations": ([DRAWS.drop(columns=COUNTERS[1:])], [BARE]),
    "ArviZ's names": ([renamed(DRAWS, ["chain", "iteration", "draw"]).iloc[PLACE]], [LOSSES]),
    "cmdstanpy's names": ([renamed(DRAWS, ["chain__", "iter__", "draw__"])], [LOSSES]),
    "by draw alone": ([DRAWS.iloc[PLACE]], [LOSSES.drop(columns=COUNTERS[:2]).iloc[OTHER]]),
    "a file per chain": (
        [DRAWS[DRAWS[".chain"] == k] for k in (1, 2)],
        [BARE[DRAWS[".chain"] == k] for k in (1, 2)],
    ),
    "each the only chain": (
        [DRAWS[DRAWS[".chain"] == k].assign(**{".chain": 1}) for k in (1, 2)],
        [BARE],
    ),
    "no chain in files": (
        [DRAWS[DRAWS[".chain"] == k].drop(columns=COUNTERS) for k in (1, 2)],
        [BARE],
    ),
    "a matrix": ([DRAWS], [numbered("V{}")]),
    "a data frame": ([DRAWS], [numbered("log_lik.{}.")]),
    "bare numbers": ([DRAWS], [numbered("{}")]),
    "columns by the alphabet": ([DRAWS], [BARE[sorted(BARE)]]),
    "row names": ([DRAWS.reset_index(names="")], [BARE.reset_index(names="")]),
    "row names read again": ([DRAWS.reset_index(names="X")], [BARE.reset_index(names="X")]),
    "in the draws": ([DRAWS.join(BARE)], []),
    "in the draws of a data frame": ([DRAWS.join(numbered("log_lik.{}"))], []),
}


@pytest.mark.parametrize("form", ["csv", "parquet", "feather"])
@pytest.mark.parametrize("case", SAME)
def test_names_and_orders_of_rows_mean_the_same(tmp_path: Path, case: str, form: str) -> None:
    files: list[list[Path]] = [[], []]
    for tables, paths, kind in zip(SAME[case], files, ("draws", "loglik"), strict=True):
        for k, table in enumerate(tables):
            paths.append(tmp_path / f"{kind}-{k}.{form}")
            if form == "csv":
                table.to_csv(paths[-1], index=False, quoting=2)
            elif form == "parquet":
                table.reset_index(drop=True).to_parquet(paths[-1], index=False)
            else:
                table.reset_index(drop=True).to_feather(paths[-1])
    given = [word for path in files[1] for word in ("--log-likelihood", path)]
    found = calibrated(tmp_path, *files[0], *given)
    assert list(found.index) == ["b_Intercept", "beta[1]"]
    array = DRAWS[["b_Intercept", "beta[1]"]].to_numpy().reshape(CHAINS, LENGTH, 2)
    fitted = ef.Draws.of(array, list(found.index), 1.0)
    stored = BARE.to_numpy().reshape(CHAINS, LENGTH, N)
    expected = ef.calibrate(fitted, log_likelihood=stored).summary()
    np.testing.assert_allclose(found["se"], expected["se"], rtol=1e-9)
    np.testing.assert_allclose(found["se_error"], expected["se_error"], rtol=1e-6)
    np.testing.assert_allclose(found["upper"], expected["upper"], rtol=1e-9)


# --- mistakes -----------------------------------------------------------------------------------

GAP = DRAWS.assign(b_x=DRAWS["b_Intercept"].where(DRAWS.index != 4))
#: Draws, log-likelihood, and words of the refusal.
MISTAKES: dict[str, tuple[pd.DataFrame, pd.DataFrame, str]] = {
    "NA": (GAP, LOSSES, "no finite number in row 5 of 'b_x'"),
    "Inf": (DRAWS.replace({"lp__": {1.0: np.inf}}), LOSSES, "no finite number in row 1 of 'lp__'"),
    "words": (DRAWS.assign(model="a"), LOSSES, "'model'"),
    "weights": (DRAWS.assign(**{".log_weight": 0.1}), LOSSES, "resample_draws"),
    "unequal chains": (DRAWS[5:], BARE[5:], "chains of 195 and of 200 draws"),
    "an iteration twice": (DRAWS.replace({".iteration": {3: 2}}), BARE, "twice in a chain"),
    "too few rows": (DRAWS, BARE[1:], "399 rows for 400 draws"),
    "transposed": (DRAWS, BARE.T.set_axis([f"V{k}" for k in range(400)], axis=1), "transpose"),
    "another fit": (DRAWS, LOSSES.assign(**{".iteration": LOSSES[".iteration"] + 1}), "other iter"),
    "parameters": (DRAWS, DRAWS, "not an observation"),
    "two kinds": (DRAWS, BARE.join(numbered("y_{}")), "a column per observation"),
    "twice": (DRAWS.join(BARE), LOSSES, "keep one of the two"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, case: str) -> None:
    draws, losses, told = MISTAKES[case]
    draws.to_csv(tmp_path / "draws.csv", index=False, na_rep="NA")
    losses.to_csv(tmp_path / "loglik.csv", index=False)
    asked = (tmp_path / "draws.csv", "--log-likelihood", tmp_path / "loglik.csv")
    assert told in run(*asked, "--csv", tmp_path / "out.csv", code=2)
    assert not (tmp_path / "out.csv").exists()


def test_files_of_other_kinds_are_told_by_what_they_are(tmp_path: Path) -> None:
    DRAWS.to_csv(tmp_path / "draws.csv", index=False)
    DRAWS.to_csv(tmp_path / "semicolons.csv", index=False, sep=";", decimal=",", quoting=2)
    DRAWS.to_csv(tmp_path / "tabs.csv", index=False, sep="\t")
    DRAWS.to_csv(tmp_path / "draws.csv.gz", index=False)
    (tmp_path / "fit.rds").write_bytes(b"\x1f\x8b\x08\x00")
    (tmp_path / "saved.csv").write_bytes(b"PK\x03\x04")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "header.csv").write_text("a,.chain\n")
    for name, told in {
        "semicolons.csv": "semicolons between its columns",
        "tabs.csv": "tabs between its columns",
        "draws.csv.gz": "compressed with gzip",
        "fit.rds": "R's .rds",
        "saved.csv": "a zip archive",
        "empty.csv": "it is empty",
        "header.csv": "no rows",
        "gone.csv": "there is no file",
        "draws.csv": "--log-likelihood",
    }.items():
        assert told in run(tmp_path / name, code=2), name
    asked = (tmp_path / "draws.csv", "--log-likelihood", tmp_path / "fit.rds")
    assert "compressed with gzip" in run(*asked, code=2)
    asked = (tmp_path / "draws.csv", "--log-likelihood", tmp_path / "draws.csv")
    assert "names one file twice" in run(*asked, code=2)


# --- predictions --------------------------------------------------------------------------------

NEW = pd.DataFrame({"b_Intercept": [1.0, 1.0], "beta[1]": [0.0, 2.0]})
INVERSE = {"identity": lambda u: u, "log": np.exp, "logit": lambda u: 1 / (1 + np.exp(-u))}


@pytest.mark.parametrize("link", INVERSE)
def test_rows_of_a_design_are_predicted_through_a_link(tmp_path: Path, link: str) -> None:
    """The limits are quantiles over the calibrated draws that are written beside."""
    DRAWS.join(BARE).to_csv(tmp_path / "draws.csv", index=False)
    NEW.assign(offset=[0.0, 0.5]).to_csv(tmp_path / "new.csv")
    made, back = tmp_path / "made.parquet", tmp_path / "back.csv"
    asked = (tmp_path / "draws.csv", "--predict", tmp_path / "new.csv", "--link", link)
    run(*asked, "--level", "0.9", "--predictions", made, "--csv", back)
    table, draws = pd.read_parquet(made), pd.read_csv(back)[list(NEW)].to_numpy()
    values = INVERSE[link](draws @ NEW.to_numpy().T + [0.0, 0.5])
    assert table["row"].tolist() == [1, 2]
    np.testing.assert_allclose(table[["lower", "upper"]].T, np.quantile(values, [0.05, 0.95], 0))
    told = run(*asked)
    assert f"{table['estimate'][1]:.4g}" in told


def test_what_cannot_be_predicted_is_refused(tmp_path: Path) -> None:
    draws, new = tmp_path / "draws.csv", tmp_path / "new.csv"
    DRAWS.join(BARE).to_csv(draws, index=False)
    cases: list[tuple[pd.DataFrame, list[object], str]] = [
        (NEW, ["--predict", new], "identity, log, logit"),
        (NEW, ["--predict", new, "--link", "probit"], "probit"),
        (NEW, ["--link", "log"], "--predict"),
        (NEW, ["--predictions", tmp_path / "out.csv"], "--predict"),
        (NEW.rename(columns={"beta[1]": "b_x"}), ["--predict", new, "--link", "log"], "['b_x']"),
        (NEW.assign(g="a"), ["--predict", new, "--link", "log"], "'g'"),
        (NEW.replace(2.0, np.nan), ["--predict", new, "--link", "log"], "finite"),
        (NEW, ["--predict", tmp_path / "gone.csv", "--link", "log"], "there is no file"),
    ]
    for table, asked, told in cases:
        table.to_csv(new, index=False)
        assert told in run(draws, *asked, code=2), asked
    assert not (tmp_path / "out.csv").exists()


def test_a_result_that_was_loaded_predicts_by_names(tmp_path: Path) -> None:
    """What a criterion predicts at rows of its formula its draws predict at rows of its design."""
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"x": rng.standard_normal(60)})
    data["y"] = (rng.random(60) < INVERSE["logit"](data["x"])).astype(float)
    criterion = ef.Criterion.from_formula("y ~ x", data, ef.losses.Logistic())
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    result = ef.calibrate(ef.sample(posterior, draws=500, seed=1), posterior)
    loaded = ef.Calibration.load(result.save(tmp_path / "result.npz"))
    design = pd.DataFrame({"Intercept": 1.0, "x": [0.0, 1.0]})
    for kind in ("draws", "wald"):
        expected = result.predict(design[["x"]], kind=kind)
        found = loaded.predict(design, link="logit", kind=kind)
        pd.testing.assert_frame_equal(found, expected, rtol=1e-9)
    refused("predict", "link=", lambda: loaded.predict(design))
    refused("link", "leave it out", lambda: result.predict(design, link="logit"))
    refused("newdata", "['z']", lambda: loaded.predict(design.assign(z=1.0), link="logit"))
    refused("newdata", "list", lambda: loaded.predict([1.0], link="logit"))
    refused("offset", "2 rows", lambda: loaded.predict(design, link="log", offset=np.ones(3)))
    twice = design.assign(offset=1.0)
    refused("offset", "a column", lambda: loaded.predict(twice, link="log", offset=1.0))


def test_a_loss_of_the_user_s_own_predicts_through_a_link() -> None:
    """It has a criterion, and no design that would tell how rows become predictions."""
    pytest.importorskip("jax")
    rng = np.random.default_rng(1)
    data = {"x": rng.standard_normal(80), "y": rng.standard_normal(80)}

    def loss(theta, row):
        return 0.5 * (row["y"] - theta["a"] - theta["b"] * row["x"]) ** 2

    start = {"a": 0.0, "b": 0.0}
    criterion = ef.Criterion(ef.JaxLoss(loss), data, start=start)
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    result = ef.calibrate(ef.sample(posterior, draws=400, seed=1), posterior)
    rows = pd.DataFrame({"a": [1.0, 1.0], "b": [0.0, 3.0]})
    found = result.predict(rows, link="log", kind="wald")
    np.testing.assert_allclose(found["estimate"], np.exp(rows @ result.target.center))
    refused("predict", "link=", lambda: result.predict(rows))


# --- the words of the shell ---------------------------------------------------------------------


def test_errors_and_warnings_speak_of_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = [str(STORED / f"brms-groups{end}.csv") for end in ("", "-loglik")]
    DRAWS.join(BARE).to_csv(tmp_path / "draws.csv", index=False)
    cases = {
        ("nothing.nc",): "etafree: fit: ",
        (groups[0], "--log-likelihood", groups[1]): "not group effects, pass --conditional",
        (groups[0],): "etafree: --log-likelihood: is not in",
        (
            str(tmp_path / "draws.csv"),
            "--clusters",
            "g",
        ): "etafree: --clusters['g']: names no column",
        ("x.nc", "--clusters", str(STORED / "data.csv")): "data.csv:school",
        ("x.nc", "--keep-all"): "etafree: --keep-all: goes with --out",
        ("x.nc", "--link", "log"): "etafree: --link: goes with --predict",
    }
    for arguments, told in cases.items():
        monkeypatch.setattr("sys.argv", ["etafree", "calibrate", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert told in said
        assert "ef." not in said
    labels = tmp_path / "labels.csv"
    pd.DataFrame({"g": np.arange(N) // 3}).to_csv(labels, index=False)
    asked = ["etafree", "calibrate", str(tmp_path / "draws.csv"), "--clusters", f"{labels}:g"]
    monkeypatch.setattr("sys.argv", asked)
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().out
    assert "clusters are few: in Python pass model= or a criterion" in said
    assert "details()" not in said


def test_help_fits_a_terminal_of_80_columns() -> None:
    """Lines of a docstring are kept as they are, and a longer one would be broken in two."""
    texts = [info.callback.__doc__ for info in app.registered_commands if info.callback]
    texts.append(app.registered_callback.callback.__doc__ if app.registered_callback else None)
    for text in texts:
        assert text
        assert max(map(len, map(str.strip, text.splitlines()))) <= 78, text


def test_warnings_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the place in the code, which says nothing to the shell's user."""
    shown = warnings.showwarning

    def work() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("few draws: pass eta=", ef.errors.CalibrationWarning, stacklevel=1)

    monkeypatch.setattr("etafree.cli.app", work)
    main()
    assert capsys.readouterr().err == "etafree: warning: few draws: pass --eta\n"
    assert warnings.showwarning is shown
