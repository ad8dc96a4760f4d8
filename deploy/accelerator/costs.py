"""What a fixed-point agent costs on the accelerator: inferences a second, utilisation, energy, beside the paper's.

An *inference* is Yang 2021's: one vector of a training batch, so that IPS = batch / time of a whole update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spikestill.configs.accelerator import ArraySpec
from spikestill.deploy.accelerator import schedule
from spikestill.deploy.accelerator.schedule import Job, Total
from spikestill.teacher.control.fixed_ddpg import ACTOR, CRITIC, FixedState

BATCHES = (64, 128, 256, 512)
PUBLISHED = {
    "ips": 53_826.8, "utilisation": 0.924, "ips_per_watt": 2_638.0, "watts": 20.4, "clock_hz": 164e6,
    "platform_ips": 25_293.3, "peak_ips_of_table_2": 38_779.8, "network_kilobytes": 514.4,
}  # fmt: skip
"""Yang 2021: text, Table II."""
ASSUMPTIONS = (
    "the clock is the paper's 164 MHz and the power its card's 20.4 W, both measured there: not of this design, which "
    "was placed on no board",
    "an inference is one vector of the batch in a whole update (four passes through the actor, six through the "
    "critic), as the paper counts",
    "cycles are those of the SystemVerilog, job after job; what the host does between two jobs (the critic's input of "
    "observation and action, its 16-bit format, environment, transport) is left out",
    "in half precision forward products take two vectors a cycle; errors and gradients are 32 bits wide and do not",
)
INCONSISTENCIES = (
    "Table II gives 38,779.8 IPS as FIXAR's peak, the text 53,826.8",
    "514.4 KB are HalfCheetah's actor weights alone, without biases; actor and critic take 1.03 MB of the 1.05 MB of "
    "weight memory, so the target networks that DDPG needs do not fit, and no memory is named for Adam's moments",
    "whether 53,826.8 IPS is full or half precision is not said: at 92.4 % of 512 elements and 164 MHz it is 1.44 M "
    "multiply-adds a vector, which 1.29 M in full precision fill",
    "a weight memory of 16 words a cycle feeds 512 elements only if a tile serves 32 vectors or more, but 2.94 KB of "
    "activation memory hold one vector: one at a time the port allows 16 multiply-adds a cycle, 3 % of the elements",
    "Adam with 3 DSPs makes about one parameter a cycle: 260,000 cycles an update, more than all the products at batch "
    "64, which contradicts IPS that do not depend on the batch",
)


def estimate(state: FixedState, spec: ArraySpec = schedule.PAPER) -> dict[str, Any]:
    """Return the costs of training and of an action, as plain JSON values.

    Args:
        state: the agent.
        spec: the accelerator.

    Raises:
        UserError: a batch of 512 does not fit.
    """
    actor, critic = state.sizes(ACTOR), state.sizes(CRITIC)
    training = {
        precision: [
            _rates(spec, schedule.update(spec, actor, critic, batch, half=half), batch)
            for batch in BATCHES
            if batch <= spec.batch
        ]
        for precision, half in (("full", False), ("half", True))
    }
    action = {
        precision: _action(schedule.total(spec, schedule.pass_forward(spec, actor, 1, half=half)), spec)
        for precision, half in (("full", False), ("half", True))
    }
    return {
        "environment_sizes": {"observation": actor[0], "action": actor[-1]},
        "actor": list(actor), "critic": list(critic), "elements": spec.elements, "clock_hz": spec.clock_hz,
        "watts": spec.watts, "training": training, "action": action, "memory_kilobytes": memories(spec, actor, critic),
        "quantised": state.quantised, "published": PUBLISHED, "assumptions": list(ASSUMPTIONS),
        "inconsistencies": list(INCONSISTENCIES),
    }  # fmt: skip


def _rates(spec: ArraySpec, jobs: list[Job], batch: int) -> dict[str, Any]:
    total = schedule.total(spec, jobs)
    seconds = total.cycles / spec.clock_hz
    ips = batch / seconds
    return {
        "batch": batch, "cycles": total.cycles, "ips": round(ips, 1), "utilisation": round(total.utilisation, 4),
        "fed": round(total.fed, 4), "ips_per_watt": round(ips / spec.watts, 1),
        "joules_an_update": seconds * spec.watts, "multiply_adds": total.operations, "reads": total.reads,
        "writes": total.writes,
    }  # fmt: skip


def _action(total: Total, spec: ArraySpec) -> dict[str, Any]:
    seconds = total.cycles / spec.clock_hz
    return {"cycles": total.cycles, "seconds": seconds, "joules": seconds * spec.watts}


def memories(spec: ArraySpec, actor: tuple[int, ...], critic: tuple[int, ...]) -> dict[str, float]:
    """Return the kilobytes (1,000 bytes) of each memory: parameters in whole lines, vectors as an update needs them.

    Activations hold one pass of each network, and a line of rewards; errors one pass of the larger. Each has a copy
    for every core's port.
    """
    line = spec.side * 4
    parameters = sum(schedule.parameter_lines(spec, sizes) for sizes in (actor, critic)) * line / 1000
    group = spec.cores * spec.side

    def words(sizes: tuple[int, ...]) -> int:
        return sum(-(-size // group) * group for size in sizes)

    held = spec.batch * 4 * spec.cores / 1000
    return {
        "weight": parameters, "target": parameters, "gradient": parameters, "m": parameters, "v": parameters,
        "activation": (words(actor) + words(critic) + group) * held, "error": max(words(actor), words(critic)) * held,
    }  # fmt: skip


def table(found: Mapping[str, Any]) -> str:
    """Return the estimate as a table for people."""
    rows = [f"{'':28}{'batch':>6}{'cycles':>11}{'IPS':>11}{'used':>8}{'IPS/W':>9}{'mJ/update':>11}"]
    for precision, each in found["training"].items():
        for row in each:
            rows.append(
                f"{'training, ' + precision + ' precision':28}{row['batch']:6}{row['cycles']:11,}{row['ips']:11,.0f}"
                f"{row['utilisation']:8.1%}{row['ips_per_watt']:9,.0f}{row['joules_an_update'] * 1e3:11.1f}"
            )
    paper = found["published"]
    rows.append(
        f"{'the paper, any batch':28}{'':17}{paper['ips']:11,.0f}{paper['utilisation']:8.1%}"
        f"{paper['ips_per_watt']:9,.0f}"
    )
    for precision, one in found["action"].items():
        rows.append(
            f"{'an action, ' + precision + ' precision':28}{1:6}{one['cycles']:11,}"
            f"{one['seconds'] * 1e6:8.1f} us{'':17}{one['joules'] * 1e3:11.2f} mJ"
        )
    return "\n".join(rows)
