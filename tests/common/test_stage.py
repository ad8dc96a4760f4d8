"""Signals that ask a stage to stop."""

import os
import signal
import sys
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


def test_a_dropped_interrupt_asks_the_stage_that_works_to_stop():
    with interrupted_by_signals(), stop_on_signal() as stop:
        ask(signal.SIGINT)
        assert stop
        Interrupts()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
