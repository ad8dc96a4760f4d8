"""What lies in a run folder, made by ``run``, by one command after another, or by hand: its files and its game."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spikestill.common.artefacts import (
    BUFFER,
    CORE_MAP,
    ESTIMATE,
    EVALUATE,
    GAME,
    PLAY,
    REPORT,
    RESUMED_FROM,
    STUDENT,
    TEACHER,
    VERIFY,
)
from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.json_file import read_object
from spikestill.common.tensor_file import read_metadata

MADE = {
    "teach": TEACHER, "record": BUFFER, "distill": STUDENT, "map": CORE_MAP, "verify": VERIFY,
    "estimate": ESTIMATE, "play": PLAY, "evaluate": EVALUATE,
}  # fmt: skip
"""Stage to the file that it leaves, in the order in which they are made."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file of a run folder.

    Attributes:
        file: its name.
        stage: the command that leaves such a file.
        game: what it is of, '' where it does not say.
        fault: why it cannot be read, '' where it can.
    """

    file: str
    stage: str
    bytes: int
    game: str
    fault: str = ""


def document(path: Path) -> dict[str, Any]:
    """Return what a stage's JSON file says.

    Raises:
        UserError: it cannot be read.
    """
    return read_object(path, "what a stage wrote", "move it away, or make it again")


def game_of_file(path: Path) -> str:
    """Return the game that an artefact says it is of, '' where it does not say.

    Raises:
        OSError: there is no such file.
        UserError: the file is damaged.
    """
    status = path.stat()
    return _game_said(path, status.st_ino, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=64)
def _game_said(path: Path, *version: int) -> str:
    """Return the game that this version of a file says: a core map or a buffer is unpacked and hashed for it."""
    try:
        if path.suffix == ".safetensors":
            found = read_metadata(path)
            net = json.loads(found.get("net", "{}"))
            agent = json.loads(found.get("agent", "{}"))
            environment = json.loads(found.get("config", "{}")).get("environment", {})
            control = net.get("environment") or agent.get("environment")
            return str(net.get("game") or control or environment.get("game") or "")
        if path.suffix == ".json":
            found = document(path)
            given = found.get("provenance", {}).get("config", {}).get("environment", {})
            return str(found.get("game") or given.get("game") or "")
        if path.name == BUFFER:
            from spikestill.dataset.format import BufferFile

            with BufferFile(path) as file:
                return file.header.game
        from spikestill.deploy.core_map import load

        return load(path).game
    except UserError:
        raise
    except MALFORMED as error:
        raise UserError(f"{path}: cannot be read ({error})", "move it away, or make it again") from error


def game_of(run_dir: Path) -> str:
    """Return the game of what lies in a run folder, '' where nothing there says.

    Small files are asked first, and the large ones only where none of those says.

    Raises:
        UserError: two files are of different games.
    """
    paths = [
        run_dir / name for name in (*MADE.values(), *RESUMED_FROM.values()) if (run_dir / name).is_file()
    ]
    light = [path for path in paths if path.suffix != ".h5"]
    for group in (light, [path for path in paths if path.suffix == ".h5"]):
        said: dict[str, Path] = {}
        for path in group:
            try:
                game = game_of_file(path)
            except (UserError, OSError):
                continue  # the stage that reads it says what is wrong
            if game:
                said.setdefault(game, path)
        # A student of several games is of each of them.
        whole = max(said, key=lambda game: game.count("+"), default="")
        if any(not set(game.split("+")) <= set(whole.split("+")) for game in said):
            each = "; ".join(f"{path.name} is of {game}" for game, path in said.items())
            raise UserError(
                f"{run_dir}: holds files of several games: {each}",
                "give the one that is meant by --game, or move what is of another away",
            )
        if said:
            return whole
    return ""


def entries(run_dir: Path) -> list[Entry]:
    """Return what lies in a run folder, in the order in which the stages make it.

    Raises:
        UserError: nothing there is an artefact.
    """
    stages = {name: stage for stage, name in (*RESUMED_FROM.items(), *MADE.items())}
    found = []
    for name in (*MADE.values(), *(name for name in RESUMED_FROM.values() if name != BUFFER)):
        path = run_dir / name
        if not path.is_file():
            continue
        try:
            game, fault = game_of_file(path), ""
        except (UserError, OSError) as error:
            game, fault = "", " ".join(str(error).split())
        found.append(Entry(name, stages[name], path.stat().st_size, game, fault))
    for name, stage in ((GAME, "play"), (REPORT, "report")):
        if (run_dir / name).is_file():
            found.append(Entry(name, stage, (run_dir / name).stat().st_size, ""))
    if not found:
        raise UserError(
            f"{run_dir}: holds no artefact ({', '.join(MADE.values())})",
            "give a folder that commands wrote to",
        )
    return found


def stages_done(run_dir: Path) -> dict[str, Mapping[str, Any]]:
    """Return what ``report`` needs of each stage whose artefact is there: ``artefact``, ``summary``, ``seconds``.

    What a stage measured is read from its file; how long it took is known of a pipeline's run only.

    Raises:
        UserError: an artefact is unreadable.
    """
    from spikestill.common.provenance import file_sha256
    from spikestill.deploy.core_map import load
    from spikestill.deploy.inspection import summarise

    found: dict[str, Mapping[str, Any]] = {}
    for stage, name in MADE.items():
        path = run_dir / name
        if stage in ("teach", "estimate") or not path.is_file():
            continue
        summary: Mapping[str, Any] = {}
        if stage == "map":
            summary = summarise(load(path))
        elif path.suffix == ".json":
            summary = document(path)
        found[stage] = {"artefact": name, "summary": summary, "seconds": None, "sha256": file_sha256(path)}
    return found
