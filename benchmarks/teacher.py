"""Agent steps per second of ``teach`` beside Stable-Baselines3's DQN and CleanRL's, same batch and updates per step.

    pip install stable-baselines3==2.9.2 opencv-python-headless
    python -m benchmarks.teacher [--cleanrl PYTHON]

All play Pong with batch 32, one update per 4 agent steps, uniform replay, target copied every 1,000 steps, Nature
network, on the same cores; each in a process of its own, three times in turn, medians. Ours and Stable-Baselines3
have 8 environments, CleanRL can have one only. Ours computes in bf16 where the CPU has it (``--precision auto``),
theirs in fp32, as they come. CleanRL is run as it is, its module ``cleanrl.dqn_atari``, by the interpreter that is
given. Its release wants older packages than ours: make an environment of Python 3.10 for it,

    pip install torch==2.13.0 "numpy<2" gymnasium==0.29.1 ale-py==0.9.1 stable-baselines3==2.2.1 \\
        opencv-python-headless==4.10.0.84 tensorboard
    pip install --no-deps cleanrl==1.2.0

``fast`` is our default recipe (batch 128, one update per 16 steps, priorities) for its own rate. Of both of ours it is
told where a round's time goes, and what a replay of a million frames takes. ``pqn`` is the recipe ``teach-pqn``, which
learns twice from each step.

The *floor* of both recipes is what the products alone would take at the rate of ``a @ b`` (2,048, all cores, fp32; and
in bf16 where ours computes in it), measured between the others in the same run: an agent step is one forward pass to
act, and an update has three (both states by the trained weights, the next by the target's) and one backward pass (none
to the pixels) of its batch; of ``pqn`` an agent step is two forward passes, to act and for the value, and two of one
forward and one backward pass. ``python -m benchmarks.distill --help`` says how any x86 processor stands in for one with
AVX2 only; ``--name`` names the result's file then.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from typing import Any

SECONDS = 25.0
REPEATS = 3
WARM_STEPS = 2_000
PRODUCT_SIDE = 2_048
SAMPLES_A_STEP = 8
"""Samples learned from for each agent step: 32 every 4 steps, 128 every 16."""
# Importing ale_py is what registers the games.
RUN_CLEANRL = "import ale_py, runpy; runpy.run_module('cleanrl.dqn_atari', run_name='__main__')"


def ours(recipe: str) -> dict[str, Any]:
    """Return agent steps/s of our training after its warm-up, and where the time of a round goes."""
    from spikestill.configs.teach import TeachConfig
    from spikestill.teacher.atari.actor import Actor
    from spikestill.teacher.atari.host_learner import HostLearner
    from spikestill.teacher.atari.replay import Replay
    from spikestill.teacher.atari.teach import Training

    same: dict[str, Any] = dict(
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
    spent: dict[str, float] = defaultdict(float)
    for owner, method in (
        (HostLearner, "update"), (Actor, "act"), (Training, "round"),
        (Replay, "sample"), (Replay, "stacks"), (Replay, "set_priorities"),
    ):  # fmt: skip
        clock(owner, method, spent)
    began, first = time.perf_counter(), training.step
    while time.perf_counter() - began < SECONDS:
        training.round()
    elapsed = time.perf_counter() - began
    training.close()
    assert isinstance(training.learner, HostLearner)
    # The shares gather their stacks side by side.
    replay_s = spent["sample"] + spent["set_priorities"] + spent["stacks"] / training.learner.shares
    return {
        "steps_per_s": (training.step - first) / elapsed,
        # 1 where the slower of acting and learning sets the pace alone.
        "overlap": max(spent["update"] + spent["sample"] + spent["set_priorities"], spent["act"])
        / spent["round"],
        "replay_share_of_an_update": replay_s / (spent["update"] + spent["sample"] + spent["set_priorities"]),
    }


def parallel() -> dict[str, Any]:
    """Return agent steps/s of parallelised Q-learning after its second round of learning."""
    from spikestill.configs.loading import find_recipe, load
    from spikestill.configs.teach import TeachConfig
    from spikestill.teacher.atari.teach import Training

    training = Training(load(TeachConfig, find_recipe("teach-pqn"), {"environment.game": "pong"}))
    learnt = 0
    while learnt < 2:
        learnt += bool(training.round())
    began, first = time.perf_counter(), training.step
    while time.perf_counter() - began < SECONDS:
        training.round()
    rate = (training.step - first) / (time.perf_counter() - began)
    training.close()
    return {"steps_per_s": rate}


def products() -> dict[str, Any]:
    """Return operations/s of a product of squares on all cores, two for each multiply-add, in fp32 and in ours."""
    import torch

    from spikestill.common.precision.formats import number_format
    from spikestill.common.processor import compute_device, cores

    torch.set_num_threads(cores())
    ours = number_format("auto", compute_device("cpu"))
    found: dict[str, Any] = {"precision": ours.name}
    for key, dtype in (("flop_per_s_fp32", torch.float32), ("flop_per_s", ours.body)):
        a, b = (torch.randn(PRODUCT_SIDE, PRODUCT_SIDE).to(dtype) for _ in range(2))
        times: list[float] = []
        ended = time.perf_counter() + 3.0
        while time.perf_counter() < ended:
            began = time.perf_counter()
            torch.mm(a, b)
            times.append(time.perf_counter() - began)
        found[key] = 2 * PRODUCT_SIDE**3 / statistics.median(times)
    return found


def step_flop() -> tuple[int, int]:
    """Return the operations of one agent step's products: a forward pass to act, and its share of an update.

    With double DQN, and with PQN, which learns twice from a step and asks for its value before.
    """
    from benchmarks.measurement import NATURE_PRODUCTS

    forward = sum(NATURE_PRODUCTS)
    backward = 2 * forward - NATURE_PRODUCTS[0]
    ddqn = forward + SAMPLES_A_STEP * (3 * forward + backward)
    return 2 * ddqn, 2 * (2 * forward + 2 * (forward + backward))


def clock(owner: type, method: str, spent: dict[str, float]) -> None:
    """Make ``owner.method`` add the seconds that it takes to ``spent[method]``."""
    inner = getattr(owner, method)

    def timed(*args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*args, **options)
        finally:
            spent[method] += time.perf_counter() - began

    setattr(owner, method, timed)


def replay_bytes(frames: int) -> int:
    """Return the bytes of a replay of ``frames`` frames, with priorities."""
    from spikestill.teacher.atari.replay import Replay

    replay = Replay(frames, 32, 3, 0.99, 0.5)
    return sum(array.nbytes for array in vars(replay).values() if hasattr(array, "nbytes"))


def cleanrl(python: str) -> dict[str, Any]:
    """Return agent steps/s of CleanRL's dqn_atari, which prints a line every 100 steps once it learns."""
    command = [
        python, "-c", RUN_CLEANRL, "--env-id", "PongNoFrameskip-v4", "--cuda", "False",
        "--buffer-size", "50000", "--learning-starts", str(WARM_STEPS), "--batch-size", "32",
        "--train-frequency", "4", "--target-network-frequency", "1000",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        lines, began, now = 0, 0.0, 0.0
        try:
            for line in run.stdout or ():
                if not line.startswith("SPS:"):
                    continue
                now = time.perf_counter()
                lines += 1
                if lines == 6:
                    began = now
                if lines > 6 and now - began > SECONDS:
                    break
        finally:
            run.kill()
            run.wait()
    if lines <= 6:
        sys.exit(f"{' '.join(command)}: ended after {lines} lines; run it by hand to see why")
    return {"steps_per_s": 100 * (lines - 6) / (now - began)}


def stable_baselines3() -> dict[str, Any]:
    """Return agent steps/s of Stable-Baselines3's DQN after its warm-up."""
    import ale_py
    import gymnasium
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    class Watch(BaseCallback):
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
    watch = Watch()
    model.learn(10**9, callback=watch)
    return {"steps_per_s": watch.rate}


def main() -> None:
    """Run all in turn and write ``teacher.json``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cleanrl", metavar="PYTHON", help="interpreter of an environment that holds CleanRL"
    )
    parser.add_argument(
        "--one",
        choices=("same", "fast", "pqn", "stable_baselines3", "products"),
        help="print the figures of one",
    )
    parser.add_argument("--name", default="teacher", help="of the result's file")
    options = parser.parse_args()
    if options.one:
        works = {"stable_baselines3": stable_baselines3, "products": products, "pqn": parallel}
        print(json.dumps(works[options.one]() if options.one in works else ours(options.one)))
        return
    from benchmarks.measurement import finish, in_a_process, stand_in

    order = ("same", "stable_baselines3", "fast", "products", "pqn")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in order}
    if options.cleanrl:
        runs["cleanrl"] = []
    for _ in range(REPEATS):
        for name, repeats in runs.items():
            if name == "cleanrl":
                repeats.append(cleanrl(options.cleanrl))
            else:
                repeats.append(in_a_process(name, "benchmarks.teacher", "--one", name))
    machine = runs.pop("products")
    rates = {name: statistics.median(run["steps_per_s"] for run in found) for name, found in runs.items()}
    figures: dict[str, Any] = {
        "steps_per_s": rates,
        "precision": machine[0]["precision"],
        "stand_in": stand_in(),
        "products": machine,
    }
    for key, name in (("floor", "flop_per_s"), ("fp32_floor", "flop_per_s_fp32")):
        rate = statistics.median(run[name] for run in machine)
        floor, floor_of_pqn = (rate / flop for flop in step_flop())
        figures[f"{key}_steps_per_s"] = floor
        figures[f"share_of_{key}"] = {recipe: rates[recipe] / floor for recipe in ("same", "fast")}
        figures[f"share_of_{key}"]["pqn"] = rates["pqn"] / floor_of_pqn
    for peer in ("stable_baselines3", "cleanrl"):
        if peer in rates:
            figures[f"ratio_to_{peer}"] = rates["same"] / rates[peer]
    for measure in ("overlap", "replay_share_of_an_update"):
        figures[measure] = {
            name: statistics.median(r[measure] for r in runs[name]) for name in ("same", "fast")
        }
    finish(
        options.name, figures | {"replay_bytes_of_a_million_frames": replay_bytes(1_000_000), "runs": runs}
    )


if __name__ == "__main__":
    main()
