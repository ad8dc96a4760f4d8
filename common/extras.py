"""What the base install leaves out: each extra, what works only with it, and the one command that installs it."""

from __future__ import annotations

import dataclasses
import importlib.util
from importlib import metadata

from spikestill.common.errors import UserError

LAVA_VERSION = "0.10.0"


@dataclasses.dataclass(frozen=True)
class Extra:
    """Packages that some commands want.

    Attributes:
        packages: import name to distribution, in the order in which they are looked for.
        gives: what works only with them, as a sentence goes on after "needed to".
        install: the command that installs them into an environment that has spikestill.
    """

    packages: dict[str, str]
    gives: str
    install: str

    def absent(self) -> list[str]:
        """Return the distributions of it that are not installed."""
        return [name for module, name in self.packages.items() if importlib.util.find_spec(module) is None]


def _pip(name: str) -> str:
    return f"pip install 'spikestill[{name}]'"


EXTRAS: dict[str, Extra] = {
    "train": Extra(
        {"torch": "torch", "tensorboard": "tensorboard"},
        "train or open a teacher: teach, import, record, distill, run, and the comparison of evaluate",
        _pip("train"),
    ),
    "video": Extra({"av": "av"}, "record a game as video: play --record, and run", _pip("video")),
    "lava": Extra(
        {"networkx": "networkx", "asteval": "asteval", "scipy": "scipy", "lava": "lava-nc"},
        "play and verify on Lava",
        f"{_pip('lava')} && pip install --no-deps --ignore-requires-python lava-nc=={LAVA_VERSION}",
    ),
    "control": Extra(
        {"mujoco": "mujoco", "dm_env": "dm-env", "dm_control": "dm_control"},
        "train and play control tasks",
        f"{_pip('control')} && pip install --no-deps dm_control==1.0.50",
    ),
    "serve": Extra(
        {"starlette": "starlette", "uvicorn": "uvicorn", "websockets": "websockets"},
        "show the live page: play --serve",
        _pip("serve"),
    ),
    "sweep": Extra({"ray": "ray"}, "sweep over options", _pip("sweep")),
    "onnx": Extra(
        {"onnx": "onnx", "onnxruntime": "onnxruntime"}, "import and play ONNX networks", _pip("onnx")
    ),
}
"""Name of the extra to what it is; docs/install.md and ``doctor`` say the same."""


def install_command(name: str) -> str:
    """Return the command that installs an extra."""
    return EXTRAS[name].install


def absent_extra(error: ImportError) -> UserError | None:
    """Return what to say where ``error`` is that a package of an extra is not installed, None where it is another."""
    module = (error.name or "").partition(".")[0]
    for name, extra in EXTRAS.items():
        if module in extra.packages:
            return _not_installed(name, extra.packages[module])
    return None


def check_extra(name: str) -> None:
    """Raise UserError where a package of an extra is not installed."""
    if absent := EXTRAS[name].absent():
        raise _not_installed(name, absent[0])


def _not_installed(name: str, distribution: str) -> UserError:
    extra = EXTRAS[name]
    return UserError(
        f"{distribution} is not installed; it comes with the extra [{name}], needed to {extra.gives}",
        f"run `{extra.install}`",
    )


def installed(name: str) -> str:
    """Return the version of a distribution, '' where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
