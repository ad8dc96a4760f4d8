"""Our own agents, in the order of ``--help``. A new one is one entry here and one function that makes it."""

from __future__ import annotations

from spikestill.common.agents import AgentEntry

CORES_PICTURE = "spikestill.runtime.activity:CorePicture"

ENTRIES = (
    AgentEntry(
        name="cores",
        help="the core simulator, tick by tick as the chip would",
        make="spikestill.runtime.agents:make_cores",
        role="core_map",
        scored_as="student",
        picture=CORES_PICTURE,
    ),
    AgentEntry(
        name="lava",
        help="the same student as one fused Lava process",
        make="spikestill.runtime.agents:make_lava",
        role="student",
        scored_as="student",
    ),
    AgentEntry(
        name="lava-loihi",
        help="the same student in Lava's stock processes, as fast as they go: it misses decisions",
        make="spikestill.runtime.agents:make_lava_loihi",
        role="student",
        scored_as="student",
    ),
    AgentEntry(
        name="student",
        help="the same student as a bit-packed integer net, without the cores",
        make="spikestill.runtime.agents:make_student",
        role="student",
    ),
    AgentEntry(
        name="teacher",
        help="the teacher's network in fp32",
        make="spikestill.runtime.agents:make_teacher",
        role="teacher",
        batched=True,
    ),
    AgentEntry(
        name="fp16",
        help="the teacher's network in half precision",
        make="spikestill.runtime.agents:make_fp16",
        role="teacher",
        batched=True,
    ),
    AgentEntry(
        name="fixed",
        help="the teacher's network in integers only, 16 bits, calibrated and not trained so; without layer norm",
        make="spikestill.runtime.teachers:make_fixed",
        role="teacher",
    ),
    AgentEntry(
        name="fixed8",
        help="the same in 8 bits",
        make="spikestill.runtime.teachers:make_fixed8",
        role="teacher",
    ),
    AgentEntry(
        name="onnx",
        help="the teacher's network on ONNX Runtime",
        make="spikestill.runtime.teachers:make_onnx",
        role="teacher",
        batched=True,
    ),
    AgentEntry(
        name="random",
        help="uniformly random actions",
        make="spikestill.runtime.agents:make_random",
        batched=True,
    ),
    AgentEntry(
        name="human",
        help="a person: arrow keys, and space to fire, in the terminal or on the live page",
        make="spikestill.runtime.human:make_human",
        evaluated=False,
    ),
)
