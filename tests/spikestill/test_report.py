"""What the report says of a run that was not the usual one."""

import json
import shutil

import pytest

from spikestill import report
from spikestill.common.errors import UserError
from spikestill.common.provenance import file_sha256
from spikestill.common.zoo import zoo_path
from spikestill.configs.pipeline import ReportConfig
from spikestill.curve_charts import distilling, teaching
from spikestill.report import _play_note, _scores, _tiles, _verify_note, of_others

PLAY = {
    "seconds": 8.0, "ticks": 480, "agent": "cores", "games": 0, "score": -3.0, "decisions": 120, "misses": 0,
    "lost_s": 0.0, "latency_ms": {"p99": 2.0},
}  # fmt: skip
SCORE = {"mean": -20.0, "ci95": [-21.0, -19.0], "returns": [-20.0], "episodes": 1, "epsilon": 0.05}


def test_a_game_that_stood_still_is_told():
    assert _play_note(PLAY) == (
        "8 seconds, 60.0 emulator frames in each, with agent cores: an unfinished game. "
        "120 decisions, 0 missed; the emulator never waits."
    )
    note = _play_note(PLAY | {"ticks": 116, "lost_s": 6.12})
    assert "14.5 emulator frames in each" in note
    assert "stood still for 6.1 of the seconds" in note
    assert "never waits" not in note


@pytest.mark.parametrize(
    ("told", "deadline"),
    [({}, 1000 / 15), ({"rate_hz": None}, 1000 / 15), ({"rate_hz": 125.0, "frame_skip": 1}, 8.0)],
)
def test_a_deadline_is_that_of_the_game(told, deadline, monkeypatch):
    drawn = []
    monkeypatch.setattr(report, "histogram", lambda edges, counts, label, marks: drawn.append(dict(marks)))
    report.latency_chart(
        {**PLAY, "frame_skip": 4, "histogram": {"edges_ms": [1.0, 2.0], "counts": [1]}, **told}
    )
    assert drawn[0]["deadline"] == deadline


@pytest.mark.parametrize(
    ("agent", "label"),
    [("cores", "mean score of 1 game"), ("random", "mean score of 1 game of agent random")],
)
def test_the_score_is_of_the_agent_that_played(agent, label):
    summaries = {"evaluate": SCORE | {"agent": agent}, "play": PLAY, "map": {"cores": 3, "chips": 1}}
    assert _tiles(summaries)[0]["label"] == label


def test_random_play_is_not_said_to_explore_as_little_as_the_others():
    assert "the same for all but the random player" in _scores(SCORE | {"agent": "cores"})["score_note"]


def test_backends_that_were_not_compared_are_not_spoken_of():
    rungs = [{"name": "naive", "frames": 8}, {"name": "lava", "frames": 0}]
    note = _verify_note({"rungs": rungs})
    assert "each of these backends" in note
    assert "naive (8)" in note
    assert "lava" not in note
    assert "compared on recorded frames" in note
    assert "compared on random frames" in _verify_note({"rungs": rungs, "source": "random"})
    failed = [rungs[0] | {"mismatches": 3}, *rungs[1:]]
    note = _verify_note({"rungs": failed, "ok": False})
    assert note.startswith(f"NOT the same spikes on recorded frames: {rungs[0]['name']} on 3 of ")
    assert _verify_note({"rungs": rungs, "ok": False}).startswith("NOT the same spikes")


def test_what_was_not_measured_has_no_tile_and_no_interval():
    alone = SCORE | {"agent": "cores"}
    assert [tile["value"] for tile in _tiles({"evaluate": alone})] == ["-20"]
    assert [tile["value"] for tile in _tiles({"evaluate": alone | {"percent_of_margin": 50.0}})] == [
        "-20",
        "50.0 %",
    ]
    assert _scores(alone)["scores"][0]["ci"] == "-"
    assert _scores(alone | {"returns": [-20.0, -20.0]})["scores"][0]["ci"] == "-21 to -19"


def test_frames_that_were_not_held_out_are_not_called_so(tmp_path):
    line = {
        "samples": 128,
        "agreement": 0.5,
        "loss": 1.0,
        "validation_agreement": 0.4,
        "validation_loss": 1.1,
    }
    path = tmp_path / "distill.jsonl"
    path.write_text("".join(json.dumps(line | {"samples": n}) + "\n" for n in (128, 256)))
    assert all("held out, integer network" in chart for chart in distilling(path))
    charts = distilling(path, held_out=False)
    assert len(charts) == 2
    assert all("frames of the training, integer network" in chart for chart in charts)
    assert not any("held out" in chart for chart in charts)


def test_agreement_on_the_students_own_play_is_drawn_where_it_was_told(tmp_path):
    line = {"agreement": 0.5, "loss": 1.0}
    lines = [line | {"samples": 128}, line | {"samples": 256, "own_agreement": 0.3}, line | {"samples": 384}]
    path = tmp_path / "distill.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    agreement, loss = distilling(path)
    assert "own play" in agreement
    assert "own play" not in loss


def test_a_measurement_of_another_file_than_the_folders_is_told(tmp_path):
    (tmp_path / "student.safetensors").write_bytes(b"the student")
    (tmp_path / "core_map.h5").write_bytes(b"the map")
    own, other = file_sha256(tmp_path / "student.safetensors"), "0" * 64
    assert (
        of_others(tmp_path, {"evaluate": {"student": own, "teacher": other}, "map": {"student": own}}) == []
    )
    told = of_others(
        tmp_path, {"evaluate": {"core_map": other}, "verify": {"student": other, "core_map": other}}
    )
    assert told[0].startswith("evaluate was made from another core_map.h5 than the folder has now")
    assert told[0].endswith(f"Make it again: `spikestill evaluate --run_dir {tmp_path}`.")
    assert told[1].startswith("verify was made from another student.safetensors and core_map.h5 than")


def written(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_teachers_scores_are_drawn_from_its_training(tmp_path):
    path = tmp_path / "teach.jsonl"
    assert teaching(path).charts == []
    assert teaching(written(path, [{"step": 0, "mean_return_100": None}])).charts == []
    lines = [{"step": 1000 * n, "mean_return_100": -20.0 + n} for n in range(3)]
    found = teaching(written(path, lines))
    assert found.title == "The teacher learns"
    assert found.note.endswith("in which it explores. Unclipped.")
    assert found.charts[0].count("<polyline") == 1
    found = teaching(written(path, [line | {"snapshot_score": 3.0} for line in lines]))
    assert "snapshots" in found.note
    assert "its snapshots, in games of their own" in found.charts[0]
    # One snapshot, though its score stands in three lines.
    assert found.charts[0].count("<circle") == 1


def test_several_seeds_are_drawn_to_the_last_step_that_all_of_them_reached(tmp_path):
    path = tmp_path / "teach.jsonl"
    lines = [{"step": step, "seed": 0, "mean_return": float(step)} for step in (100, 200, 300)]
    alone = teaching(written(path, lines))
    assert alone.title == "The agent learns"
    assert ">300<" in alone.charts[0]
    assert "band" not in alone.note + alone.charts[0]
    other = [{"step": step, "seed": 1, "mean_return": 0.0} for step in (100, 200)]
    both = teaching(written(path, [*lines, *other]))
    assert "mean of 2 seeds" in both.note
    assert "band" in both.charts[0]
    assert ">300<" not in both.charts[0]
    assert teaching(written(path, [lines[0], other[1]])).charts == []


def test_half_a_last_line_of_a_killed_training_is_left_out(tmp_path):
    path = written(tmp_path / "teach.jsonl", [{"step": 100, "seed": 0, "mean_return": 1.0}])
    whole = teaching(path)
    with open(path, "a") as file:
        file.write('{"step": 200, "se')
    assert teaching(path) == whole
    line = {"samples": 128, "agreement": 0.5, "loss": 1.0}
    path = written(tmp_path / "distill.jsonl", [line])
    drawn = distilling(path)
    with open(path, "a") as file:
        file.write('{"samples": 256, "agre')
    assert distilling(path) == drawn


def test_a_folder_with_a_teacher_and_its_curve_has_a_page(tmp_path):
    shutil.copy(zoo_path("pong", "teacher.safetensors"), tmp_path)
    with pytest.raises(UserError, match=r"holds teacher\.safetensors, and a report is of what was made"):
        report.run(ReportConfig(folder=tmp_path), tmp_path)
    (tmp_path / "teach.jsonl").write_text('{"step": 0, "mean_return_100": -20.5}\n')
    found = report.run(ReportConfig(folder=tmp_path), tmp_path).summary
    assert found["stages"] == ["teach"]
    assert "The teacher learns" in (tmp_path / "report.html").read_text()
