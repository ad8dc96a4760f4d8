"""The report of a pipeline's run: one HTML file that needs nothing else, readable light and dark."""

from __future__ import annotations

import base64
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spikestill.charts import histogram, interval_chart, png_uri
from spikestill.common.agents import agent
from spikestill.common.artefacts import (
    BUFFER,
    CORE_MAP,
    EVALUATE,
    GAME,
    REPORT,
    SMALL_GAME,
    STATE,
    STUDENT,
    TEACHER,
)
from spikestill.common.atari import FRAME_RATE_HZ
from spikestill.common.atomic import write_text
from spikestill.common.environment import is_control
from spikestill.common.errors import UserError, restoring
from spikestill.common.legal import TOGETHER
from spikestill.common.limits import RECIPE_BYTES
from spikestill.common.provenance import file_sha256, git_commit, machine, versions
from spikestill.common.stage import StageResult
from spikestill.configs.pipeline import ReportConfig
from spikestill.curve_charts import REMEDY, distilling, teaching
from spikestill.run_folder import document, entries, game_of, stages_done
from spikestill.summaries import check_stage
from spikestill.verdicts import few_games, of_games, shortened

if TYPE_CHECKING:
    from spikestill.deploy.core_map import CoreMap

MAX_VIDEO_BYTES = 8 << 20
STRIP_FRAMES = 6
CANDIDATES = 400
TAUGHT, METRICS = "teach.jsonl", "distill.jsonl"
GIVEN = {"teacher": TEACHER, "student": STUDENT, "core_map": CORE_MAP}
"""Role of a file that a stage is given, by which its provenance names it, to its name in a run folder."""
Stages = Mapping[str, Mapping[str, Any]]


def run(config: ReportConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Write the page of the folder ``config.folder``.

    Raises:
        UserError: nothing in the folder can be reported, or an artefact is unreadable.
    """
    folder = config.folder
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder", "give the folder of a run")
    files = [entry.file for entry in entries(folder)]
    stages = stages_done(folder)
    shown = [*(["teach"] if teaching(folder / TAUGHT).charts else []), *stages]
    if not shown:
        raise UserError(
            f"{folder}: holds {', '.join(files)}, and a report is of what was made with it",
            "go on with `spikestill record`, or look at a file with `spikestill inspect`",
        )
    path = config.html or folder / REPORT
    teacher = folder / TEACHER
    warnings = write_report(folder, stages, teacher if teacher.is_file() else None, path)
    found: dict[str, Any] = {
        "game": game_of(folder) or "unknown",
        "stages": shown,
        "report": str(path.resolve()),
    }
    if warnings:
        found["warnings"] = warnings
    return StageResult(path, found)


def write_report(run_dir: Path, state: Stages, teacher: Path | None, path: Path) -> list[str]:
    """Write the report of a run folder to ``path``, a section for each stage in ``state``; return its warnings.

    Args:
        run_dir: the run's folder, with all artefacts.
        state: the stages done: each has ``artefact``, ``summary``, ``seconds`` (None: unknown) and ``sha256``.
        teacher: the teacher that was distilled, None where it is not there.
        path: the HTML file to write.

    Raises:
        UserError: an artefact is missing or unreadable.
    """
    from spikestill.deploy.core_map import load as load_map
    from spikestill.deploy.inspection import summarise
    from spikestill.pictures import chip_cards

    for name, saved in state.items():
        with restoring(_told_by(run_dir, name), REMEDY):
            check_stage(name, saved)
            if name == "evaluate":
                agent(saved["summary"]["agent"])
    summaries = {name: saved["summary"] for name, saved in state.items()}
    core_map = load_map(run_dir / CORE_MAP) if "map" in state else None
    if core_map is not None:
        summaries["map"] = summarise(core_map)
    strip: list[dict[str, Any]] = []
    agreement = ""
    if {"record", "distill"} <= set(state):
        strip, agreement = frame_strip(run_dir)
    held_out = summaries.get("distill", {}).get("held_out_steps") != 0
    game = core_map.game if core_map is not None else game_of(run_dir)
    warnings = of_others(run_dir, _parents(run_dir, state, core_map))
    page = render(
        "report.html",
        title=f"Spikestill: {_title(game)}",
        game_title=_title(game),
        architecture=_architecture(run_dir / STUDENT) if "distill" in state else "",
        created=time.strftime("%d %B %Y, %H:%M UTC", time.gmtime()).lstrip("0"),
        warnings=warnings,
        tiles=_tiles(summaries),
        **(_scores(summaries["evaluate"]) if "evaluate" in state else {"scores": []}),
        games=_games(run_dir, core_map.game) if core_map is not None else [],
        held_out=held_out,
        shortened=shortened(summaries.get("distill", {})),
        taught=teaching(run_dir / TAUGHT),
        curve_charts=distilling(run_dir / METRICS, held_out=held_out),
        logged=(run_dir / METRICS).is_file(),
        strip=strip,
        strip_agreement=agreement,
        map=summaries.get("map"),
        verify_note=_verify_note(summaries["verify"]) if "verify" in state else "",
        chips=chip_cards(core_map) if core_map is not None else [],
        play_note=_play_note(summaries["play"]) if "play" in state else "",
        latency_chart=latency_chart(summaries["play"]) if "play" in state else "",
        distilled="distill" in state,
        **_video(run_dir / GAME),
        artefacts=[
            *(
                [{"stage": "teach", "file": teacher.name, "sha256": file_sha256(teacher), "seconds": ""}]
                if teacher is not None
                else []
            ),
            *(
                {
                    "stage": name,
                    "file": Path(saved["artefact"]).name,
                    "sha256": saved["sha256"],
                    "seconds": "" if saved["seconds"] is None else f"{saved['seconds']:,.0f}",
                }
                for name, saved in state.items()
            ),
        ],
        provenance=_provenance(run_dir),
    )
    write_text(path, page)
    return warnings


def of_others(run_dir: Path, parents: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a sentence for each stage that was given another file than the one in the folder now, by its SHA-256.

    Args:
        run_dir: the folder.
        parents: by stage, the SHA-256 of what it was given, by role, as its provenance says.
    """
    kept = {role: run_dir / name for role, name in GIVEN.items()}
    hashes = {role: file_sha256(path) for role, path in kept.items() if path.is_file()}
    found = []
    for stage, given in parents.items():
        others = [kept[role].name for role, sha256 in hashes.items() if given.get(role, sha256) != sha256]
        if others:
            found.append(
                f"{stage} was made from another {' and '.join(others)} than the folder has now: what it says here "
                f"is of that one. Make it again: `spikestill {stage} --run_dir {run_dir}`."
            )
    return found


def _parents(run_dir: Path, state: Stages, core_map: CoreMap | None) -> dict[str, Mapping[str, str]]:
    """Return what each stage of the run was given, as its provenance says."""
    found: dict[str, Mapping[str, str]] = {}
    for stage in state:
        path = run_dir / f"{stage}.json"
        if stage == "map" and core_map is not None:
            found[stage] = core_map.provenance.parents
        elif path.is_file():
            with restoring(path, REMEDY):
                found[stage] = dict(document(path).get("provenance", {}).get("parents", {}))
    return found


def _told_by(run_dir: Path, stage: str) -> Path:
    """Return the file that a stage's figures come from."""
    return run_dir / (f"{stage}.json" if (run_dir / f"{stage}.json").is_file() else STATE)


def render(template: str, **values: Any) -> str:
    """Return a page of ``spikestill/templates``."""
    import jinja2

    from spikestill.console import heading

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["heading"] = heading
    return environment.get_template(template).render(**values)


def _title(game: str) -> str:
    return game.replace(TOGETHER, " and ").replace("_", " ").title().replace(" And ", " and ") or "A run"


def _architecture(student: Path) -> str:
    from spikestill.student.integer_net import load

    _, provenance = load(student)
    name = str(provenance.config.get("architecture", ""))
    return name.replace("chip", "-chip") if name else "small"


def _tiles(summaries: Stages) -> list[dict[str, str]]:
    tiles: list[tuple[str, str]] = []
    if "evaluate" in summaries:
        tiles += _score_tiles(summaries["evaluate"])
    if "map" in summaries:
        core_map = summaries["map"]
        tiles.append((f"{core_map['cores']:,}", f"cores on {_count(core_map['chips'], 'chip')}"))
    if "play" in summaries:
        play = summaries["play"]
        tiles += [
            (_milliseconds(play["latency_ms"]["p99"]), "sensation to action, 99th percentile"),
            (f"{play['misses']:,}", f"of {play['decisions']:,} decisions missed in real time"),
        ]
    return [{"value": value, "label": label} for value, label in tiles]


def _score_tiles(evaluation: Mapping[str, Any]) -> list[tuple[str, str]]:
    share = evaluation.get("percent_of_margin")
    games = _count(evaluation["episodes"], "game")
    if agent(evaluation["agent"]).told_as != "student":
        games += f" of agent {evaluation['agent']}"
    return [
        (f"{evaluation['mean']:,.4g}", f"mean score of {games}"),
        *([] if share is None else [(f"{share:.1f} %", "of the teacher's margin over random play")]),
    ]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} ms"


def _scores(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the score chart, its table and its note."""
    measured, rows = _measured(evaluation)
    table = [
        {
            "name": name,
            "mean": f"{mean:,.4g}",
            "ci": f"{low:,.4g} to {high:,.4g}" if len(measured[name]["returns"]) > 1 else "-",
            "episodes": len(measured[name]["returns"]),
        }
        for name, mean, (low, high) in rows
    ]
    note = (
        f"Full games from no-op starts, unclipped rewards, random actions with probability "
        f"{evaluation['epsilon']:g}, the same for all but the random player."
    )
    if is_control(str(evaluation.get("game", ""))):
        note = "Whole episodes from random starts, with the mean action."
    note += " Lines are 95 % bootstrap intervals of the mean."
    if rule := few_games(evaluation):
        note += f" So few games ({evaluation['episodes']}) give a rough figure; {rule}"
    return {"scores": table, "score_chart": score_chart(evaluation), "score_note": note}


def _games(run_dir: Path, game: str) -> list[dict[str, str]]:
    """Return a row for each game of a student of several that was scored, in the game's own folder."""
    rows = []
    for each in game.split(TOGETHER) if TOGETHER in game else ():
        path = run_dir / each / EVALUATE
        if not path.is_file():
            continue
        found = document(path)
        with restoring(path, REMEDY):
            check_stage("evaluate", {"artefact": path.name, "sha256": "", "summary": found})
        page, share = run_dir / each / REPORT, found.get("percent_of_margin")
        rows.append(
            {
                "name": _title(each),
                "page": f"{each}/{REPORT}" if page.is_file() else "",
                "mean": f"{found['mean']:,.4g}",
                "ci": "{:,.4g} to {:,.4g}".format(*found["ci95"]) if len(found["returns"]) > 1 else "-",
                "episodes": str(found["episodes"]),
                "margin": "-" if share is None else f"{share:.1f}",
            }
        )
    return rows


Interval = tuple[float, float]


def _measured(evaluation: Mapping[str, Any]) -> tuple[Stages, list[tuple[str, float, Interval]]]:
    """Return who was scored, with what was measured, and a row (name, mean, interval) for each."""
    measured = {agent(evaluation["agent"]).told_as: evaluation}
    measured |= {name: evaluation[name] for name in ("teacher", "random") if evaluation.get(name)}
    rows = []
    for name, each in measured.items():
        low, high = each["ci95"]
        rows.append((name, float(each["mean"]), (float(low), float(high))))
    return measured, rows


def score_chart(evaluation: Mapping[str, Any]) -> str:
    """Return the means of those that ``evaluate`` scored, with their intervals."""
    return interval_chart(_measured(evaluation)[1], "score of a game")


def frame_strip(run_dir: Path) -> tuple[list[dict[str, Any]], str]:
    """Return frames of the buffer with the teacher's Q-values and the student's votes, and their agreement.

    From each of ``STRIP_FRAMES`` parts of the buffer comes the frame on which the Q-values differ most,
    for there an action matters.
    """
    from spikestill.dataset.reader import BufferReader
    from spikestill.deploy.packed_kernel import PackedNet
    from spikestill.student.integer_net import choose, load
    from spikestill.teacher.atari.environment import action_meanings

    net, _ = load(run_dir / STUDENT)
    student = PackedNet(net)
    actions = list(action_meanings(net.game)) if net.game else [str(action) for action in range(net.actions)]
    cards, agree = [], 0
    with BufferReader(run_dir / BUFFER, memory=0) as reader:
        for part in np.array_split(np.arange(len(reader)), min(STRIP_FRAMES, len(reader))):
            candidates = part[-CANDIDATES:]
            q_NA = reader.q_values(candidates)
            index = int(candidates[int(np.argmax(q_NA.max(axis=1) - q_NA.mean(axis=1)))])
            q_A, stack = reader.q_values(np.array([index]))[0], reader.stacks(np.array([index]))[0]
            votes_A = student.votes(stack)
            agree += int(choose(votes_A) == int(q_A.argmax()))
            cards.append(
                {"index": index, "image": png_uri(stack[-1]), "rows": score_rows(actions, q_A, votes_A)}
            )
    return cards, f"{agree} of {len(cards)}"


def score_rows(
    actions: list[str], q_A: npt.NDArray[np.float32], votes_A: npt.NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Return one row per action: Q-value, votes, the share of the largest vote, and who chooses it."""
    most = max(int(votes_A.max()), 1)
    return [
        {
            "action": name.lower().replace("fire", "+fire").lstrip("+"),
            "q": f"{q_A[action]:.2f}",
            "votes": f"{int(votes_A[action]):,}",
            "share": round(100 * int(votes_A[action]) / most),
            "teacher_best": action == int(q_A.argmax()),
            "student_best": action == int(votes_A.argmax()),
        }
        for action, name in enumerate(actions)
    ]


def latency_chart(play: Mapping[str, Any]) -> str:
    """Return the histogram of sensation-to-action times with the percentiles and the deadline."""
    latency = play["latency_ms"]
    marks = [(name, latency[name]) for name in ("p50", "p99", "max") if latency.get(name)]
    marks.append(("deadline", 1000.0 * play["frame_skip"] / (play.get("rate_hz") or FRAME_RATE_HZ)))
    bins = play["histogram"]
    return histogram(bins["edges_ms"], bins["counts"], "milliseconds from sensation to action", marks)


def _play_note(play: Mapping[str, Any]) -> str:
    games = play.get("games", 0)
    score = f"{_count(games, 'full game')}, score {play['score']:,.4g}" if games else "an unfinished game"
    game, frames = (
        ("simulation", "steps") if is_control(str(play.get("game", ""))) else ("emulator", "frames")
    )
    lost = f"; the {game} never waits"
    if play["lost_s"]:
        lost = f"; the machine stood still for {play['lost_s']:.1f} of the seconds, which the game did not catch up"
    return (
        f"{play['seconds']:,.0f} seconds, {play['ticks'] / max(play['seconds'], 1e-9):.1f} {game} {frames} in each, "
        f"with agent {play['agent']}: {score}. "
        f"{play['decisions']:,} decisions, {play['misses']:,} missed{lost}."
    )


def _verify_note(verify: Mapping[str, Any]) -> str:
    """Return which backends were compared, on how many frames of which kind each, or which of them differ."""
    kind = "random" if verify.get("source") == "random" else "recorded"
    differ = [rung for rung in verify["rungs"] if rung.get("mismatches")]
    if differ or not verify.get("ok", True):
        told = ", ".join(f"{rung['name']} on {rung['mismatches']:,} of {rung['frames']:,}" for rung in differ)
        return f"NOT the same spikes on {kind} frames: {told or 'the core map departs from the student'}."
    names = ", ".join(f"{rung['name']} ({rung['frames']:,})" for rung in verify["rungs"] if rung["frames"])
    frames = f"{kind} frames{of_games(verify)}"
    return f"The same spikes, bit for bit, on each of these backends, compared on {frames}: {names}."


def _video(path: Path) -> dict[str, Any]:
    """Return the recorded game: in the page where it is small, else a smaller one of it, and a link."""
    nothing = {"video_uri": "", "video_file": "", "video_link": None}
    if not path.is_file():
        return nothing
    if path.stat().st_size <= MAX_VIDEO_BYTES:
        return nothing | {"video_uri": _video_uri(path)}
    link = {"href": path.name, "size": f"{path.stat().st_size / 1e6:.0f} MB"}
    small = path.with_name(SMALL_GAME)
    try:
        if not small.is_file() or small.stat().st_mtime_ns < path.stat().st_mtime_ns:
            from spikestill.runtime.recording import write_smaller

            write_smaller(path, small)
    except ImportError as error:  # without PyAV the whole one is shown, from beside the page
        if error.name != "av":
            raise
        return nothing | {"video_file": path.name, "video_link": link}
    if small.stat().st_size <= MAX_VIDEO_BYTES:
        return nothing | {"video_uri": _video_uri(small), "video_link": link}
    return nothing | {"video_file": small.name, "video_link": link}


def _video_uri(path: Path) -> str:
    return "data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode()


def _provenance(run_dir: Path) -> str:
    lines = [f"commit    {git_commit() or 'unknown'}"]
    lines += [f"{name:<9} {version}" for name, version in versions().items()]
    lines += [f"machine   {platform.platform()}, {machine()}", ""]
    recipe = run_dir / "run.config.yaml"
    if not recipe.is_file():
        return "\n".join(lines) + "\n"
    with restoring(recipe, REMEDY), recipe.open(encoding="utf-8") as file:
        return "\n".join(lines) + "\n" + file.read(RECIPE_BYTES)
