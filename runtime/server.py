"""The live page's process: frames from the ring to every viewer by WebSocket, commands from viewers to the loop.

A viewer that is slow gets the newest message when it is ready for one: it loses frames, nobody waits for it. The page
says :data:`SHOWN` for each frame that it has shown, so that no more than a few wait in the browser; a viewer that never
does is ready when its socket is. What it sends is bounded and checked. :mod:`spikestill.runtime.broadcast` has the
messages.

This is the one module that knows the web server (Starlette and uvicorn, the extra ``serve``).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikestill.common.errors import UserError
from spikestill.runtime.admission import allowed, listen
from spikestill.runtime.broadcast import MOST_BYTES, Broadcast
from spikestill.runtime.clock import step_back
from spikestill.runtime.onlooker import Seat
from spikestill.runtime.worker import in_background

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.websockets import WebSocket

NICENESS = 5
FAREWELL_S = 3.0
"""So long a viewer may take to hear that the game has ended."""
MOST_VIEWERS = 64
MOST_COMMANDS_PER_S = 60
SHOWN = "."
MOST_UNSEEN = 12
"""Frames that may be on their way to a page that says what it has shown: a fifth of a second's."""
NOT_ALLOWED, TOO_MANY = 4403, 4429
PAGE = Path(__file__).resolve().parent / "page.html"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclasses.dataclass(eq=False)
class Viewer:
    """Who looks on.

    Attributes:
        socket: the connection.
        news: set where there may be something to send.
        unseen: frames sent that it has not said it has shown.
        tells: it says so.
        forced: agents in whose place it plays.
    """

    socket: WebSocket
    news: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    unseen: int = 0
    tells: bool = False
    forced: set[int] = dataclasses.field(default_factory=set)

    @property
    def ready(self) -> bool:
        """Return True where a frame more would be shown soon."""
        return not self.tells or self.unseen < MOST_UNSEEN


class Site:
    """What is answered to whom.

    Args:
        broadcast: what viewers get.
        host: where the server listens.
        token: what viewers must know, '' for nothing.
    """

    def __init__(self, broadcast: Broadcast, host: str, token: str) -> None:
        self._broadcast, self._host, self._token = broadcast, host, token
        self._viewers: set[Viewer] = set()

    def application(self) -> Starlette:
        """Return it as Starlette's application."""
        from starlette.applications import Starlette
        from starlette.routing import Route, WebSocketRoute

        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/metrics", self._metrics),
                Route("/file/{name}", self._file),
                WebSocketRoute("/ws", self._look),
            ]
        )

    async def wake_viewers(self) -> None:
        """Let every viewer know of what is new, for ever."""
        while True:
            await self._broadcast.changed.wait()
            self._broadcast.changed.clear()
            for viewer in self._viewers:
                viewer.news.set()

    async def all_told(self, seconds: float) -> None:
        """Wait until no viewer is left, for so many seconds at most: each is let go when it has heard of the end."""
        until_s = time.monotonic() + seconds
        while self._viewers and time.monotonic() < until_s:
            await asyncio.sleep(0.02)

    def _refused(self, asked: Request | WebSocket) -> bool:
        return not allowed(self._host, self._token, asked.headers, asked.query_params)

    async def _page(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse, PlainTextResponse

        if self._refused(request):
            return PlainTextResponse("not allowed: open the address that the command printed\n", 403, HEADERS)
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers=HEADERS)

    async def _metrics(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse

        if self._refused(request):
            return PlainTextResponse("not allowed\n", 403, HEADERS)
        text = self._broadcast.metrics()
        return PlainTextResponse(text, headers=HEADERS, media_type="text/plain; version=0.0.4")

    async def _file(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse, Response

        name = request.path_params["name"]
        content = self._broadcast.files.get(name)
        if self._refused(request) or content is None:
            return PlainTextResponse("not there\n", 404, HEADERS)
        kind = "image/gif" if name.endswith(".gif") else "video/mp4"
        saved_as = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=kind, headers={**HEADERS, **saved_as})

    async def _look(self, socket: WebSocket) -> None:
        """Show a viewer what there is, and hear it, until it goes."""
        from starlette.websockets import WebSocketDisconnect

        if self._refused(socket):
            await socket.close(NOT_ALLOWED)
            return
        if len(self._viewers) >= MOST_VIEWERS:
            await socket.close(TOO_MANY)
            return
        await socket.accept()
        viewer = Viewer(socket)
        viewer.news.set()
        self._viewers.add(viewer)
        tasks = [asyncio.create_task(self._hear(viewer)), asyncio.create_task(self._show(viewer))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is not None and not isinstance(error, WebSocketDisconnect | RuntimeError | KeyError):
                    raise error
        finally:
            self._viewers.discard(viewer)
            for task in tasks:
                task.cancel()
            self._give_back(viewer)

    def _give_back(self, viewer: Viewer) -> None:
        """Let the agents play in whose place a viewer who has gone played, and nobody else does."""
        for agent in viewer.forced.difference(*(other.forced for other in self._viewers)):
            with contextlib.suppress(UserError):
                self._broadcast.command(json.dumps({"do": "force", "agent": agent, "action": None}))

    async def _hear(self, viewer: Viewer) -> None:
        spent, began_s = 0, time.monotonic()
        while True:
            text = await viewer.socket.receive_text()
            if text == SHOWN and viewer.unseen:
                viewer.unseen, viewer.tells = viewer.unseen - 1, True
                viewer.news.set()
                continue
            if time.monotonic() - began_s > 1:
                spent, began_s = 0, time.monotonic()
            spent += 1
            try:
                if spent > MOST_COMMANDS_PER_S:
                    raise UserError(f"more than {MOST_COMMANDS_PER_S} commands a second", "send fewer")
                command = self._broadcast.command(text)
                if command.get("do") == "force":
                    change = viewer.forced.discard if command["action"] is None else viewer.forced.add
                    change(command["agent"])
            except UserError as error:
                await viewer.socket.send_text(json.dumps({"type": "refused", "text": str(error)}))

    async def _show(self, viewer: Viewer) -> None:
        broadcast = self._broadcast
        sent: dict[str, str] = {}
        frame = b""
        while True:
            await viewer.news.wait()
            viewer.news.clear()
            for name in ("scene", "controls"):
                text = broadcast.texts.get(name)
                if text is not None and sent.get(name) != text:
                    sent[name] = text
                    await viewer.socket.send_text(text)
            if broadcast.frame is not frame and broadcast.frame and (viewer.ready or broadcast.ended):
                frame = broadcast.frame
                viewer.unseen += 1
                await viewer.socket.send_bytes(frame)
            if broadcast.ended:
                await viewer.socket.send_text(json.dumps({"type": "end"}))
                await viewer.socket.close()
                return


async def serve(seat: Seat, sock: socket.socket, host: str, token: str, commands: int) -> None:
    """Serve until the frames end.

    Raises:
        UserError: the frames could not be shown.
    """
    import uvicorn

    broadcast = Broadcast(seat, commands)
    site = Site(broadcast, host, token)
    config = uvicorn.Config(
        site.application(), log_level="error", access_log=False, ws_max_size=MOST_BYTES, ws_max_queue=4,
        lifespan="off", ws_per_message_deflate=False, timeout_graceful_shutdown=1, server_header=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    waking = asyncio.create_task(site.wake_viewers())
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    reading = in_background(broadcast.read)
    address = sock.getsockname()
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    page = f"http://{shown}:{address[1]}/{f'?token={token}' if token else ''}"
    # A terminal that was closed reads it no more.
    with contextlib.suppress(OSError):
        print(f"live page: {page}", file=sys.stderr, flush=True)
    seat.ready()
    while not (reading.done() or serving.done()):
        await asyncio.sleep(0.1)
    await site.all_told(FAREWELL_S)
    server.should_exit = True
    await serving
    waking.cancel()
    if reading.done() and (error := reading.exception()) is not None:
        raise UserError(f"the frames could not be shown: {type(error).__name__}: {error}") from error


def main() -> None:
    """Serve what comes through the ring named on the command line; report as JSON on standard output."""
    step_back(NICENESS)
    seat = Seat()
    options = seat.options
    report: dict[str, Any] = {}
    try:
        sock = listen(options["host"], options["port"])
        asyncio.run(serve(seat, sock, options["host"], options["token"], options["commands"]))
    except UserError as error:
        report = {"error": error.what, "remedy": error.remedy}
    except ImportError as error:
        from spikestill.common.extras import absent_extra

        told = absent_extra(error) or UserError(str(error), "install the extra [serve]")
        report = {"error": told.what, "remedy": told.remedy}
    seat.say(report)
