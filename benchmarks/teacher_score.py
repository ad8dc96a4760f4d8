"""Seconds until a Pong teacher's last 100 games average 18: our recipes beside Stable-Baselines3's DQN.

    pip install stable-baselines3==2.9.2 opencv-python-headless
    python -m benchmarks.teacher_score ours [--target 18] [--seed 0] [--recipe teach-pqn]
    python -m benchmarks.teacher_score peer [--times 5] [--minutes 60] [--state runs/stable-baselines3]

The games are the training's own, exploration included, as both programs print them. Stable-Baselines3 has the
settings that its zoo gives for Atari (batch 32, an update per 4 steps, replay of 100,000, Adam 1e-4, exploration down
to 0.01 within a million steps), but 8 environments, which makes it faster. It plays after ours, on the same cores, for
at most ``--times`` as long as ours took; the result says where it stood then. Hours on two cores: let nothing else run.
``--minutes`` ends a sitting: the same command goes on with the model, the replay and the games' returns in ``--state``
(pickled: use no other). New games begin there. Seconds count while it trains, not while it saves.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement import TRACKED, finish, made

NAME = "teacher_score"
GAMES = 100
ZOO_STEPS = 10_000_000


def ours(recipe: str, target: float, seed: int) -> dict[str, Any]:
    """Train Pong by a recipe, whole, until the last games average ``target``; return seconds, steps, curve."""
    from spikestill.configs.loading import find_recipe, load
    from spikestill.configs.teach import TeachConfig
    from spikestill.teacher.atari.teach import Training

    config = load(TeachConfig, find_recipe(recipe), {"seed": seed, "environment.game": "pong"})
    curve: list[tuple[int, int, float | None]] = []
    score: float | None = None
    began = time.perf_counter()
    training = Training(config)
    while training.step < config.steps:
        training.round()
        elapsed, score = time.perf_counter() - began, training.mean_return()
        if len(curve) < elapsed // 60:
            curve.append((round(elapsed), training.step, score))
            print("teach", *curve[-1], flush=True)
        if len(training.returns) >= GAMES and score is not None and score >= target:
            break
    training.close()
    return {
        "seconds": time.perf_counter() - began, "steps": training.step, "mean_return_100": score,
        "reached": score is not None and score >= target, "made": made(), "curve": curve,
    }  # fmt: skip


def peer(
    target: float, seed: int, limit_s: float, state: Path, before: dict[str, Any] | None
) -> dict[str, Any]:
    """Train Stable-Baselines3's DQN until it averages ``target`` or ``limit_s`` have passed; return the same.

    Args:
        target: mean return of the last 100 games.
        seed: of the networks and the games.
        limit_s: seconds that this sitting may take.
        state: folder of the model and the replay.
        before: what the sitting before returned, to go on from; None to begin.
    """
    import ale_py
    import gymnasium
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    curve: list[tuple[int, int, float | None]] = [] if before is None else before["curve"]
    spent = 0.0 if before is None else before["seconds"]
    began = time.perf_counter()

    class Watch(BaseCallback):
        score: float | None = None

        def _on_step(self) -> bool:
            games = [game["r"] for game in self.model.ep_info_buffer or ()]
            self.score = float(np.mean(games)) if games else None
            elapsed = time.perf_counter() - began
            if len(curve) < (spent + elapsed) // 60:
                curve.append((round(spent + elapsed), self.num_timesteps, self.score))
                print("stable-baselines3", *curve[-1], flush=True)
            there = len(games) >= GAMES and self.score is not None and self.score >= target
            return not there and elapsed < limit_s

    gymnasium.register_envs(ale_py)
    environments = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=8, seed=seed), 4)
    if before is None:
        model = DQN(
            "CnnPolicy", environments, buffer_size=100_000, learning_rate=1e-4, batch_size=32,
            learning_starts=100_000, target_update_interval=1_000, train_freq=1, gradient_steps=2,
            exploration_fraction=0.1, exploration_final_eps=0.01, seed=seed,
        )  # fmt: skip
    else:
        model = DQN.load(state / "model.zip", env=environments)
        model.load_replay_buffer(state / "replay.pkl")
    watch = Watch()
    began = time.perf_counter()
    model.learn(ZOO_STEPS - model.num_timesteps, callback=watch, reset_num_timesteps=before is None)
    found = {
        "seconds": spent + time.perf_counter() - began, "steps": model.num_timesteps, "mean_return_100": watch.score,
        "reached": watch.score is not None and watch.score >= target,
        "made": [*([] if before is None else before["made"]), made()], "curve": curve,
    }  # fmt: skip
    state.mkdir(parents=True, exist_ok=True)
    model.save(state / "model.zip")
    model.save_replay_buffer(state / "replay.pkl")
    return found


def tracked() -> dict[str, Any]:
    """Return the figures of the sittings before."""
    found: dict[str, Any] = json.loads((TRACKED / f"{NAME}.json").read_text(encoding="utf-8"))["figures"]
    return found


def main() -> None:
    """Run one of the two and write ``benchmarks/results/teacher_score.json``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("who", choices=("ours", "peer"))
    parser.add_argument("--target", type=float, default=18.0, help="mean return of the last 100 games")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--recipe", default="teach-fast", help="of ours; the peer is measured beside teach-fast"
    )
    parser.add_argument(
        "--times", type=float, default=5.0, help="how often our time Stable-Baselines3 may take"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of this sitting of Stable-Baselines3")
    parser.add_argument("--state", type=Path, default=Path("runs/stable-baselines3"))
    options = parser.parse_args()
    if options.who == "ours":
        found = ours(options.recipe, options.target, options.seed)
        known = {"target": options.target, "seed": options.seed}
        beside = tracked()
        if options.recipe == "teach-fast":
            known |= {name: each for name, each in beside.items() if name.startswith("teach_")}
        else:
            found |= known
            known = beside
        finish(NAME, known | {Path(options.recipe).stem.replace("-", "_"): found})
        return
    figures = tracked()
    fast, before = figures["teach_fast"], figures.get("stable_baselines3_dqn")
    left_s = options.times * fast["seconds"] - (before["seconds"] if before else 0.0)
    limit_s = min(left_s, 60.0 * options.minutes)
    theirs = peer(figures["target"], figures["seed"], limit_s, options.state, before)
    ratio = theirs["seconds"] / fast["seconds"]
    figures.pop("ratio_at_least", None)
    figures |= {
        "stable_baselines3_dqn": theirs,
        "ratio" if theirs["reached"] else "ratio_at_least": ratio,
    }
    finish(NAME, figures)


if __name__ == "__main__":
    main()
