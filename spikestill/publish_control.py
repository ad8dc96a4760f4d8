"""Put a control agent into the zoo: its file as it is, and a card that says what it scores and what made it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from spikestill.common.artefacts import TEACHER
from spikestill.common.atomic import write_text
from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.play import ControlEvaluateConfig
from spikestill.publish import card, curve, published, score, scored

KIND = "control agent"


def is_control_agent(path: Path) -> bool:
    """Return whether a file says that it holds a control agent, in floating or in fixed point."""
    from spikestill.teacher.control import agent_file, fixed_file
    from spikestill.teacher.control.policy import schema_in

    return schema_in(path) in (agent_file.SCHEMA, fixed_file.SCHEMA)


def described(path: Path) -> tuple[str, dict[str, Any], Provenance]:
    """Return an agent's task, its algorithm and number format, and what made it.

    Raises:
        UserError: the file cannot be read.
    """
    from spikestill.teacher.control import agent_file, fixed_file
    from spikestill.teacher.control.policy import schema_in

    if schema_in(path) == fixed_file.SCHEMA:
        fixed = fixed_file.read(path)
        told = {"algorithm": "ddpg", "precision": fixed.state.config.variant}
        return fixed.environment, told, fixed.provenance
    file = agent_file.read_agent(path)
    return file.environment, {"algorithm": file.algorithm, "precision": file.precision}, file.provenance


def training(path: Path, first_seed: int) -> dict[str, Any]:
    """Return the part of a card that tells how the agent in a run folder, or in its ``seed-N``, was trained.

    Args:
        path: the agent's file.
        first_seed: of the run.
    """
    folder, seed = path.parent, first_seed
    found = re.fullmatch(r"seed-(\d+)", folder.name)
    if found and not (folder / "teach.jsonl").is_file():
        folder, seed = folder.parent, int(found[1])
    points, seconds = curve(folder / "teach.jsonl", ("step", "mean_return"), {"seed": seed})
    return {
        "seed": seed,
        "training_seconds": round(seconds),
        "training_steps": points[-1]["step"],
        "curve": points,
    }


def publish(task: str, source: Path, folder: Path, episodes: int) -> None:
    """Copy the agent, score it from random starts with its mean action, write ``teacher.json``.

    Raises:
        UserError: the file cannot be read, plays another task, or its curve is missing.
    """
    found, told, provenance = described(source)
    if found != task:
        raise UserError(f"{source}: plays {found}, not {task}", f"publish it with the task {found}")
    trained = training(source, int(provenance.config["seed"]))
    with published(folder) as scratch:
        path = scratch / TEACHER
        shutil.copyfile(source, path)
        summary = score(task, "teacher", path, None, episodes, ControlEvaluateConfig)
        document = card(KIND, task, path, provenance) | told | scored(summary)
        document |= {"epsilon": summary["epsilon"], "random": summary["random"]["mean"], **trained}
        text = json.dumps(document, indent=1, allow_nan=False)
        write_text(path.with_suffix(".json"), text + "\n")
