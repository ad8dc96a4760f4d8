"""Putting a teacher and a student into a zoo: real files, real games, one short one each."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

from spikestill import publish
from spikestill.common.errors import UserError
from spikestill.common.legal import LegalActions
from spikestill.common.provenance import Provenance, file_sha256
from spikestill.common.training import write_checkpoint
from spikestill.common.zoo import ROOT
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.record import RecordConfig
from spikestill.dataset import recorder
from spikestill.dataset.reader import BufferReader
from spikestill.shelf import rows
from spikestill.student import distill, distillation, integer_net
from spikestill.student.architectures import architecture
from spikestill.student.integer_net import load, save
from spikestill.teacher.atari.environment import console_actions
from spikestill.teacher.atari.q_network import initial_weights
from spikestill.teacher.checkpoint import read_teacher, read_teacher_file, save_teacher
from tests.nets import random_net, table1_net

LINE = {"step": 64, "frames": 256, "seconds": 2.5, "mean_return_100": -20.0, "dead_conv1": 0.0}

SELECTED = {"step": 128, "score": -19.5, "games": 2}


def write_teacher(folder, seed, parents=None):
    folder.mkdir()
    path = folder / "teacher.safetensors"
    provenance = Provenance.of({"seed": seed}, seed, parents)
    weights = initial_weights(6, torch.Generator().manual_seed(seed))
    save_teacher(path, weights, "pong", 6, provenance, selected=SELECTED)
    lines = [
        LINE,
        LINE | {"step": 128, "frames": 512, "seconds": 5.0},
        LINE | {"step": 192, "frames": 768, "seconds": 1.0},
    ]
    (folder / "teach.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_curve_adds_the_lengths_of_resumed_runs(tmp_path):
    write_teacher(tmp_path / "run", 0)
    points, seconds = publish.curve(tmp_path / "run" / "teach.jsonl", ("step",))
    assert points == [{"step": 64}, {"step": 128}, {"step": 192}]
    assert seconds == 6.0


@pytest.mark.parametrize("half", ["{", '{"step": 256, "fra', '{"step": 256, "seconds": 1'])
def test_a_curve_with_half_a_last_line_is_told_without_it(tmp_path, half):
    path = write_teacher(tmp_path / "run", 0).with_name("teach.jsonl")
    whole = publish.curve(path, ("step",))
    with open(path, "a") as file:
        file.write(half)
    assert publish.curve(path, ("step",)) == whole
    path.write_text(half)
    with pytest.raises(UserError, match="missing or empty"):
        publish.curve(path, ("step",))


@pytest.mark.parametrize("count", [1, 59, 60, 61, 119, 120, 121, 400])
def test_a_thinned_curve_keeps_its_last_point(tmp_path, count):
    lines = [{"step": step, "seconds": float(step)} for step in range(count)]
    (tmp_path / "curve.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    points, _ = publish.curve(tmp_path / "curve.jsonl", ("step",))
    assert points[-1] == {"step": count - 1}
    assert min(count, publish.CURVE_POINTS // 2) <= len(points) <= publish.CURVE_POINTS


def test_ancestors_are_told_from_the_first_to_the_last(tmp_path):
    first = write_teacher(tmp_path / "first", 1)
    second = write_teacher(tmp_path / "second", 2, {"initial": first})
    third = write_teacher(tmp_path / "third", 3, {"initial": second})
    told = publish.ancestors(
        "teacher", *publish.lineage("teacher", read_teacher(third)[3], [second.parent, first.parent])
    )
    assert [(each["sha256"], each["recipe"]["seed"]) for each in told] == [
        (file_sha256(first), 1), (file_sha256(second), 2)
    ]  # fmt: skip
    assert all(each["training_frames"] == 768 for each in told)
    with pytest.raises(UserError, match="is in none of 1 folders"):
        publish.lineage("teacher", read_teacher(third)[3], [first.parent])


def test_a_student_that_went_on_from_the_zoos_has_that_ones_history():
    shipped = ROOT / "seaquest" / "student-1chip.safetensors"
    card = json.loads(shipped.with_suffix(".json").read_text())
    made = Provenance.of({}, 0, {"initial": shipped})
    told = publish.ancestors("student", *publish.lineage("student", made, [shipped.parent]))
    assert told[:-1] == card["went_on_from"]
    assert told[-1] == {key: card[key] for key in ("sha256", "recipe", "training_seconds", "curve")}
    with pytest.raises(UserError, match="is in none of 1 folders"):
        publish.lineage("student", made, [ROOT / "pong"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_published_pair_has_scored_cards_and_a_core_map(tmp_path, monkeypatch):
    source = write_teacher(tmp_path / "run", 0)
    net = table1_net("1chip")
    save(net, tmp_path / "run" / "student.safetensors", Provenance.of({"seed": 0}, 0, {"teacher": source}))
    line = {"step": 8, "seconds": 1.0, "loss": 0.5, "agreement": 0.2}
    line |= {"validation_agreement": 0.25, "validation_regret": 0.75}
    (tmp_path / "run" / "distill.jsonl").write_text(json.dumps(line) + "\n")
    folder = tmp_path / "zoo" / "pong"
    folder.mkdir(parents=True)
    publish.publish_teacher("pong", source, folder, 1, [])
    publish.publish_student("pong", tmp_path / "run" / "student.safetensors", folder, 1, [])
    publish.publish_student("pong", tmp_path / "run" / "student.safetensors", folder, 1, [], "sparse")
    own, beside = ((folder / f"core_map-{name}.h5").stat().st_size for name in ("1chip", "1chip-sparse"))
    assert own == beside > 100_000
    assert json.loads((folder / "student-1chip-sparse.json").read_text())["sha256"] == file_sha256(
        folder / "student-1chip-sparse.safetensors"
    )
    teacher = json.loads((folder / "teacher.json").read_text())
    student = json.loads((folder / "student-1chip.json").read_text())
    assert teacher["sha256"] == file_sha256(folder / "teacher.safetensors")
    assert (teacher["kind"], teacher["episodes"], teacher["training_seconds"]) == ("teacher", 1, 6)
    assert -21 <= teacher["mean"] <= 21
    assert (
        teacher["selected"] == read_teacher_file(folder / "teacher.safetensors").net["selected"] == SELECTED
    )
    assert student["regret"] == 0.75
    assert (student["teacher"], student["random"]) == (teacher["mean"], teacher["random"])
    margin = teacher["mean"] - teacher["random"]
    told = student["percent_of_margin"]
    assert (
        told is None
        if margin <= 0
        else told == round(100 * (student["mean"] - teacher["random"]) / margin, 3)
    )
    assert 0 < student["cores"] <= 4096
    assert (folder / "core_map-1chip.h5").is_file()
    found = load(folder / "student-1chip.safetensors")[0]
    assert all(
        (left.weight_OIHW == right.weight_OIHW).all()
        for left, right in zip(found.layers, net.layers, strict=True)
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_published_student_of_two_games_is_scored_in_both(tmp_path):
    games = ("freeway", "pong")
    for game in games:
        shutil.copytree(ROOT / game, tmp_path / "zoo" / game)
    legal = tuple(LegalActions(game, console_actions(game)) for game in games)
    net = random_net(architecture("1chip"), 0, actions=18)
    net = dataclasses.replace(net, game="freeway+pong", legal=legal)
    (tmp_path / "run").mkdir()
    save(net, tmp_path / "run" / "student.safetensors", Provenance.of({"seed": 0}, 0))
    line = {"step": 8, "seconds": 1.0, "loss": 0.5, "agreement": 0.2}
    line |= {"validation_agreement": 0.25, "validation_regret": 0.75}
    (tmp_path / "run" / "distill.jsonl").write_text(json.dumps(line) + "\n")
    folder = tmp_path / "zoo" / "freeway+pong"
    publish.publish_student("freeway+pong", tmp_path / "run" / "student.safetensors", folder, 1, [])
    card = json.loads((folder / "student-1chip.json").read_text())
    assert list(card["games"]) == ["freeway", "pong"]
    assert card["games"]["pong"]["episodes"] == 1
    assert card["games"]["pong"]["teacher"] > 10
    assert (folder / "core_map-1chip.h5").is_file()
    shares = [each["percent_of_teacher"] for each in card["games"].values()]
    told = rows("freeway+pong", "student-1chip.safetensors", tmp_path / "zoo")
    assert [row["game"] for row in told] == list(card["games"])
    assert [row["percent_of_teacher"] for row in told] == shares
    assert [row["score"] for row in told] == [own["mean"] for own in card["games"].values()]
    with pytest.raises(UserError, match=r"plays freeway\+pong, not pong"):
        publish.publish_student("pong", tmp_path / "run" / "student.safetensors", folder, 1, [])


def record(folder, frames, seed=0):
    """Return a recording of that many frames, and how many of them are kept."""
    config = RecordConfig(environment=EnvironmentConfig(game="freeway"), frames=frames, num_envs=4, seed=seed)
    path = recorder.run(config, folder).artefact
    with BufferReader(path) as reader:
        return path, len(reader)


def learnt_from(*buffers):
    """Return the provenance of a student that learnt from these."""
    parents = {f"buffer{number if number > 1 else ''}": path for number, path in enumerate(buffers, 1)}
    return Provenance.of({"buffer": str(buffers[0]), "also": [str(path) for path in buffers[1:]]}, 0, parents)


def test_what_a_decision_costs_is_estimated_on_the_buffers_that_the_student_learnt_from(tmp_path):
    """On random frames more neurons fire than on a game's."""
    (named, _), (other, _) = record(tmp_path / "first", 64), record(tmp_path / "other", 64, seed=1)
    provenance = learnt_from(named, other)
    source = tmp_path / "second" / "student.safetensors"
    beside, _ = record(source.parent, 64, seed=2)
    assert publish.buffers_of(source, provenance) == [named, other]
    shutil.copy(named, beside)
    assert publish.buffers_of(source, provenance) == [beside, other]
    assert publish.buffers_of(tmp_path / "student.safetensors", Provenance.of({}, 0)) == [None]


def test_a_recording_made_after_a_student_in_its_folder_is_not_told_as_its_own(tmp_path):
    path, frames = record(tmp_path / "run", 64)
    source = path.with_name("student.safetensors")
    provenance = learnt_from(path)
    assert publish.recorded_frames([(source, provenance)], None) == frames
    for each in path.parent.iterdir():
        each.unlink()
    record(path.parent, 128)
    assert publish.buffers_of(source, provenance) == [None]
    assert publish.recorded_frames([(source, provenance)], None) is None


def test_the_frames_of_all_recordings_are_counted_where_they_are_still_there(tmp_path):
    (first, _), (second, _) = found = [record(tmp_path / "first", 64), record(tmp_path / "second", 128)]
    lengths = [length for _, length in found]

    def training(name, *buffers):
        return tmp_path / name / "student.safetensors", learnt_from(*buffers)

    alone, own_play = training("a", first), training("b", second)
    assert min(lengths) > 0
    assert publish.recorded_frames([alone], None) == lengths[0]
    assert publish.recorded_frames([training("b", first, second)], None) == sum(lengths)
    assert publish.recorded_frames([alone, own_play], None) == sum(lengths), "each learnt from its own"
    assert publish.recorded_frames([alone, training("b", first, second)], None) == sum(lengths), "one of both"
    assert publish.recorded_frames([alone], {"recorded_frames": 1000}) == 1000 + lengths[0]
    known = {"recorded_frames": 1000, "parents": {"buffer": file_sha256(first), "initial": "0"}}
    assert publish.recorded_frames([alone, own_play], known) == 1000 + lengths[1], (
        "the published student's own"
    )
    assert publish.recorded_frames([alone], {}) is None
    second.unlink()
    assert publish.recorded_frames([alone, own_play], None) is None


def test_the_trainings_between_a_student_and_the_published_one_that_they_went_on_from_are_known(tmp_path):
    shipped = ROOT / "seaquest" / "student-1chip.safetensors"
    made = Provenance.of({"seed": 1}, 1, {"initial": shipped})
    between = tmp_path / "first" / distill.CHECKPOINT
    between.parent.mkdir()
    write_checkpoint(between, distillation.SCHEMA, {"w": torch.zeros(1)}, {"step": 1}, {}, made)
    last = Provenance.of({"seed": 2}, 2, {"initial": between})
    trained, earlier = publish.lineage("student", last, [between.parent, shipped.parent])
    assert [(path, provenance.seed) for path, provenance in trained] == [(between, 1)]
    assert earlier == json.loads(shipped.with_suffix(".json").read_text())
    assert publish.lineage("student", Provenance.of({}, 0), []) == ([], None)


def test_the_trainings_of_both_halves_of_a_student_are_counted_once_each(tmp_path):
    shipped = ROOT / "seaquest" / "student-1chip.safetensors"
    net, _ = integer_net.load(shipped)

    def trained(name, **parents):
        folder = tmp_path / name
        folder.mkdir()
        made = Provenance.of({"name": name}, 1, parents)
        integer_net.save(net, folder / "student.safetensors", made)
        write_checkpoint(
            folder / distill.CHECKPOINT, distillation.SCHEMA, {"w": torch.zeros(1)}, {}, {}, made
        )
        return folder / "student.safetensors", folder / distill.CHECKPOINT

    def lineage(more=(), **parents):
        folders = [*tmp_path.iterdir(), shipped.parent, *more]
        return publish.lineage("student", Provenance.of({"seed": 2}, 2, parents), folders)

    second, checkpoint = trained("second", initial=shipped)
    third, _ = trained("third", initial=shipped)
    wide, _ = trained("wide", initial=second, initial_beside=shipped)
    for parents, counted in (
        ({"initial": second, "initial_beside": shipped}, [second]),
        ({"initial": shipped, "initial_beside": second}, [second]),
        ({"initial": checkpoint, "initial_beside": second}, [checkpoint]),
        ({"initial": second, "initial_beside": third}, [second, third]),
        ({"initial": wide}, [second, wide]),
    ):
        found, earlier = lineage(**parents)
        assert [path for path, _ in found] == counted
        assert earlier == json.loads(shipped.with_suffix(".json").read_text())
    stranger = ROOT / "enduro" / "student-1chip.safetensors"
    with pytest.raises(UserError, match=r"began beside one with SHA-256 .* in none of 4 folders"):
        lineage(initial=second, initial_beside=stranger)
    beside, _ = trained("beside", initial=second, initial_beside=stranger)
    with pytest.raises(UserError, match=r"began beside a published one .* and went on from another"):
        lineage(initial=beside, more=[stranger.parent])


def test_a_training_that_the_published_student_s_card_tells_is_not_counted_again(tmp_path):
    first = tmp_path / "first" / distill.CHECKPOINT
    first.parent.mkdir()
    made = Provenance.of({"seed": 1}, 1, {})
    write_checkpoint(first, distillation.SCHEMA, {"w": torch.zeros(1)}, {}, {}, made)
    published = tmp_path / "zoo" / "student-1chip.safetensors"
    published.parent.mkdir()
    shutil.copy(ROOT / "pong" / "student-1chip.safetensors", published)
    card = {"sha256": file_sha256(published), "went_on_from": [{"sha256": file_sha256(first)}]}
    published.with_suffix(".json").write_text(json.dumps(card))
    made = Provenance.of({"seed": 2}, 2, {"initial": first, "initial_beside": published})
    assert publish.lineage("student", made, [first.parent, published.parent]) == ([], card)


def test_a_student_of_two_nets_has_a_name_of_its_own(tmp_path):
    net, _ = integer_net.load(ROOT / "pong" / "student-1chip.safetensors")
    source = tmp_path / "student.safetensors"
    for named, variant in (("1chip-wide", ""), ("1chip-wide", "sparse"), ("1chip", "wide")):
        integer_net.save(net, source, Provenance.of({"architecture": named}, 0))
        with pytest.raises(UserError, match=r"architecture is .* Give --variant wide for 1chip-wide"):
            publish.publish_student("pong", source, tmp_path / "zoo", 1, [], variant)


@pytest.mark.parametrize("name", ["../pong", "Sparse", "a b", "-"])
def test_a_variant_s_name_is_a_word(name):
    with pytest.raises(
        UserError, match=r"--variant is .*, small letters and digits wanted. Give a word, such as"
    ):
        publish.check_variant(name)
    assert publish.check_variant("sparse") == "sparse"


def test_a_student_wants_its_teachers_card(tmp_path):
    with pytest.raises(UserError, match=r"teacher\.json: not the card of a teacher beside it"):
        publish.teacher_card(tmp_path)
    for name in ("teacher.safetensors", "teacher.json"):
        shutil.copy(ROOT / "pong" / name, tmp_path / name)
    assert publish.teacher_card(tmp_path)["mean"] > 19
    (tmp_path / "teacher.safetensors").write_bytes(b"another one")
    with pytest.raises(UserError, match="Publish the teacher first"):
        publish.teacher_card(tmp_path)


def test_another_game_is_refused(tmp_path):
    source = write_teacher(tmp_path / "run", 0)
    with pytest.raises(UserError, match="plays pong, not breakout"):
        publish.publish_teacher("breakout", source, tmp_path, 1, [])


def test_a_missing_learning_curve_is_refused_before_anything_is_scored(tmp_path):
    source = write_teacher(tmp_path / "run", 0)
    for damage in (lambda path: path.write_text(""), Path.unlink):
        damage(tmp_path / "run" / "teach.jsonl")
        with pytest.raises(UserError, match=r"teach\.jsonl: the learning curve is missing or empty"):
            publish.publish_teacher("pong", source, tmp_path / "zoo", 100, [])


def test_a_publishing_that_is_stopped_while_it_scores_leaves_the_zoo_as_it_was(tmp_path):
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "teacher.safetensors").write_bytes(b"the one before")
    source = write_teacher(tmp_path / "run", 0)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 3.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            publish.publish_teacher("pong", source, folder, 100, [])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert [path.name for path in folder.iterdir()] == ["teacher.safetensors"]
    assert (folder / "teacher.safetensors").read_bytes() == b"the one before"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["breakout"], "nothing to publish: give --teacher, --student or both"),
        (["pnog", "--teacher", "t"], "unknown game 'pnog'"),
        (["breakout", "--teacher", "t", "--episodes", "0"], "episodes is 0"),
        (["breakout", "--teacher", "t"], "t: no such file"),
        (
            ["breakout", "--teacher", "t", "--variant", "sparse"],
            "--variant sparse names a student, and none is",
        ),
    ],
)
def test_what_cannot_be_published_leaves_the_zoo_as_it_is(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["publish", *words])
    with pytest.raises(SystemExit) as ended:
        publish.main()
    assert message in f"{ended.value.code} {capsys.readouterr().err}"
    assert not list(tmp_path.iterdir())
