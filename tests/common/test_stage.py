"""Signals that ask a stage to stop."""

import importlib
import os
import signal
import sys
import threading
import time

import pytest

from spikestill.common.stage import interrupted_by_signals, stop_on_signal


def ask(number):
    os.kill(os.getpid(), number)


def test_a_second_request_interrupts_at_once():
    with stop_on_signal() as stop:
        ask(signal.SIGTERM)
        assert stop
        with pytest.raises(KeyboardInterrupt):
            ask(signal.SIGINT)


def test_sigusr1_asks_however_often_and_hurries_nothing(capsys):
    before = signal.getsignal(signal.SIGUSR1)
    with stop_on_signal() as stop:
        assert not stop
        ask(signal.SIGUSR1)
        assert stop
        for number in (
            signal.SIGUSR1,
            signal.SIGTERM,
            signal.SIGUSR1,
        ):  # as where a scheduler ends every process
            ask(number)
        assert stop
    assert signal.getsignal(signal.SIGUSR1) is before
    assert capsys.readouterr().err.count("stopping after this step") == 1


def test_sigusr1_interrupts_once_where_no_stage_hears_it():
    done = []

    def work():
        try:
            ask(signal.SIGUSR1)
            done.append("went on")
        finally:
            ask(signal.SIGUSR1)
            done.append("took away what was half made")

    with interrupted_by_signals(), pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["took away what was half made"]


class Interrupts:
    """Interrupts from where CPython drops every error, as the importer's callbacks do."""

    def __init__(self, number=signal.SIGINT):
        self.number = number

    def __del__(self):
        ask(self.number)


def work_through_an_interrupt(number):
    Interrupts(number)
    time.sleep(30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_cpython_drops_comes_again(number, capsys):
    before, began = sys.unraisablehook, time.monotonic()
    with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
        work_through_an_interrupt(number)
    assert time.monotonic() - began < 20
    assert sys.unraisablehook is before
    assert capsys.readouterr().err == ""


def test_an_interrupt_that_cpython_drops_at_the_very_end_is_not_lost():
    with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
        Interrupts()
    time.sleep(0.1)  # and it comes only once


def test_a_dropped_interrupt_comes_again_where_interrupts_of_the_keyboard_are_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
            work_through_an_interrupt(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


SWALLOWS = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.1)
    whole = True
except BaseException:
    whole = False
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_an_interrupt_waits_for_the_end_of_an_import_that_would_swallow_it(tmp_path, monkeypatch, name):
    (tmp_path / f"swallows_{name}.py").write_text(SWALLOWS.format(name=name))
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(signal.SIGINT)

    def work():
        importlib.import_module(f"swallows_{name}")
        time.sleep(30)

    with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
        work()
    assert sys.modules[f"swallows_{name}"].whole
    assert signal.getsignal(signal.SIGINT) is before
    time.sleep(0.1)  # and it comes only once


def test_after_one_that_a_stage_took_an_interrupt_waits_for_the_end_of_an_import_as_well(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("spikestill.common.stage.SOON_S", 0.3)
    for name in ("taken", "after"):
        (tmp_path / f"swallows_{name}.py").write_text(SWALLOWS.format(name="SIGINT"))
    monkeypatch.syspath_prepend(tmp_path)

    def work():
        importlib.import_module("swallows_taken")
        with stop_on_signal() as stop:
            while not stop:
                time.sleep(0.01)
        importlib.import_module("swallows_after")
        time.sleep(30)

    with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
        work()
    assert sys.modules["swallows_after"].whole


def test_an_interrupt_does_not_wait_for_an_import_that_does_not_end(tmp_path, monkeypatch):
    monkeypatch.setattr("spikestill.common.stage.PATIENCE_S", 0.2)
    (tmp_path / "hangs.py").write_text("import os, time\nos.kill(os.getpid(), 15)\ntime.sleep(60)")
    monkeypatch.syspath_prepend(tmp_path)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
        importlib.import_module("hangs")
    assert 0.2 <= time.monotonic() - began < 30


def test_within_itself_a_dropped_interrupt_comes_again_too():
    with pytest.raises(KeyboardInterrupt), interrupted_by_signals(), interrupted_by_signals():
        work_through_an_interrupt(signal.SIGUSR1)


def test_two_interrupts_that_are_dropped_together_come_as_one():
    class Twice(Interrupts):
        def __del__(self):
            both = (signal.SIGINT, signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            for number in both:  # to this thread alone: another would take them at once
                signal.pthread_kill(threading.get_ident(), number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)

    def work():
        Twice()
        time.sleep(30)

    with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
        work()
    time.sleep(0.1)


def test_what_an_import_begins_is_interrupted_at_once(tmp_path, monkeypatch):
    (tmp_path / "begins.py").write_text(
        "import os, time\nfrom spikestill.common.stage import interrupted_by_signals\n"
        "began = time.monotonic()\n"
        "try:\n    with interrupted_by_signals():\n        os.kill(os.getpid(), 15)\n        time.sleep(30)\n"
        "except KeyboardInterrupt:\n    took = time.monotonic() - began\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("begins").took < 10


def test_a_dropped_interrupt_comes_again_on_a_machine_that_is_slow_to_begin_a_thread(monkeypatch):
    begin = threading.Thread.start

    def slow(thread):
        begin(thread)
        time.sleep(0.3)

    def work():
        Interrupts()
        time.sleep(30)

    monkeypatch.setattr(threading.Thread, "start", slow)
    with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
        work()


def test_a_dropped_interrupt_asks_the_stage_that_works_to_stop():
    with interrupted_by_signals(), stop_on_signal() as stop:
        ask(signal.SIGINT)
        assert stop
        Interrupts()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
