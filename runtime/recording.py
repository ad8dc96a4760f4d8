"""Recording: MP4 files, through PyAV."""

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
from spikestill.runtime.panel import HEIGHT, WIDTH

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
        "install PyAV from its binary wheels with `pip install av`",
    )


class VideoWriter:
    """Writes one MP4 of 60 frames/s; it appears under its name when the context ends without an error.

    Args:
        path: the MP4 file.

    Attributes:
        frames: frames written.

    Raises:
        UserError: there is no encoder, or the disk is full.
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.frames = Path(path), 0
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
                self._stream = self._container.add_stream(name, rate=round(FRAME_RATE_HZ), options=options)
                self._stream.width, self._stream.height, self._stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
                self._stream.codec_context.thread_count = 1
            self._stack = stack.pop_all()
        return self

    def add(self, picture_HW3: npt.NDArray[np.uint8], time: int) -> None:
        """Write a frame, uint8 (640, 992, 3), at ``time`` in 1/60 s; times grow."""
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
