from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spikestill.deploy.lava.loader import INSTALL_COMMAND, available, patched_source

VAR_MODEL = "lava.magma.compiler.var_model"
ROOT = Path(__file__).resolve().parents[2]
WITHOUT_PACKAGES = """
import json, sys
sys.path.insert(0, {root!r})
from spikestill.common.errors import UserError
from spikestill.deploy.lava.loader import available, install_shim
try:
    install_shim()
except UserError as error:
    print(json.dumps([available(), str(error)]))
"""


def run(script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_shim_changes_the_one_line_it_is_for():
    source = "x = 1\n\n\n@dataclass\nclass ByteEncoder:\n    base: int = 0\n"
    patched = patched_source(VAR_MODEL, source)
    assert patched == source.replace("@dataclass\n", "@dataclass(unsafe_hash=True)\n")


@pytest.mark.parametrize("source", ["", "@dataclass\nclass Other:\n", "@dataclass\nclass ByteEncoder:\n" * 2])
def test_a_foreign_source_is_refused_with_the_install_command(source):
    with pytest.raises(ImportError, match=f"found {source.count('ByteEncoder')} times") as caught:
        patched_source(VAR_MODEL, source)
    assert INSTALL_COMMAND in str(caught.value)


def test_without_lava_the_error_has_the_command_that_installs_it():
    reason, message = json.loads(run(WITHOUT_PACKAGES.format(root=str(ROOT)), "-S").stdout)
    assert reason == f"Lava is not installed: {INSTALL_COMMAND}"
    assert message.endswith(f"Run `{INSTALL_COMMAND}`.")


@pytest.mark.lava
def test_lava_is_available_here():
    assert available() is None


@pytest.mark.lava
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 accepts the class as it is")
def test_without_the_shim_this_python_refuses_lava():
    assert "mutable default" in run("import lava.magma.compiler.var_model").stderr


@pytest.mark.lava
def test_with_the_shim_lava_imports_and_twice_is_once():
    script = (
        "import sys; from spikestill.deploy.lava.loader import install_shim; before = len(sys.meta_path)\n"
        "install_shim(); install_shim(); print(len(sys.meta_path) - before)\n"
        "from lava.magma.compiler.var_model import ByteEncoder, CoreEncoder\n"
        "print(hash(ByteEncoder(1, 2, 3)) == hash(ByteEncoder(1, 2, 3)), CoreEncoder().x == ByteEncoder())"
    )
    assert run(script).stdout.split() == ["1", "True", "True"]


CONVOLUTION = """
import numpy as np
from spikestill.deploy.lava.loader import PATCHES, install_shim
if {without}:
    del PATCHES["lava.proc.conv.utils"]
install_shim()
from lava.proc.conv.utils import conv
rng = np.random.default_rng(0)
spikes, weight = rng.integers(0, 2, (3, 3, 256)), rng.integers(-1, 2, (64, 1, 1, 64))
one = np.ones(2, np.int8)
found = conv(spikes, weight, one, one, 0 * one, one, np.int8(4))
wanted = [spikes[:, :, g * 64 : g * 64 + 64] @ weight[g * 16 : g * 16 + 16, 0, 0].T for g in range(4)]
print(np.array_equal(found, np.concatenate(wanted, axis=2)))
"""


@pytest.mark.lava
def test_lavas_convolution_takes_more_than_127_channels_with_the_shim_only():
    assert run(CONVOLUTION.format(without=False)).stdout == "True\n"
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        assert "256 out of bounds for int8" in run(CONVOLUTION.format(without=True)).stderr
