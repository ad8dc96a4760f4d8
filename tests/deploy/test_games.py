"""A student of two games is mapped, estimated and verified on the recordings of both."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.legal import LegalActions
from spikestill.common.provenance import Provenance, file_sha256
from spikestill.configs.estimating import EstimateConfig
from spikestill.configs.exporting import ExportConfig
from spikestill.configs.hardware import hardware
from spikestill.configs.mapping import MapConfig
from spikestill.configs.pipeline import InspectConfig
from spikestill.configs.verify import VerifyConfig
from spikestill.core_page import core_rates
from spikestill.dataset.reader import BufferReader
from spikestill.dataset.recorder import record
from spikestill.deploy import core_map as core_map_format
from spikestill.deploy import estimate, export, mapping, verify
from spikestill.deploy.frames import Frames
from spikestill.deploy.ladder import torch_player
from spikestill.deploy.rates import firing_rates
from spikestill.student.integer_net import STACK_SHAPE, IntegerNet, save
from spikestill.teacher.atari.environment import console_actions
from tests.dataset.players import LinearPlayer, small_config
from tests.nets import SMALL_ON_STACKS, random_net

GAMES = ("freeway", "breakout")
FEW = {"naive_frames": 4, "lava_frames": 0, "stock_frames": 0}


@pytest.fixture(scope="module")
def buffers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A recording of each of three games; the one of Breakout is short."""
    found = {}
    for game, frames in (("freeway", 160), ("breakout", 64), ("pong", 64)):
        found[game] = tmp_path_factory.mktemp(game) / "buffer.h5"
        config = small_config(frames)
        environment = dataclasses.replace(config.environment, game=game)
        record(LinearPlayer(game), dataclasses.replace(config, environment=environment), found[game])
    return found


def joint() -> IntegerNet:
    net = random_net(SMALL_ON_STACKS, 3, actions=18)
    return dataclasses.replace(
        net, game="+".join(GAMES), legal=tuple(LegalActions(game, console_actions(game)) for game in GAMES)
    )


@pytest.fixture
def student(tmp_path: Path) -> Path:
    path = tmp_path / "student.safetensors"
    save(joint(), path, Provenance.of({}, seed=0))
    return path


def drawn(buffers: list[Path], count: int, game: str = "freeway+breakout") -> contextlib.closing[Frames]:
    return contextlib.closing(Frames(buffers, count, 0, game, STACK_SHAPE, Path("student")))


def told(freeway: int, breakout: int) -> list[dict[str, object]]:
    return [{"game": "freeway", "frames": freeway}, {"game": "breakout", "frames": breakout}]


def test_games_have_the_same_share_and_take_turns(buffers: dict[str, Path]) -> None:
    both = [buffers["breakout"], buffers["freeway"]]
    with drawn(both, 41) as frames:
        assert frames.games() == told(21, 20)
        for few in (2, 4, 10, 40):
            assert frames.games(few) == told(few // 2, few // 2)
        stacks = frames.stacks(3, 30)
        origins = [frames.origin(frame) for frame in range(len(frames))]
    assert len(set(origins)) == 41
    readers = {str(path): BufferReader(path) for path in both}
    for stack, (path, place) in zip(stacks, origins[3:30], strict=True):
        np.testing.assert_array_equal(stack, readers[path].stacks([place])[0])
    for path in readers:
        places = [place for own, place in origins if own == path]
        assert places == sorted(places)


def test_a_game_that_has_fewer_frames_than_its_share_gives_all_of_them(buffers: dict[str, Path]) -> None:
    with BufferReader(buffers["breakout"]) as reader:
        has = len(reader)
    with drawn([buffers["freeway"], buffers["breakout"]], 2 * has + 20) as frames:
        assert frames.games() == told(has + 10, has)
        first = frames.games(has)
    assert all(has / 2 - 10 < each["frames"] < has / 2 + 10 for each in first)


def test_recordings_of_one_game_are_drawn_from_as_one(buffers: dict[str, Path], tmp_path: Path) -> None:
    second = tmp_path / "buffer.h5"
    shutil.copy(buffers["freeway"], second)
    with BufferReader(second) as reader:
        has = len(reader)
    with drawn([buffers["freeway"], second, buffers["breakout"]], 4 * has) as frames:
        origins = [frames.origin(frame) for frame in range(len(frames))]
    for path in (buffers["freeway"], second):
        assert sorted(place for own, place in origins if own == str(path)) == list(range(has))


def test_one_recording_alone_is_drawn_from_as_it_always_was(buffers: dict[str, Path]) -> None:
    with BufferReader(buffers["freeway"]) as reader:
        wanted = np.sort(np.random.default_rng(0).choice(len(reader), 30, replace=False))
    with drawn([buffers["freeway"]], 30) as frames:
        np.testing.assert_array_equal(frames.indices, wanted)
        assert frames.games() == told(30, 0)


def test_the_ladder_compares_frames_of_both_games(
    buffers: dict[str, Path], student: Path, tmp_path: Path
) -> None:
    config = VerifyConfig(
        student=student, buffer=buffers["freeway"], also=(buffers["breakout"],), frames=30, **FEW
    )
    result = verify.run(config, tmp_path)
    assert result.summary["ok"]
    assert result.summary["games"] == told(15, 15)
    document = json.loads(result.artefact.read_text())
    assert document["games"] == told(15, 15)
    parents = document["provenance"]["parents"]
    assert parents["buffer"] == file_sha256(buffers["freeway"])
    assert parents["buffer2"] == file_sha256(buffers["breakout"])


def test_a_difference_on_the_second_games_frames_is_found_and_placed(
    buffers: dict[str, Path], student: Path, tmp_path: Path
) -> None:
    """A neuron that fires on frames of Breakout alone never fires on the cores."""
    net = joint()
    with drawn([buffers["freeway"], buffers["breakout"]], 40) as frames:
        layers = torch_player(net)(frames.stacks(0, 40)).layers
        of_second = np.array([frames.origin(frame)[0] == str(buffers["breakout"]) for frame in range(40)])
    assert layers is not None
    fires = layers[1].reshape(40, -1)
    neuron = np.flatnonzero(fires[of_second].any(axis=0) & ~fires[~of_second].any(axis=0))[0]
    feature, row, column = (int(each) for each in np.unravel_index(neuron, layers[1].shape[1:]))
    core_map = mapping.map_net(net, hardware("truenorth"))
    there = (core_map.feature_CN == feature) & (core_map.row_CN == row) & (core_map.column_CN == column)
    there &= ((core_map.core_layer_C == 1) & ~core_map.core_relay_C)[:, None]
    assert there.any()
    theta = np.where(there, 250, core_map.theta_CN).astype(core_map.theta_CN.dtype)
    path = tmp_path / "core_map.h5"
    core_map_format.save(dataclasses.replace(core_map, theta_CN=theta), path)
    config = VerifyConfig(
        student=student,
        core_map=path,
        buffer=buffers["freeway"],
        also=(buffers["breakout"],),
        frames=40,
        **FEW,
    )
    with pytest.raises(
        UserError, match=rf"layer 1, neuron \(feature {feature}, row {row}, column {column}\)"
    ):
        verify.run(config, tmp_path)
    difference = json.loads((tmp_path / "verify.json").read_text())["difference"]
    assert difference["buffer"] == str(buffers["breakout"])
    assert difference["frame"] == np.flatnonzero(fires[:, neuron])[0]


def test_map_and_estimate_take_the_rates_of_both_games(
    buffers: dict[str, Path], student: Path, tmp_path: Path
) -> None:
    read = {"buffer": buffers["freeway"], "also": (buffers["breakout"],), "frames": 20}
    mapped = mapping.run(MapConfig(student=student, anneal_seconds=1, **read), tmp_path)
    assert {"buffer", "buffer2"} <= set(core_map_format.load(mapped.artefact).provenance.parents)
    config = EstimateConfig(student=student, core_map=mapped.artefact, **read)
    summary = estimate.run(config, tmp_path).summary
    assert summary["games"] == told(10, 10)
    with drawn([buffers["freeway"], buffers["breakout"]], 20) as frames:
        rates = np.concatenate([each.ravel() for each in firing_rates(joint(), frames)])
    # NeuroBench's activation sparsity: the share of neurons and frames without a spike.
    assert summary["operations"]["activation_sparsity"] == pytest.approx(1 - rates.mean(), abs=1e-6)
    first = estimate.run(dataclasses.replace(config, also=()), tmp_path).summary
    assert first["games"] == told(20, 0)
    assert first["operations"] != summary["operations"]


def test_a_buffer_of_a_game_that_the_student_does_not_play_is_refused(
    buffers: dict[str, Path], student: Path, tmp_path: Path
) -> None:
    config = VerifyConfig(student=student, buffer=buffers["freeway"], also=(buffers["pong"],), **FEW)
    wanted = (
        r"buffer\.h5: frames of pong, .*student\.safetensors plays freeway\+breakout\. "
        "Give a recording of freeway or breakout"
    )
    with pytest.raises(UserError, match=wanted):
        verify.run(config, tmp_path)
    with pytest.raises(UserError, match="frames of pong"):
        mapping.run(MapConfig(student=student, buffer=buffers["pong"]), tmp_path)


def test_a_buffer_given_twice_or_without_a_first_one_is_refused(
    buffers: dict[str, Path], student: Path, tmp_path: Path
) -> None:
    twice = VerifyConfig(student=student, buffer=buffers["freeway"], also=(buffers["freeway"],), **FEW)
    with pytest.raises(UserError, match=r"also names .*buffer\.h5 a second time"):
        verify.run(twice, tmp_path)
    for options, given in (
        (VerifyConfig, {}),
        (MapConfig, {}),
        (EstimateConfig, {}),
        (ExportConfig, {"to": "c"}),
        (InspectConfig, {"path": Path("core_map.h5")}),
    ):
        with pytest.raises(
            UserError, match=r"also is b\.h5, and buffer is null\. Give the first .* --buffer"
        ):
            options(also=(Path("b.h5"),), **given)


def test_an_export_carries_frames_of_both_games(
    buffers: dict[str, Path], student: Path, tmp_path: Path
) -> None:
    both = [buffers["freeway"], buffers["breakout"]]
    export.run(ExportConfig(to="c", student=student, buffer=both[0], also=(both[1],), frames=6), tmp_path)
    with drawn(both, 6) as frames:
        assert frames.games() == told(3, 3)
        assert (tmp_path / "c/frames.bin").read_bytes() == frames.stacks(0, 6).tobytes()


def test_the_page_of_a_core_map_shows_rates_over_both_games(buffers: dict[str, Path], tmp_path: Path) -> None:
    core_map, all_frames = mapping.map_net(joint(), hardware("truenorth")), 1000
    paths = [buffers["freeway"], buffers["breakout"]]
    one, other = (core_rates(core_map, tmp_path / "core_map.h5", [path], all_frames) for path in paths)
    both = core_rates(core_map, tmp_path / "core_map.h5", paths, all_frames)
    assert not np.array_equal(one, other)
    np.testing.assert_allclose(both, (160 * one + 64 * other) / 224, atol=1e-12)
