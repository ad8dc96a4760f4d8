"""A process that looks on: what it costs where it ends early."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from spikestill.common.errors import UserError
from spikestill.configs.environment import EnvironmentConfig
from spikestill.runtime.agents import RandomPolicy
from spikestill.runtime.clock import MonotonicClock
from spikestill.runtime.crew import scene_of
from spikestill.runtime.emulator import Emulator
from spikestill.runtime.onlooker import Onlooker
from spikestill.runtime.session import Session, Tick
from spikestill.runtime.telemetry import Telemetry

LEAVING = """
from spikestill.runtime.onlooker import Seat
def main():
    seat = Seat()
    seat.ready()
    seat.say({})
"""
"""Sees no frame and finds nothing wrong with that."""


@pytest.fixture
def session() -> Iterator[Session]:
    with contextlib.closing(Emulator(EnvironmentConfig(game="pong"), 1)) as game:
        agent = RandomPolicy(game.spec.actions)
        yield Session("random", game, agent, MonotonicClock(), Telemetry())


def onlooker(module: str, session: Session) -> Onlooker:
    return Onlooker(module, {}, scene_of([session]), 0, session.game.screen_shape)


TICK = Tick(0, 0, 0, 0.0, 0.0, over=False, missed=False, answer=None)


def test_a_process_that_ends_early_is_told_once_and_gets_no_more(
    tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    monkeypatch.syspath_prepend(tmp_path)
    shown = onlooker("leaving", session)
    shown._process.wait()
    with pytest.raises(UserError, match="the leaving process ended before the game"):
        shown.offer([session], [TICK])
    assert not shown.offer([session], [TICK])
    shown.close()
