"""Kept control trainings as the cells of tables: seeds of the same options pooled, with what a cell compares.

A *cell* is every seed of the same options together: its mean return at a step that all its seeds reached, with the 95 %
interval over seeds and games, and what it cost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spikestill.common.errors import UserError
from spikestill.common.precision.names import FIXED
from spikestill.common.precision.rounding import number_format
from spikestill.configs.control import ENCODERS, SIX, SWITCHED, ControlConfig, MethodsConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.control_curves import Curve, Kept
from spikestill.result_cells import interval, number
from spikestill.sweep.table import seeds_and_games

EPSILON = 1e-8
TOLD_APART = {
    "environment", "algorithm", "precision", "methods", "adam_epsilon", "steps", "seed", "seeds", "threads",
    "checkpoint_minutes", "evaluation_period", "evaluation_games",
}  # fmt: skip
"""Options that are columns of the tables, or change no agent."""
OF_FIXED = ("quantisation_delay", "second_moment", "rounding", "headroom")
Setting = tuple[tuple[str, Any], ...]


class Variant(NamedTuple):
    """What a column compares: the arithmetic, and the methods that are on."""

    precision: str
    on: frozenset[str] = frozenset()
    amp: bool = False
    epsilon: float = EPSILON


def low(*on: str, amp: bool = False, epsilon: float = EPSILON) -> Variant:
    """Return fp16 with these of the six methods."""
    return Variant("fp16", frozenset(on), amp, epsilon)


def variant_of(config: ControlConfig) -> Variant:
    """Return the column of a training."""
    if config.precision in FIXED:
        return Variant(config.precision)
    methods = config.methods.resolved(number_format(config.precision))
    on = {name for name in SWITCHED if getattr(methods, name)}
    on |= {"loss_scaling"} if methods.loss_scaling == "compound" else set()
    return Variant(config.precision, frozenset(on), methods.loss_scaling == "amp", config.adam_epsilon)


def setting_of(config: ControlConfig) -> Setting:
    """Return widths and batch, and every other option that is not the default: what a row holds fixed."""
    usual = ControlConfig(
        environment=EnvironmentConfig(game=config.environment.game), algorithm=config.algorithm
    )
    found = [("hidden", "-".join(map(str, config.hidden))), ("batch_size", config.batch_size)]
    for field in dataclasses.fields(ControlConfig):
        if field.name in TOLD_APART or field.name in OF_FIXED or field.name in dict(found):
            continue
        value = getattr(config, field.name)
        if value != getattr(usual, field.name):
            found.append((field.name, value))
    # Of fp32 too, where nothing reads them: it stands in the row of the few bits that it is compared with.
    usual_methods = MethodsConfig(loss_scaling=config.methods.loss_scaling)
    few_bits = config.precision not in FIXED and number_format(config.precision).low
    for field in dataclasses.fields(config.methods):
        value, usually = getattr(config.methods, field.name), getattr(usual_methods, field.name)
        if field.name in ENCODERS:  # on in few bits unless it is told; from states nothing reads them
            value = few_bits if value is None or not config.from_pixels else value
            usually = few_bits
        if field.name not in SIX and value != usually:
            found.append((f"methods.{field.name}", value))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Cell:
    """All seeds of the same options.

    Attributes:
        game, variant, setting: where it stands.
        fixed: options of fixed point that are not the default.
        curves: seed to its evaluations, of trainings that went on.
        diverged: where each run that did not ended, and which seeds diverged: all end with the first.
        seconds: wall clock of all.
        ended: steps that a training was to have which somebody ended before; 0 where there is none.
    """

    game: str
    algorithm: str
    variant: Variant
    setting: Setting
    fixed: Setting
    curves: Mapping[int, Curve]
    diverged: tuple[str, ...]
    seconds: float
    ended: int

    @property
    def steps(self) -> list[int]:
        """Steps at which every seed was evaluated."""
        each = [set(curve) for curve in self.curves.values()]
        return sorted(set.intersection(*each)) if each else []

    def at(self, step: int) -> tuple[float, list[float]]:
        """Return (mean return, its 95 % interval) at a step."""
        scores = [curve[step] for curve in self.curves.values()]
        return float(np.mean([np.mean(each) for each in scores])), seeds_and_games(scores)

    def text(self) -> str:
        """Return what a table shows."""
        told = []
        if self.steps:
            step = self.steps[-1]
            mean, ends = self.at(step)
            seeds, games = len(self.curves), len(next(iter(self.curves.values()))[step])
            whole = f" of {self.ended:,}" if self.ended else ""
            told.append(f"{number(mean)} ({interval(ends)}; {seeds} x {games} games, {step:,}{whole} steps)")
        told += self.diverged
        told += [f"{name} {value}" for name, value in self.fixed]
        if self.seconds:
            told.append(f"{number(self.seconds / 3600, 2 if self.seconds >= 36 else 4)} h")
        return ", ".join(told)


def cells(kept: Mapping[Path, Kept]) -> list[Cell]:
    """Return the trainings pooled over their seeds.

    Raises:
        UserError: two files have the same seed of the same options, or seeds were never evaluated at the same step.
    """
    pools: dict[Any, dict[Path, Kept]] = {}
    for path, each in kept.items():
        fixed = tuple(
            (field.name, getattr(each.config, field.name))
            for field in dataclasses.fields(ControlConfig)
            if each.config.precision in FIXED
            and field.name in OF_FIXED
            and (field.name != "quantisation_delay" or each.config.precision == "fixar")
            and getattr(each.config, field.name) != field.default
        )
        key = (each.config.environment.game, each.config.algorithm, variant_of(each.config),
               setting_of(each.config), fixed)  # fmt: skip
        pools.setdefault(key, {})[path] = each
    return [_pooled(key, own) for key, own in pools.items()]


def _pooled(key: tuple[str, str, Variant, Setting, Setting], own: Mapping[Path, Kept]) -> Cell:
    owner: dict[int, Path] = {}
    curves: dict[int, Curve] = {}
    diverged: list[str] = []
    for path, each in own.items():
        if each.diverged:
            diverged.append(_ended(each))
        for seed in range(each.config.seed, each.config.seed + each.config.seeds):
            if seed in owner:
                raise UserError(
                    f"{path}: has seed {seed}, and so has {owner[seed].name}, a training of the same options",
                    "delete one of the two files",
                )
            owner[seed] = path
            if seed in each.curves and not each.diverged:
                curves[seed] = each.curves[seed]
    ended = [
        each.config.steps
        for each in own.values()
        if not each.diverged
        and any(
            max(curve, default=0) + each.config.evaluation_period <= each.config.steps
            for curve in each.curves.values()
        )
    ]
    seconds = sum(each.seconds for each in own.values())
    cell = Cell(*key, curves, tuple(diverged), seconds, max(ended, default=0))
    if curves and not cell.steps:
        raise UserError(
            f"{next(iter(own))}: its seeds {', '.join(map(str, sorted(curves)))} have no evaluation at the same step",
            "train them with the same --evaluation_period",
        )
    return cell


def _ended(kept: Kept) -> str:
    """Return where a run diverged, and which of its seeds."""
    seeds, where = kept.config.seeds, kept.diverged.partition(":")[0]
    if seeds == 1 or not kept.diverged_seeds:
        return f"a run{f' of {seeds} seeds' if seeds > 1 else ''} diverged at {where}"
    ended = {seed: text.partition(":")[0] for seed, text in sorted(kept.diverged_seeds.items())}
    if len(ended) == seeds and len(set(ended.values())) == 1:
        return f"all {seeds} seeds diverged at {where}"
    return f"{len(ended)} of {seeds} seeds diverged: " + ", ".join(
        f"seed {seed} at {at}" for seed, at in ended.items()
    )


def described(setting: Setting) -> str:
    """Return a setting as a table shows it."""
    shown = {"hidden": "", "batch_size": "batch "}
    return ", ".join(f"{shown.get(name, f'{name} ')}{value}" for name, value in setting)
