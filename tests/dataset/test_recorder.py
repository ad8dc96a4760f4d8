import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.common.zoo import zoo_path
from spikestill.configs.record import RecordConfig
from spikestill.dataset.format import CHUNK_ROWS, BufferFile, BufferWriter, Header, Steps, game_returns
from spikestill.dataset.preferences import FIRST_ROWS
from spikestill.dataset.reader import BufferReader
from spikestill.dataset.recorder import BackgroundWriter, record, run
from spikestill.teacher.atari.environment import VectorGames
from tests.dataset.players import DivergingPlayer, FixedPlayer, LinearPlayer, WatchedPlayer, small_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A buffer of several games a stream, what its player saw, (T, N, 4, 84, 84), and the summary."""
    path = tmp_path_factory.mktemp("recording") / "buffer.h5"
    player = WatchedPlayer()
    result = record(player, small_config(2402, epsilon=1.0), path)
    halves = [np.stack(player.seen[half::2]) for half in (0, 1)]
    return path, np.concatenate(halves, axis=1), result


def test_stacks_equal_what_the_player_saw_through_ends_of_games(recording):
    path, seen, _ = recording
    with BufferReader(path) as reader:
        starts = reader._steps.start
        assert (starts.sum(axis=0) >= 3).all(), "too few games to prove anything"
        time_, stream = reader.locate(np.arange(len(reader)))
        assert np.array_equal(reader.stacks(np.arange(len(reader))), seen[time_, stream])
        expected = LinearPlayer().q_values(seen[:, :2].reshape(-1, 4, 84, 84)).reshape(-1, 2, reader.actions)
        assert np.allclose(reader._steps.q_values[:, :2], expected, atol=1e-4)


@pytest.mark.parametrize("memory", [0, 4 * 32 * 7056, 7 * 4 * 32 * 7056])
def test_stacks_do_not_depend_on_the_memory_given(recording, memory):
    path, seen, _ = recording
    with BufferReader(path, memory) as reader:
        assert reader.resident == memory // (4 * 7056)
        index = np.random.default_rng(0).permutation(len(reader))
        time_, stream = reader.locate(index)
        assert np.array_equal(reader.stacks(index), seen[time_, stream])


def test_recorded_actions_played_again_give_the_recorded_rewards_and_ends(recording):
    path, seen, _ = recording
    config = small_config(2402, epsilon=1.0)
    with BufferFile(path) as file:
        steps = file.steps
    seeds = np.random.default_rng([config.seed, 12, 0]).integers(0, 2**31 - 1, 4).astype(np.int64)
    envs = VectorGames(config.environment, 4)
    observation, _ = envs.reset(seeds)
    over = np.zeros(4, np.bool_)
    for row in range(len(steps.action)):
        assert np.array_equal(observation, seen[row])
        assert np.array_equal(steps.valid[row], ~over)
        observation, reward, terminated, truncated, _ = envs.step(steps.action[row].astype(np.int64))
        assert np.array_equal(steps.reward[row], reward)
        assert np.array_equal(steps.terminated[row], terminated)
        assert np.array_equal(steps.truncated[row], truncated)
        if row + 1 < len(steps.action):
            assert np.array_equal(steps.start[row + 1], over)
        over = (terminated | truncated) & ~over
    envs.close()


def test_summary_counts_frames_games_and_scores(recording):
    path, _, result = recording
    with BufferFile(path) as file:
        steps = file.steps
    ends = int(steps.terminated.sum())
    assert result.finished
    assert result.summary["frames"] == 2404, "2402 rounded up to whole vector steps of 4 streams"
    assert result.summary["episodes"] == ends >= 8
    assert result.summary["valid"] == int(steps.valid.sum()) < 2404
    returns = game_returns(steps)
    assert len(returns) == ends
    by_hand = []
    for stream in range(4):
        score = 0.0
        for row in range(len(steps.start)):
            score = (0.0 if steps.start[row, stream] else score) + steps.reward[row, stream]
            if steps.terminated[row, stream]:
                by_hand.append(score)
    assert returns == by_hand


def test_same_seed_records_the_same_and_another_seed_does_not(tmp_path):
    content = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        record(LinearPlayer(), small_config(160, seed=seed), tmp_path / name)
        with BufferReader(tmp_path / name) as reader:
            content.append(reader.batch(np.arange(len(reader))))
    assert all(np.array_equal(one, two) for one, two in zip(content[0], content[1], strict=True))
    assert not np.array_equal(content[0].actions, content[2].actions)


def test_epsilon_gives_the_share_of_random_actions(tmp_path):
    record(LinearPlayer(), small_config(200, epsilon=0.0), tmp_path / "greedy")
    record(LinearPlayer(), small_config(1600, epsilon=0.5), tmp_path / "half")
    shares = []
    for name in ("greedy", "half"):
        with BufferFile(tmp_path / name) as file:
            shares.append(float((file.steps.q_values.argmax(axis=2) == file.steps.action).mean()))
    assert shares[0] == 1.0
    assert 0.57 < shares[1] < 0.68, "0.5 + 0.5 / 4 actions = 0.625"


def test_one_stream_is_recorded_too(tmp_path):
    player = WatchedPlayer()
    record(player, small_config(50, num_envs=1), tmp_path / "buffer.h5")
    with BufferReader(tmp_path / "buffer.h5") as reader:
        assert np.array_equal(reader.stacks(np.arange(50)), np.concatenate(player.seen))


def test_resume_appends_a_session_and_keeps_what_was_there(tmp_path):
    path = tmp_path / "buffer.h5"
    players = WatchedPlayer(), WatchedPlayer()
    first = record(players[0], small_config(404), path)
    with BufferReader(path) as reader:
        before = reader.batch(np.arange(len(reader)))
    second = record(players[1], small_config(600), path, resume=True)
    assert (first.summary["frames"], second.summary["frames"]) == (404, 600)
    with BufferReader(path) as reader:
        assert reader.header.sessions == (0, 101)
        after = reader.batch(np.arange(len(before.actions)))
        assert all(np.array_equal(one, two) for one, two in zip(before, after, strict=True))
        seen = np.concatenate([np.stack(players[1].seen[half::2]) for half in (0, 1)], axis=1)
        time_, stream = reader.locate(np.arange(len(before.actions), len(reader)))
        stacks = reader.stacks(np.arange(len(before.actions), len(reader)))
        assert np.array_equal(stacks, seen[time_ - 101, stream])
    again = record(LinearPlayer(), small_config(600), path, resume=True)
    assert again.finished
    assert again.summary["frames"] == 600


@pytest.mark.parametrize("options", [{"epsilon": 0.1}, {"num_envs": 3}, {"seed": 5}])
def test_resume_with_other_options_is_refused(tmp_path, options):
    record(LinearPlayer(), small_config(40), tmp_path / "buffer.h5")
    with pytest.raises(UserError, match=f"was written with {next(iter(options))}"):
        record(LinearPlayer(), small_config(80, **options), tmp_path / "buffer.h5", resume=True)


def test_resume_with_another_teacher_is_refused(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    path = tmp_path / "buffer.h5"
    record(LinearPlayer(), small_config(40), path, parents={"teacher": tmp_path / "one"})
    with pytest.raises(UserError, match="was written with teacher"):
        record(LinearPlayer(), small_config(80), path, resume=True, parents={"teacher": tmp_path / "two"})


def test_teacher_of_another_game_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"teacher\.safetensors: plays pong, the environment is breakout"):
        run(small_config(40, teacher=zoo_path("pong", "teacher.safetensors")), tmp_path)
    with pytest.raises(UserError, match=r"gives scores of shape \(2, 6\) for 2 games of 4 actions"):
        record(LinearPlayer("pong"), small_config(40), tmp_path / "buffer.h5")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_q_value_that_is_not_finite_names_the_step_and_leaves_a_readable_file(tmp_path, value):
    path = tmp_path / "buffer.h5"
    with pytest.raises(UserError, match=r"Q-values at step 100, stream 1 are \[.*(nan|inf)"):
        record(DivergingPlayer(200, value), small_config(4000), path)
    with BufferReader(path) as reader:
        assert reader.locate(len(reader) - 1)[0] == 95, "whole chunks of 32 rows before it were written"


@pytest.mark.parametrize(
    ("q_A", "because"),
    [
        ([2.0] * 4, "are the same for all 4 actions in all of"),
        ([0.0, 1.0, 2.0, 3.0], "are the same in all of"),
    ],
)
@pytest.mark.parametrize("frames", [400, 1_000_000])
def test_a_teacher_that_says_nothing_is_refused_within_seconds(tmp_path, q_A, because, frames):
    player = FixedPlayer(q_A)
    (tmp_path / "teacher").write_text("one")
    with pytest.raises(UserError, match=rf"{tmp_path}/teacher: the teacher's Q-values {because}"):
        record(
            player,
            small_config(frames),
            tmp_path / "buffer.h5",
            parents={"teacher": tmp_path / "teacher"},
        )
    assert player.looks == 2 * min(frames // 4, FIRST_ROWS)
    assert [path.name for path in tmp_path.iterdir()] == ["teacher"]


def test_an_agent_that_is_no_teacher_need_not_have_q_values(tmp_path):
    assert record(FixedPlayer([0.0] * 4), small_config(400, agent="random"), tmp_path / "buffer.h5").finished


def test_zoo_without_a_teacher_says_so(tmp_path, monkeypatch):
    from spikestill.configs.environment import EnvironmentConfig

    monkeypatch.setattr("spikestill.common.zoo.ROOT", tmp_path / "zoo")
    config = RecordConfig(environment=EnvironmentConfig(game="riverraid"), frames=32)
    with pytest.raises(UserError, match=r"the zoo has no teacher\.safetensors for riverraid"):
        run(config, tmp_path)


@pytest.mark.parametrize(
    ("option", "value"),
    [("frames", 0), ("epsilon", 1.5), ("num_envs", 0), ("flush_every", 0), ("compression", 0), ("seed", -1)],
)
def test_option_out_of_range_is_named(option, value):
    with pytest.raises(UserError, match=rf"^{option} is {value}, its range is"):
        RecordConfig(**{option: value})


def test_run_records_a_saved_teacher(tmp_path):
    import torch

    from spikestill.common.provenance import file_sha256
    from spikestill.teacher.atari import q_network
    from spikestill.teacher.checkpoint import save_teacher
    from spikestill.teacher.policy import load_teacher

    teacher = tmp_path / "teacher.safetensors"
    weights = q_network.initial_weights(4, torch.Generator().manual_seed(0))
    save_teacher(teacher, weights, "breakout", 4, Provenance.of({}, 0))
    config = small_config(200, teacher=teacher, epsilon=0.05)
    result = run(config, tmp_path)
    assert result.artefact == tmp_path / "buffer.h5"
    with BufferReader(result.artefact) as reader:
        assert reader.header.provenance.parents == {"teacher": file_sha256(teacher)}
        every = np.arange(len(reader))
        expected = load_teacher(teacher).q_values(reader.stacks(every))
        assert np.allclose(reader.q_values(every), expected, atol=1e-4)


def test_an_ensemble_writes_the_mean_of_its_teachers_and_resumes_with_the_same_alone(tmp_path):
    import torch

    from spikestill.common.provenance import file_sha256
    from spikestill.teacher.atari import q_network
    from spikestill.teacher.checkpoint import save_teacher
    from spikestill.teacher.policy import load_teacher

    files = [tmp_path / f"{name}.safetensors" for name in ("one", "two", "three")]
    for seed, file in enumerate(files):
        weights = q_network.initial_weights(4, torch.Generator().manual_seed(seed))
        save_teacher(file, weights, "breakout", 4, Provenance.of({}, seed))
    config = small_config(200, teacher=files[0], ensemble=tuple(files[1:]))
    result = run(config, tmp_path)
    with BufferReader(result.artefact) as reader:
        assert reader.header.provenance.parents == {
            role: file_sha256(file)
            for role, file in zip(("teacher", "teacher2", "teacher3"), files, strict=True)
        }
        stacks = reader.stacks(np.arange(len(reader)))
        each = [load_teacher(file).q_values(stacks) for file in files]
        assert np.allclose(reader.q_values(np.arange(len(reader))), np.mean(each, axis=0), atol=1e-4)
    moved = files[2].rename(tmp_path / "moved.safetensors")
    again = dataclasses.replace(config, frames=400, ensemble=(files[1], moved))
    assert run(again, tmp_path, resume=True).finished
    with pytest.raises(UserError, match=r"was written with ensemble \[.*Resume with the same --ensemble"):
        run(dataclasses.replace(config, frames=600, ensemble=(files[1],)), tmp_path, resume=True)
    with pytest.raises(UserError, match=r"^ensemble is 'b\.h5', a teacher is"):
        small_config(40, ensemble=(Path("b.h5"),))


def start_recording(path: Path, frames: int, resume: bool) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "tests.dataset.players",
        str(path),
        str(frames),
        "resume" if resume else "new",
    ]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_growth(path: Path, process: subprocess.Popen, size: int) -> None:
    while not path.exists() or path.stat().st_size < size:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def test_a_recording_that_ended_before_its_first_flush_is_told_and_goes_on(tmp_path):
    path = tmp_path / "buffer.h5"
    with pytest.raises(UserError, match="Q-values at step 0"):
        record(DivergingPlayer(0, np.nan), small_config(40_000), path)
    with pytest.raises(UserError, match=r"0 of the 40,000 frames asked for: interrupted") as told:
        BufferReader(path)
    assert told.value.remedy == "go on with `spikestill record ... --resume`"
    assert record(LinearPlayer(), small_config(400), path, resume=True).summary["frames"] == 400


@pytest.mark.slow
def test_ctrl_c_saves_and_resume_goes_on(tmp_path):
    path = tmp_path / "buffer.h5"
    process = start_recording(path, 1_000_000, resume=False)
    wait_for_growth(path, process, 60_000)
    process.send_signal(2)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    finished, frames = out.split()
    assert finished == "False"
    with BufferFile(path) as file:
        rows = file.rows
        assert rows * 4 == int(frames)
    assert record(LinearPlayer(), small_config((rows + 40) * 4), path, resume=True).finished


def test_kill_keeps_what_was_flushed_and_resume_goes_on(tmp_path):
    path = tmp_path / "buffer.h5"
    rng = np.random.default_rng(0)
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    record(LinearPlayer(), small_config(4 * CHUNK_ROWS), tmp_path / "block.h5")
    block_bytes = (tmp_path / "block.h5").stat().st_size
    for kill in range(3):
        process = start_recording(path, 1_000_000, resume=kill > 0)
        # Each block is flushed before the next is written, so three blocks behind the end mean two flushes.
        size = path.stat().st_size if kill else 0
        wait_for_growth(path, process, size + 3 * block_bytes)
        time.sleep(float(rng.random()) * 0.1)
        process.kill()
        process.communicate()
        with BufferReader(path) as reader:
            now = reader.stacks(np.arange(len(reader))), reader.q_values(np.arange(len(reader)))
        for old_stacks, old_q in kept[-1:]:
            assert len(now[0]) > len(old_stacks)
            assert np.array_equal(now[0][: len(old_stacks)], old_stacks)
            assert np.array_equal(now[1][: len(old_q)], old_q)
        kept.append(now)
    result = record(LinearPlayer(), small_config(len(kept[-1][0]) + 400), path, resume=True)
    assert result.finished
    with h5py.File(path) as file:
        assert len(file.attrs["sessions"]) == 4


def test_every_stream_explores_at_its_own_rate(tmp_path):
    path = tmp_path / "buffer.h5"
    record(LinearPlayer(), small_config(2400, epsilon=0.01, epsilon_high=1.0), path)
    with BufferFile(path) as file:
        steps = file.steps
        random = (steps.action != steps.q_values.argmax(axis=2)).mean(axis=0)
    expected = np.array([0.01, 0.0464, 0.2154, 1.0]) * 3 / 4  # Breakout has four actions
    assert np.abs(random - expected).max() < 0.08
    assert (np.diff(random) > 0).all()


def test_one_stream_cannot_explore_at_two_rates():
    with pytest.raises(
        UserError, match=r"^epsilon_high is 0\.4, .* num_envs is 1. Give --num_envs 2 or more"
    ):
        RecordConfig(epsilon_high=0.4, num_envs=1)


def test_nothing_is_written_behind_a_block_that_failed(tmp_path):
    header = Header("pong", ("NOOP", "UP"), 2, Provenance.of({}, 0))
    steps = Steps.empty(3, header)
    for column in steps.columns().values():
        column[:] = 0
    steps.start[0], steps.valid[:] = True, True
    frames = np.zeros((2, 3, 84 * 84), np.uint8)
    with BufferWriter.create(tmp_path / "buffer.h5", header) as writer:
        background = BackgroundWriter(writer, flush_rows=1)
        background.put(frames, steps)
        background.put(frames[:, :, :-1], steps)  # a frame of another size
        background.put(frames, steps)
        with pytest.raises(ValueError, match="broadcast"):
            background.put(frames, steps)
        background.finish()
    with BufferFile(tmp_path / "buffer.h5") as kept:
        assert kept.rows == 3, "the first block, which was flushed"


def test_exploration_below_the_range_is_refused():
    with pytest.raises(UserError, match=r"epsilon is 0.0, its range is 0.0001..1"):
        RecordConfig(epsilon=0.0, epsilon_high=0.5)
