"""Put a teacher and a student into the zoo, with cards that say what they score and what made them.

    python -m spikestill.publish pong --teacher runs/pong/teacher.safetensors --student runs/pong/student.safetensors \\
        [--ancestors runs/pong/first ...]
    python -m spikestill.publish freeway+pong --student runs/both/student.safetensors
    python -m spikestill.publish pong --student runs/sparse/student.safetensors --variant sparse
    python -m spikestill.publish cartpole_swingup --teacher runs/cartpole/teacher.safetensors

The teacher is stored in fp16 and scored as stored; a control agent is stored as it is. Every file must come from our
own commands: its card is written from its provenance and from the learning curve beside it. A student of several games
is scored in each of them, beside the zoo's teachers, and has a folder of its own. The zoo changes when the score
stands: stopped before, nothing has been published.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spikestill.common.artefacts import BUFFER, STUDENT, numbered
from spikestill.common.atari import check_game
from spikestill.common.atomic import atomic_path, write_text
from spikestill.common.curve import records
from spikestill.common.environment import check_environment
from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance, file_sha256, processor
from spikestill.common.zoo import ROOT
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.estimating import EstimateConfig
from spikestill.configs.mapping import MapConfig
from spikestill.configs.play import EvaluateConfig

CURVE_POINTS = 60
ANCESTOR = ("sha256", "recipe", "training_seconds", "curve")
"""What a student's card says of each that it went on from."""


def scoring_machine() -> dict[str, Any]:
    """Return the machine that scores: processor, cores, Python."""
    from spikestill.common.processor import cores

    return {"processor": processor(), "cores": cores(), "python": platform.python_version()}


def curve(
    path: Path, keys: tuple[str, ...], only: Mapping[str, Any] | None = None
) -> tuple[list[dict[str, Any]], float]:
    """Return at most CURVE_POINTS lines of a learning curve, ``keys`` alone, and the seconds it took.

    With ``only`` the lines that have these values. Half a last line, of a training that was killed, is left out.

    Where ``seconds`` start again, as they did at every resume before 2026-11-22, the runs' lengths are added.

    Raises:
        UserError: it is not there, or empty.
    """
    lines = records(path) if path.is_file() else []
    wanted = dict(only or {}).items()
    lines = [line for line in lines if all(line.get(key) == value for key, value in wanted)]
    if not lines:
        raise UserError(
            f"{path}: the learning curve is missing or empty",
            "publish from the run folder that the training wrote",
        )
    seconds = sum(
        line["seconds"]
        for line, following in zip(lines, [*lines[1:], {"seconds": 0.0}], strict=True)
        if following["seconds"] < line["seconds"]
    )
    every = -(-len(lines) // CURVE_POINTS)
    shown = lines[(len(lines) - 1) % every :: every]  # the last one always
    return [{key: line[key] for key in keys} for line in shown], seconds


@contextlib.contextmanager
def published(folder: Path) -> Iterator[Path]:
    """Yield an empty folder; on success move the files made there to ``folder``, the last one made (the card) last."""
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for made in sorted(Path(scratch).iterdir(), key=lambda path: path.stat().st_mtime_ns):
            with atomic_path(folder / made.name) as place:
                shutil.copyfile(made, place)


def score(
    game: str,
    agent: str,
    teacher: Path,
    student: Path | None,
    episodes: int,
    evaluating: type[EvaluateConfig] = EvaluateConfig,
) -> dict[str, Any]:
    """Return the summary of an evaluation of the files that are to be published, by the options of ``evaluating``.

    A teacher is scored beside random play, a student alone: its teacher's card has both.
    """
    from spikestill.runtime.evaluate import run

    with tempfile.TemporaryDirectory() as scratch:
        config = evaluating(
            environment=EnvironmentConfig(game=game), agent=agent, episodes=episodes,
            teacher=teacher, student=student, compare=student is None,
        )  # fmt: skip
        return dict(run(config, Path(scratch)).summary)


def scored(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what every card says of an evaluation."""
    return {name: summary[name] for name in ("mean", "ci95", "episodes", "frames")}


def teacher_card(folder: Path) -> dict[str, Any]:
    """Return the card of the teacher in a game's folder.

    Raises:
        UserError: there is none, or it is of another file.
    """
    teacher, path = folder / "teacher.safetensors", folder / "teacher.json"
    told = dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() and teacher.is_file() else {}
    if not told or told["sha256"] != file_sha256(teacher):
        raise UserError(
            f"{path}: not the card of a teacher beside it, and a student's score is a share of its teacher's",
            f"publish the teacher first: `python -m spikestill.publish {folder.name} --teacher FILE`",
        )
    return told


def compared(mean: float, teacher: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a student's card says besides: how its mean stands to its teacher's and random play's, by card."""
    from spikestill.runtime.evaluate import percentages

    best, chance = teacher["mean"], teacher["random"]
    return {**percentages(mean, best, chance), "teacher": best, "random": chance}


def card(kind: str, game: str, path: Path, provenance: Provenance) -> dict[str, Any]:
    """Return what teachers' and students' cards have in common, but the score."""
    return {
        "kind": kind,
        "game": game,
        "sha256": file_sha256(path),
        "recipe": provenance.config,
        "commit": provenance.commit,
        "versions": provenance.versions,
        "parents": provenance.parents,
        "trained_on": provenance.machine,
        "scored_on": scoring_machine(),
    }


def teacher_curve(folder: Path) -> dict[str, Any]:
    """Return the part of a card that tells how the teacher in a run folder was trained."""
    points, seconds = curve(folder / "teach.jsonl", ("step", "frames", "mean_return_100", "dead_conv1"))
    return {"training_seconds": round(seconds), "training_frames": points[-1]["frames"], "curve": points}


def student_curve(folder: Path) -> dict[str, Any]:
    """Return the part of a card that tells how the student in a run folder was trained."""
    keys = ("step", "loss", "agreement", "validation_agreement", "validation_regret")
    points, seconds = curve(folder / "distill.jsonl", keys)
    return {"training_seconds": round(seconds), "curve": points}


def ancestors(
    kind: str, trained: Sequence[tuple[Path, Provenance]], earlier: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Return how the networks were trained that one went on from (``--initial``), the first one first.

    Args:
        kind: ``teacher`` or ``student``.
        trained: those networks, as :func:`lineage` has them.
        earlier: the card of the published student that they went on from, None where there is none.
    """
    told = [*earlier["went_on_from"], {key: earlier[key] for key in ANCESTOR}] if earlier is not None else []
    for path, made in trained:
        saved = path.parent / "teacher.json"
        if kind == "student":
            training = student_curve(path.parent)
        elif saved.is_file():
            told_by_card = json.loads(saved.read_text(encoding="utf-8"))
            training = {key: told_by_card[key] for key in ("training_seconds", "training_frames", "curve")}
        else:
            training = teacher_curve(path.parent)
        told.append({"sha256": file_sha256(path), "recipe": made.config, **training})
    return told


def lineage(
    kind: str, provenance: Provenance, folders: list[Path]
) -> tuple[list[tuple[Path, Provenance]], dict[str, Any] | None]:
    """Return (the networks that one went on from, the first one first; the published student that they went on from).

    Those of a student that it began beside (``--initial_beside``) are among them. A network is its file and its
    provenance, the published student is its card, None where there is none.

    Args:
        kind: ``teacher`` or ``student``.
        provenance: of the last one.
        folders: where they may lie, each with ``teacher.safetensors``, ``distill-checkpoint.safetensors`` or
            ``student.safetensors``, and its card or its learning curve beside it; or with a published student and
            its card.

    Raises:
        UserError: one of them is in no folder; the halves of a student of two nets go on from two published ones.
    """
    from spikestill.student import distill, distillation, integer_net
    from spikestill.teacher import checkpoint

    def of_tensors(path: Path, schema: str) -> Provenance:
        metadata = checkpoint.read_tensors(path, schema, "name its folder with --ancestors")[1]
        return Provenance.from_json(metadata["provenance"])

    made_by: dict[str, Callable[[Path], Provenance]] = {
        "teacher.safetensors": lambda path: of_tensors(path, checkpoint.TEACHER_SCHEMA)
    }
    if kind == "student":
        made_by = {
            distill.CHECKPOINT: lambda path: of_tensors(path, distillation.SCHEMA),
            STUDENT: lambda path: integer_net.load(path)[1],
        }
    places = (folder / name for folder in folders for name in made_by)
    known = {file_sha256(path): path for path in places if path.is_file()}
    trained: dict[str, tuple[Path, Provenance]] = {}
    counted: set[str] = set()
    earlier: dict[str, Any] | None = None

    def count(sha256: str, how: str) -> None:
        nonlocal earlier
        if sha256 in counted:
            return
        counted.add(sha256)
        if kind == "student" and (card := published_student(sha256, folders)):
            if earlier is not None:
                raise UserError(
                    f"the student {how} a published one (SHA-256 {sha256[:12]}) and went on from another "
                    f"({earlier['sha256'][:12]}): a card tells the trainings of one",
                    "begin both halves with the same published student, or with what went on from it",
                )
            earlier = card
            for each in card["went_on_from"]:
                counted.add(each["sha256"])
                trained.pop(each["sha256"], None)
            return
        if sha256 not in known:
            raise UserError(
                f"the {kind} {how} one with SHA-256 {sha256[:12]}, which is in none of {len(folders)} folders",
                "name its folder with --ancestors",
            )
        path = known[sha256]
        made = made_by[path.name](path)
        count_parents(made)
        trained[sha256] = (path, made)
        # A training leaves both, and either stands for it.
        counted.update(
            file_sha256(path.with_name(name)) for name in made_by if path.with_name(name).is_file()
        )

    def count_parents(made: Provenance) -> None:
        for parent, how in (("initial", "went on from"), ("initial_beside", "began beside")):
            if parent in made.parents:
                count(made.parents[parent], how)

    count_parents(provenance)
    return list(trained.values()), earlier


def published_student(sha256: str, folders: list[Path]) -> dict[str, Any] | None:
    """Return the card of the published student with this SHA-256 in one of ``folders``, None where there is none."""
    for path in (path for folder in folders for path in sorted(folder.glob("student-*.safetensors"))):
        saved = path.with_suffix(".json")
        if saved.is_file() and file_sha256(path) == sha256:
            return dict(json.loads(saved.read_text(encoding="utf-8")))
    return None


def buffers_of(source: Path, provenance: Provenance) -> list[Path | None]:
    """Return the buffers that a student learnt from, None for one that is gone or has been recorded anew.

    The first lies beside the student or where its options name it, the further ones where they name them. Each is the
    one that it learnt from by its SHA-256.
    """
    beside = source.parent / BUFFER
    named = Path(str(provenance.config.get("buffer") or beside))
    places = [[beside, named], *([Path(also)] for also in provenance.config.get("also") or ())]

    def learnt_from(path: Path, index: int) -> bool:
        wanted = provenance.parents.get(numbered("buffer", index))
        return wanted is not None and path.is_file() and file_sha256(path) == wanted

    return [
        next((path for path in own if learnt_from(path, index)), None) for index, own in enumerate(places)
    ]


def recorded_frames(
    trained: Sequence[tuple[Path, Provenance]], earlier: Mapping[str, Any] | None
) -> int | None:
    """Return the frames of all buffers that a student learnt from, None where one of them is gone.

    A buffer that several trainings read counts once, also where the published student read it last.

    Args:
        trained: the student and those that it went on from, each with its provenance.
        earlier: the card of the published student that the first of them went on from, which had recordings of its own:
            it names those of its last training.
    """
    from spikestill.dataset.reader import BufferReader

    there: dict[str, Path] = {}
    for source, provenance in trained:
        for index, buffer in enumerate(buffers_of(source, provenance)):
            if buffer is None:
                return None
            there[provenance.parents[numbered("buffer", index)]] = buffer
    counted = set() if earlier is None else set(earlier.get("parents", {}).values())
    found = 0 if earlier is None else earlier.get("recorded_frames")
    if found is None:
        return None
    for sha256, buffer in there.items():
        if sha256 not in counted:
            with BufferReader(buffer) as reader:
                found += len(reader)
    return found


def decision_costs(student: Path, core_map: Path, buffers: Sequence[Path | None]) -> dict[str, Any]:
    """Return what a decision costs, estimated on frames of what the student learnt from, as far as it is there."""
    from spikestill.deploy.estimate import run

    with tempfile.TemporaryDirectory() as scratch:
        config = EstimateConfig(student=student, core_map=core_map)
        if there := [buffer for buffer in buffers if buffer is not None]:
            config = dataclasses.replace(config, buffer=there[0], also=tuple(there[1:]))
        summary = run(config, Path(scratch)).summary
    for name in ("loihi", "loihi2"):
        summary[name].pop("layers")
    return dict(summary)


def publish_teacher(game: str, source: Path, folder: Path, episodes: int, earlier: list[Path]) -> None:
    """Store the teacher in fp16, score it, write ``teacher.json``."""
    from spikestill.teacher.checkpoint import nature_network, read_teacher_file, save_teacher

    file = read_teacher_file(source)
    weights, found, actions, provenance = nature_network(source, file)
    selected = file.net.get("selected")
    if found != game:
        raise UserError(f"{source}: plays {found}, not {game}", f"publish it with the game {found}")
    went_on_from = ancestors("teacher", *lineage("teacher", provenance, earlier))
    training = teacher_curve(source.parent)
    with published(folder) as scratch:
        path = scratch / "teacher.safetensors"
        save_teacher(path, weights, game, actions, provenance, half=True, selected=selected)
        summary = score(game, "teacher", path, None, episodes)
        document = card("teacher", game, path, provenance) | scored(summary)
        document |= {"random": summary["random"]["mean"], "source_sha256": file_sha256(source)}
        document |= {"selected": selected} if selected else {}
        document |= training | {"went_on_from": went_on_from}
        stages = [*went_on_from, document]
        document["training_frames_in_all"] = sum(stage["training_frames"] for stage in stages)
        write_text(scratch / "teacher.json", json.dumps(document, indent=1, allow_nan=False) + "\n")


def check_variant(variant: str) -> str:
    """Return the name of a student beside the game's own.

    Raises:
        UserError: it is no part of a file's name.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*|", variant):
        raise UserError(
            f"--variant is {variant!r}, small letters and digits wanted", "give a word, such as sparse"
        )
    return variant


def publish_student(
    game: str, source: Path, folder: Path, episodes: int, earlier: list[Path], variant: str = ""
) -> None:
    """Copy the student, map it, score it in each of its games, write ``student-1chip.json``.

    A ``variant`` has its name in its files', ``student-1chip-sparse.safetensors``, and lies beside the game's own.
    """
    from spikestill.deploy import mapping
    from spikestill.student.architectures import WIDE
    from spikestill.student.integer_net import load

    net, provenance = load(source)
    if net.game != game:
        raise UserError(f"{source}: plays {net.game}, not {game}", f"publish it with the game {net.game}")
    if (provenance.config.get("architecture") == WIDE) != (variant == "wide"):
        raise UserError(
            f"{source}: its architecture is {provenance.config.get('architecture')}, and --variant {variant or 'none'}",
            f"give --variant wide for {WIDE}, and for no other net",
        )
    teachers = {each: teacher_card(folder.parent / each) for each in game.split("+")}
    stages, before = lineage("student", provenance, earlier)
    went_on_from = ancestors("student", stages, before)
    training = student_curve(source.parent)
    name = f"1chip-{variant}" if variant else "1chip"
    with published(folder) as scratch:
        path = scratch / f"student-{name}.safetensors"
        shutil.copyfile(source, path)
        mapped = mapping.run(MapConfig(student=path, hardware="ns1e"), scratch)
        core_map = mapped.artefact.rename(scratch / f"core_map-{name}.h5")
        told: dict[str, dict[str, Any]] = {}
        for each, teacher in teachers.items():
            summary = score(each, "student", folder.parent / each / "teacher.safetensors", path, episodes)
            told[each] = scored(summary) | compared(summary["mean"], teacher)
        document = card("student", game, path, provenance)
        document |= {"games": told} if len(teachers) > 1 else told[game]
        document |= {
            "agreement": training["curve"][-1]["validation_agreement"],
            "regret": training["curve"][-1]["validation_regret"],
            "cores": mapped.summary["cores"],
            "chips": mapped.summary["chips"],
            "recorded_frames": recorded_frames([*stages, (source, provenance)], before),
            "decision": decision_costs(path, core_map, buffers_of(source, provenance)),
            **training,
            "went_on_from": went_on_from,
        }
        write_text(path.with_suffix(".json"), json.dumps(document, indent=1, allow_nan=False) + "\n")


def main() -> None:
    """Publish what the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m spikestill.publish", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "game", help="the student's games joined by +, as its file names them, where it plays several"
    )
    parser.add_argument(
        "--teacher",
        type=Path,
        help="teacher.safetensors with teach.jsonl beside it; of a control agent, seed-N/teacher.safetensors too",
    )
    parser.add_argument(
        "--ancestors", type=Path, nargs="*", default=[], help="folders of the networks that it went on from"
    )
    parser.add_argument("--student", type=Path, help="student.safetensors with distill.jsonl beside it")
    parser.add_argument(
        "--variant", default="", help="name of a student beside the game's own, such as sparse"
    )
    parser.add_argument("--episodes", type=int, default=100, help="full games that the score is of")
    options = parser.parse_args()
    if not (options.teacher or options.student):
        parser.error("nothing to publish: give --teacher, --student or both")
    folder = ROOT / options.game
    try:
        from spikestill import publish_control

        control = bool(options.teacher) and publish_control.is_control_agent(options.teacher)
        for game in options.game.split("+"):
            (check_environment if control else check_game)(game)
        EvaluateConfig(episodes=options.episodes)
        check_variant(options.variant)
        if options.variant and not options.student:
            raise UserError(
                f"--variant {options.variant} names a student, and none is given",
                "give --student, or omit --variant",
            )
        if control and options.ancestors:
            raise UserError("--ancestors is given, a control agent goes on from none", "omit --ancestors")
        if control:
            publish_control.publish(options.game, options.teacher, folder, options.episodes)
        elif options.teacher:
            publish_teacher(options.game, options.teacher, folder, options.episodes, options.ancestors)
        if options.student:
            publish_student(
                options.game, options.student, folder, options.episodes, options.ancestors, options.variant
            )
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
