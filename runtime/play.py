"""The ``play`` stage: agents in real time, shown, served and recorded beside the loop."""

from __future__ import annotations

import contextlib
import math
import sys
from pathlib import Path
from typing import Any

from spikestill.common.artefacts import PLAY
from spikestill.common.document import write_document
from spikestill.common.errors import UserError
from spikestill.common.extras import check_extra
from spikestill.common.progress import Progress
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult, StopRequest, stop_on_signal
from spikestill.configs.play import PlayConfig
from spikestill.runtime.clock import MonotonicClock, steady_interpreter
from spikestill.runtime.crew import make_sessions, opened, scene_of, words_of
from spikestill.runtime.display import Display, DisplayOptions
from spikestill.runtime.human import HumanPolicy
from spikestill.runtime.job_control import JobControl
from spikestill.runtime.keyboard import Keyboard
from spikestill.runtime.loop import Pace, play_live
from spikestill.runtime.page import Page, served
from spikestill.runtime.session import Session, Tick
from spikestill.runtime.telemetry import DecisionLog
from spikestill.runtime.trace import TraceRecorder

VERSION = 1


class Score:
    """What a session's games came to.

    Attributes:
        games: score of each finished game.
        running: of the one that runs.
    """

    def __init__(self) -> None:
        self.games: list[float] = []
        self.running = 0.0

    def see(self, tick: Tick) -> None:
        """Take in a frame."""
        self.running = tick.score
        if tick.over:
            self.games.append(tick.score)

    def summary(self) -> dict[str, Any]:
        """Return ``score`` (mean of the finished games; of the running one where none has finished) and ``scores``."""
        mean = sum(self.games) / len(self.games) if self.games else self.running
        return {"score": mean, "scores": self.games, "games": len(self.games)}


def run(config: PlayConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Play as ``config`` says; write ``play.json`` into ``run_dir``, and the video where it is asked for.

    The summary has ``score`` (mean of the finished games; of the running one where none has finished),
    ``scores``, ``decisions``, ``misses``, ``latency_ms`` and ``jitter_ms`` (p50, p99, p999, max),
    ``histogram`` and, with a recording, ``video_frames`` and ``dropped_video_frames``; with several agents these are
    the first one's, and ``agents`` has everyone's. A game cannot be resumed: ``resume`` plays a new one.

    Raises:
        UserError: a file that is missing, unreadable or for another game; no room for the video, or no PyAV; nobody can
            play ``human`` here.
    """
    check_person(config)
    check_extras(config)
    clock = MonotonicClock()
    with contextlib.ExitStack() as stack:
        team = [stack.enter_context(opened(config, name)) for name in config.agents]
        parents = {role: path for agent in reversed(team) for role, path in agent.parents.items()}
        provenance = Provenance.of(config, config.seed, parents)
        drawn = config.record is not None or config.serve or terminal_shown(config)
        sessions = make_sessions(config, team, clock, stack, drawn=drawn)
        stop = stack.enter_context(stop_on_signal())
        summary, failure = _play(config, sessions, clock, stop, provenance)
        interrupted = bool(stop) or failure is not None
    summary["interrupted"] = interrupted
    artefact = Path(run_dir) / PLAY
    write_document(artefact, "play", VERSION, summary, provenance)
    if failure is not None:
        # A video that could not be finished costs the video, not what was measured.
        raise failure
    return StageResult(artefact, summary, finished=not interrupted)


def check_person(config: PlayConfig) -> None:
    """Raise UserError where a person is to play and there is no keyboard."""
    if "human" in config.agents and not (config.serve or (sys.stdin is not None and sys.stdin.isatty())):
        raise UserError(
            "agent human needs a keyboard, and standard input is no terminal",
            "play in a terminal, or in a browser with --serve true",
        )


def check_extras(config: PlayConfig) -> None:
    """Raise UserError where the page cannot be served or the video not be written, for want of an extra."""
    if config.serve:
        check_extra("serve")
    if config.record is not None:
        from spikestill.runtime.recording import is_gif

        if not is_gif(config.record):
            check_extra("video")


def _play(
    config: PlayConfig,
    sessions: list[Session],
    clock: MonotonicClock,
    stop: StopRequest,
    provenance: Provenance,
) -> tuple[dict[str, Any], UserError | None]:
    """Play until enough seconds or games are over or a stop is asked for; return the scores, and what ended it early.

    Raises:
        UserError: it could not begin.
    """
    scores = [Score() for _ in sessions]
    seconds, failure = 0.0, None
    pace = Pace(unpaced=config.max_speed)
    episodes, endless = wanted(config)
    watchers = Watchers(config, sessions, pace, JobControl(clock, stop))
    try:
        with contextlib.ExitStack() as stack:
            watchers.begin(stack, provenance, None if endless else episodes)
            stack.enter_context(steady_interpreter())
            loop = play_live(sessions, clock, pace)
            stack.enter_context(contextlib.closing(loop))
            began_s = clock.now()
            for ticks in loop:
                watchers.turn(ticks)
                # A paused game ticks not at all, and its time does not count; the last tick is shown and kept as every
                # other.
                began_s = began_s if ticks else clock.now() - seconds
                seconds = clock.now() - began_s
                if ticks:
                    for score, tick in zip(scores, ticks, strict=True):
                        score.see(tick)
                    watchers.see(ticks, len(scores[0].games) if episodes else int(seconds))
                if stop or watchers.ended or (config.seconds and seconds >= config.seconds):
                    break
                if episodes and all(len(score.games) >= episodes for score in scores):
                    break
    except (UserError, OSError) as error:
        if not sessions[0].telemetry.ticks:
            raise
        failure = error if isinstance(error, UserError) else unwritten(error)
    game, display = sessions[0].game, watchers.display
    told = [
        {"agent": session.name, **score.summary(), **_health(session), **session.telemetry.summary()}
        for session, score in zip(sessions, scores, strict=True)
    ]
    summary = {
        "game": game.spec.name,
        "frame_skip": game.frames_per_decision,
        "rate_hz": game.rate_hz,
        "seconds": round(seconds, 3),
        "video": str(config.record) if config.record and failure is None else None,
        "video_is_black": bool(config.record) and not game.seen,
        "video_frames": display.frames if display else 0,
        "dropped_video_frames": display.dropped if display and config.record else 0,
        **told[0],
        "agents": told,
    }
    return summary, failure


class Watchers:
    """Who looks on while it is played, and what is written: display, live page, log, trace, progress.

    Args:
        config: of the play.
        sessions: whom they watch.
        pace: what viewers of the page change.
        job: stops the program for the shell.

    Attributes:
        display: what draws, None where nothing does.
        ended: the user asked for the end by a key.
    """

    def __init__(self, config: PlayConfig, sessions: list[Session], pace: Pace, job: JobControl) -> None:
        self._config, self._sessions, self._pace, self._job = config, sessions, pace, job
        self.display: Display | None = None
        self.ended = False
        self._last: list[Tick] = []
        self._stands = False
        self._page: Page | None = None
        self._log: DecisionLog | None = None
        self._trace: TraceRecorder | None = None
        self._bar: Progress | None = None
        self._keyboard: Keyboard | None = None

    def begin(self, stack: contextlib.ExitStack, provenance: Provenance, episodes: int | None) -> None:
        """Make those that the options ask for; ``stack`` ends them.

        Raises:
            UserError: a file cannot be written, or the page cannot be served.
        """
        config, sessions = self._config, self._sessions
        stack.enter_context(self._job)
        if terminal_shown(config) or "human" in config.agents:
            self._keyboard = stack.enter_context(Keyboard())
        self.display = _display(config, sessions, heard=self._keyboard is not None and self._keyboard.there)
        if self.display:
            stack.callback(self.display.close)
        if config.serve:
            self._page = stack.enter_context(served(config, sessions, self._pace))
        if config.telemetry:
            self._log = stack.enter_context(DecisionLog(config.telemetry))
        if not terminal_shown(config) and (episodes or config.seconds):
            self._bar = stack.enter_context(_progress(config, episodes))
        if config.trace:
            self._trace = TraceRecorder(config.trace, config.environment, config.seed, provenance)
            # Written whatever ends the play: what was played is there to be played again.
            stack.callback(self._trace.write, sessions)
        self._job.attend(self.display if terminal_shown(config) else None, self._keyboard)

    def turn(self, ticks: list[Tick]) -> None:
        """Do what the keyboard and the page's viewers ask for; called for every frame, time standing still or not."""
        for key in self._keyboard.pressed() if self._keyboard else ():
            self._press(key)
        if self._page:
            self._page.turn(ticks)
        self._last = ticks or self._last
        if self._job.returned:
            # A pause is shown again.
            self._job.returned = self._stands = False
        if self.display and self._last and self._pace.paused != self._stands:
            # Frames that come say themselves that time goes on.
            shown = not self._pace.paused or self.display.offer(self._sessions, self._last, paused=True)
            self._stands = self._pace.paused if shown else self._stands

    def _press(self, key: str) -> None:
        """Do what a key asks for: end, pause, or play where a person does."""
        if key == "q":
            self.ended = True
        elif key == "p" or (key == " " and "human" not in self._config.agents):
            self._pace.paused, self._pace.steps = not self._pace.paused, 0
            if self._page:
                self._page.desk.tell(
                    "paused in the terminal" if self._pace.paused else "goes on, says the terminal"
                )
        for session in self._sessions:
            if isinstance(person := getattr(session.agent, "policy", None), HumanPolicy):
                person.press(key)

    def see(self, ticks: list[Tick], done: int) -> None:
        """Take in a frame, with how many games or seconds are done."""
        sessions = self._sessions
        if self.display:
            # Without a clock the game waits for its video; what is only looked at may drop frames.
            self.display.offer(
                sessions, ticks, wait=self._config.max_speed and self._config.record is not None
            )
        if self._log:
            self._log.add(sessions, ticks)
        if self._trace:
            self._trace.add(sessions, ticks)
        if self._bar and (ticks[0].over or ticks[0].frame % sessions[0].game.rate_hz < 1):
            misses = sessions[0].telemetry.misses
            self._bar.advance(
                min(done, self._bar.total) - self._bar.done, score=ticks[0].score, misses=misses
            )


def wanted(config: PlayConfig) -> tuple[int | None, bool]:
    """Return how many games are to be played, None where seconds decide alone; and whether it has no end."""
    endless = config.serve and not config.episodes and not config.seconds
    return config.episodes if config.episodes or config.seconds or endless else 1, endless


def unwritten(error: OSError) -> UserError:
    """Return what to say of a file that could not be written while it was played."""
    name = error.filename or "a file of this play"
    return UserError(f"{name}: {error.strerror or error}", "make room, or choose another place")


def _health(session: Session) -> dict[str, Any]:
    """Return what went wrong with an agent, and how often it agreed with the reference."""
    told: dict[str, Any] = {"state": session.state, "error": None}
    if session.error is not None:
        told["error"] = f"{type(session.error).__name__}: {session.error}"
    told["agreement"] = round(session.agreed / session.compared, 4) if session.compared else None
    return told


def terminal_shown(config: PlayConfig) -> bool:
    """Return whether the game is drawn on the terminal."""
    return config.view == "terminal" and sys.stderr.isatty()


def _display(config: PlayConfig, sessions: list[Session], *, heard: bool) -> Display | None:
    """Return the display that ``config`` asks for; it says which keys do what where they are ``heard``."""
    if config.record is None and not terminal_shown(config):
        return None
    # A person who plays fires with space.
    keys = f"{'p' if 'human' in config.agents else 'space'} pauses, q ends" if heard else ""
    options = DisplayOptions(str(config.record) if config.record else None, terminal_shown(config), keys)
    return Display(options, scene_of(sessions), words_of(sessions), sessions[0].game.screen_shape)


def _progress(config: PlayConfig, episodes: int | None) -> Progress:
    label = f"playing {config.environment.game}"
    if episodes:
        return Progress(label, episodes, "games")
    return Progress(label, math.ceil(config.seconds or 0), "s")
