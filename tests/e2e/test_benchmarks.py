"""Every benchmark explains itself, and those that read files do a short run on real ones."""

from __future__ import annotations

import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import measurement
from benchmarks.witness import Witness, by_share, explained
from spikestill.common.provenance import Provenance
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.record import RecordConfig
from spikestill.dataset import recorder
from spikestill.teacher.atari.q_network import initial_weights
from spikestill.teacher.checkpoint import save_teacher

NAMES = sorted(
    path.stem
    for path in Path(measurement.__file__).parent.glob("*.py")
    if path.stem not in ("__init__", "measurement", "witness")
)


def run(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    threads = torch.get_num_threads()
    try:
        importlib.import_module(f"benchmarks.{name}").main()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_explains_itself(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, name, "--help")
    assert ended.value.code == 0
    assert f"benchmarks.{name}" in capsys.readouterr().out


@pytest.mark.slow
def test_the_one_of_the_first_frame_plays_with_an_empty_cache_and_with_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "RESULTS", tmp_path / "results")
    run(monkeypatch, "first_frame", "--repeats", "1")
    figures = json.loads((tmp_path / "results" / "first_frame.json").read_text())["figures"]
    assert 0 < figures["warm"]["line_s"] < figures["warm"]["frame_s"] < figures["first"]["frame_s"]
    assert figures["warm"]["drawing_mb"] > 0
    assert figures["warm"]["resident_mb"] < 400


@pytest.mark.slow
def test_those_of_recording_and_distilling_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "RESULTS", tmp_path / "results")
    teacher = tmp_path / "teacher.safetensors"
    weights = initial_weights(6, torch.Generator().manual_seed(0))
    save_teacher(teacher, weights, "pong", 6, Provenance.of({}, seed=0))
    recorder.run(RecordConfig(teacher=teacher, frames=256, num_envs=4), tmp_path)
    words = ("--teacher", str(teacher), "--seconds", "0.01", "--rounds", "1", "--no-peers")
    run(monkeypatch, "distill", str(tmp_path / "buffer.h5"), *words)
    run(monkeypatch, "record", "--teacher", str(teacher), "--frames", "256", "--repeats", "2")
    for name, figure in (("distill", "share_of_floor"), ("record", "record_share_of_bare_env")):
        written = json.loads((tmp_path / "results" / f"{name}.json").read_text())
        assert written["figures"][figure] > 0
        assert written["command"].startswith(f"python -m benchmarks.{name} ")


@pytest.mark.slow
def test_the_one_of_the_constraints_trains_and_plays_each_rung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spikestill import constraint_results

    monkeypatch.setattr(measurement, "RESULTS", tmp_path / "results")
    recorder.run(
        RecordConfig(environment=EnvironmentConfig(game="freeway"), frames=256, num_envs=4), tmp_path
    )
    for rung in constraint_results.RUNGS:
        words = ("--buffers", str(tmp_path / "buffer.h5"), "--batches", "2", "--games", "1")
        run(monkeypatch, "constraints", "freeway", rung, *words)
    card = {"game": "freeway", "teacher": 30.0, "random": 0.0}
    drawn = constraint_results.rows(constraint_results.figures(tmp_path / "results", "freeway"), card)
    assert [row[1] for row in drawn] == list(constraint_results.RUNGS.values())
    assert all(row[2] == "2" for row in drawn)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mujoco") is None, reason="the MuJoCo simulators are not installed")
def test_those_of_control_agents_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "RESULTS", tmp_path / "results")
    for name in ("control", "control_seeds"):
        run(monkeypatch, name, "--seconds", "0.01", "--repeats", "1")
    for name in ("fixed_point", "ips"):
        run(monkeypatch, name, "--seconds", "0.01")
    for name in ("control", "control_seeds", "fixed_point", "ips"):
        assert json.loads((tmp_path / "results" / f"{name}.json").read_text())["figures"]


def test_a_witness_tells_for_how_long_any_core_and_all_cores_stood_still() -> None:
    witness = Witness()
    # Core 0 still from 1 to 3 s and from 5 to 6 s, core 1 from 2 to 4 s and from 8 to 9 s.
    witness.found = [
        {"core": 0, "real_time": True, "stalls": [(3.0, 2000.0), (6.0, 1000.0)]},
        {"core": 1, "real_time": True, "stalls": [(4.0, 2000.0), (9.0, 1000.0)]},
    ]
    began, ended = np.array([0.0, 2.5, 6.5]), np.array([10.0, 5.5, 7.5])
    both, either = witness.stood_still_s(began, ended)
    assert both == pytest.approx([1.0, 0.5, 0.0])
    assert either == pytest.approx([5.0, 2.0, 0.0])
    witness.found = [{"core": 0, "real_time": True, "stalls": []}]
    assert not np.any(witness.stood_still_s(began, ended))
    assert witness.real_time


def test_a_miss_is_explained_where_too_little_of_its_time_was_left_for_a_usual_decision() -> None:
    still_s = np.array([0.016, 0.0145, 0.010, 0.0])
    assert explained(still_s, 1 / 60, 0.002) == 1
    assert explained(still_s, 1 / 60, 0.003) == 2
    # An agent that usually takes more than a period misses by itself.
    assert explained(still_s, 1 / 60, 0.020) == 0


def test_misses_stand_beside_the_periods_in_which_the_machine_stood_still_as_long() -> None:
    found = by_share(np.array([0.9, 1.0, 0.6]), np.array([0.0, 0.1, 0.6, 0.7, 0.9, 1.0, 1.01]), 1.0)
    assert [each["periods"] for each in found] == [2, 0, 2, 3]
    assert [each["misses"] for each in found] == [0, 0, 1, 2]
