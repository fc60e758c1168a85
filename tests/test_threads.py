"""Calls in several threads at once leave the number of BLAS threads as it was."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import etafree as ef
from etafree.errors import InputError
from etafree.foundation.threads import own_settings

BLAS = ThreadpoolController().select(user_api="blas")


def counts() -> set[int]:
    """Numbers of threads of the BLAS libraries in this process: numpy's, and maybe scipy's."""
    return {library["num_threads"] for library in BLAS.info()}


@pytest.fixture(params=["set by a thread that is gone", "set here"], autouse=True)
def two_blas_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Two BLAS threads, as any thread may change them or, in threadpoolctl, this one only."""
    if request.param == "set here":
        with BLAS.limit(limits=2):
            yield from _if_there_are_two()
        return
    before = BLAS.limit(limits=None)
    in_threads(lambda: BLAS.limit(limits=2))
    try:
        yield from _if_there_are_two()
    finally:
        in_threads(before.restore_original_limits)


def _if_there_are_two() -> Iterator[None]:
    if counts() != {2}:
        pytest.skip("this BLAS has one thread only")
    yield


def in_threads(*targets) -> list[BaseException]:
    """Run functions in threads of their own; return what they raised."""
    raised: list[BaseException] = []

    def run(target) -> None:
        try:
            target()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return raised


@pytest.mark.parametrize("fails", [(), ("first",), ("second",), ("first", "second")])
def test_of_two_calls_that_overlap_the_last_to_end_restores_the_counts(fails):
    """The second call starts under the first one's limit and ends after it."""
    started, ended = threading.Event(), threading.Event()
    seen = {}

    @own_settings
    def work(name, wait):
        if name == "first":
            started.set()
        wait()
        seen[name] = min(counts())
        if name in fails:
            raise KeyError(name)

    def first():
        try:
            work("first", lambda: second_started.wait(60))
        finally:
            ended.set()

    second_started = threading.Event()

    def second():
        started.wait(60)

        def wait():
            second_started.set()
            ended.wait(60)

        work("second", wait)

    raised = in_threads(first, second)
    assert sorted(error.args[0] for error in raised) == sorted(fails)
    assert seen == {"first": 1, "second": 1}
    assert counts() == {2}


def test_a_call_within_a_call_keeps_the_limit_until_the_outer_one_ends():
    inner = own_settings(lambda: min(counts()))

    @own_settings
    def outer():
        return inner(), min(counts())

    assert outer() == (1, 1)
    assert counts() == {2}


def test_many_public_calls_in_threads_restore_the_counts_whether_or_not_they_raise():
    rng = np.random.default_rng(0)
    data = rng.standard_normal((60, 2)), rng.standard_normal(60)
    criterion = ef.Criterion(ef.losses.Huber(), data)
    draws = rng.standard_normal((200, 2))

    def good():
        for _ in range(5):
            ef.calibrate(draws, criterion).diagnostics()

    def bad():
        for _ in range(20):
            with pytest.raises(InputError):
                ef.target(criterion, clusters=np.arange(60) % 2)

    good()  # imports and compiles
    pause = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        assert in_threads(good, bad, good, bad) == []
    finally:
        sys.setswitchinterval(pause)
    assert counts() == {2}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX only")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning")  # by JAX, if it is loaded
@pytest.mark.parametrize("inside", [True, False])
def test_a_forked_process_has_a_limit_of_its_own(inside):
    """The child has neither the thread that computes meanwhile nor what that thread holds."""
    started, done = threading.Event(), threading.Event()

    @own_settings
    def other():
        started.set()
        done.wait(60)

    def child_is_right() -> bool:
        child = os.fork()
        if child == 0:  # never back into pytest
            held = min(counts())
            works = own_settings(lambda: min(counts()))() == 1
            os._exit(0 if works and held == (1 if inside else 2) else 1)
        return os.waitpid(child, 0)[1] == 0

    thread = threading.Thread(target=other)
    thread.start()
    started.wait(60)
    try:
        right = own_settings(child_is_right)() if inside else child_is_right()
    finally:
        done.set()
        thread.join(60)
    assert right
    assert counts() == {2}
