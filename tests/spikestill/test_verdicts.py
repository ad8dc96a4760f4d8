"""Summaries in words: the verdict first, with units, and a poor result said so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spikestill import cli
from spikestill.common.stage import StageResult
from spikestill.verbs import VERBS
from spikestill.verdicts import duration, joules, size, verdict

PLAYED = {
    "game": "pong", "agent": "cores", "games": 1, "score": 18.0, "decisions": 900, "misses": 0, "lost_s": 0.0,
    "latency_ms": {"p50": 1.0, "p99": 1.31, "p999": 2.0, "max": 2.2},
}  # fmt: skip
SCORED = {
    "game": "space_invaders",
    "agent": "student",
    "mean": 400.0,
    "ci95": (390.0, 410.0),
    "episodes": 100,
}
CHANCE = {"mean": 150.0, "ci95": (140.0, 160.0)}
CONTROL = {"episodes": 10, "usual_episodes": 10}


def test_a_game_in_real_time() -> None:
    assert verdict("play", PLAYED) == [
        "Pong, agent cores: 18 in 1 game.",
        "None of 900 decisions came too late. "
        "99 of 100 actions came within 1.31 ms of the frame, the slowest after 2.2 ms.",
    ]
    unfinished = verdict("play", PLAYED | {"games": 0, "score": -3.0, "misses": 12})
    assert "no game was finished; the one under way stands at -3." in unfinished[0]
    assert unfinished[1].startswith("12 of 900 decisions came too late, and the last action was held.")


def test_a_sitting_that_did_nothing_tells_no_speed() -> None:
    found = {"frames": 300_000, "bytes": 120_000_000, "seconds": 0.01, "frames_per_s": 0.0, "episodes": 2}
    words = verdict("record", found | {"mean_return": 3.0})
    assert words[1] == "300,000 frames, 120 MB, none of them in this sitting."
    assert verdict("record", found | {"mean_return": 3.0, "frames_per_s": 9.0})[1].endswith(
        "(9 frames a second)."
    )


def test_a_ladder_tells_the_frames_of_each_game_of_a_student_of_several() -> None:
    games = [{"game": "freeway", "frames": 4}, {"game": "pong", "frames": 4}]
    found = {"ok": True, "frames": 8, "source": "buffer", "rungs": [], "core_map": None}
    told = verdict("verify", found | {"games": games})[0]
    assert told.endswith("on 8 recorded frames (4 of freeway, 4 of pong).")
    assert verdict("verify", found | {"games": games[:1]})[0].endswith("on 8 recorded frames.")


def test_a_score_beside_its_teacher_and_chance() -> None:
    teacher = {"mean": 500.0, "ci95": (480.0, 520.0)}
    words = verdict("evaluate", SCORED | {"random": CHANCE, "teacher": teacher, "percent_of_margin": 71.43})
    assert words == [
        "Space Invaders, agent student: 400 on average over 100 games (95 % interval 390 to 410).",
        "Random play scores 150.",
        "The teacher scores 500. The agent has 71.4 % of the teacher's margin over random play.",
    ]


def test_a_run_whose_student_plays_at_random_says_so() -> None:
    run = {
        "ci95": (-21.0, -20.0),
        "episodes": 10,
        "cores": 9,
        "misses": 0,
        "seconds": {"map": 1.0},
        "report": "r",
    }
    chance = {"mean": -20.2, "ci95": (-20.6, -19.9)}
    words = verdict("run", run | {"mean": -20.5, "percent_of_margin": -1.0, "random": chance})
    assert words[0].endswith("(-21 to -20), -1.0 % of the teacher's margin over random play.")
    assert words[1] == "That is no better than random play, which scores -20.2."
    better = verdict(
        "run", run | {"mean": 18.0, "ci95": (17.0, 19.0), "percent_of_margin": 97.0, "random": chance}
    )
    assert not any("no better" in line for line in better)


def test_traces_that_are_equal_and_traces_that_differ() -> None:
    found: dict[str, Any] = {
        "frames": 120,
        "decisions": 30,
        "spikes": 30,
        "same": True,
        "first_difference": None,
    }
    assert verdict("replay", found | {"trace": "game.h5", "played_by": "cores", "agent": "student"}) == [
        "Agent student played the same as agent cores in game.h5.",
        "Compared: 120 frames and 30 decisions, and the spikes of 30 decisions.",
    ]
    found |= {"spikes": 0, "same": False, "first_difference": "the scores of decision 3"}
    assert verdict("compare", found | {"trace": "a.h5", "other": "b.h5", "agents": ["cores", "lava"]}) == [
        "Agent cores of a.h5 did not play the same as agent lava of b.h5. "
        "The first difference is the scores of decision 3.",
        "Compared: 120 frames and 30 decisions.",
    ]


def test_a_sweep_tells_what_was_chosen_and_what_it_scored() -> None:
    row = {"game": "pong", "distill.temperature": "0.01", "seeds": 1, "done": 1, "hours": 0.2}
    found = {"trials": 2, "stage_runs": 6, "done": 6, "page": "sweep.html"}
    table = [row | {"mean": 12.0, "ci95": [10.0, 14.0]}, row | {"distill.temperature": "1.0"}]
    assert verdict("sweep", found | {"table": table}) == [
        "All 2 trials done: 6 stage runs.",
        "  Pong, distill.temperature 0.01: 12 on average (95 % interval 10 to 14)",
        "  Pong, distill.temperature 1.0: no score",
        "The whole table: sweep.html",
    ]
    assert verdict("sweep", found | {"done": 3, "table": []})[0] == (
        "3 of 6 stage runs done; the same command goes on."
    )


def test_a_teacher_is_not_set_beside_itself() -> None:
    itself = {"agent": "teacher", "teacher": CHANCE, "percent_of_margin": 100.0}
    assert len(verdict("evaluate", SCORED | itself)) == len(verdict("evaluate", SCORED))


def test_random_play_is_not_set_beside_itself() -> None:
    itself = {"agent": "random", "random": CHANCE, "teacher": CHANCE, "percent_of_margin": 0.0}
    assert verdict("evaluate", SCORED | itself)[1:] == ["The teacher scores 150."]


def test_one_game_has_no_interval() -> None:
    words = verdict("evaluate", SCORED | {"episodes": 1, "ci95": (400.0, 400.0), "random": CHANCE})
    assert words[0] == "Space Invaders, agent student: 400 in 1 game."


def test_a_poor_result_says_so() -> None:
    words = verdict("evaluate", SCORED | {"mean": 150.0, "episodes": 5, "random": CHANCE})
    assert words[1:] == [
        "That is no better than random play, which scores 150.",
        "So few games give a rough figure; 100 are the rule.",
    ]
    assert not any("rough" in line for line in verdict("evaluate", SCORED | CONTROL))
    assert verdict("evaluate", SCORED | CONTROL | {"episodes": 5})[-1] == (
        "So few games give a rough figure; 10 are the rule."
    )
    found = {"agreement": 0.17, "held_out_steps": 10, "steps": 2, "samples": 256, "seconds": 1.0}
    poor = verdict("distill", found | {"samples_per_s": 256.0, "actions": 6})
    assert "no more than chance (16.7%)" in poor[1]
    assert not any(
        "chance" in line for line in verdict("distill", found | {"samples_per_s": 1.0, "actions": 18})
    )
    empty = {
        "episodes": 0,
        "mean_return": None,
        "frames": 10,
        "bytes": 4e6,
        "seconds": 1.0,
        "frames_per_s": 10.0,
    }
    assert "No game ended" in verdict("record", empty)[0]


def test_a_training_that_was_cut_to_its_minutes_says_so() -> None:
    found = {
        "agreement": 0.9,
        "held_out_steps": 10,
        "steps": 4,
        "samples": 512,
        "seconds": 1.0,
        "samples_per_s": 512.0,
    }
    told = "The training was cut to 0.5 minutes of this machine: 4 of 9 batches. More --minutes make a longer training."
    for fitted, last in ({"steps": 4}, told), ({"steps": 9}, ""):
        words = verdict("distill", found | {"fitted": {"minutes": 0.5, "asked": 9, **fitted}})
        assert words[2:] == [last] * bool(last)
    score = {
        "mean": 18.0,
        "ci95": (17.0, 19.0),
        "episodes": 10,
        "cores": 9,
        "misses": 0,
        "seconds": {"map": 1.0},
    }
    assert told in verdict("run", score | {"report": "r", "fitted": {"minutes": 0.5, "asked": 9, "steps": 4}})


def test_a_rung_that_was_skipped_is_not_a_row_of_zeros() -> None:
    rungs = [
        {"name": "pytorch", "frames": 8, "mismatches": 0},
        {"name": "lava", "frames": 0, "mismatches": 0, "skipped": "Lava is not installed"},
    ]
    words = verdict("verify", {"ok": True, "frames": 8, "source": "buffer", "rungs": rungs, "core_map": None})
    assert words == [
        "The same spikes everywhere, bit for bit, on 8 recorded frames.",
        "  compared: pytorch (8 frames)",
        "  not compared: lava (Lava is not installed)",
    ]
    rungs[:1] = [
        {"name": "naive", "frames": 8, "mismatches": 0},
        {
            "name": "naive",
            "frames": 0,
            "mismatches": 0,
            "skipped": "it is the reference, as PyTorch is not installed",
        },
    ]
    words = verdict("verify", {"ok": True, "frames": 8, "source": "buffer", "rungs": rungs, "core_map": None})
    assert words[1:3] == [
        "  compared: naive (8 frames)",
        "  naive: it is the reference, as PyTorch is not installed",
    ]


def test_units_are_those_that_people_use() -> None:
    assert [duration(s) for s in (0.4, 45, 600, 9000)] == ["0.4 s", "45 s", "10.0 min", "2.5 h"]
    assert [size(b) for b in (812, 3.4e6, 2e9)] == ["812 bytes", "3.4 MB", "2 GB"]
    assert [joules(j) for j in (0.0644, 1.23e-5, 2e-12)] == ["64.4 mJ", "12.3 uJ", "2 pJ"]


def test_verbose_prints_every_figure_after_the_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = StageResult(tmp_path / "play.json", PLAYED)
    cli.report(VERBS["play"], result, False)
    few = capsys.readouterr().out
    assert few.startswith("Pong, agent cores")
    assert "latency_ms.p999" not in few
    cli.report(VERBS["play"], result, False, verbose=True)
    assert "latency_ms.p999" in capsys.readouterr().out


def test_a_summary_without_its_figures_falls_back_to_the_table() -> None:
    assert verdict("evaluate", {"stopped_in": "record"}) == []
