"""How the tests run a sweep in a process of its own."""

import contextlib
import subprocess
import sys

from spikestill.sweep.worker import attempts


def command(tmp_path, *words):
    return [sys.executable, "-m", "spikestill", "sweep", str(tmp_path / "recipe.yaml"), "--run_dir",
            str(tmp_path / "run"), *words]  # fmt: skip


def begun(folder):
    return sum(line["what"] == "begins" for line in attempts(folder))


@contextlib.contextmanager
def sweeping(tmp_path, *words):
    with open(tmp_path / "sweep.log", "a") as log:
        process = subprocess.Popen(
            command(tmp_path, "--json", *words),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
