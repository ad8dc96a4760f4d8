"""Makes Lava 0.10.0 importable on Python 3.10-3.13 and right on NumPy 2, and says what is missing where it is not.

Lava's last release has a dataclass, ``lava.magma.compiler.var_model.ByteEncoder``, whose instances are
field defaults of other dataclasses. Python 3.11 and later refuse defaults that cannot be hashed, so the
class must be declared ``@dataclass(unsafe_hash=True)``. And ``lava.proc.conv.utils`` takes a number of channels modulo
the groups, an int8: NumPy 2 refuses that above 127 channels. The shim changes these lines of the two modules' sources
while they are imported; the installed files stay as they are.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

from spikestill.common.errors import UserError
from spikestill.common.extras import EXTRAS, LAVA_VERSION

INSTALL_COMMAND = EXTRAS["lava"].install
LAVA_NEEDS = ("networkx", "asteval", "scipy")
LOIHI_COMPILER = "magma/compiler/subcompilers/nc"
PATCHES = {
    "lava.magma.compiler.var_model": (
        "@dataclass\nclass ByteEncoder:",
        "@dataclass(unsafe_hash=True)\nclass ByteEncoder:",
    ),
    "lava.proc.conv.utils": (
        "    if input_.shape[-1] % groups != 0:",
        "    groups = int(groups)\n    if input_.shape[-1] % groups != 0:",
    ),
}
"""Module to (what its source has once, what stands there instead)."""


def available() -> str | None:
    """Return None where Lava can run here, else what is missing and the command that installs it."""
    if os.name != "posix":
        return f"Lava needs the fork start method, which {sys.platform} does not have"
    try:
        version = metadata.version("lava-nc")
    except metadata.PackageNotFoundError:
        return f"Lava is not installed: {INSTALL_COMMAND}"
    if version != LAVA_VERSION:
        return f"lava-nc is {version}, {LAVA_VERSION} is wanted: {INSTALL_COMMAND}"
    absent = [name for name in LAVA_NEEDS if importlib.util.find_spec(name) is None]
    if absent:
        return f"Lava needs {', '.join(absent)}: {INSTALL_COMMAND}"
    return None


def require() -> None:
    """Raise UserError, with the install command, unless Lava can run here."""
    reason = available()
    if reason is not None:
        what, _, command = reason.partition(": ")
        raise UserError(f"the Lava agents cannot run: {what}", f"run `{command}`" if command else None)


def require_loihi2() -> None:
    """Raise UserError unless Lava can compile for Loihi 2: Intel gives that compiler to its research community."""
    require()
    spec = importlib.util.find_spec("lava")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    if not any((Path(place) / LOIHI_COMPILER).exists() for place in places):
        raise UserError(
            f"Lava cannot compile for Loihi 2: lava/{LOIHI_COMPILER} is not installed; it comes with Intel's "
            "lava-loihi extension, for members of its neuromorphic research community",
            "install lava-loihi, or give --stock_target simulation",
        )


def patched_source(module: str, source: str) -> str:
    """Return the source of ``module``, one of :data:`PATCHES`, with its change.

    Raises:
        ImportError: what is to be changed is not there exactly once.
    """
    before, after = PATCHES[module]
    if source.count(before) != 1:
        raise ImportError(
            f"{module}: found {source.count(before)} times what the shim changes, expected once; "
            f"reinstall with `{INSTALL_COMMAND}`"
        )
    return source.replace(before, after)


class _PatchingLoader(SourceFileLoader):
    """Compiles the patched source afresh, past any cached byte code of the unpatched one."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path).decode().replace("\r\n", "\n")
        return compile(patched_source(fullname, source), path, "exec", dont_inherit=True)


class _PatchingFinder(MetaPathFinder):
    """Finds the modules that need a change; every other name is left to the finders after it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in PATCHES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=_PatchingLoader(fullname, spec.origin)
        )


def install_shim() -> None:
    """Arrange that ``import lava`` works in this interpreter; call it before Lava is first imported.

    Calling it again changes nothing. Importing Lava afterwards sets the process-wide ``fork`` start method,
    which is why only ``deploy/lava/host.py``, an interpreter of its own, calls it.

    Raises:
        UserError: Lava is absent or of another version.
    """
    require()
    if not any(isinstance(finder, _PatchingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PatchingFinder())
