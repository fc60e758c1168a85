"""Bad inputs found by trying to break things: each was once accepted or raised a raw error."""

import gc

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from etafree import losses, penalties
from etafree.errors import EtafreeError

N, P = 40, 3
R = np.random.default_rng(0)
X = np.column_stack([np.ones(N), R.standard_normal((N, 2))])
Y = X @ [1.0, 2.0, -1.0] + R.standard_normal(N)
W, V, G = np.ones(N), np.eye(3), np.arange(N) % 10
C = ef.Criterion(losses.Squared(), (X, Y), names=["a", "b", "c"])
POST = ef.GeneralizedPosterior(C, 1.0)
D = 1 + R.standard_normal((300, 3)) * [0.1, 0.2, 0.3]
DF = pd.DataFrame({"y": Y, "x": X[:, 1], "k": ["u"] * N, "g": G})


def crit(loss=None, X=X, y=Y, penalty=None, **k):
    return ef.Criterion(loss or losses.Squared(), (X, y), penalty, **k)


def form(f, d=DF, **k):
    return ef.Criterion.from_formula(f, d, losses.Squared(), **k)


def res(**k):
    return ef.calibrate(D, C, **k)


MAP = ef.LocationScaleMap.between(np.zeros(3), V, np.ones(3), V)
READ_ONLY = np.empty_like(D)
READ_ONLY.flags.writeable = False
TRIALS = crit(losses.Logistic(), y=1.0 * (Y > 0), trials=W)
GP = ef.GeneralizedPosterior(C, 1.0, ef.LogPrior.normal(np.zeros(3), 100 * V))
HUBER = crit(losses.Huber())

CASES = {
    "other Draws names": ("names|draws", lambda: ef.calibrate(ef.Draws.of(D, ["q", "r", "s"]), C)),
    "other Draws names, Target": (
        "names|draws",
        lambda: ef.calibrate(ef.Draws.of(D, ["q", "r", "s"]), ef.target(C)),
    ),
    "value ignored by 'a - b'": ("value", lambda: res().test("a - b = 0", 5.0)),
    "value NaN ignored": ("value", lambda: res().test("a - b", np.nan)),
    "'a = b = 0' drops '= 0'": ("contrast", lambda: res().test("a = b = 0")),
    "NaN among string labels in a list": (
        "clusters",
        lambda: ef.target(C, clusters=[f"g{k}" for k in G[:-1]] + [np.nan]),
    ),
    "masked X": ("X", lambda: crit(X=np.ma.masked_array(X, X > 1))),
    "masked y": ("y", lambda: crit(y=np.ma.masked_array(Y, Y > 1))),
    "masked draws": ("draws", lambda: ef.calibrate(np.ma.masked_array(D, D > 1.2), C)),
    "masked clusters": ("clusters", lambda: ef.target(C, clusters=np.ma.masked_array(G, G == 3))),
    "datetime y": ("y", lambda: crit(y=np.arange(N).astype("M8[D]"))),
    "timedelta NaT y": ("y", lambda: crit(y=np.full(N, np.timedelta64("NaT", "D"), dtype="m8[D]"))),
    "datetime X": ("X", lambda: crit(X=pd.DataFrame({"t": pd.date_range("2020", periods=N)}))),
    "numeric strings X": ("X", lambda: crit(X=X.astype(str))),
    "numeric strings draws": ("draws", lambda: ef.calibrate(D.astype(str), C)),
    "eta '1.0'": ("eta", lambda: ef.GeneralizedPosterior(C, "1.0")),
    "level '0.9'": ("level", lambda: res(level="0.9")),
    "Huber('1.0')": ("c", lambda: losses.Huber("1.0")),
    "StudentT('4')": ("df", lambda: losses.StudentT("4")),
    "Ridge('1')": ("strength", lambda: crit(penalty=penalties.Ridge("1"))),
    "names 'abc' split into letters": ("names", lambda: crit(names="abc")),
    "names set (no order)": ("names", lambda: crit(names={"a", "b", "c"})),
    "plot('ab')": ("var_names", lambda: res().plot("ab")),
    "eta= against posterior.eta": (
        "eta",
        lambda: ef.calibrate(D, ef.GeneralizedPosterior(C, 2.0), eta=3.0),
    ),
    "response of one text level": ("formula", lambda: form("k ~ x")),
    "out overlaps draws": ("out", lambda: (lambda b: MAP(b[:300], b[1:]))(np.vstack([D, D[:1]]))),
    "weight_kind unknown, no weights": ("weight_kind", lambda: crit(weight_kind="nonsense")),
    "with_loss on trials data": ("loss", lambda: TRIALS.with_loss(losses.Poisson())),
    "values_at (p,)": ("thetas|theta", lambda: C.values_at(np.ones(3))),
    "near-dependent contrast": ("contrast", lambda: res().test([[1.0, 0, 0], [1.0, 1e-14, 0]])),
    "of(): wrong length": ("function", lambda: res().of(lambda t: np.ones(7))),
    "of(): NaN": ("function", lambda: res().of(lambda t: t["a"] * np.nan)),
    "Draws ctor": ("names", lambda: ef.Draws(D[None], ("a", "b"))),
    "LocationScaleMap ctor": (
        "scale",
        lambda: ef.LocationScaleMap(np.ones(3), np.ones(3), np.nan * V, ("a", "b", "c")),
    ),
    "Target ctor in calibrate": (
        "center|criterion",
        lambda: ef.calibrate(
            D, ef.Target(np.nan * np.ones(3), V, ("a", "b", "c"), np.full(3, np.inf))
        ),
    ),
    "target(mean=bad) unused": ("mean", lambda: ef.target(C, mean=[np.nan, "x", 0])),
    "minimise(start=) skips collinearity": (
        "X",
        lambda: ef.minimise(
            crit(
                X=np.column_stack([X, X[:, 1] + 1e-7 * np.random.default_rng(1).standard_normal(N)])
            ),
            np.zeros(4),
        ),
    ),
    "huberized_l1 width inf": ("width", lambda: penalties.huberized_l1(1.0, np.inf)),
    "1 and '1' become one cluster": (
        "clusters",
        lambda: ef.target(C, clusters=np.array(([1, "1", *range(2, 10)]) * 4, dtype=object)),
    ),
    "sample 10 draws": ("draws", lambda: ef.sample(POST, 10, seed=0)),
    "sample 2 draws": ("draws", lambda: ef.sample(POST, 2, seed=0)),
    "minimise('x')": ("criterion", lambda: ef.minimise("x")),
    "with_loss('x')": ("loss", lambda: C.with_loss("x")),
    "with_penalty('x')": ("penalty", lambda: C.with_penalty("x")),
    "LogPrior.from_penalty('x')": ("penalty", lambda: ef.LogPrior.from_penalty("x", 3)),
    "LogPrior.from_penalty(p='x')": (
        "p",
        lambda: ef.LogPrior.from_penalty(penalties.Ridge(1.0), "x"),
    ),
    "dof 'abc'": ("dof", lambda: ef.target(C, dof="abc")),
    "dof 1j": ("dof", lambda: ef.Target(np.ones(3), V, dof=1j)),
    "tau 'abc'": ("tau", lambda: losses.Quantile("abc", 0.1)),
    "tau None": ("tau", lambda: losses.Quantile(None, 0.1)),
    "width 'abc'": ("width", lambda: penalties.huberized_l1(1.0, "abc")),
    "eta 10**400": ("eta", lambda: ef.GeneralizedPosterior(C, 10**400)),
    "level 10**400": ("level", lambda: res(level=10**400)),
    "strength 10**400": ("strength", lambda: crit(penalty=penalties.Ridge(10**400))),
    "X 10**400": ("X", lambda: crit(X=np.array([[10**400], [1]], dtype=object), y=[1.0, 2.0])),
    "Draws.of(Draws, eta='abc')": ("eta", lambda: ef.Draws.of(ef.Draws.of(D, eta=0.5), eta="abc")),
    "Draws.of(Draws, eta=pd.NA)": ("eta", lambda: ef.Draws.of(ef.Draws.of(D, eta=0.5), eta=pd.NA)),
    "names 5": ("names", lambda: crit(names=5)),
    "calibrate names 5": (
        "names",
        lambda: ef.calibrate(ef.Draws.of(D, 5), center="mean", covariance=V),
    ),
    "target mean short": ("mean", lambda: ef.target(C, center="mean", mean=np.ones(2))),
    "target mean NaN": ("mean", lambda: ef.target(C, center="mean", mean=np.array([1, np.nan, 1]))),
    "target mean inf": ("mean", lambda: ef.target(C, center="mean", mean=np.array([1, np.inf, 1]))),
    "target one_step mean NaN blames start": (
        "mean",
        lambda: ef.target(C, center="one_step", mean=np.array([1, np.nan, 1])),
    ),
    "ragged center": ("center", lambda: ef.calibrate(D, C, center=[[1.0, 2.0], [3.0]])),
    "Target.given empty": ("center", lambda: ef.Target([], np.empty((0, 0)))),
    "between empty": (
        "mean",
        lambda: ef.LocationScaleMap.between([], np.empty((0, 0)), [], np.empty((0, 0))),
    ),
    "LogPrior.normal empty": ("mean", lambda: ef.LogPrior.normal([], np.empty((0, 0)))),
    "values_at width": ("thetas|theta", lambda: C.values_at(np.ones((2, 4)))),
    "values_at text": ("thetas|theta", lambda: C.values_at(np.array([["x", 1, 2]], dtype=object))),
    "derivatives width": ("theta", lambda: C.derivatives(np.ones(4))),
    "derivatives inf": ("theta", lambda: C.derivatives(np.array([np.inf, 0, 0]))),
    "'~ x'": ("formula", lambda: form("~ x")),
    "'y ~ x | g'": ("formula", lambda: form("y ~ x | g")),
    "complex column": ("X|formula", lambda: form("y ~ x", DF.assign(x=X[:, 1] + 1j))),
    "complex response": ("y|formula", lambda: form("y ~ x", DF.assign(y=Y + 1j))),
    "contrast ''": ("contrast", lambda: res().test("")),
    "contrast {'a': 'x'}": ("contrast", lambda: res().test({"a": "x"})),
    "contrast {'a': nan}": ("contrast", lambda: res().test({"a": np.nan})),
    "contrast {'a': 1j}": ("contrast", lambda: res().test({"a": 1j})),
    "contrast 1e-300 * I": ("contrast", lambda: res().test(1e-300 * np.eye(3))),
    "contrast nearly dependent": ("contrast", lambda: res().test([[1, 0, 0], [1, 1e-9, 0]])),
    "of('x')": ("function", lambda: res().of("x")),
    "of() text": ("function", lambda: res().of(lambda t: "x")),
    "of() complex": ("function", lambda: res().of(lambda t: t["a"] * 1j)),
    "plot([])": ("var_names", lambda: res().plot([])),
    "plot twice": ("var_names", lambda: res().plot(["a", "a"])),
    "plot(5)": ("var_names", lambda: res().plot(5)),
    "region.boundary(0, 5)": ("j", lambda: res().region().boundary(0, 5)),
    "region.boundary p = 1": (
        "j",
        lambda: ef.calibrate(D[:, 0], center=0.0, covariance=1.0).region().boundary(),
    ),
    "map out list": ("out", lambda: MAP(D, D.tolist())),
    "map out read-only": ("out", lambda: MAP(D, READ_ONLY)),
    "log_prior of another p": (
        "log_prior",
        lambda: ef.GeneralizedPosterior(C, 1.0, ef.LogPrior.normal(np.zeros(2), np.eye(2))),
    ),
    "log_prior not callable": (
        "log_prior",
        lambda: ef.GeneralizedPosterior(C, 1.0, ef.LogPrior(1, 2, 3)),
    ),
    "SmoothPenalty not callable": (
        "penalty",
        lambda: crit(penalty=penalties.SmoothPenalty(1.0, 3, 4, 5)),
    ),
    "repr with an unscaled prior and a covariance": (
        None,
        lambda: repr(ef.calibrate(D, GP, center="mean", covariance=V)),
    ),
    "repr where the Hessian is singular": (
        None,
        lambda: repr(ef.calibrate(D + 100, HUBER, map=ef.Map(kind="scale"))),
    ),
    "dof 1e-3": ("dof", lambda: ef.target(C, dof=1e-3)),
    "draws 1e200": ("draws", lambda: ef.calibrate(D * 1e200, center="mean", covariance=V)),
    "covariance 1e200": (
        "covariance",
        lambda: ef.calibrate(D, center="mean", covariance=V * 1e200),
    ),
    "X 1e200": ("X", lambda: ef.target(crit(X=X * 1e200))),
    "weights 1e308": ("weights", lambda: crit(weights=W * 1e308, weight_kind="sampling")),
    "eta 1e-320": ("eta", lambda: ef.sample(ef.GeneralizedPosterior(C, 1e-320), 100)),
    "start 1e4 (Poisson)": ("start", lambda: ef.minimise(crit(losses.Poisson(), y=W), [1e4, 0, 0])),
    "singular map inverse": (
        "scale",
        lambda: ef.LocationScaleMap(np.ones(3), np.ones(3), 0 * V, ("a", "b", "c")).inverse(D),
    ),
    "Draws(2-d)": ("values", lambda: ef.calibrate(ef.Draws(D, ("a", "b", "c")), C)),
    "draws too wide blames names": (
        "draws",
        lambda: ef.calibrate(np.column_stack([D, D[:, 0] ** 2]), C),
    ),
    "draws too narrow blames names": ("draws", lambda: ef.calibrate(D[:, :2], ef.target(C))),
    "criterion of a wrong type blames clusters": ("of", lambda: ef.calibrate(D, "x", clusters=G)),
    "n = p least squares": (
        None,
        lambda: ef.minimise(ef.Criterion(losses.Squared(), (X[:3], Y[:3]))),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case):
    argument, call = CASES[case]
    if argument is None:
        call()
        return
    with pytest.raises(EtafreeError) as info:
        call()
    assert info.value.argument in argument.split("|")


def test_one_cluster_under_the_default_correction_is_called_one_cluster():
    with pytest.raises(EtafreeError, match="only one cluster"):
        ef.target(C, clusters=["all"] * N)


def test_messages_hold_no_terminal_escapes():
    for call in (lambda: form("y ~ x +"), lambda: res().test("a +")):
        with pytest.raises(EtafreeError) as info:
            call()
        assert "\x1b" not in str(info.value)
        assert "⧛" not in str(info.value)


def test_separated_by_a_group_that_fits_exactly():
    half = np.arange(N) >= N // 2
    with pytest.raises(EtafreeError, match="runs off to infinity"):
        ef.minimise(ef.Criterion(losses.Poisson(), (np.column_stack([W, half]), 3.0 * ~half)))


@pytest.mark.parametrize("cut", [0.5, 0.99])
def test_a_truncated_save_is_refused_and_its_file_closed(cut, tmp_path):
    path = res().save(tmp_path / "r.npz")
    path.write_bytes(path.read_bytes()[: int(cut * path.stat().st_size)])
    with pytest.raises(EtafreeError, match="not a file saved by etafree"):
        ef.Calibration.load(path)
    gc.collect()


META = '{"etafree": "map", "names": ["a", "b", "c"]}'
PARTS = {
    "no arrays": {},
    "extra": {"mean": np.ones(3), "offset": np.ones(3), "scale": V, "extra": np.ones(1)},
    "NaN": {"mean": np.nan * np.ones(3), "offset": np.ones(3), "scale": V},
    "shape": {"mean": np.ones(3), "offset": np.ones(2), "scale": V},
}


@pytest.mark.parametrize("parts", PARTS)
def test_a_map_with_parts_missing_or_wrong_is_refused(parts, tmp_path):
    np.savez(tmp_path / "m.npz", __meta__=np.array(META), **PARTS[parts])
    with pytest.raises(EtafreeError):
        ef.LocationScaleMap.load(tmp_path / "m.npz")


@pytest.mark.parametrize("what", [ef.Calibration, ef.LocationScaleMap])
def test_a_save_without_names_is_refused(what, tmp_path):
    kind = "map" if what is ef.LocationScaleMap else "calibration"
    np.savez(tmp_path / "m.npz", __meta__=np.array(f'{{"etafree": "{kind}"}}'))
    with pytest.raises(EtafreeError):
        what.load(tmp_path / "m.npz")


@pytest.mark.parametrize("path", [3.0, None, b"x", "", "folder", "a\0b", "x" * 300])
def test_saving_to_an_impossible_path_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(EtafreeError):
        MAP.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["folder.npz"]


LATE = {
    "hessian": lambda: ef.target(C, hessian=-V),
    "meat": lambda: ef.target(C, meat=-V),
    "dof": lambda: ef.target(C, dof=-1.0),
    "one cluster": lambda: ef.target(C, clusters=np.zeros(N)),
    "sampler=quadrature with p = 3": lambda: ef.sample(POST, sampler="quadrature"),
    "a map from the curvature without eta": lambda: res(map=ef.Map(working="curvature")),
}


@pytest.mark.parametrize("case", LATE)
def test_refused_before_the_criterion_is_minimised(case, monkeypatch):
    def fit(*a, **k):
        pytest.fail("minimised first")

    monkeypatch.setattr("etafree.sandwich.minimise", fit)
    monkeypatch.setattr("etafree.samplers.variational.minimise", fit)
    with pytest.raises(EtafreeError):
        LATE[case]()


def test_errors_cross_process_boundaries():
    import pickle

    from etafree.errors import InputError, MissingExtraError, NotPositiveDefiniteError

    for error in (
        InputError("eta", "is -1", "pass eta > 0"),
        NotPositiveDefiniteError("covariance", -0.5, "fix it"),
        MissingExtraError("jax", "your own losses"),
    ):
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error)
        assert str(back) == str(error)
        assert back.__dict__ == error.__dict__
