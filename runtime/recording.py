"""Recording: MP4 files, through PyAV, and GIFs, through Pillow."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.atari import FRAME_RATE_HZ
from spikestill.common.atomic import atomic_path
from spikestill.common.errors import UserError
from spikestill.common.extras import install_command
from spikestill.common.limits import VIDEO_PIXELS
from spikestill.runtime.palette import heat_palette
from spikestill.runtime.panel import (
    ALARM,
    BACKGROUND,
    BAR,
    CHOSEN,
    DIM,
    FAINT,
    HEIGHT,
    TEXT,
    WIDTH,
)

GIF_RATE_HZ, GIF_SECONDS, GIF_WIDTH, GIF_COLOURS = 12.0, 60.0, 960, 128
# In order of preference, with options that encode faster than 60 frames/s on half a core.
CODECS: tuple[tuple[str, dict[str, str]], ...] = (
    ("libx264", {"preset": "superfast", "crf": "20"}),
    ("libopenh264", {}),
    ("mpeg4", {"qscale": "3"}),
)


def video_codec() -> tuple[str, dict[str, str]]:
    """Return the name and options of the best encoder that this PyAV has.

    Raises:
        UserError: it has none of them.
    """
    import av

    for name, options in CODECS:
        try:
            av.Codec(name, "w")
        except ValueError:
            continue
        return name, options
    raise UserError(
        f"this PyAV {av.__version__} has no encoder of {', '.join(name for name, _ in CODECS)}",
        f"install PyAV from its binary wheels: {install_command('video')}",
    )


class VideoWriter:
    """Writes one MP4 ; it appears under its name when the context ends without an error.

    Args:
        path: the MP4 file.
        size: (height, width) of the pictures, even numbers.
        rate_hz: times are in units of 1 / rate_hz.

    Attributes:
        frames: frames written.

    Raises:
        UserError: there is no encoder, or the disk is full.
        OSError: the file cannot be written.
    """

    def __init__(
        self, path: Path, size: tuple[int, int] = (HEIGHT, WIDTH), rate_hz: float = FRAME_RATE_HZ
    ) -> None:
        self.path, self.frames, self._size, self._rate_hz = Path(path), 0, size, rate_hz
        self._stack = contextlib.ExitStack()
        self._container: Any = None
        self._stream: Any = None

    def __enter__(self) -> VideoWriter:
        import av

        name, options = video_codec()
        with contextlib.ExitStack() as stack:
            temporary = stack.enter_context(atomic_path(self.path))
            with self._os_errors():
                self._container = av.open(str(temporary), "w", format="mp4")
                stack.callback(self._container.close)
                self._stream = self._container.add_stream(
                    name, rate=max(1, round(self._rate_hz)), options=options
                )
                self._stream.height, self._stream.width = self._size
                self._stream.pix_fmt = "yuv420p"
                self._stream.codec_context.thread_count = 1
            self._stack = stack.pop_all()
        return self

    def wants(self, time: int) -> bool:
        """Return True: every frame is written."""
        return True

    def add(self, picture_HW3: npt.NDArray[np.uint8], time: int) -> None:
        """Write a frame, uint8 (height, width, 3), at ``time``; times grow."""
        import av

        frame = av.VideoFrame.from_ndarray(picture_HW3, format="rgb24")
        frame.pts = time
        with self._os_errors():
            self._container.mux(self._stream.encode(frame))
        self.frames += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack, self._os_errors():
            if error is not None:
                raise error
            self._container.mux(self._stream.encode(None))
            self._container.close()

    @contextlib.contextmanager
    def _os_errors(self) -> Any:
        """Turn FFmpeg's errors into OSError, which tell a full disk."""
        import av

        try:
            yield
        except av.error.FFmpegError as error:
            raise OSError(error.errno, error.strerror) from error


def palette_of(picture: Any) -> Any:
    """Return the palette of a GIF as a picture: what the panels are drawn with, and the commonest colours of one."""
    from PIL import Image

    inks = np.concatenate([[BACKGROUND, FAINT, BAR, CHOSEN, TEXT, DIM, ALARM], heat_palette()[::12]])
    colours, count = np.unique(np.asarray(picture).reshape(-1, 3), axis=0, return_counts=True)
    common = colours[np.argsort(-count)][: GIF_COLOURS - len(inks)]
    made = Image.new("P", (1, 1))
    made.putpalette(np.concatenate([inks, common]).astype(np.uint8).tobytes())
    return made


class GifWriter:
    """Writes a GIF of about 12 pictures a second, as large as :data:`GIF_WIDTH`, with the colours of its first picture.

    It holds its pictures until it ends, 60 s at most; what comes later is left out.

    Args: as of :class:`VideoWriter`.
    """

    def __init__(self, path: Path, size: tuple[int, int], rate_hz: float) -> None:
        self.path, self.frames = Path(path), 0
        self._shape = (min(GIF_WIDTH, size[1]), round(size[0] * min(GIF_WIDTH, size[1]) / size[1]))
        self._rate_hz, self._every = rate_hz, max(1, round(rate_hz / GIF_RATE_HZ))
        self._pictures: list[Any] = []
        self._palette: Any = None

    def __enter__(self) -> GifWriter:
        # A place that cannot be written is told at once, not after the game.
        with contextlib.suppress(FileNotFoundError):
            if self.path.is_dir():
                raise UserError(f"{self.path}: is a folder, no file can be written there", "give a name.gif")
        self.path.resolve().parent.mkdir(parents=True, exist_ok=True)
        return self

    def wants(self, time: int) -> bool:
        """Return whether the frame at ``time`` belongs to the GIF."""
        return time % self._every == 0 and time / self._rate_hz < GIF_SECONDS

    def add(self, picture_HW3: npt.NDArray[np.uint8], time: int) -> None:
        """Keep a picture."""
        from PIL import Image

        picture = Image.fromarray(picture_HW3)
        if picture.size != self._shape:
            picture = picture.resize(self._shape, Image.Resampling.BOX)
        if self._palette is None:
            self._palette = palette_of(picture)
        self._pictures.append(picture.quantize(palette=self._palette, dither=Image.Dither.NONE))
        self.frames = len(self._pictures)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or not self._pictures:
            return
        with atomic_path(self.path) as temporary:
            self._pictures[0].save(
                temporary, format="GIF", save_all=True, append_images=self._pictures[1:], loop=0, optimize=False,
                duration=round(1000 * self._every / self._rate_hz),
            )  # fmt: skip


def is_gif(path: Path) -> bool:
    """Return whether ``path`` is to be a GIF; else it is an MP4."""
    return path.suffix.lower() == ".gif"


def recorder(path: Path, size: tuple[int, int], rate_hz: float) -> VideoWriter | GifWriter:
    """Return what writes ``path``: a GIF where it is called so, else an MP4."""
    if is_gif(path):
        return GifWriter(path, size, rate_hz)
    return VideoWriter(path, size, rate_hz)


def write_smaller(video: Path, path: Path) -> None:
    """Write ``video`` again with half its width, half its height and half its frames a second.

    Raises:
        UserError: there is no encoder, the disk is full, or ``video`` holds no video that is one of ours.
        OSError: ``video`` cannot be read, or ``path`` not be written.
    """
    import av

    try:
        with av.open(str(video)) as container:
            stream = next(iter(container.streams.video), None)
            if stream is None or not 4 <= stream.height * stream.width <= VIDEO_PIXELS:
                size = "none" if stream is None else f"one of {stream.width}x{stream.height} pixels"
                raise UserError(
                    f"{video}: holds {size}, a video of at most {VIDEO_PIXELS:,} pixels wanted",
                    "move it away",
                )
            rate_hz = float(stream.average_rate or FRAME_RATE_HZ) / 2
            height, width = (each // 4 * 2 for each in (stream.height, stream.width))
            last = -1
            with VideoWriter(path, (height, width), rate_hz) as writer:
                for frame in container.decode(stream):
                    time = int((frame.time or 0.0) * rate_hz)
                    if time > last:
                        last = time
                        writer.add(frame.reformat(width, height, "rgb24").to_ndarray(), time)
    except av.error.FFmpegError as error:
        raise OSError(error.errno, error.strerror, str(video)) from error
