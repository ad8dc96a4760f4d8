"""Options of ``spikestill teach`` for continuous control."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from spikestill.common.environment import Box, EnvironmentSpec, Field, environment
from spikestill.common.errors import UserError
from spikestill.common.precision.names import (
    FIXED,
    LARGEST_BATCH,
    MOST_HEADROOM,
    NATIVE,
    check_emulated,
    vanishes,
)
from spikestill.configs.environment import UNREAD, EnvironmentConfig
from spikestill.configs.options import Options, Range, Share, refuse_unread

if TYPE_CHECKING:  # its rounding is compiled, and --help does not wait for that
    from spikestill.common.precision.rounding import NumberFormat

PIXELS = (3, 3, 84, 84)
"""What an encoder sees: frame, colour, row, column."""
EPSILON = 1e-5
"""What the encoder adds to variances: of the layer norm as PyTorch, of the standardised weights as Qiao."""
SIX = ("hadam", "softplus_fix", "normal_fix", "kahan_momentum", "loss_scaling", "kahan_gradients")
"""The methods in the order of Björck 2021, section 4."""
SWITCHED = tuple(name for name in SIX if name != "loss_scaling")
"""Five of the six, each on or off; loss scaling has more to choose from."""
ENCODERS = ("weight_standardisation", "feature_limit")
"""What the encoder of pixels needs besides."""


READ_BY_SAC = ("initial_temperature", "log_std_low", "log_std_high", "std_added")
"""Options that DDPG has no use for."""
READ_BY_DDPG = ("exploration", "twin_critics", "target_noise")
"""Options that SAC has no use for."""
READ_FROM_PIXELS = ("filters", "features", "feature_tanh", "crop")
"""Options that a task of states has no use for."""
SCALES = ("loss_scale", "loss_scale_period")
"""Methods' options that mean nothing without loss scaling."""
READ_BY_FIXED = ("second_moment", "rounding", "headroom")
"""Options that floating point has no use for; the ``quantisation_delay`` is given to all four variants of Figure 7."""


def sees_pixels(fields: Sequence[Field]) -> bool:
    """Return whether what an environment shows is one field of three RGB frames, as an encoder takes it."""
    return len(fields) == 1 and fields[0].shape == PIXELS and fields[0].dtype == "uint8"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodsConfig(Options):
    """What keeps a training in few bits alive (Björck 2021); None: on in formats of fewer bits than fp32."""

    hadam: bool | None = None
    """hAdam: keep the root of Adam's second moment, by a stable hypotenuse."""
    softplus_fix: bool | None = None
    """softplus(x) = x above 10, in the density of a squashed action."""
    normal_fix: bool | None = None
    """((x - mean) / deviation)^2 in the normal density, never a square divided by a square."""
    kahan_momentum: bool | None = None
    """Kahan summation of the target network, on weights times ``kahan_scale``."""
    kahan_gradients: bool | None = None
    """Kahan summation of the critics' and the temperature's weights (``kahan_actor``: the actor's too)."""
    kahan_actor: bool = False
    """Kahan gradients of the actor too; the authors' code leaves it out."""
    kahan_scale: Annotated[float, Range(1, 1e6)] = 1e4
    """C of Kahan momentum: 100 from pixels; at most a quarter of the format's largest number, 112 in fp8-e4m3."""
    weight_standardisation: bool | None = None
    """From pixels: standardise the weights of the encoder's linear layer (Qiao 2019)."""
    feature_limit: bool | None = None
    """From pixels: scale a row of the encoder's numbers beyond 10 down to 10, before the layer norm squares them."""
    softplus_limit: Annotated[float, Range(1, 100)] = 10.0
    """K of the softplus-fix; at most the log of the format's largest number, 6.1 in fp8-e4m3."""
    loss_scaling: Literal["auto", "none", "amp", "compound"] = "auto"
    """compound: gradients and moments stay scaled; amp: gradients are divided again (the baseline); none. auto:
    compound in formats of fewer bits than fp32, else none."""
    loss_scale: Annotated[float, Range(0, 2**40)] = 0.0
    """Scale at the start; 0: 10,000, and 65,536 with amp."""
    loss_scale_period: Annotated[int, Range(0, 1e9)] = 0
    """Updates without overflow before the scale doubles; 0: 10,000, and 2,000 with amp."""

    def _check(self) -> None:
        amp = self.loss_scaling == "amp"
        if self.loss_scale == 0:
            object.__setattr__(self, "loss_scale", 65_536.0 if amp else 1e4)
        if self.loss_scale_period == 0:
            object.__setattr__(self, "loss_scale_period", 2_000 if amp else 10_000)

    def resolved(self, form: NumberFormat) -> MethodsConfig:
        """Return the methods as they are in a format: nothing left open, C and K within what it holds."""
        open_ones = (*SWITCHED, *ENCODERS)
        chosen = {
            name: form.low if getattr(self, name) is None else getattr(self, name) for name in open_ones
        }
        scaling = self.loss_scaling
        if scaling == "auto":
            scaling = "compound" if form.low else "none"
        # Weights of up to 4 times C, and exp(K), are numbers of the format.
        scale, limit = max(1.0, form.largest / 4), math.log(form.largest)
        return dataclasses.replace(
            self, loss_scaling=scaling, kahan_scale=min(self.kahan_scale, scale),
            softplus_limit=min(self.softplus_limit, limit), **chosen,
        )  # fmt: skip

    def off(self, from_pixels: bool = False) -> list[str]:
        """Return the names of the methods that are off, of resolved ones: of the six, and from pixels the encoder's."""
        names = (*SWITCHED, *(ENCODERS if from_pixels else ()))
        found = [name for name in names if not getattr(self, name)]
        return found if self.loss_scaling == "compound" else [*found, "loss_scaling compound"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControlConfig(Options):
    """SAC (Haarnoja 2018) or DDPG (Lillicrap 2016) on one MuJoCo task; periods count agent steps."""

    environment: EnvironmentConfig = dataclasses.field(
        default_factory=lambda: EnvironmentConfig(game="cartpole_swingup")
    )
    """The task, such as ``cheetah_run`` of dm_control or ``half_cheetah`` of Gymnasium."""
    algorithm: Literal["sac", "ddpg"] = "sac"
    """``sac``: a random policy with a learned temperature; ``ddpg``: a deterministic one with added noise."""
    precision: str = "fp32"
    """Format of everything that learns: fp64, fp32, bf16, fp16, fp8-e5m2, fp8-e4m3, or eXmY for X exponent and Y
    mantissa bits. No fp32 copy is kept. On a CPU all below fp32 are emulated: every operation's result is rounded,
    products are summed in fp32. With ``ddpg`` also fixed point, integers only: fixed32, fixar, fixed16."""
    methods: MethodsConfig = dataclasses.field(default_factory=MethodsConfig)
    """Methods of Björck 2021."""
    quantisation_delay: Annotated[int, Range(1, 1e9)] = 300_000
    """fixar: updates with 32-bit activations, whose least and largest values set the 16-bit format."""
    second_moment: Literal["plain", "root"] = "plain"
    """Fixed point: Adam's second moment, or its root (hAdam), which has twice the range in the same bits."""
    rounding: Literal["nearest", "stochastic"] = "nearest"
    """Fixed point: how Adam rounds."""
    headroom: Annotated[int, Range(0, MOST_HEADROOM)] = 0
    """Fixed point: binary places fewer for errors and gradients, which reach 2^headroom times as far then; for tasks of
    larger values than HalfCheetah's, where ``saturated`` counts many."""
    steps: Annotated[int, Range(1, 1e9)] = 250_000
    """Agent steps to train for, over all environments."""
    num_envs: Annotated[int, Range(1, 1024)] = 1
    """Environments stepped together."""
    seeds: Annotated[int, Range(1, 64)] = 1
    """Agents trained together, with the seeds ``seed``, ``seed`` + 1, ...; each as it would be alone, but all end where
    one diverges. Those after the first are written to ``seed-N/`` in the run folder."""
    hidden: tuple[int, ...] = (256, 256)
    """Width of each hidden layer of actor and critics; FIXAR has 400 and 300."""
    batch_size: Annotated[int, Range(1, 65536)] = 256
    """Transitions per update; in fixed point a power of two up to 4,096."""
    replay_capacity: Annotated[int, Range(100, 1e8)] = 1_000_000
    """Transitions that the replay holds; from pixels frames, 21 KB each, and at least 8 a stream."""
    seed_steps: Annotated[int, Range(1, 1e8)] = 5_000
    """Agent steps with uniformly random actions before the first update."""
    update_period: Annotated[int, Range(1, 1024)] = 1
    """Agent steps per update; a multiple or a divisor of ``num_envs``."""
    actor_period: Annotated[int, Range(1, 1000)] = 1
    """Updates of the critics per update of the actor and the temperature; 2 is TD3's."""
    target_period: Annotated[int, Range(0, 100_000)] = 0
    """Updates between two steps of the target network; 0: 2 with sac (Björck 2021), 1 with ddpg (Lillicrap 2016)."""
    target_rate: Share = 0.005
    """Tau: how far a step moves the target network."""
    discount: Share = 0.99
    """Discount of one decision."""
    learning_rate: Annotated[float, Range(1e-12, 1e3)] = 1e-4
    """Adam's step size, of actor, critics and temperature."""
    beta1: Annotated[float, Range(0, 0.9999)] = 0.9
    """Adam's first decay."""
    beta2: Annotated[float, Range(0, 0.999999)] = 0.999
    """Adam's second decay."""
    adam_epsilon: Share = 1e-8
    """Adam's epsilon; ten times as much is the baseline ``eps``. With compound loss scaling it is at least the format's
    smallest number divided by the scale: 2e-7 in fp8-e4m3 at the start."""
    initial_temperature: Annotated[float, Range(1e-6, 100)] = 0.1
    """SAC's temperature at the start."""
    log_std_low: Annotated[float, Range(-20, 0)] = -5.0
    """Lower bound of the log of SAC's deviation."""
    log_std_high: Annotated[float, Range(-20, 10)] = 2.0
    """Upper bound of the log of SAC's deviation, more than the lower one."""
    std_added: Share = 0.0
    """Added to SAC's deviation; 1e-4 from pixels, where its lower bound underflows in few bits."""
    filters: Annotated[int, Range(1, 1024)] = 32
    """From pixels: filters of each of the encoder's four convolutions."""
    features: Annotated[int, Range(2, 4096)] = 50
    """From pixels: numbers that the encoder gives to actor and critics."""
    feature_tanh: bool = True
    """From pixels: tanh of what the encoder's layer norm gives, as in the code that Björck 2021 builds on."""
    crop: Annotated[int, Range(0, 16)] = 4
    """From pixels: how far a random crop moves a picture, padded by its edge; 0: the critics get each one twice."""
    exploration: Share = 0.1
    """DDPG: deviation of the noise that is added to the actions (in -1..1) while it learns."""
    twin_critics: bool = False
    """DDPG: two critics, the smaller one is the target and the actor follows the first (TD3). SAC always has two."""
    target_noise: Share = 0.0
    """DDPG: deviation of the noise on the target's action, clipped to 0.5; 0.2 is TD3's."""
    evaluation_period: Annotated[int, Range(1, 1e9)] = 10_000
    """Agent steps between two evaluations."""
    evaluation_games: Annotated[int, Range(1, 1000)] = 10
    """Games of an evaluation, from random starts, with the mean action."""
    checkpoint_minutes: Annotated[float, Range(1e-3, 1e5)] = 10.0
    """Wall-clock minutes between checkpoints."""
    device: Literal["cpu", "cuda"] = "cpu"
    """cuda: learn on a GPU, in fp64, fp32, bf16 or fp16, which are computed natively there; worth it for wide nets and
    from pixels. The simulator stays on the processor."""
    threads: Annotated[int, Range(0, 64)] = 0
    """Threads that compute; 0: one per core. The result does not depend on them."""
    seed: Annotated[int, Range(0, 2**31 - 65)] = 0
    """Seed of weights, exploration, replay and starts."""

    UNREAD: ClassVar[tuple[str, ...]] = UNREAD

    def _check(self) -> None:
        if self.target_period == 0:
            object.__setattr__(self, "target_period", 2 if self.algorithm == "sac" else 1)
        spec = environment(self.environment.game)
        if not isinstance(spec.actions, Box):
            raise UserError(
                f"{self.environment.game} has named actions, {self.algorithm} learns tasks whose actions are numbers",
                "give a MuJoCo task such as cheetah_run, or omit --algorithm",
            )
        self._check_effect()
        self._check_pictures(spec)
        if self.precision in FIXED:
            self._check_fixed()
        else:
            check_emulated(self.precision)
        if self.device == "cuda" and self.precision not in NATIVE:
            raise UserError(
                f"device cuda with precision {self.precision}: a GPU computes {', '.join(NATIVE)} here, other formats "
                "are emulated on the processor",
                "give --device cpu, or one of these formats",
            )
        if not self.hidden or not all(1 <= width <= 16384 for width in self.hidden):
            raise UserError(
                f"hidden is {self.hidden}, each of its widths must be 1..16384", "give --hidden 256,256"
            )
        if not self.log_std_low < self.log_std_high:
            raise UserError(
                f"log_std_low {self.log_std_low} is not below log_std_high {self.log_std_high}",
                "give -5 and 2",
            )
        if self.num_envs % self.update_period and self.update_period % self.num_envs:
            raise UserError(
                f"update_period {self.update_period} neither divides num_envs {self.num_envs} nor is a multiple of it",
                "give an update_period that does",
            )
        if self.replay_capacity < self.num_envs * 2:
            raise UserError(
                f"replay_capacity {self.replay_capacity} is less than two steps of {self.num_envs} environments",
                "raise --replay_capacity",
            )

    def _check_effect(self) -> None:
        """Refuse an option that nothing would read."""
        fixed = self.precision in FIXED
        arithmetic = f"precision {self.precision}"
        unread = dict.fromkeys(
            READ_BY_SAC if self.algorithm == "ddpg" else READ_BY_DDPG, f"algorithm {self.algorithm}"
        )
        unread |= {} if fixed else dict.fromkeys(READ_BY_FIXED, arithmetic)
        methods = dict.fromkeys(vars(self.methods), arithmetic) if fixed else {}
        if not self.from_pixels:
            states = f"{self.environment.game}, which is seen as numbers,"
            unread |= dict.fromkeys(READ_FROM_PIXELS, states)
            methods |= {
                name: states for name in ENCODERS if getattr(self.methods, name)
            }  # off is what they are
        scaling = self.methods.loss_scaling
        if scaling == "none" or (scaling == "auto" and self.precision in ("fp64", "fp32")):
            methods |= dict.fromkeys(SCALES, f"{arithmetic} without loss scaling")
        usual, own = vars(MethodsConfig(loss_scaling=scaling)), vars(self.methods)
        usual |= {"loss_scaling": "auto"}
        self._refuse_unread(unread)
        for name, reader in methods.items():
            refuse_unread(f"methods.{name}", own[name], usual[name], reader)

    def _check_pictures(self, spec: EnvironmentSpec) -> None:
        pictures = [field.name for field in spec.fields if len(field.shape) > 1 and field.dtype == "uint8"]
        if pictures and not self.from_pixels:
            raise UserError(
                f"{spec.name} is seen as {', '.join(pictures)}, {self.algorithm} does not learn from that",
                f"give a task seen as numbers, or as one uint8 field {PIXELS}",
            )
        if not pictures:
            return
        if self.algorithm != "sac" or self.precision in FIXED:
            raise UserError(
                f"{spec.name} is seen as {', '.join(pictures)}, from which sac learns, in floating point; here are "
                f"{self.algorithm} and {self.precision}",
                "give --algorithm sac --precision fp16",
            )
        if vanishes(EPSILON, self.precision):
            raise UserError(
                f"{self.precision} rounds {EPSILON:g} to 0, which the encoder's layer norm adds to the variance",
                "give --precision fp16, bf16 or another format that holds it",
            )

    @property
    def from_pixels(self) -> bool:
        """Pictures are what the agent sees: one field of three RGB frames, uint8 (3, 3, 84, 84)."""
        return sees_pixels(environment(self.environment.game).fields)

    def _check_fixed(self) -> None:
        size = self.batch_size
        wrong = {
            "algorithm": self.algorithm != "ddpg", "twin_critics": self.twin_critics,
            "target_noise": self.target_noise != 0.0, "actor_period": self.actor_period != 1,
            "target_period": self.target_period != 1, "batch_size": size > LARGEST_BATCH or bool(size & (size - 1)),
        }  # fmt: skip
        named = [name for name, refused in wrong.items() if refused]
        if named:
            raise UserError(
                f"precision {self.precision} with {named[0]} {getattr(self, named[0])}: fixed point is plain DDPG, "
                f"with a target step every update and a batch of a power of two up to {LARGEST_BATCH}",
                "give --algorithm ddpg --target_period 1 --batch_size 64, and omit TD3's options",
            )

    @property
    def twins(self) -> int:
        """Number of critics."""
        return 2 if self.algorithm == "sac" or self.twin_critics else 1
