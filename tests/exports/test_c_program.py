"""The exported C program is compiled with every warning an error and played beside the naive reference."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.legal import LegalActions, own_scores
from spikestill.common.limits import NET_VALUES
from spikestill.common.zoo import zoo_path
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.exporting import ExportConfig
from spikestill.configs.record import RecordConfig
from spikestill.dataset.reader import BufferReader
from spikestill.deploy.export import run
from spikestill.deploy.exports import c_program
from spikestill.deploy.packed_kernel import PackedNet
from spikestill.student import rollout
from spikestill.student.architectures import LayerSpec
from spikestill.student.integer_net import IntegerLayer, IntegerNet, load, naive_forward
from spikestill.teacher.atari.environment import VectorGames
from spikestill.teacher.policy import load_teacher
from tests.exports.frames import replay_for, stacks_of
from tests.nets import SMALL_LAYERS, SMALL_SHAPE, random_net, table1_net

CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler: apt-get install gcc")
STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror")
SANITISED = (*STRICT, "-fsanitize=address,undefined", "-fno-sanitize-recover")

# Groups of more than 64 inputs, of 64 and of fewer; patches of one word, two and many; more than 64 outputs a group.
WIDE_LAYERS = (
    LayerSpec(200, 5, 3, 2, 1),
    LayerSpec(192, 2, 1, 1, 2),
    LayerSpec(130, 1, 2, 0, 1),
    LayerSpec(65, 2, 1, 0, 65),
)


def compiled(folder: Path, flags: tuple[str, ...] = STRICT) -> Path:
    """Compile ``student.c`` of ``folder`` and return the program."""
    command = [str(CC), *flags, "-o", "student", "student.c"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "student"


def played(program: Path, frames: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program on frames."""
    return subprocess.run([str(program), *words], input=frames, capture_output=True, check=False)


def unpacked(words: np.ndarray, shapes: list[tuple[int, int, int]]) -> list[np.ndarray]:
    """Return every layer's spikes (O, H, W) of one frame, by what the program's first lines say of their order."""
    found, begin = [], 0
    for features, height, width in shapes:
        count = height * width * -(-features // 64)
        octets = words[begin : begin + count].reshape(height, width, -1).view(np.uint8)
        bits = np.unpackbits(octets, axis=2, count=features, bitorder="little")
        found.append(bits.transpose(2, 0, 1))
        begin += count
    assert begin == len(words)
    return found


def spikes_of(program: Path, net: IntegerNet, stacks: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Yield every frame's spikes by layer, as the program writes them."""
    done = played(program, stacks.tobytes(), "--spikes")
    assert done.returncode == 0
    for words in np.frombuffer(done.stdout, "<u8").reshape(len(stacks), -1):
        yield unpacked(words, net.shapes())


@pytest.mark.parametrize(
    ("layers", "shape", "actions"),
    [
        (SMALL_LAYERS, SMALL_SHAPE, 3),
        (WIDE_LAYERS, (2, 23, 17), 18),
        ((LayerSpec(7, 4, 3, 1, 1),), (3, 20, 11), 7),
        ((LayerSpec(6, 12, 5, 0, 2), LayerSpec(5, 3, 1, 1, 1)), (4, 40, 40), 2),
    ],
    ids=["small", "wide", "transduction alone", "more taps than 16 bits hold at once"],
)
def test_a_net_in_c_gives_the_same_spikes_and_votes(
    tmp_path: Path, layers: tuple[LayerSpec, ...], shape: tuple[int, int, int], actions: int
) -> None:
    net = random_net(layers, seed=3, actions=actions, input_shape=shape, density=0.95)
    replay = replay_for(net, stacks_of(6, shape))
    memory = c_program.write(net, replay, tmp_path)
    assert (tmp_path / "frames.bin").read_bytes() == replay.stacks_BCHW.tobytes()
    program = compiled(tmp_path, SANITISED)
    lines = played(program, replay.stacks_BCHW.tobytes()).stdout.decode().splitlines()
    wanted = [f"{votes.argmax()} {' '.join(map(str, votes))}" for votes in replay.votes_BA]
    assert lines == wanted
    for stack, found in zip(replay.stacks_BCHW, spikes_of(program, net, replay.stacks_BCHW), strict=True):
        for layer, spikes in enumerate(naive_forward(net, stack)):
            assert np.array_equal(found[layer], spikes), layer
    told = f"constants {memory.constant_bytes} bytes, working memory {memory.working_bytes} bytes\n"
    assert played(compiled(tmp_path), b"", "--memory").stdout.decode() == told


def test_extreme_pixels_and_thresholds(tmp_path: Path) -> None:
    """Sums of 300 white pixels pass 16 bits; thresholds at the ends of int32 are never and always."""
    rng = np.random.default_rng(1)
    weight = rng.choice([-1, 1], (4, 3, 10, 10)).astype(np.int8)
    weight[0], weight[1] = 1, -1
    theta = np.array([300 * 255, -300 * 255 + 1, 2**31 - 1, -(2**31)], np.int32)
    second = IntegerLayer(
        np.array([[[[1]], [[-1]], [[0]], [[1]]]], np.int8), np.array([2], np.int32), 1, 0, 1
    )
    net = IntegerNet((IntegerLayer(weight, theta, 1, 0, 1), second), 1, (3, 10, 10))
    stacks = np.stack([np.full((3, 10, 10), value, np.uint8) for value in (0, 1, 254, 255)])
    c_program.write(net, replay_for(net, stacks), tmp_path)
    found = list(spikes_of(compiled(tmp_path, SANITISED), net, stacks))
    for stack, layers in zip(stacks, found, strict=True):
        for layer, spikes in enumerate(naive_forward(net, stack)):
            assert np.array_equal(layers[layer], spikes)
    assert [layers[0][:, 0, 0].tolist() for layers in found] == [
        [0, 1, 0, 1],
        [0, 1, 0, 1],
        [0, 1, 0, 1],
        [1, 0, 0, 1],
    ]


def test_a_table_1_net_in_c(tmp_path: Path) -> None:
    net = table1_net("1chip", seed=1)
    replay = replay_for(net, stacks_of(3, net.input_shape))
    c_program.write(net, replay, tmp_path)
    program = compiled(tmp_path)
    for stack, found in zip(replay.stacks_BCHW, spikes_of(program, net, replay.stacks_BCHW), strict=True):
        for layer, spikes in enumerate(naive_forward(net, stack)):
            assert np.array_equal(found[layer], spikes), layer


def test_the_check_finds_a_frame_that_votes_otherwise(tmp_path: Path) -> None:
    net = random_net(SMALL_LAYERS, seed=3, actions=3, input_shape=SMALL_SHAPE)
    replay = replay_for(net, stacks_of(5))
    assert (replay.votes_BA[0] != replay.votes_BA[3]).any()
    c_program.write(net, replay, tmp_path)
    program, frames = compiled(tmp_path), replay.stacks_BCHW
    done = played(program, frames.tobytes(), "--check")
    assert (done.returncode, done.stdout) == (0, b"5 frames, 0 differ\n")
    done = played(program, frames[[3, 1, 2, 3, 4]].tobytes(), "--check")
    assert (done.returncode, done.stdout) == (1, b"5 frames, 1 differ\n")
    assert done.stderr == b"the votes of frame 0 differ from those expected\n"
    done = played(program, frames[:4].tobytes(), "--check")
    assert (done.returncode, done.stderr) == (1, b"5 frames are expected\n")


def test_a_frame_cut_short_and_a_wrong_word_are_told(tmp_path: Path) -> None:
    net = random_net(SMALL_LAYERS, seed=3, actions=3, input_shape=SMALL_SHAPE)
    c_program.write(net, replay_for(net, stacks_of(1)), tmp_path)
    program = compiled(tmp_path)
    done = played(program, bytes(2 * 24 * 24 + 100))
    assert (done.returncode, done.stderr) == (1, b"frame 1 has 100 bytes, 1152 are wanted\n")
    assert played(program, b"", "--chekc").returncode == 2


def test_a_board_links_the_net_without_main(tmp_path: Path) -> None:
    net = random_net(SMALL_LAYERS, seed=3, actions=3, input_shape=SMALL_SHAPE)
    replay = replay_for(net, stacks_of(1))
    c_program.write(net, replay, tmp_path)
    (tmp_path / "board.c").write_text(
        "#define STUDENT_NO_MAIN\n#include <stdio.h>\n#include \"student.c\"\n"
        "static uint8_t pixels[STACK_BYTES];\n"
        "int main(void)\n{\n    int32_t votes[ACTIONS];\n    int i;\n"
        "    if (fread(pixels, 1, sizeof pixels, stdin) != sizeof pixels)\n        return 1;\n"
        "    student_play(pixels, votes);\n"
        "    printf(\"%d \", student_action(votes, 0));\n"
        "    for (i = 0; i < ACTIONS; i++)\n        printf(\"%d \", (int)votes[i]);\n    return 0;\n}\n"
    )  # fmt: skip
    subprocess.run([str(CC), *STRICT, "-o", "board", "board.c"], cwd=tmp_path, check=True)
    done = played(tmp_path / "board", replay.stacks_BCHW.tobytes())
    votes_A = replay.votes_BA[0]
    assert list(map(int, done.stdout.split())) == [votes_A.argmax(), *votes_A]


def test_a_student_of_several_games_takes_each_ones_own_actions(tmp_path: Path) -> None:
    net = random_net(SMALL_LAYERS, seed=3, actions=5, input_shape=SMALL_SHAPE)
    legal = (LegalActions("freeway", (0, 2)), LegalActions("pong", (1, 3)))
    net = dataclasses.replace(net, game="freeway+pong", legal=legal)
    replay = replay_for(net, stacks_of(8))
    memory = c_program.write(net, replay, tmp_path)
    program, frames = compiled(tmp_path, SANITISED), replay.stacks_BCHW.tobytes()
    taken = {}
    for each in legal:
        wanted = [each.actions[own_scores(votes, each.actions).argmax()] for votes in replay.votes_BA]
        lines = played(program, frames, "--game", each.game).stdout.decode().splitlines()
        taken[each.game] = [int(line.split()[0]) for line in lines]
        assert taken[each.game] == wanted
    assert set(taken["freeway"]) == {0, 2}
    assert played(program, frames, "--check").stdout == b"8 frames, 0 differ\n"
    for words in ((), ("--game", "qbert"), ("--game", "pong", "--check", "--speed")):
        done = played(program, frames, *words)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"games: freeway pong\nthe action is one of a game's own: give --game\n" in done.stderr
    assert "The games: 0 freeway, 1 pong." in (tmp_path / "student.c").read_text()
    told = f"constants {memory.constant_bytes} bytes, working memory {memory.working_bytes} bytes\n"
    assert played(compiled(tmp_path), b"", "--memory").stdout.decode() == told


def test_no_layer_within_the_limits_can_wrap() -> None:
    """The largest input there may be, all of it 255, stays within the program's 32 bits."""
    assert 255 * NET_VALUES < 2**31
    with pytest.raises(ValueError, match=r"has more than 4,194,304 values"):
        IntegerNet(
            (IntegerLayer(np.ones((1, NET_VALUES + 1, 1, 1), np.int8), np.zeros(1, np.int32), 1, 0, 1),),
            1,
            (NET_VALUES + 1, 1, 1),
        )


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    net = random_net(SMALL_LAYERS, seed=3, actions=3, input_shape=SMALL_SHAPE)
    replay = replay_for(net, stacks_of(1))
    c_program.write(net, replay, tmp_path)
    compiled(tmp_path)
    c_program.write(net, replay, tmp_path)
    (tmp_path / "main.c").touch()
    with pytest.raises(UserError, match=r"holds main\.c, which this export does not write"):
        c_program.write(net, replay, tmp_path)


def check_stream(program: Path, net: IntegerNet, stacks: np.ndarray) -> None:
    packed = PackedNet(net)
    for stack, found in zip(stacks, spikes_of(program, net, stacks), strict=True):
        for layer, spikes in enumerate(packed.spikes(stack)):
            assert np.array_equal(found[layer], spikes), layer


def test_the_shipped_pong_student_in_c_replays_frames_of_a_game(tmp_path: Path) -> None:
    student = zoo_path("pong", "student-1chip.safetensors")
    teacher = load_teacher(zoo_path("pong", "teacher.safetensors"))
    envs = VectorGames(EnvironmentConfig(game="pong"), 4)
    stacks, _ = envs.reset(11)
    seen = []
    for _ in range(25):
        seen.append(stacks.copy())
        stacks, *_ = envs.step(teacher.q_values(stacks).argmax(axis=1))
    envs.close()
    result = run(ExportConfig(to="c", student=student), tmp_path)
    program = compiled(tmp_path / "c")
    assert played(program, (tmp_path / "c/frames.bin").read_bytes(), "--check").returncode == 0
    assert result.summary["constant_bytes"] + result.summary["working_bytes"] < 500_000
    check_stream(program, load(student)[0], np.concatenate(seen))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_shipped_pong_student_in_c_replays_ten_thousand_recorded_frames(tmp_path: Path) -> None:
    config = RecordConfig(environment=EnvironmentConfig(game="pong"), frames=10_000)
    buffer = rollout.run(config, tmp_path / "pong").artefact
    student = zoo_path("pong", "student-1chip.safetensors")
    run(ExportConfig(to="c", student=student, buffer=buffer, frames=10_000), tmp_path)
    program, net = compiled(tmp_path / "c"), load(student)[0]
    frames = (tmp_path / "c/frames.bin").read_bytes()
    assert played(program, frames, "--check").stdout == b"10000 frames, 0 differ\n"
    reader = BufferReader(buffer, memory=0)
    for begin in range(0, 10_000, 500):
        check_stream(program, net, np.asarray(reader.stacks(np.arange(begin, begin + 500))))
    reader.close()
