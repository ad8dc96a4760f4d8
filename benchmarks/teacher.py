"""Agent steps per second of ``teach`` beside Stable-Baselines3's DQN, same batch and updates per step.

    pip install stable-baselines3==2.9.2 opencv-python-headless
    python -m benchmarks.teacher

Both play Pong with 8 environments, batch 32, one update per 4 agent steps, uniform replay, target copied every
1,000 steps, Nature network, on the same cores; each in a process of its own, three times in turn, medians.
``fast`` is our default recipe (batch 128, one update per 16 steps, priorities) for its own rate.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

SECONDS = 25.0
REPEATS = 3
WARM_STEPS = 2_000


def ours(recipe: str) -> float:
    """Return agent steps/s of our training after its warm-up."""
    from configs.teach import TeachConfig
    from teacher.teach import Training

    same = dict(
        num_envs=8, batch_size=32, update_period=4, n_step=1, priority_exponent=0.0, target_period=1_000
    )
    config = TeachConfig(
        replay_start=WARM_STEPS,
        replay_capacity=50_000,
        epsilon_steps=10_000,
        **(same if recipe == "same" else {}),
    )
    training = Training(config)
    while training.step < WARM_STEPS + 500:
        training.round()
    began, first = time.perf_counter(), training.step
    while time.perf_counter() - began < SECONDS:
        training.round()
    rate = (training.step - first) / (time.perf_counter() - began)
    training.close()
    return rate


def peer() -> float:
    """Return agent steps/s of Stable-Baselines3's DQN after its warm-up."""
    import ale_py
    import gymnasium
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    class Clock(BaseCallback):
        rate, began, first = 0.0, 0.0, 0

        def _on_step(self) -> bool:
            if self.num_timesteps < WARM_STEPS + 500:
                return True
            if not self.began:
                self.began, self.first = time.perf_counter(), self.num_timesteps
            elapsed = time.perf_counter() - self.began
            if elapsed < SECONDS:
                return True
            self.rate = (self.num_timesteps - self.first) / elapsed
            return False

    gymnasium.register_envs(ale_py)
    env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=8, seed=0), 4)
    model = DQN(
        "CnnPolicy", env, buffer_size=50_000, learning_starts=WARM_STEPS, batch_size=32, train_freq=1,
        gradient_steps=2, target_update_interval=1_000, learning_rate=1e-4, seed=0,
    )  # fmt: skip
    clock = Clock()
    model.learn(10**9, callback=clock)
    return clock.rate


def main() -> None:
    """Run all three in turn and write ``benchmarks/results/teacher.json``."""
    if len(sys.argv) > 1:
        rate = peer() if sys.argv[1] == "peer" else ours(sys.argv[1])
        print(json.dumps(rate))
        return
    from benchmarks.measurement import finish

    rates: dict[str, list[float]] = {"same": [], "peer": [], "fast": []}
    for _ in range(REPEATS):
        for name, found in rates.items():
            run = subprocess.run(
                [sys.executable, "-m", "benchmarks.teacher", name],
                capture_output=True,
                text=True,
                check=False,
            )
            if run.returncode:
                sys.exit(f"{name} failed:\n{run.stderr}")
            found.append(json.loads(run.stdout.splitlines()[-1]))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    finish(
        "teacher",
        {
            "teach_steps_per_s": medians["same"],
            "stable_baselines3_dqn_steps_per_s": medians["peer"],
            "ratio": medians["same"] / medians["peer"],
            "teach_fast_recipe_steps_per_s": medians["fast"],
            "runs": rates,
        },
    )


if __name__ == "__main__":
    main()
