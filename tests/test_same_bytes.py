"""Any number of threads gives the same bytes, and behaves as one thread does."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import etafree as ef
from conftest import LOSSES, make_case, refused
from etafree.foundation import threads
from etafree.foundation.threads import in_threads, thread_count, usable_cores

COUNTS = (1, 2, 3)


@pytest.fixture(autouse=True)
def _no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(threads.VARIABLE, raising=False)
    monkeypatch.setattr(threads._here, "asked", None, raising=False)


@pytest.fixture
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut data of a few hundred rows into several tasks."""
    monkeypatch.setattr("etafree.totals.linear.TOTALS_ROWS", 16)
    monkeypatch.setattr("etafree.totals.linear.THREAD_ROWS", 50)
    monkeypatch.setattr("etafree.totals.linear.THREAD_POINTS", 30)
    monkeypatch.setattr("etafree.totals.linear.FOLDED", 100)
    monkeypatch.setattr("etafree.totals.linear.CHUNK", 100)
    monkeypatch.setattr("etafree.optimize.many.SPAN", 1)
    monkeypatch.setattr("etafree.resampling.weights.NUMBERS", 1 << 12)
    monkeypatch.setattr("etafree.inference.BLOCK", 1 << 10)
    monkeypatch.setattr("etafree.inference.RESAMPLED", 1 << 10)


def same_bytes(call) -> None:
    """Assert that a call returns the same bytes with every number of threads."""
    results = [call(count) for count in COUNTS]
    assert all(result.tobytes() == results[0].tobytes() for result in results[1:])


@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize("weights", ["none", "frequency", "sampling"])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_draws_are_the_same_bytes(name, weights):
    options = {}
    if weights != "none":
        options = {"weights": np.arange(300) % 3 + 1.0, "weight_kind": weights}
    criterion = make_case(name, n=300).criterion(**options)
    posterior = ef.GeneralizedPosterior(criterion, 0.5)
    same_bytes(lambda count: ef.sample(posterior, 200, seed=1, threads=count).array)
    for draw in (ef.bootstrap, ef.loss_likelihood_bootstrap):
        same_bytes(lambda count, draw=draw: draw(criterion, 60, seed=2, threads=count).array)
    imagined = {"horizon": 200, "seed": 2}
    same_bytes(lambda c: ef.martingale_posterior(criterion, 60, **imagined, threads=c).array)


@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize("sampler", ["importance", "elliptical"])
def test_samplers_of_log_densities_give_the_same_bytes(sampler):
    posterior = ef.GeneralizedPosterior(make_case("huber", n=300).criterion(), 1.0)
    same_bytes(lambda count: ef.sample(posterior, 60, 3, sampler, threads=count).array)


@pytest.mark.usefixtures("many_tasks")
def test_bootstraps_of_clusters_and_of_kinks_give_the_same_bytes():
    labels = np.arange(300) // 10
    case = make_case("huber", n=300)
    result = ef.calibrate(
        np.random.default_rng(0).standard_normal((200, 3)), case.criterion(), clusters=labels
    )
    kinked = ef.Criterion(ef.losses.Check(0.3), (case.X, case.y))
    calls = [
        lambda: ef.bootstrap(case.criterion(), 40, clusters=labels, seed=1).array,
        lambda: ef.bootstrap(kinked, 10, seed=1).array,
        lambda: result.bootstrap_t(draws=299, seed=1).to_numpy(),
        lambda: np.array(list(vars(result.wild_bootstrap(result.names[1], draws=299)).values())),
    ]

    def with_setting(count, call):
        with ef.threads(count):
            return call()

    for call in calls:
        same_bytes(lambda count, call=call: with_setting(count, call))


def test_results_come_in_the_order_of_tasks_and_tasks_are_drawn_as_needed():
    drawn, most = 0, 0

    def tasks():
        nonlocal drawn
        for k in range(40):
            drawn += 1
            yield k

    def slow_at_first(k):
        time.sleep(0.02 if k % 7 == 0 else 0.0)
        return k

    with ef.threads(3):
        for k, result in enumerate(in_threads(slow_at_first, tasks(), 1)):
            assert k == result
            most = max(most, drawn - k)
    assert most <= 7  # three at work, as many waiting, and the one that was yielded


def test_tasks_run_in_other_threads_which_start_none_themselves():
    def inner(_):
        return threading.current_thread().name, thread_count(10**9)

    with ef.threads(2):
        names, counts = zip(*in_threads(inner, range(8), 1), strict=True)
    assert all(name.startswith("etafree") for name in names)
    assert set(counts) == {1}


@pytest.mark.parametrize("count", COUNTS)
def test_an_error_is_that_of_the_first_task_that_fails(count):
    def work(k):
        if k >= 3:
            raise KeyError(k)
        return k

    with ef.threads(count):
        results = in_threads(work, range(50), 1)
        assert [next(results), next(results), next(results)] == [0, 1, 2]
        with pytest.raises(KeyError, match="3"):
            next(results)


class Explosive(ef.losses.Squared):
    def values(self, u, y):
        return np.exp(u)


class Angry(ef.losses.Squared):
    def values(self, u, y):
        raise ZeroDivisionError("the user's own")


@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize("count", COUNTS)
def test_an_error_of_a_loss_comes_out_as_itself(count):
    total = ef.Criterion(Angry(), (np.ones((300, 1)), np.arange(300.0))).total
    with ef.threads(count), pytest.raises(ZeroDivisionError, match="the user's own"):
        total.totals(np.zeros((50, 1)))


@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize("count", COUNTS)
def test_floating_point_errors_are_raised_where_the_caller_wants_it(count):
    total = ef.Criterion(Explosive(), (np.ones((300, 1)), np.arange(300.0))).total
    with ef.threads(count), np.errstate(over="raise"), pytest.raises(FloatingPointError):
        total.totals(np.full((50, 1), 1e4))


def test_small_data_take_one_thread_and_large_ones_every_core(monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: 6)
    assert (thread_count(threads.MANY - 1), thread_count(threads.MANY)) == (1, 6)
    monkeypatch.setenv(threads.VARIABLE, "3")
    assert (thread_count(1), thread_count(threads.MANY)) == (3, 3)
    with ef.threads(2):
        assert thread_count(threads.MANY) == 2
        with ef.threads(None):
            assert thread_count(threads.MANY) == 3
        assert thread_count(1) == 2
    assert thread_count(1) == 3
    setting = ef.threads(5)  # without a block, from now on
    assert thread_count(1) == 5
    setting.__exit__()
    assert thread_count(1) == 3


def test_what_is_no_number_of_threads_is_refused(monkeypatch):
    criterion = make_case("huber").criterion()
    for wrong in (0, -1, 1.5, "many", 10**6):
        refused("threads", "is", lambda wrong=wrong: ef.threads(wrong))
        refused("threads", "is", lambda wrong=wrong: ef.minimise(criterion, threads=wrong))
    assert getattr(threads._here, "asked", None) is None
    monkeypatch.setenv(threads.VARIABLE, "two")
    refused(threads.VARIABLE, "is 'two'", lambda: thread_count(1))


def test_other_threads_take_one_unless_they_ask(monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: 6)
    seen = []

    def look():
        seen.append(thread_count(threads.MANY))
        with ef.threads(2):
            seen.append(thread_count(1))

    with ef.threads(4):
        other = threading.Thread(target=look)
        other.start()
        other.join(60)
    assert seen == [1, 2]


JOBS = """
import sys
import joblib
import numpy as np
import etafree as ef
from etafree.foundation.threads import MANY, thread_count

X = np.random.default_rng(0).standard_normal((40_000, 2))
total = ef.Criterion(ef.losses.Huber(), (X, X[:, 0] ** 2)).total

def work(k):
    with ef.threads(2):  # a pool of its own
        sums = total.totals(np.ones((5, 2)))
    return thread_count(MANY), sums.tobytes()

here = work(0)  # with threads that a forked process does not have
assert here[0] == 4
for backend in ("loky", "multiprocessing", "threading"):
    jobs = joblib.Parallel(2, backend=backend)(joblib.delayed(work)(k) for k in range(2))
    assert jobs == [(1, here[1])] * 2, (backend, jobs)
"""


def test_workers_of_joblib_take_one_thread_each():
    environment = {**os.environ, threads.VARIABLE: "4"}
    subprocess.run([sys.executable, "-c", JOBS], check=True, env=environment, timeout=300)


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/", {"cpu.max": "max 100000"}, []),
        ("0::/", {"cpu.max": "150000 100000"}, [1.5]),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, [2.0]),
        (
            "3:cpuset:/x\n2:cpu,cpuacct:/docker/c\n1:name=systemd:/",
            {"cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            [0.5],
        ),
        ("2:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, []),
    ],
)
def test_control_groups_limit_the_cores(tmp_path, group, files, cores):
    files = {"proc/self/cgroup": group, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}
    for name, text in files.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
    assert list(threads._quotas(tmp_path)) == cores


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert list(threads._quotas(tmp_path)) == []
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


WORK = """
import signal, sys, time
import numpy as np
import etafree as ef
signal.signal(signal.SIGINT, signal.default_int_handler)
rng = np.random.default_rng(0)
X = rng.standard_normal((200_000, 5))
criterion = ef.Criterion(ef.losses.Logistic(), (X, (rng.random(200_000) < 0.5) * 1.0))
work = {
    "sample": lambda n: criterion.total.totals(np.zeros((n, 5))),
    "bootstrap": lambda n: ef.bootstrap(criterion, n),
}[sys.argv[1]]
with ef.threads(2):
    work(8); print("ready", flush=True)
    try:
        work(10**6)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["sample", "bootstrap"])
def test_ctrl_c_ends_threads(name):
    command = [sys.executable, "-c", WORK, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[0] == "interrupted\n"  # on a busy machine
        finally:
            process.kill()
    assert process.returncode == 0


@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize("weight_kind", [None, "frequency", "sampling"])
@pytest.mark.parametrize(
    ("clusters", "correction"),
    [
        *((None, f"HC{k}") for k in range(4)),
        *(("sorted", name) for name in ("CR0", "CR1", "CR2", "CR3")),
        ("scattered", "CR1"),
        ("scattered", "CR3"),
        ("two ways", "CR3"),
    ],
)
def test_sandwiches_are_the_same_bytes(clusters, correction, weight_kind):
    labels = {
        None: None,
        "sorted": np.arange(300) // 5,
        "scattered": np.arange(300) * 7 % 60,
        "two ways": [np.arange(300) // 20, np.arange(300) % 15],
    }[clusters]
    options = {}
    if weight_kind is not None:
        options = {"weights": np.arange(300) % 3 + 1.0, "weight_kind": weight_kind}

    def everything(count: int) -> np.ndarray:
        criterion = make_case("student_t", n=300).criterion(**options)
        target = ef.target(criterion, clusters=labels, correction=correction, threads=count)
        draws = np.random.default_rng(0).standard_normal((100, 3))
        with ef.threads(count):
            result = ef.calibrate(draws, criterion, clusters=labels, correction=correction)
            checks = result.diagnostics()
        numbers = [target.center, target.covariance.ravel(), np.ravel(target.dof)]
        return np.concatenate(
            [*numbers, result.draws.values.ravel(), checks["value"].to_numpy(float)]
        )

    same_bytes(everything)


@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_fits_are_the_same_bytes(name):
    def everything(count: int) -> np.ndarray:
        criterion = make_case(name, n=300).criterion()
        fit = ef.minimise(criterion, threads=count)
        target = ef.target(criterion, threads=count)
        return np.concatenate([fit.theta, fit.hessian.ravel(), target.covariance.ravel()])

    same_bytes(everything)


@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize("name", ["huber", "logistic", "poisson"])
@pytest.mark.parametrize("stride", [1, 7])
def test_compiled_sums_are_the_same_bytes(name, stride, monkeypatch):
    monkeypatch.setattr("etafree.totals.linear.COMPILE_FROM", 1)
    labels = np.arange(300) * stride % 60 if stride > 1 else np.arange(300) // 5

    def everything(count: int) -> np.ndarray:
        criterion = make_case(name, n=300).criterion()
        target = ef.target(criterion, clusters=labels, correction="CR1", threads=count)
        return np.concatenate([target.center, target.covariance.ravel()])

    same_bytes(everything)
    plain = everything(1)
    monkeypatch.undo()
    np.testing.assert_allclose(everything(1), plain, rtol=1e-9, atol=1e-12)


def test_the_package_itself_can_be_pickled():
    """As by cloudpickle, of a function in a notebook that mentions it."""
    assert pickle.loads(pickle.dumps(ef)) is ef
