"""Sweeps on real Ray clusters."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'spikestill[sweep]'")

from spikestill.cli import main
from spikestill.common.errors import BackendError, UserError
from spikestill.common.provenance import file_sha256
from spikestill.common.zoo import ROOT
from spikestill.configs.sweep import SweepConfig, load_sweep
from spikestill.sweep.cluster import joined
from spikestill.sweep.plan import needs, plan
from spikestill.sweep.ray_driver import check_answers
from spikestill.sweep.schedule import Sweep
from spikestill.sweep.worker import Job, attempts, not_run, run_stage, share_of_cores
from tests.sweep.running import begun, command, sweeping

SCORES = """
stages: [evaluate]
game: breakout
options:
  evaluate: {agent: random, compare: false, episodes: 1, num_envs: 1}
grid:
  evaluate.seed: [0, 1]
"""


BRIEF = ("record", "pong", "--agent", "random", "--frames", "64", "--num_envs", "1", "--json")
"""A stage run of a second."""


def test_a_sweep_runs_once_and_tells_what_failed(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(SCORES)
    words = command(tmp_path)[3:]
    changes = [
        "--set",
        "evaluate.agent=random|teacher,evaluate.teacher=/nowhere/x.safetensors,evaluate.seed=0",
    ]
    assert main([*words, *changes]) == 1
    error = capsys.readouterr().err
    assert "1 of 2 stage runs failed; evaluate-breakout" in error
    assert "x.safetensors" in error
    assert main([*words, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["trials"], summary["done"], len(summary["table"])) == (2, 2, 2)
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["table"] == summary["table"]
    stages = tmp_path / "run" / "stages"
    assert [begun(folder) for folder in stages.iterdir()] == [1, 1, 1, 1]
    page = (tmp_path / "run" / "sweep.html").read_text()
    assert "evaluate-breakout" in page
    document = json.loads((tmp_path / "run" / "sweep.json").read_text())
    assert [row["state"] for row in document["rows"]] == ["finished", "finished"]


SEARCH = """
stages: [record, distill, evaluate]
game: breakout+pong
samples: 1
options:
  record: {frames: 96, num_envs: 2}
  distill: {steps: 2, batch_size: 4, hint_weight: 0}
  evaluate: {episodes: 1, compare: false}
search: {distill.temperature: {low: 0.01, high: 0.1, log: true}}
"""


@pytest.mark.slow
def test_a_search_trains_a_student_of_two_games_and_scores_it_in_both(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(SEARCH)
    assert main([*command(tmp_path)[3:], "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["trials"], summary["done"], summary["stage_runs"]) == (1, 5, 5)
    assert {row["game"] for row in summary["table"]} == {"breakout", "pong"}
    stages = tmp_path / "run" / "stages"
    (student,) = stages.glob("distill-*/student.safetensors")
    played = [json.loads(path.read_text()) for path in stages.glob("evaluate-*/evaluate.json")]
    assert {each["game"] for each in played} == {"breakout", "pong"}
    assert {each["provenance"]["parents"]["student"] for each in played} == {file_sha256(student)}


def test_what_only_trials_without_a_teacher_need_is_not_begun(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(STUDENT)
    words = [*command(tmp_path)[3:], "--set", "game=pong+zaxxon"]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert (
        "sweep: the trials of pong+zaxxon cannot run (1 of 1), as the zoo has no teacher of zaxxon" in error
    )
    assert "3 of 3 stage runs failed; record-zaxxon-" in error
    assert not (tmp_path / "run" / "stages").exists()
    document = json.loads((tmp_path / "run" / "sweep.json").read_text())
    assert [(row["game"], row["state"]) for row in document["rows"]] == [
        ("pong", "failed"), ("zaxxon", "failed")
    ]  # fmt: skip
    errors = [each["error"] for row in document["rows"] for each in row["runs"]]
    assert len(errors) == 4
    assert all(
        "the zoo has no teacher of zaxxon: give record.teacher, or leave it out" in each for each in errors
    )
    assert [cell["failed"] for cell in document["cells"]] == [1, 1]


def test_what_only_a_failed_trial_needs_is_given_up_and_asked_to_stop_where_it_is_under_way(tmp_path):
    (tmp_path / "recipe.yaml").write_text(STUDENT)
    recipe = str(tmp_path / "recipe.yaml")
    trials, runs = plan(load_sweep(recipe, ("game=pong+freeway|qbert",)))
    found = Sweep(SweepConfig(recipe=recipe), tmp_path, runs, needs(trials, runs))
    (pong, freeway), (student,) = trials[0].runs["record"], trials[0].runs["distill"]
    found.give_up([pong])
    assert found.unfinished() == list(runs.values())
    found.outcomes[freeway.key] = not_run("failed", "node", "exit status 1: no such game")
    found.give_up([pong])
    assert (found.folder(pong) / "stop").is_file()
    reason = f"not run, as {freeway.name} failed: exit status 1: no such game"
    assert found.outcomes[student.key]["error"] == reason
    alone = [run for own in trials[1].runs.values() for run in own]
    assert found.unfinished() == [pong, *alone]
    found.give_up([])  # it has stopped
    assert found.outcomes[pong.key]["error"] == reason
    assert found.unfinished() == alone


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the process in /proc")
def test_a_stage_run_that_is_asked_in_its_own_folder_stops_and_one_that_waits_does_not_begin(tmp_path):
    (tmp_path / "token").write_text("token")
    words = ("record", "pong", "--agent", "random", "--frames", "100000000", "--num_envs", "1")
    folder = tmp_path / "run"
    job = Job(str(tmp_path), "token", str(folder), (*words, "--run_dir", str(folder)), 1)
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(run_stage, job)
        child_of(os.getpid())
        (folder / "stop").touch()
        found = outcome.result(timeout=60)
        assert found["state"] == "stopped", found
    assert [line["what"] for line in attempts(folder)] == ["begins", "stopped"]
    assert run_stage(job)["state"] == "stopped"
    assert begun(folder) == 1


def test_a_folder_that_another_sweep_uses_and_more_cores_than_there_are_are_refused(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(SCORES)
    (tmp_path / "run").mkdir()
    words = command(tmp_path)[3:]
    with open(tmp_path / "run" / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(words) == 1
    assert "another sweep runs in it. Wait for it, or give another --run_dir" in capsys.readouterr().err
    assert main([*words, "--cores", "900"]) == 1
    error = capsys.readouterr().err
    assert "--cores 900: the largest of 1 nodes has" in error
    assert "Give --cores" in error


def test_a_sweep_runs_on_a_file_system_without_locks(tmp_path, monkeypatch, capsys):
    def refused(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refused)
    # A game whose teacher the zoo has not: nothing runs, and the table is written.
    (tmp_path / "recipe.yaml").write_text("stages: [record]\ngame: zaxxon\n")
    assert main(command(tmp_path)[3:]) == 1
    assert "the zoo has no teacher of zaxxon" in capsys.readouterr().err
    assert (tmp_path / "run" / "sweep.json").is_file()
    (tmp_path / "token").write_text("token")
    folder = tmp_path / "stage"
    found = run_stage(Job(str(tmp_path), "token", str(folder), (*BRIEF, "--run_dir", str(folder)), 1))
    assert (found["state"], (folder / "done.json").is_file()) == ("finished", True)


def test_an_address_that_does_not_answer_is_named(tmp_path, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "recipe.yaml").write_text(SCORES)
    assert main([*command(tmp_path)[3:], "--address", f"127.0.0.1:{port}"]) == 1
    assert f"Ray address 127.0.0.1:{port} does not answer" in capsys.readouterr().err


@pytest.fixture
def ray_folder(monkeypatch):
    """The folder, short as sockets' paths must be, where Ray notes the last head; nothing else names one."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder) / "ray"


def test_auto_joins_the_cluster_that_was_started_here_in_another_folder(tmp_path, ray_folder, monkeypatch):
    """It finds a file that is named from the sweep's folder."""
    from ray.cluster_utils import Cluster

    (tmp_path / "recipe.yaml").write_text(
        "stages: [record]\ngame: pong\noptions: {record: {frames: 64, num_envs: 4}}\n"
    )
    shutil.copy(ROOT / "pong" / "teacher.safetensors", tmp_path / "mine.safetensors")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    # A GPU that only this cluster says to have.
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, "include_dashboard": False}
    )
    try:
        monkeypatch.chdir(tmp_path)
        words = ("--address", "auto", "--gpus", "1", "--set", "record.teacher=mine.safetensors")
        with sweeping(tmp_path, *words) as process:
            output, _ = process.communicate(timeout=100)
        assert process.returncode == 0, (tmp_path / "sweep.log").read_text()
        assert json.loads(output.splitlines()[-1])["done"] == 1
        assert cluster.head_node.remaining_processes_alive()
    finally:
        cluster.shutdown()


@contextlib.contextmanager
def started_head(home):
    """Yield HOST:PORT of a head that `ray start` began with the token in ``home``."""
    with socket.socket() as free, socket.socket() as client:
        free.bind(("127.0.0.1", 0))
        client.bind(("127.0.0.1", 0))
        ports = free.getsockname()[1], client.getsockname()[1]
    words = ["start", "--head", "--block", "--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats",
             "--node-ip-address=127.0.0.1", f"--port={ports[0]}", f"--ray-client-server-port={ports[1]}"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", *words],
        env={**os.environ, "HOME": str(home)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        lines = iter(process.stdout.readline, "")
        assert any("Ray runtime started" in line for line in lines)
        yield f"127.0.0.1:{ports[0]}"
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.slow
def test_a_head_that_wants_the_machines_token_is_joined_and_one_that_wants_another_is_named(
    tmp_path, ray_folder, monkeypatch
):
    """A sweep without --address leaves a token in the home; `ray start` takes it, and so must the next sweep."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    (tmp_path / "recipe.yaml").write_text(SCORES)
    for name in ("own", "other"):
        (tmp_path / name / ".ray").mkdir(parents=True)
        (tmp_path / name / ".ray" / "auth_token").write_text(secrets.token_hex(32))
    with started_head(tmp_path / "own") as address:
        monkeypatch.setenv("HOME", str(tmp_path / "other"))
        with sweeping(tmp_path, "--address", address) as process:
            process.communicate(timeout=100)
        assert process.returncode == 1
        assert f"Ray address {address} wants its own token, and this" in (tmp_path / "sweep.log").read_text()
        monkeypatch.setenv("HOME", str(tmp_path / "own"))
        with sweeping(tmp_path, "--address", address) as process:
            output, _ = process.communicate(timeout=100)
        assert process.returncode == 0, (tmp_path / "sweep.log").read_text()
    assert json.loads(output.splitlines()[-1])["done"] == 2


def test_auto_that_finds_no_cluster_says_how_to_start_one(ray_folder, monkeypatch):
    # Whatever else runs on the machine of the tests.
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)
    with pytest.raises(
        UserError, match=r"auto: no cluster is found from this machine. Start one with `ray start"
    ):
        check_answers("auto", 15.0)


@pytest.mark.parametrize("where", ["noted by ray start", "RAY_ADDRESS"])
def test_auto_does_not_wait_for_a_cluster_that_has_died(ray_folder, monkeypatch, where):
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{free.getsockname()[1]}"
    if where == "RAY_ADDRESS":
        monkeypatch.setenv(where, dead)
    else:
        ray_folder.mkdir()
        (ray_folder / "ray_current_cluster").write_text(dead)
    began = time.monotonic()
    port = dead.rpartition(":")[2]
    with pytest.raises(UserError, match=rf"auto \(\S+:{port}\) does not answer .*`ray start --head`"):
        check_answers("auto", 15.0)
    assert time.monotonic() - began < 20


def test_an_address_that_is_not_answered_is_told_by_the_command(tmp_path, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "recipe.yaml").write_text(SCORES)
    assert main([*command(tmp_path)[3:], "--address", dead]) == 1
    assert f"Ray address {dead} does not answer" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
def test_an_interrupt_while_a_cluster_is_looked_for_ends_all_at_once(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        (tmp_path / "recipe.yaml").write_text(SCORES)
        with sweeping(
            tmp_path, "--address", f"127.0.0.1:{silent.getsockname()[1]}", "--answer_s", "300"
        ) as process:
            deadline = time.monotonic() + 100
            while len(begun_now := descendants(process.pid)) < 2:  # the last asks for the head's health
                assert time.monotonic() < deadline
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            process.wait(timeout=20)
        assert not set(begun_now) & {each for each, _, _ in processes()}


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
def test_what_ray_refuses_is_told_as_its_own():
    with (
        joined(None, 15.0) as cluster,
        pytest.raises(BackendError, match=r"Ray: ValueError: .*whole numbers"),
    ):
        cluster.submit(run_stage, None, 1, 1.5)


def test_an_open_port_that_is_no_ray_head_is_named():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UserError, match=r"does not answer \(nothing but an open port in 1 s"):
            check_answers(f"127.0.0.1:{silent.getsockname()[1]}", 1.0)


def test_two_stage_runs_hold_different_cores():
    own = os.sched_getaffinity(0)
    with share_of_cores(1) as first, share_of_cores(1) as second:
        if len(own) > 1 and len(first) == len(second) == 1:
            assert set(first).isdisjoint(second)
        assert set(first) | set(second) <= own


def test_a_stage_run_has_its_number_of_cores_where_all_are_held_and_shares_the_least_shared():
    own = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as held:
        # Enough for each core to be held, be it by others.
        for _ in own:
            held.enter_context(share_of_cores(1))
        found = [held.enter_context(share_of_cores(1)) for _ in own]
        assert all(len(numbers) == 1 for numbers in found)
        assert len(held.enter_context(share_of_cores(2))) == min(2, len(own))
        assert held.enter_context(share_of_cores(900)) == own


def child_of(parent):
    """Return the process of the stage run that ``parent`` began, once it is there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (each / "cmdline").read_bytes().split(b"\0")
                if b"spikestill.sweep.child" in words and str(parent).encode() in words:
                    return int(each.name)
        time.sleep(0.05)
    raise AssertionError("no stage run began")


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the process in /proc")
def test_a_stage_run_whose_process_was_ended_by_others_is_lost_and_not_failed(tmp_path):
    (tmp_path / "token").write_text("token")
    words = ("evaluate", "freeway", "--agent", "random", "--compare", "false", "--episodes", "1000")
    job = Job(str(tmp_path), "token", str(tmp_path / "run"), (*words, "--run_dir", str(tmp_path / "run")), 1)
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(run_stage, job)
        os.kill(child_of(os.getpid()), signal.SIGKILL)
        found = outcome.result(timeout=60)
    assert found["state"] == "lost"
    assert found["error"] == "SIGKILL ended its process"
    assert [line["what"] for line in attempts(tmp_path / "run")] == ["begins", "lost"]


@pytest.mark.parametrize(
    "half",
    [
        pytest.param(b'{"what": "beg', marks=pytest.mark.slow),
        pytest.param(b'{"what": "lost", "seconds": 3', marks=pytest.mark.slow),
        b"\0\0\xff",
    ],
)
def test_a_stage_run_goes_on_after_half_a_line_of_a_lost_attempt(tmp_path, half):
    (tmp_path / "token").write_text("token")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "attempts.jsonl").write_bytes(b'{"what": "begins"}\n' + half)
    found = run_stage(Job(str(tmp_path), "token", str(folder), (*BRIEF, "--run_dir", str(folder)), 1))
    assert found["state"] == "finished"
    assert [line["what"] for line in attempts(folder)] == ["begins", "finished"]


def test_a_node_that_sees_another_folder_and_an_outcome_that_is_none_are_named(tmp_path):
    job = Job(str(tmp_path), "token", str(tmp_path / "run"), ("evaluate",), 1)
    assert "does not see" in run_stage(job)["error"]
    (tmp_path / "token").write_text("token")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "done.json").write_text('{"state": "finished"}')
    found = run_stage(job)
    assert found["state"] == "failed"
    assert "move its folder away" in found["error"].lower()


def processes():
    """Yield (process, its parent, its session) of all that run, without those that have ended."""
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (each / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                yield int(each.name), int(fields[1]), int(fields[3])


def descendants(process):
    """Return all that a process began, and what those began."""
    every, found = list(processes()), [process]
    for each in found:
        found += [child for child, parent, _ in every if parent == each]
    return found[1:]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
def test_a_cluster_of_a_sweeps_own_hears_no_signal_to_its_group_and_ends_with_it():
    before = {each for each, _, _ in processes()}
    with joined(None, 15.0):
        begun_now = set(descendants(os.getpid())) - before
        assert len(begun_now) >= 3
        assert os.getsid(0) not in {session for each, _, session in processes() if each in begun_now}
    assert not begun_now & {each for each, _, _ in processes()}


STUDENT = """
stages: [record, distill]
options:
  record: {frames: 512, num_envs: 8}
  distill: {steps: 100000, batch_size: 8, hint_weight: 0, checkpoint_minutes: 30, log_steps: 1}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="finds the head in /proc")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param(signal.SIGKILL, "refused", id="the head killed", marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, "no answer in 6", id="the head hung", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "refused", id="every process ended", marks=pytest.mark.slow),
    ],
)
def test_a_sweep_whose_head_is_gone_saves_and_writes_its_table(tmp_path, how, why):
    (tmp_path / "recipe.yaml").write_text(STUDENT)
    with sweeping(tmp_path, "--answer_s", "1") as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("run/stages/distill-*/distill.jsonl")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        everything = how == signal.SIGTERM  # as by a scheduler, or the end of a service
        for each in [process.pid, *descendants(process.pid)]:
            # a child may end of itself, or with the head, before its turn
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if everything or "gcs_server" in Path(f"/proc/{each}/comm").read_text():
                    os.kill(each, how)
        process.wait(timeout=150)
    error = (tmp_path / "sweep.log").read_text()
    assert process.returncode == 1
    assert re.search(r"the head of the Ray cluster, \S+:\d+, does not answer any more .*" + why, error)
    (saved,) = tmp_path.glob("run/stages/distill-*/distill-checkpoint.safetensors")
    assert begun(saved.parent) == 1
    document = json.loads((tmp_path / "run" / "sweep.json").read_text())
    assert (document["done"], document["stage_runs"]) == (1, 2)
    assert (tmp_path / "run" / "sweep.html").is_file()
