"""The ``play`` stage: a game in real time, shown and recorded beside the loop."""

from __future__ import annotations

import contextlib
import math
import sys
from pathlib import Path
from typing import Any

from spikestill.common.artefacts import PLAY
from spikestill.common.atari import FRAME_RATE_HZ
from spikestill.common.document import write_document
from spikestill.common.environment import environment
from spikestill.common.errors import UserError
from spikestill.common.progress import Progress
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult, StopRequest, stop_on_signal
from spikestill.configs.play import PlayConfig
from spikestill.runtime.agents import Agent, agent_files, open_agent
from spikestill.runtime.clock import Clock, MonotonicClock, steady_interpreter
from spikestill.runtime.display import Display, DisplayOptions
from spikestill.runtime.emulator import Emulator
from spikestill.runtime.loop import play_live
from spikestill.runtime.telemetry import Telemetry

VERSION = 1


def run(config: PlayConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Play as ``config`` says; write ``play.json`` into ``run_dir``, and the video where it is asked for.

    The summary has ``score`` (mean of the finished games; of the running one where none has finished),
    ``scores``, ``decisions``, ``misses``, ``latency_ms`` and ``jitter_ms`` (p50, p99, p999, max),
    ``histogram`` and, with a recording, ``video_frames`` and ``dropped_video_frames``. A game cannot be
    resumed: ``resume`` plays a new one.

    Raises:
        UserError: a file that is missing, unreadable or for another game; no room for the video.
    """
    game = config.environment.game
    files = agent_files(
        config.agent, game, {role: getattr(config, role) for role in ("teacher", "student", "core_map")}
    )
    with contextlib.ExitStack() as stack:
        emulator = Emulator(config.environment, config.seed)
        stack.callback(emulator.close)
        agent = open_agent(config.agent, environment(game), files)
        stack.callback(agent.close)
        provenance = Provenance.of(config, config.seed, agent.parents)
        stop = stack.enter_context(stop_on_signal())
        telemetry = Telemetry()
        summary, failure = _play(config, emulator, agent, MonotonicClock(), telemetry, stop)
        interrupted = bool(stop) or failure is not None
    summary |= telemetry.summary() | {"interrupted": interrupted}
    artefact = Path(run_dir) / PLAY
    write_document(artefact, "play", VERSION, summary, provenance)
    if failure is not None:
        # A video that could not be finished costs the video, not what was measured.
        raise failure
    return StageResult(artefact, summary, finished=not interrupted)


def _play(
    config: PlayConfig,
    emulator: Emulator,
    agent: Agent,
    clock: Clock,
    telemetry: Telemetry,
    stop: StopRequest,
) -> tuple[dict[str, Any], UserError | None]:
    """Play until enough seconds or games are over or a stop is asked for; return the scores, and what ended it early.

    Raises:
        UserError: it could not begin.
    """
    episodes = config.episodes if config.episodes or config.seconds else 1
    scores: list[float] = []
    running = seconds = 0.0
    display: Display | None = None
    failure: UserError | None = None
    try:
        with contextlib.ExitStack() as stack:
            display = _display(config, emulator, agent)
            if display:
                stack.callback(display.close)
            bar = None if terminal_shown(config) else stack.enter_context(_progress(config, episodes))
            stack.enter_context(steady_interpreter())
            loop = play_live(emulator, agent, clock, telemetry, epsilon=config.epsilon, seed=config.seed)
            stack.enter_context(contextlib.closing(loop))
            began_s = clock.now()
            for tick in loop:
                if display:
                    display.offer(emulator.screen, tick, telemetry)
                running = tick.score
                if tick.over:
                    scores.append(tick.score)
                seconds = clock.now() - began_s
                if bar and (tick.over or tick.frame % FRAME_RATE_HZ == 0):
                    done = len(scores) if episodes else min(int(seconds), bar.total)
                    bar.advance(done - bar.done, score=tick.score, misses=telemetry.misses)
                if stop or len(scores) == episodes or (config.seconds and seconds >= config.seconds):
                    break
    except UserError as error:
        if not telemetry.ticks:
            raise
        failure = error
    summary = {
        "game": config.environment.game,
        "agent": agent.name,
        "frame_skip": config.environment.frame_skip,
        "seconds": round(seconds, 3),
        "score": sum(scores) / len(scores) if scores else running,
        "scores": scores,
        "games": len(scores),
        "video": str(config.record) if config.record and failure is None else None,
        "video_frames": display.frames if display else 0,
        "dropped_video_frames": display.dropped if display and config.record else 0,
    }
    return summary, failure


def terminal_shown(config: PlayConfig) -> bool:
    """Return whether the game is drawn on the terminal."""
    return config.view == "terminal" and sys.stderr.isatty()


def _display(config: PlayConfig, emulator: Emulator, agent: Agent) -> Display | None:
    """Return the display that ``config`` asks for."""
    if config.record is None and not terminal_shown(config):
        return None
    picture = agent.entry.picture if agent.layout else ""
    return Display(
        DisplayOptions(
            game=config.environment.game,
            agent=agent.name,
            actions=emulator.actions,
            picture=picture,
            words=agent.words if picture else 0,
            video=str(config.record) if config.record else None,
            terminal=terminal_shown(config),
        ),
        agent.layout,
    )


def _progress(config: PlayConfig, episodes: int | None) -> Progress:
    label = f"playing {config.environment.game}"
    if episodes:
        return Progress(label, episodes, "games")
    return Progress(label, math.ceil(config.seconds or 0), "s")
