"""Whatever dies in Lava is reported in time, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from spikestill.deploy.lava.session import LavaError, LavaSession
from tests.lava.traces import group_members, leaked_shared_memory, surviving_processes

pytestmark = [pytest.mark.lava, pytest.mark.timeout(60)]

ENGINE = "tests.lava.faulty_engine:FaultyEngine"
ROOT = Path(__file__).resolve().parents[2]
HARMLESS, FATAL = (np.int32(word).tobytes() for word in (1, 13))


def faulty(fault: str) -> LavaSession:
    return LavaSession(ENGINE, fault)


@pytest.mark.parametrize("mode", ["", ", stepwise"])
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raise", "Faulty raised ValueError: the third synapse is on fire"),
        ("raise unpicklable", "half a spike"),
        ("raise not rebuilt", "Faulty raised what cannot be read back"),
        ("exit", "Faulty ended by itself with status 7"),
    ],
)
def test_a_failing_model_is_named_with_its_cause(session_pids, fault, told, mode):
    with faulty(fault + mode) as session:
        assert session.exchange(HARMLESS, 20) == HARMLESS
        with pytest.raises(LavaError, match=told):
            session.exchange(FATAL, 20)
        with pytest.raises(LavaError, match="Lava session ended with"):
            session.exchange(HARMLESS, 20)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raise while built", "ValueError: the third axon is missing"),
        ("die while built", "Faulty ended by itself with status 7"),
    ],
)
def test_a_model_that_cannot_be_built_is_reported(session_pids, fault, told):
    with pytest.raises(LavaError, match=told):
        faulty(fault)


def test_an_engine_that_is_not_there_is_reported(session_pids):
    with pytest.raises(LavaError, match=r"No module named 'tests\.lava\.absent'"):
        LavaSession("tests.lava.absent:Engine", None)


def test_a_hanging_model_is_ended_after_the_time_limit(session_pids):
    with faulty("hang") as session, pytest.raises(LavaError, match=r"no answer within 0\.5 s"):
        session.exchange(FATAL, 0.5)


def test_a_killed_process_is_reported_while_it_is_asked(session_pids):
    with faulty("hang") as session:
        service = max(group_members(session.host_pid))
        killer = f"import os, time; time.sleep(0.5); os.kill({service}, 9)"
        subprocess.Popen([sys.executable, "-c", killer])
        with pytest.raises(LavaError, match="the runtime service was killed by SIGKILL"):
            session.exchange(FATAL, 20)


def test_a_process_killed_between_requests_is_reported_by_the_next(session_pids):
    with faulty("raise") as session:
        assert session.exchange(HARMLESS, 20) == HARMLESS
        model = sorted(group_members(session.host_pid))[-2]  # Lava starts its runtime service last.
        os.kill(model, signal.SIGKILL)
        with pytest.raises(LavaError, match="Faulty was killed by SIGKILL"):
            session.exchange(HARMLESS, 20)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_host_is_reported(session_pids, number):
    with faulty("raise") as session:
        os.kill(session.host_pid, number)
        with pytest.raises(LavaError, match=f"the Lava host was killed by {number.name}"):
            session.exchange(HARMLESS, 20)


def test_a_stopped_host_is_ended_after_the_time_limit(session_pids):
    with faulty("raise") as session:
        os.kill(session.host_pid, signal.SIGSTOP)
        with pytest.raises(LavaError, match=r"no answer within 0\.3 s"):
            session.exchange(HARMLESS, 0.3)


def test_a_stopped_host_that_takes_no_request_is_ended_after_the_time_limit(session_pids):
    with faulty("raise") as session:
        os.kill(session.host_pid, signal.SIGSTOP)
        with pytest.raises(LavaError, match=r"took no request within 0\.3 s"):
            session.exchange(bytes(1 << 24), 0.3)


def test_closing_twice_does_nothing_and_asking_then_fails(session_pids):
    session = faulty("raise")
    session.close()
    session.close()
    with pytest.raises(LavaError, match="session is closed"):
        session.exchange(HARMLESS, 20)


SCRIPT = """
import sys
from spikestill.deploy.lava.session import LavaSession
session = LavaSession({engine!r}, {fault!r})
print(session.host_pid, flush=True)
"""


def run_script(fault: str, rest: str) -> tuple[subprocess.Popen[str], int]:
    script = SCRIPT.format(engine=ENGINE, fault=fault) + rest
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_an_interpreter_that_just_ends_closes_its_session():
    before = set(os.listdir("/dev/shm"))
    process, host = run_script("raise", "")
    assert process.wait(20) == 0
    assert surviving_processes(host) == []
    assert leaked_shared_memory(before) == []


def test_ctrl_c_while_lava_is_asked_cleans_up():
    before = set(os.listdir("/dev/shm"))
    ask = f"print('asking', flush=True)\nsession.exchange({FATAL!r}, 60)"
    process, host = run_script("hang", ask)
    assert process.stdout is not None
    assert process.stdout.readline() == "asking\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    assert "KeyboardInterrupt" in process.communicate()[1]
    assert surviving_processes(host) == []
    assert leaked_shared_memory(before) == []


@pytest.mark.parametrize(("fault", "word"), [("raise", None), ("hang", FATAL)])
def test_a_host_ends_when_its_owner_is_killed(fault, word):
    before = set(os.listdir("/dev/shm"))
    ask = "import time; time.sleep(60)" if word is None else f"session.exchange({word!r}, 60)"
    process, host = run_script(fault, ask)
    time.sleep(0.3)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while group_members(host) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert group_members(host) == []
    assert leaked_shared_memory(before) == []
