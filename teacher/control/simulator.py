"""One MuJoCo simulation: its exact state, its picture, and what is wrong with it.

The state that MuJoCo integrates (positions, velocities, the solver's warm start ...) does not hold what it derives
from them, and some derived values lag a step behind. Rewards read those too, so they are part of what is saved.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.common.extras import EXTRAS

INSTALL = EXTRAS["control"].install
"""What installs the simulators; dm_control's labmaze has no wheel for Python 3.13, and nothing here needs it."""
DERIVED = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat", "subtree_com",
    "subtree_linvel", "subtree_angmom", "sensordata", "cfrc_ext", "cfrc_int", "cacc", "cvel", "cinert", "qacc",
    "qfrc_actuator", "actuator_force", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir",
)  # fmt: skip
DRAWN = (
    "geom_pos",
    "geom_size",
    "geom_rgba",
    "site_pos",
    "site_size",
    "site_rgba",
    "dof_damping",
    "mat_rgba",
)
"""Fields of the model that tasks change where an episode begins or a step ends."""
GL = {"osmesa": "OSMesa", "egl": "EGL"}
"""``MUJOCO_GL`` to the library that it wants, for machines without a display."""


DRAWS = "install one: apt-get install libosmesa6, then set MUJOCO_GL=osmesa (or a driver with EGL, and egl)"
"""What gives a machine something to draw with."""


def _libraries() -> list[str]:
    """Return the values of ``MUJOCO_GL`` whose libraries are here."""
    return [name for name, library in GL.items() if ctypes.util.find_library(library)]


def cannot_draw(name: str) -> UserError:
    """Return the error of an environment that is to be drawn where :func:`choose_gl` gives ''."""
    if found := _libraries():
        given = os.environ.get("MUJOCO_GL", "")
        return UserError(f"{name} cannot be drawn: MUJOCO_GL={given} forbids it", f"set MUJOCO_GL={found[0]}")
    return UserError(f"{name} cannot be drawn: there is no display and no OpenGL library", DRAWS)


def choose_gl() -> str:
    """Set ``MUJOCO_GL`` where it is not, to what draws without a display; return it, '' where nothing can draw.

    MuJoCo and dm_control read it once, when they are imported.
    """
    if "MUJOCO_GL" not in os.environ and sys.platform == "linux" and not os.environ.get("DISPLAY"):
        found = _libraries()
        os.environ["MUJOCO_GL"] = found[0] if found else "disable"
    given = os.environ.get("MUJOCO_GL", "glfw").lower()
    return "" if given in ("", "0", "off", "false", "disable", "disabled") else given


@contextlib.contextmanager
def importing(name: str) -> Iterator[None]:
    """Import a simulator within: quiet about displays, and clear about what is missing.

    Args:
        name: the environment that wants it.

    Raises:
        UserError: MuJoCo, Gymnasium or dm_control is missing, or there is no library for ``MUJOCO_GL``.
    """
    choose_gl()
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mujoco = _mujoco(name)
            # Or it writes MUJOCO_LOG.TXT where the user stands; what goes wrong is seen in the numbers.
            mujoco.set_mju_user_warning(_pass_over)
            yield
    except ImportError as error:
        raise UserError(f"{name} wants the MuJoCo simulators: {error}", f"run `{INSTALL}`") from error
    finally:
        absl.setLevel(level)


def _load_triton() -> None:
    """Load the library of Triton, which PyTorch's builds for GPUs import with their optimisers, if it is installed.

    It holds an LLVM, and so does Mesa, which draws for ``osmesa`` and ``egl``. The one that is loaded later takes some
    of the other's symbols; of both orders only Mesa first ends in a segmentation fault (Triton 3.7.1, LLVM 15). Whether
    anything will be drawn is not known yet; it takes a tenth of a second.
    """
    if "triton" in sys.modules:
        return
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin is not None:
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(Path(spec.origin).with_name("_C") / "libtriton.so"))


def _mujoco(name: str) -> Any:
    """Return MuJoCo, which opens the library that ``MUJOCO_GL`` names while it is imported."""
    if choose_gl():
        _load_triton()
    try:
        import mujoco
    except ImportError:
        raise
    except Exception as error:  # PyOpenGL's own text fails too where it has found no library
        raise UserError(
            f"{name}: MuJoCo does not begin with MUJOCO_GL={os.environ.get('MUJOCO_GL')}: {type(error).__name__}",
            f"{DRAWS}; without pictures MUJOCO_GL=disable will do",
        ) from error
    return mujoco


def _pass_over(message: str) -> None:
    """Take one of MuJoCo's warnings, and do nothing."""


class Simulator:
    """A model and its data, both MuJoCo's own objects.

    Args:
        name: the environment's, for messages.
        model, data: ``mujoco.MjModel`` and ``mujoco.MjData``.
        finish: derive again what a step leaves derived (dm_control's physics), not what it lags behind with.
    """

    def __init__(self, name: str, model: Any, data: Any, *, finish: bool) -> None:
        import mujoco

        self.name, self.model, self.data, self._finish = name, model, data, finish
        self._whole = int(mujoco.mjtState.mjSTATE_INTEGRATION)
        # A state that is not finite would begin the episode anew, unsaid.
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        self._size = mujoco.mj_stateSize(model, self._whole)
        self._renderer: Any = None
        self._drawer: ThreadPoolExecutor | None = None
        self._twin: Any = None
        self._drawing: Future[npt.NDArray[np.uint8]] | None = None
        self._drawn: npt.NDArray[np.uint8] | None = None

    def state(self) -> npt.NDArray[np.float64]:
        """Return everything that a next step, reward or observation depends on, float64 (S,)."""
        import mujoco

        integrated = np.empty(self._size, np.float64)
        mujoco.mj_getState(self.model, self.data, integrated, self._whole)
        parts = [integrated, *(np.ravel(getattr(self.data, name)) for name in DERIVED)]
        return np.concatenate([*parts, *(np.ravel(getattr(self.model, name)) for name in DRAWN)])

    def set_state(self, state_S: npt.NDArray[np.float64]) -> None:
        """Restore what :meth:`state` returned.

        Raises:
            ValueError: it is of another model.
        """
        import mujoco

        owners = [(self.data, name) for name in DERIVED], [(self.model, name) for name in DRAWN]
        sizes = [self._size, *(np.size(getattr(owner, name)) for group in owners for owner, name in group)]
        if state_S.shape != (sum(sizes),):
            raise ValueError(f"{self.name} has a state of {sum(sizes)} numbers, got {state_S.shape}")
        integrated, *rest = np.split(np.asarray(state_S, np.float64), np.cumsum(sizes)[:-1])
        derived, drawn = rest[: len(DERIVED)], rest[len(DERIVED) :]
        for (owner, name), values in zip(owners[1], drawn, strict=True):
            field = getattr(owner, name)
            field[...] = values.reshape(field.shape)
        mujoco.mj_setState(self.model, self.data, np.ascontiguousarray(integrated), self._whole)
        if self._finish:
            mujoco.mj_step1(self.model, self.data)
            # The solver's warm start is of the state, and step1 leaves it; derived values are set once more below.
        for (owner, name), values in zip(owners[0], derived, strict=True):
            field = getattr(owner, name)
            field[...] = values.reshape(field.shape)

    def camera(self, name: str) -> int:
        """Return the number of the camera called ``name``, -1 (the free one) where there is none."""
        import mujoco

        return int(mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_CAMERA, name))

    def picture_soon(self, height: int, width: int, camera: int) -> npt.NDArray[np.uint8]:
        """Return the newest picture that is ready, and begin to draw the present state where nothing is being drawn.

        Only the first call waits. In software a picture takes longer than a step may.

        Raises:
            UserError: this machine has nothing to draw with.
        """
        import mujoco

        if self._drawer is None:
            self._drawer, self._twin = ThreadPoolExecutor(1, "drawing"), mujoco.MjData(self.model)
        if self._drawing is None or self._drawing.done():
            if self._drawing is not None:
                self._drawn = self._drawing.result()
            mujoco.mj_copyData(self._twin, self.model, self.data)
            self._drawing = self._drawer.submit(self._draw, self._twin, height, width, camera)
        if self._drawn is None:
            self._drawn = self._drawing.result()
        return self._drawn

    def picture(self, height: int, width: int, camera: int) -> npt.NDArray[np.uint8]:
        """Return what ``camera`` sees (-1: the free one), uint8 (height, width, 3).

        Raises:
            UserError: this machine has nothing to draw with.
        """
        if self._drawer is not None:  # what draws belongs to that thread
            return self._drawer.submit(self._draw, self.data, height, width, camera).result()
        return self._draw(self.data, height, width, camera)

    def _draw(self, data: Any, height: int, width: int, camera: int) -> npt.NDArray[np.uint8]:
        if self._renderer is None:
            self._renderer = self._make_renderer(height, width)
        if (self._renderer.height, self._renderer.width) != (height, width):
            self._renderer.close()
            self._renderer = self._make_renderer(height, width)
        self._renderer.update_scene(data, camera)
        return np.asarray(self._renderer.render(), np.uint8)

    def _make_renderer(self, height: int, width: int) -> Any:
        if not choose_gl():
            raise cannot_draw(self.name)
        try:
            import mujoco

            # What GLFW and EGL warn of is in the error that follows.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return mujoco.Renderer(self.model, height, width)
        except Exception as error:
            raise UserError(
                f"{self.name} cannot be drawn with MUJOCO_GL={choose_gl()}: {type(error).__name__}: {error}",
                DRAWS,
            ) from error

    def close(self) -> None:
        """Release the picture's context, in the thread that made it."""
        if self._drawer is not None:
            self._drawer.submit(self._release).result()
            self._drawer.shutdown()
            self._drawer = None
        self._release()

    def _release(self) -> None:
        if self._renderer is not None:
            with contextlib.suppress(Exception):
                self._renderer.close()
            self._renderer = None
