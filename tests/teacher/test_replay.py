import numpy as np
import pytest

from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.teach import TeachConfig
from spikestill.teacher.atari.actor import Actor
from spikestill.teacher.atari.replay import PIXELS, Replay


def fill(replay, steps, envs=2, done=(), invalid=(), start=(0,)):
    """Append steps whose frame value and reward are the step's number."""
    for t in range(steps):
        replay.append(
            np.full((envs, PIXELS), t % 256, np.uint8), np.full(envs, t % 7), np.full(envs, t, np.float32),
            np.full(envs, t in done), np.full(envs, t not in invalid), np.full(envs, t in start),
        )  # fmt: skip


def sampled(replay, batches=200, size=32):
    rng = np.random.default_rng(0)
    return [replay.sample(rng, size, 0.4) for _ in range(batches)]


def test_n_step_return_stops_at_the_end_of_a_game_and_bootstraps_elsewhere():
    replay = Replay(200, 2, 3, 0.9, 0.0)
    fill(replay, 20, done=(9,), invalid=(10,), start=(0, 11))
    seen = {
        int(b.time[i]): (b.reward[i], b.discount[i], b.time_next[i])
        for b in sampled(replay)
        for i in range(32)
    }
    np.testing.assert_allclose(seen[4][0], 4 + 0.9 * 5 + 0.81 * 6, rtol=1e-6)
    np.testing.assert_allclose(seen[4][1], 0.9**3, rtol=1e-6)
    assert seen[4][2] == 7
    np.testing.assert_allclose(seen[8][0], 8 + 0.9 * 9, rtol=1e-6)
    assert seen[8][1] == 0.0
    assert set(seen) == (set(range(17)) - {10})


def test_a_cut_game_bootstraps_from_its_last_observation():
    replay = Replay(200, 2, 3, 0.9, 0.0)
    fill(replay, 20, invalid=(10,), start=(0, 11))
    seen = {int(b.time[i]): (b.discount[i], b.time_next[i]) for b in sampled(replay) for i in range(32)}
    np.testing.assert_allclose(seen[9][0], 0.9, rtol=1e-6)
    assert seen[9][1] == 10


def test_ring_never_gives_a_stack_across_its_seam():
    replay = Replay(2 * 70, 2, 3, 0.9, 0.5)
    fill(replay, 1000)
    for batch in sampled(replay, 50):
        stacks = replay.stacks(batch.time, batch.env)[:, 0, 0].astype(int)
        following = replay.stacks(batch.time_next, batch.env)[:, 0, 0].astype(int)
        assert ((stacks - stacks[:, :1]) % 256 == np.arange(4)).all()
        assert ((following - stacks) % 256 == 3).all()


def test_sampling_follows_the_priorities():
    replay = Replay(200, 1, 1, 0.9, 1.0)
    fill(replay, 12, envs=1)
    whole = sampled(replay, 50)
    times = np.concatenate([b.time for b in whole])
    envs = np.concatenate([b.env for b in whole])
    once = np.unique(times, return_index=True)[1]
    batch = type(whole[0])(
        times[once], envs[once], times[once], times[once], *(np.zeros(len(once), np.float32),) * 3
    )
    replay.set_priorities(batch, np.where(batch.time == 5, 3.0, 1.0).astype(np.float32))
    counts = np.bincount(np.concatenate([b.time for b in sampled(replay, 400)]), minlength=12)
    assert 2.8 < counts[5] / np.delete(counts[:11], 5).mean() < 3.2


def test_importance_weights_undo_the_priorities():
    replay = Replay(200, 1, 1, 0.9, 1.0)
    fill(replay, 12, envs=1)
    batch = replay.sample(np.random.default_rng(0), 64, 1.0)
    replay.set_priorities(batch, np.where(batch.time == 5, 3.0, 1.0).astype(np.float32))
    batch = replay.sample(np.random.default_rng(1), 64, 1.0)
    chosen = batch.weight[batch.time == 5]
    others = batch.weight[batch.time != 5]
    np.testing.assert_allclose(chosen, others.max() * 1.001 / 3.001, rtol=1e-5)


def test_state_round_trip_continues_identically():
    replay = Replay(140, 2, 3, 0.9, 0.5)
    fill(replay, 333)
    other = Replay(140, 2, 3, 0.9, 0.5)
    other.set_state({name: array.copy() for name, array in replay.state().items()})
    for a, b in zip(sampled(replay, 5), sampled(other, 5), strict=True):
        np.testing.assert_array_equal(a.time, b.time)
        np.testing.assert_array_equal(a.weight, b.weight)
        np.testing.assert_array_equal(replay.stacks(a.time, a.env), other.stacks(b.time, b.env))


@pytest.mark.parametrize("life_loss", [False, True])
def test_stacks_equal_the_live_observations_through_ends_of_games(life_loss):
    config = TeachConfig(
        environment=EnvironmentConfig(game="breakout"),
        num_envs=4,
        update_period=4,
        life_loss_terminal=life_loss,
    )
    actor = Actor(config)
    replay = Replay(4 * 500, 4, 3, 0.99, 0.0)
    live, games = [], 0
    for _ in range(450):
        live.append(actor.observation.copy())
        step = actor.act({}, 0.0, 1.0)
        games += len(step.returns)
        replay.append(step.frame, step.action, step.reward, step.done, step.valid, step.start)
    actor.close()
    assert games >= 4
    for t in range(3, 450):
        np.testing.assert_array_equal(
            replay.stacks(np.full(4, t), np.arange(4)).transpose(0, 3, 1, 2), live[t], err_msg=f"step {t}"
        )
    ends = replay.done[:450].sum()
    assert ends > games if life_loss else ends == games
