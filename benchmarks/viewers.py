"""Real-time play before an audience: misses and latency while viewers look at the live page.

    python -m benchmarks.viewers [--viewers 20] [--minutes 3] [--agents cores] [--frame_skip 1] [--no_browser]

Twenty WebSocket clients read every message and throw it away; Debian's Chromium, headless, draws the page where it and
Playwright are installed. They are ordinary processes; the game runs as ``play --serve`` does. ``alone`` is the same
play without the page, measured first: the difference is what the audience costs. The witness of
``benchmarks/witness.py`` notes when the machine itself stood still. Writes ``benchmarks/results/viewers.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement import finish
from benchmarks.witness import Witness
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.play import PlayConfig
from spikestill.runtime.admission import listen
from spikestill.runtime.clock import step_back
from spikestill.runtime.play import run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
KEYS = ("seconds", "decisions", "misses", "latency_ms", "jitter_ms", "lost_s")


def audience(port: int, viewers: int, told: Connection) -> None:
    """Look on with ``viewers`` clients until the game ends; tell each one's messages a second."""
    step_back(5)
    told.send(asyncio.run(_look(port, viewers)))


async def _look(port: int, viewers: int) -> list[float]:
    from websockets.asyncio.client import connect

    async def one() -> float:
        count, began = 0, time.monotonic()
        async with connect(f"ws://127.0.0.1:{port}/ws", max_size=2**24) as page:
            with contextlib.suppress(Exception):  # the end of the game closes the line
                async for message in page:
                    count += isinstance(message, bytes)
        return count / (time.monotonic() - began)

    await _until_served(port)
    return await asyncio.gather(*(one() for _ in range(viewers)))


async def _until_served(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"nobody serves on port {port}")


def browse(port: int, seconds: float, told: Connection) -> None:
    """Look on in Chromium for ``seconds``; tell how many frames a second it drew, and the browser's version."""
    from playwright.sync_api import sync_playwright

    step_back(5)
    asyncio.run(_until_served(port))
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_function("window.frames_shown > 0")
        before, began = page.evaluate("window.frames_shown"), time.monotonic()
        page.wait_for_timeout(1e3 * seconds)
        rate = (page.evaluate("window.frames_shown") - before) / (time.monotonic() - began)
        told.send({"frames_per_s": rate, "version": browser.version})
        browser.close()


def measure(options: argparse.Namespace, seconds: float, port: int | None) -> dict[str, Any]:
    """Return what play reached in ``seconds``; served on ``port``, or not."""
    with tempfile.TemporaryDirectory() as folder, Witness() as witness:
        config = PlayConfig(
            environment=EnvironmentConfig(game="pong", frame_skip=options.frame_skip),
            agent=options.agents,
            seconds=seconds,
            view="none",
            serve=port is not None,
            port=port or 0,
        )
        summary = run(config, Path(folder)).summary
    period_s, deadlines = options.frame_skip / summary["rate_hz"], np.array(summary["missed_at"])
    return {
        **{key: summary[key] for key in KEYS},
        "stood_still_before_each_miss_ms": np.round(
            1e3 * witness.stood_still_s(deadlines - period_s, deadlines)[1], 1
        ).tolist(),
        "worst_stall_ms": max(core["worst_ms"] for core in witness.found),
    }


def main() -> None:
    """Measure play alone, then before the audience."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=3.0, help="minutes of each of the two measurements")
    parser.add_argument("--agents", default="cores", help="names with commas play side by side")
    parser.add_argument("--frame_skip", type=int, default=1)
    parser.add_argument("--no_browser", action="store_true")
    options = parser.parse_args()
    seconds, browser = 60 * options.minutes, CHROMIUM is not None and not options.no_browser
    load = os.getloadavg()[0]
    alone = measure(options, seconds, None)
    with contextlib.closing(listen("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    shown, drawn = spawn.Pipe(duplex=False)
    processes = [spawn.Process(target=audience, args=(port, options.viewers, there))]
    if browser:
        # Some seconds pass before the first frame and until Chromium is there.
        processes.append(spawn.Process(target=browse, args=(port, max(5.0, seconds - 30.0), drawn)))
    for process in processes:
        process.start()
    watched = measure(options, seconds, port)
    rates = here.recv()
    for process in processes:
        process.join(60)
    finish(
        "viewers",
        {
            "agents": options.agents,
            "frame_skip": options.frame_skip,
            "load_before": round(load, 2),
            "alone": alone,
            "watched": watched,
            "viewers": len(rates),
            "frames_per_s": {"least": min(rates), "median": statistics.median(rates)},
            "browser": shown.recv() if browser and shown.poll() else None,
        },
    )


if __name__ == "__main__":
    main()
