"""Signals that ask a stage to stop."""

import os
import signal

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
