"""Sweeps that lose a node or are killed, on real Ray clusters: nothing is lost and nothing runs twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import numpy as np
import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'spikestill[sweep]'")

from spikestill.cli import main
from spikestill.common.artefacts import EVALUATE, RESUMED_FROM, TEACHER
from spikestill.common.provenance import file_sha256
from spikestill.sweep.worker import attempts
from tests.sweep.running import begun, command, sweeping

STUDENTS = """
stages: [record, distill]
seeds: 2
options:
  record: {frames: 512, num_envs: 8}
  distill: {steps: 40, batch_size: 8, hint_weight: 0, checkpoint_minutes: 0.01, log_steps: 500}
"""


def wait_for(condition, process, seconds=200.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the sweep ended before"
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def students(tmp_path):
    return sorted((tmp_path / "run" / "stages").glob("distill-*"))


def under_way(tmp_path):
    return [
        folder for folder in students(tmp_path)
        if (folder / "distill-checkpoint.safetensors").is_file() and not (folder / "done.json").is_file()
    ]  # fmt: skip


def check_whole(tmp_path, stage_runs):
    """Every stage run finished exactly once, and a student that was interrupted is the one that was not."""
    folders = sorted((tmp_path / "run" / "stages").iterdir())
    assert len(folders) == stage_runs
    for folder in folders:
        assert [line["what"] for line in attempts(folder)].count("finished") == 1, folder.name
    again = next(folder for folder in folders if begun(folder) > 1)
    whole = tmp_path / "whole"
    words = ["distill", "--config", str(again / "options.yaml"), "--run_dir", str(whole)]
    # On one core, as in the sweep: on two a batch is normalised in two shares.
    child = [
        sys.executable,
        "-m",
        "spikestill.sweep.child",
        str(os.getpid()),
        str(min(os.sched_getaffinity(0))),
    ]
    subprocess.run([*child, *words], check=True, capture_output=True)
    from spikestill.student.integer_net import load

    nets = [load(folder / "student.safetensors")[0] for folder in (again, whole)]
    for left, right in zip(nets[0].layers, nets[1].layers, strict=True):
        assert (left.weight_OIHW == right.weight_OIHW).all()
        assert (left.theta_O == right.theta_O).all()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lost_nodes_trials_run_again_elsewhere(tmp_path):
    from ray.cluster_utils import Cluster

    # A third one is under way beside the slower of two.
    (tmp_path / "recipe.yaml").write_text(STUDENTS.replace("seeds: 2", "seeds: 3"))
    health = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 5,
    }
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": health},
    )
    try:
        second = cluster.add_node(num_cpus=1)
        with sweeping(tmp_path, "--address", cluster.address) as process:
            wait_for(lambda: len(under_way(tmp_path)) == 2, process)
            cluster.remove_node(second, allow_graceful=False)
            output, _ = process.communicate(timeout=400)
        assert process.returncode == 0, (tmp_path / "sweep.log").read_text()
        summary = json.loads(output.splitlines()[-1])
        assert (summary["done"], summary["began_again"]) == (4, 1)
        check_whole(tmp_path, 4)
    finally:
        cluster.shutdown()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.slow),
                                 pytest.param("its group", marks=pytest.mark.slow), signal.SIGKILL])  # fmt: skip
def test_a_sweep_that_was_stopped_or_killed_goes_on(tmp_path, how):
    (tmp_path / "recipe.yaml").write_text(STUDENTS)
    with sweeping(tmp_path) as process:
        wait_for(lambda: under_way(tmp_path), process)
        if how == "its group":
            os.killpg(process.pid, signal.SIGTERM)
        else:
            process.send_signal(how)
        process.wait(timeout=150)
    assert process.returncode == (-how if how == signal.SIGKILL else 130)
    before = {folder.name: file_sha256(folder / "done.json") for folder in (tmp_path / "run" / "stages").iterdir()
              if (folder / "done.json").is_file()}  # fmt: skip
    assert len(before) < 3
    with sweeping(tmp_path) as process:
        output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, (tmp_path / "sweep.log").read_text()
    assert json.loads(output.splitlines()[-1])["done"] == 3
    for name, sha256 in before.items():
        assert file_sha256(tmp_path / "run" / "stages" / name / "done.json") == sha256
    check_whole(tmp_path, 3)


TEACHERS = """
stages: [teach, evaluate]
game: hopper
seeds: 2
options:
  teach: {algorithm: ddpg, steps: 12000, seed_steps: 200, hidden: [16, 16], batch_size: 16, replay_capacity: 20000,
          evaluation_period: 12000, evaluation_games: 2, checkpoint_minutes: 0.001}
  evaluate: {episodes: 2}
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("mujoco") is None, reason="the MuJoCo simulators are not installed")
def test_teachers_are_trained_go_on_where_they_were_stopped_and_are_evaluated_each_by_itself(
    tmp_path, capsys
):
    (tmp_path / "recipe.yaml").write_text(TEACHERS)
    stages, checkpoint = tmp_path / "run" / "stages", RESUMED_FROM["teach"]
    with sweeping(tmp_path) as process:
        wait_for(lambda: any(stages.glob(f"teach-*/{checkpoint}")), process)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=150)
    assert process.returncode == 130
    stopped = [path.parent for path in stages.glob(f"teach-*/{checkpoint}")]
    stopped = [folder for folder in stopped if not (folder / "done.json").exists()]
    assert stopped
    assert main([*command(tmp_path)[3:], "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["trials"], summary["stage_runs"], summary["done"]) == (2, 4, 4)
    for folder in stopped:
        assert [line["what"] for line in attempts(folder)] == ["begins", "stopped", "begins", "finished"]
        # The first attempt had nothing to go on from, the second went on.
        assert (folder / "log.txt").read_text().count("nothing to resume") == 1
    taught = sorted(stages.glob("teach-*"))
    for folder in taught:
        assert json.loads((folder / "done.json").read_text())["summary"]["steps"] == 12000
    found = [json.loads(path.read_text()) for path in stages.glob(f"evaluate-*/{EVALUATE}")]
    played = {each["provenance"]["parents"]["teacher"] for each in found}
    assert played == {file_sha256(folder / TEACHER) for folder in taught}
    assert len(played) == 2
    (row,) = summary["table"]
    assert (row["game"], row["seeds"], row["done"]) == ("hopper", 2, 2)
    assert row["mean"] == pytest.approx(np.mean([each["mean"] for each in found]))
    returns = [json.loads((folder / "done.json").read_text())["summary"]["mean_return"] for folder in taught]
    assert row["teach.mean_return"] == pytest.approx(np.mean(returns))
