from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.hardware import hardware
from spikestill.configs.verify import VerifyConfig
from spikestill.dataset.reader import BufferReader
from spikestill.dataset.recorder import record
from spikestill.deploy import core_map as core_map_format
from spikestill.deploy.equivalence import first_deviation
from spikestill.deploy.ladder import Played, Rung, torch_player
from spikestill.deploy.lava.loader import available
from spikestill.deploy.mapping import map_net
from spikestill.deploy.verify import run
from spikestill.student.architectures import LayerSpec
from spikestill.student.integer_net import (
    STACK_SHAPE,
    IntegerLayer,
    IntegerNet,
    layer_sums,
    naive_forward,
    save,
)
from tests.dataset.players import LinearPlayer, small_config
from tests.nets import random_net

LAYERS = (LayerSpec(8, 8, 8, 0, 1), LayerSpec(16, 4, 3, 1, 2), LayerSpec(24, 1, 1, 0, 2))
PROVENANCE = Provenance.of({}, seed=0)
NO_LAVA = {"lava_frames": 0, "stock_frames": 0}


def write_student(folder: Path, net: IntegerNet) -> Path:
    path = folder / "student.safetensors"
    save(net, path, PROVENANCE)
    return path


@pytest.fixture
def net() -> IntegerNet:
    return random_net(LAYERS, seed=3)


def outcome(rungs: list[dict]) -> dict[str, tuple[int, int]]:
    return {rung["name"]: (rung["frames"], rung["mismatches"]) for rung in rungs}


def test_the_ladder_of_a_mapped_student_holds(tmp_path: Path, net: IntegerNet) -> None:
    config = VerifyConfig(student=write_student(tmp_path, net), frames=70, naive_frames=5, **NO_LAVA)
    result = run(config, tmp_path)
    assert result.finished
    assert result.summary["ok"] is True
    assert outcome(result.summary["rungs"]) == {
        "pytorch": (70, 0), "naive": (5, 0), "packed": (70, 0), "cores": (70, 0), "cores-pipelined": (70, 0),
        "lava": (0, 0), "lava-loihi": (0, 0),
    }  # fmt: skip
    document = json.loads(result.artefact.read_text())
    assert document["ok"] is True
    assert document["difference"] is None
    assert document["provenance"]["parents"].keys() == {"student"}
    skipped = {rung["name"]: rung["skipped"] for rung in document["rungs"] if "skipped" in rung}
    assert skipped.keys() == {"lava", "lava-loihi"}
    assert all(skipped.values())


@pytest.mark.lava
@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_the_lava_rungs_are_climbed(tmp_path: Path, net: IntegerNet) -> None:
    config = VerifyConfig(
        student=write_student(tmp_path, net), frames=9, naive_frames=0, lava_frames=6, stock_frames=2
    )
    rungs = outcome(run(config, tmp_path).summary["rungs"])
    assert rungs["lava"] == (6, 0)
    assert rungs["lava-loihi"] == (2, 0)


def test_a_large_net_skips_the_stock_processes_with_the_reason(tmp_path: Path, net: IntegerNet) -> None:
    config = VerifyConfig(
        student=write_student(tmp_path, net), frames=1, naive_frames=0, lava_frames=0, stock_synapses=10
    )
    stock = run(config, tmp_path).summary["rungs"][-1]
    reason = available() or r"synapses, the limit is stock_synapses 10"
    assert reason in stock["skipped"]


@pytest.mark.parametrize("layer", [1, 2])
def test_a_wrong_threshold_on_a_core_is_named(tmp_path: Path, net: IntegerNet, layer: int) -> None:
    core_map = map_net(net, hardware("truenorth"), PROVENANCE)
    computing = (core_map.core_layer_C == layer) & ~core_map.core_relay_C
    frames = [
        np.random.default_rng([0, index]).integers(0, 256, STACK_SHAPE, np.uint8) for index in range(40)
    ]
    reference = torch_player(net)(np.stack(frames)).layers
    assert reference is not None
    # The last of the neurons that fire in some of the frames.
    fires = reference[layer].mean(axis=0)
    feature, row, column = (int(index) for index in np.argwhere((fires > 0.1) & (fires < 0.9))[-1])
    same = (core_map.feature_CN == feature) & (core_map.row_CN == row) & (core_map.column_CN == column)
    theta = core_map.theta_CN.copy()
    theta[same & computing[:, None]] = 250
    path = tmp_path / "core_map.h5"
    core_map_format.save(dataclasses.replace(core_map, theta_CN=theta), path)
    config = VerifyConfig(
        student=write_student(tmp_path, net), core_map=path, frames=40, naive_frames=0, **NO_LAVA
    )
    named = (
        rf"rung cores differs from pytorch in frame \d+, layer {layer}, "
        rf"neuron \(feature {feature}, row {row}, column {column}\): 0, expected 1"
    )
    with pytest.raises(UserError, match=named):
        run(config, tmp_path)
    document = json.loads((tmp_path / "verify.json").read_text())
    assert document["ok"] is False
    assert document["difference"]["layer"] == layer
    assert document["difference"]["neuron"] == [feature, row, column]
    assert [entry["rung"] for entry in document["differences"]] == ["cores", "cores-pipelined"]
    assert document["difference"]["frame"] == int(np.argmax(reference[layer][:, feature, row, column]))


def test_a_difference_in_votes_alone_is_named() -> None:
    wanted = np.array([[3, 5], [4, 4]])
    rung = Rung("votes", lambda stacks: Played(None, np.array([[3, 5], [4, 6]])), limit=2)
    rung.compare(np.zeros((2, 1, 1, 1), np.uint8), Played([], wanted))
    assert str(rung.first) == "rung votes differs from pytorch in frame 1, votes of action 1: 6, expected 4"
    assert (rung.frames, rung.mismatches) == (2, 1)


def test_a_core_map_that_departs_where_no_frame_shows_it_is_found(tmp_path: Path, net: IntegerNet) -> None:
    core_map = map_net(net, hardware("truenorth"))
    stack = np.random.default_rng([0, 0]).integers(0, 256, net.input_shape, np.uint8)
    sums = layer_sums(net.layers[1], naive_forward(net, stack)[0])
    theta = core_map.theta_CN.copy()
    first = core_map.used_CN & ~core_map.core_relay_C[:, None] & (core_map.core_layer_C == 1)[:, None]
    place = (core_map.feature_CN[first], core_map.row_CN[first], core_map.column_CN[first])
    far = np.abs(sums[place] - theta[first]) > 2
    core, neuron = np.argwhere(first)[np.flatnonzero(far & (theta[first] > 1))[0]]
    theta[core, neuron] += 1
    changed = dataclasses.replace(core_map, theta_CN=theta)
    path = tmp_path / "core_map.h5"
    core_map_format.save(changed, path)
    config = VerifyConfig(
        student=write_student(tmp_path, net), core_map=path, frames=1, naive_frames=0, **NO_LAVA
    )
    with pytest.raises(
        UserError,
        match=rf"hold: the core map .*core_map\.h5 departs from the student: core {core}, neuron {neuron} ",
    ):
        run(config, tmp_path)
    assert f"core {core}, neuron {neuron}" in json.loads((tmp_path / "verify.json").read_text())["core_map"]


def test_a_core_map_of_another_geometry_is_refused(tmp_path: Path, net: IntegerNet) -> None:
    other = random_net(LAYERS[:2], seed=1)
    path = tmp_path / "core_map.h5"
    core_map_format.save(map_net(other, hardware("truenorth"), PROVENANCE), path)
    with pytest.raises(
        UserError, match=r"core_map.h5: maps a net of pong, .* layers \[\[8, 10, 10\], \[16, 3, 3\]\]"
    ):
        run(VerifyConfig(student=write_student(tmp_path, net), core_map=path, frames=1), tmp_path)


@pytest.mark.parametrize("rule", ["neuron identity", "equal delays"])
def test_a_core_map_that_breaks_a_rule_is_told_of(tmp_path: Path, net: IntegerNet, rule: str) -> None:
    core_map = map_net(net, hardware("truenorth"))
    row, tick = core_map.row_CN.copy(), core_map.layer_tick_L.copy()
    if rule == "neuron identity":
        row[tuple(np.argwhere(core_map.used_CN)[0])] = -1
    else:
        tick[1] = 1000
    changed = dataclasses.replace(core_map, row_CN=row, layer_tick_L=tick)
    core_map_format.save(changed, tmp_path / "core_map.h5")
    config = VerifyConfig(
        student=write_student(tmp_path, net), core_map=tmp_path / "core_map.h5", frames=3, naive_frames=1, **NO_LAVA
    )  # fmt: skip
    with pytest.raises(
        UserError, match=rf"core_map\.h5 departs from the student: the map breaks the rule '{rule}'"
    ):
        run(config, tmp_path)
    document = json.loads((tmp_path / "verify.json").read_text())
    assert outcome(document["rungs"])["packed"] == (3, 0)
    assert outcome(document["rungs"])["cores"] == (0, 0)


@pytest.mark.parametrize("change", [{"game": "breakout"}, {"input_shape": (4, 85, 85)}])
def test_a_core_map_of_another_game_or_input_is_refused(
    tmp_path: Path, net: IntegerNet, change: dict
) -> None:
    core_map = map_net(net, hardware("truenorth"))
    core_map_format.save(dataclasses.replace(core_map, **change), tmp_path / "core_map.h5")
    config = VerifyConfig(
        student=write_student(tmp_path, net), core_map=tmp_path / "core_map.h5", frames=1, **NO_LAVA
    )
    with pytest.raises(UserError, match=r"core_map.h5: maps a net of .*student.safetensors is of pong"):
        run(config, tmp_path)
    assert "the map's " in str(first_deviation(dataclasses.replace(core_map, **change), net))


def test_a_core_map_of_another_student_is_called_so(tmp_path: Path, net: IntegerNet) -> None:
    mapped = tmp_path / "mapped"
    mapped.mkdir()
    student = write_student(mapped, random_net(LAYERS, seed=4))
    provenance = Provenance.of({}, seed=0, parents={"student": student})
    path = tmp_path / "core_map.h5"
    core_map_format.save(map_net(random_net(LAYERS, seed=4), hardware("truenorth"), provenance), path)
    with pytest.raises(UserError, match="was mapped from another student file"):
        run(VerifyConfig(student=write_student(tmp_path, net), core_map=path, frames=2, **NO_LAVA), tmp_path)


def test_a_net_that_no_core_holds_skips_the_core_rungs_with_the_reason(tmp_path: Path) -> None:
    wide = random_net((LayerSpec(40, 8, 8, 0, 1), LayerSpec(6, 2, 2, 0, 1)), seed=5)
    config = VerifyConfig(student=write_student(tmp_path, wide), frames=2, naive_frames=1, **NO_LAVA)
    rungs = {rung["name"]: rung for rung in run(config, tmp_path).summary["rungs"]}
    assert rungs["packed"]["frames"] == 2
    for name in ("cores", "cores-pipelined"):
        assert rungs[name]["frames"] == 0
        assert "160" in rungs[name]["skipped"]


def test_recorded_frames_are_drawn_without_repetition(tmp_path: Path, net: IntegerNet) -> None:
    buffer = tmp_path / "buffer.h5"
    record(LinearPlayer(), small_config(200), buffer)
    with BufferReader(buffer) as reader:
        available_frames = len(reader)
    student = write_student(tmp_path, dataclasses.replace(net, game="breakout"))
    config = VerifyConfig(student=student, buffer=buffer, frames=50, naive_frames=3, **NO_LAVA)
    result = run(config, tmp_path)
    assert result.summary["source"] == "buffer"
    assert result.summary["frames"] == 50
    (tmp_path / "other").mkdir()
    other = write_student(tmp_path / "other", net)
    with pytest.raises(UserError, match=r"buffer\.h5: frames of breakout, .*student\.safetensors plays pong"):
        run(dataclasses.replace(config, student=other), tmp_path)
    every = run(dataclasses.replace(config, frames=10_000_000), tmp_path)
    assert every.summary["frames"] == available_frames
    assert every.summary["ok"] is True


def test_an_interrupt_ends_it_unfinished_and_writes_nothing(tmp_path: Path, net: IntegerNet) -> None:
    config = VerifyConfig(student=write_student(tmp_path, net), frames=1_000_000, naive_frames=0, **NO_LAVA)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def interrupt() -> None:
        while signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the run has not begun to listen
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        result = run(config, tmp_path)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not result.finished
    assert result.summary["frames"] < 1_000_000
    assert not result.artefact.exists()


def test_a_student_of_another_input_shape_cannot_read_a_buffer(tmp_path: Path) -> None:
    small = random_net(LAYERS[:1], seed=1, input_shape=(2, 20, 20))
    config = VerifyConfig(student=write_student(tmp_path, small), buffer=tmp_path / "buffer.h5")
    with pytest.raises(UserError, match=r"reads input of shape \(2, 20, 20\), a buffer has \(4, 84, 84\)"):
        run(config, tmp_path)


@pytest.mark.parametrize(
    ("field", "value"), [("frames", 0), ("naive_frames", -1), ("stock_synapses", 0), ("seed", -1)]
)
def test_options_out_of_range_are_refused(field: str, value: int) -> None:
    with pytest.raises(UserError, match=f"^{field} is {value}, its range is"):
        VerifyConfig(**{field: value})


def test_extreme_thresholds_hold_through_the_stage(tmp_path: Path) -> None:
    """Neurons that always or never fire, with int32's ends as thresholds."""
    base = random_net(LAYERS, seed=6)
    ends = np.array([-(2**31), 2**31 - 1], np.int32)
    layers = [
        IntegerLayer(
            one.weight_OIHW,
            np.where(np.arange(one.features) % 5 == 0, ends[np.arange(one.features) % 2], one.theta_O).astype(np.int32),
            one.stride, one.pad, one.groups,
        )
        for one in base.layers
    ]  # fmt: skip
    student = write_student(tmp_path, dataclasses.replace(base, layers=tuple(layers)))
    assert run(VerifyConfig(student=student, frames=8, naive_frames=8, **NO_LAVA), tmp_path).summary["ok"]
