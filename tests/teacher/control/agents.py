"""Small agents, batches and noise for the tests."""

import dataclasses

import gymnasium
import numpy as np

from spikestill.common.environment import Box, EnvironmentSpec, Field, register
from spikestill.common.precision.rounding import number_format
from spikestill.configs.control import ControlConfig, MethodsConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.teacher.control.actor_critic import Batch, Noise, Settings, new_state
from spikestill.teacher.control.learner import update_of
from spikestill.teacher.control.operations import HostOperations
from spikestill.teacher.control.sac_pixels import PixelNoise

S, D = 5, 2
OFF = {
    "hadam": False, "softplus_fix": False, "normal_fix": False, "kahan_momentum": False, "kahan_gradients": False,
    "loss_scaling": "none",
}  # fmt: skip
BOXED = EnvironmentSpec(
    name="boxed_test", family="test", fields=(Field("state", (S,), "float32", -np.inf, np.inf),),
    actions=Box((-1.0,) * D, (1.0,) * D), decisions_per_s=10.0, make=lambda *_: None,
)  # fmt: skip
PIXELLED = dataclasses.replace(
    BOXED, name="pixelled_test", fields=(Field("pixels", (3, 3, 84, 84), "uint8", 0, 255, stacked=True),)
)
register(BOXED)
register(PIXELLED)


def pendulum_returns(act, games=5):
    """Return the mean return of Pendulum-v1 from fixed starts by ``act``, (1, S) to (1, 1) in -1..1.

    An agent that does nothing gets some -1,200, one that keeps the pendulum upright -150.
    """
    environment = gymnasium.make("Pendulum-v1")
    total = 0.0
    for game in range(games):
        obs, _ = environment.reset(seed=1000 + game)
        over = False
        while not over:
            obs, reward, ended, cut, _ = environment.step(2.0 * act(obs[None])[0])
            total, over = total + float(reward), ended or cut
    return total / games


def config_of(algorithm="sac", precision="fp64", methods=OFF, game="boxed_test", **options):
    options = {"hidden": (32, 24), "batch_size": 16, "learning_rate": 1e-3} | options
    return ControlConfig(
        environment=EnvironmentConfig(game=game), algorithm=algorithm, precision=precision,
        methods=MethodsConfig(**methods), **options,
    )  # fmt: skip


class Agent:
    """State, operations and the numbers that a test feeds them."""

    def __init__(self, config, seed=0, o=None):
        form = number_format(config.precision)
        self.config, self.o = config, o or HostOperations(form)
        self.settings = Settings.of(config, S, D)
        self.state = new_state(self.o, self.settings, np.random.default_rng(seed))

    def update(self, numbers):
        return update_of(self.settings)(self.o, self.state, self.settings, *numbers)

    def weights(self):
        names = ("actor.p", "critics.p", "encoder.p", "temperature.p", "target", "target_encoder")
        arrays = self.state.arrays(self.o)
        return np.concatenate([arrays[name].reshape(-1) for name in names if name in arrays])


def numbers(rng, size=16):
    batch = Batch(
        rng.standard_normal((size, S)), rng.uniform(-1, 1, (size, D)), rng.uniform(0, 1, size),
        (rng.random(size) < 0.9).astype(float), rng.standard_normal((size, S)),
    )  # fmt: skip
    return batch, Noise(rng.standard_normal((size, D)), rng.standard_normal((size, D)))


def pictured(rng, settings, size=3):
    """Transitions seen as pictures, whose brightness is the reward, and an update's random numbers."""
    obs, following = (rng.integers(0, 256, (size, 3, 3, 84, 84), np.uint8) for _ in range(2))
    reward = rng.uniform(0, 1, size)
    going_on = (rng.random(size) < 0.9).astype(float)
    batch = Batch(obs, rng.uniform(-1, 1, (size, D)), reward, going_on, following)
    return batch, PixelNoise.drawn(rng, size, D, settings.config.crop)
