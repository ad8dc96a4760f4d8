"""A seeded fuzzer of every format and of the verbs that read them: ``python -m tests.hostile.fuzz --seconds 600``.

It damages good files and lets a worker process read them. A finding is: a crash, a hang, an exception that is no
``UserError``, "unexpected" or a traceback on standard error, more than 2 s or 1 GB beyond what the good file takes, or
a file that is accepted though its content differs. Case N of a seed is the same file each time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import io
import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SECONDS, BYTES = 2.0, 1 << 30
WALL_S = 120.0
EXTREMES = [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1]


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Return ``content`` with one to four faults in it."""
    found = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 1, 2, 4]))):
        kind, at = int(rng.integers(8)), int(rng.integers(max(1, len(found))))
        # Headers and indices lie at the ends, and matter most.
        if rng.random() < 0.5:
            front = rng.random() < 0.7
            at = min(at, int(rng.integers(1, 4096))) if front else max(0, len(found) - 1 - at % 4096)
        length = min(len(found) - at, 1 + int(rng.integers(64)))
        if kind <= 2 and found:
            found[at] ^= 1 << int(rng.integers(8))
        elif kind == 3:
            value = struct.pack("<Q", EXTREMES[int(rng.integers(len(EXTREMES)))])[
                : int(rng.choice([1, 2, 4, 8]))
            ]
            found[at : at + len(value)] = value
        elif kind == 4:
            found[at : at + length] = bytes(length)
        elif kind == 5:
            found[at : at + length] = rng.bytes(length)
        elif kind == 6:
            found = found[:at] if rng.random() < 0.5 else found + bytearray(rng.bytes(length))
        else:
            start = int(rng.integers(max(1, len(found))))
            found[at : at + length] = found[start : start + length]
    return bytes(found)


def digest(*values: Any) -> str:
    """Return a hash of arrays and JSON values."""
    told = hashlib.sha256()
    for value in values:
        told.update(
            value.tobytes() if isinstance(value, np.ndarray) else json.dumps(value, default=str).encode()
        )
    return told.hexdigest()


def read_student(path: Path) -> str:
    from spikestill.student.integer_net import load

    net, provenance = load(path)
    parts = [
        part for layer in net.layers for part in (layer.weight_OIHW, layer.theta_O, layer.stride, layer.pad)
    ]
    return digest(*parts, net.actions, list(net.input_shape), net.game, dataclasses.asdict(provenance))


def read_teacher(path: Path) -> str:
    from spikestill.teacher.checkpoint import read_teacher as read

    weights, game, actions, provenance = read(path)
    return digest(
        *(weights[name].numpy() for name in sorted(weights)), game, actions, dataclasses.asdict(provenance)
    )


def read_core_map(path: Path) -> str:
    from spikestill.deploy.core_map import ARRAYS, load

    found = load(path)
    return digest(*(getattr(found, name) for name in ARRAYS), found.game, found.actions, str(found.spec))


def read_buffer(path: Path) -> str:
    from spikestill.dataset.format import BufferFile

    with BufferFile(path) as file:
        file.check_frames()
        steps = [getattr(file.steps, field.name) for field in dataclasses.fields(file.steps)]
        frames = [file.decode(chunk, stream) for chunk in range(len(file._offset)) for stream in range(2)]
        return digest(*steps, *frames, file.header.game, list(file.header.action_names), file.rows)


def read_agent(path: Path) -> str:
    from spikestill.configs.importing import ImportConfig
    from spikestill.teacher.importing import run

    with tempfile.TemporaryDirectory() as folder:
        result = run(ImportConfig(path=path, game="pong"), Path(folder))
        from spikestill.teacher.checkpoint import read_teacher as read

        weights, *_ = read(result.artefact)
    return digest(*(weights[name].numpy() for name in sorted(weights)))


def read_recipe(path: Path) -> str:
    from spikestill.configs.loading import load
    from spikestill.configs.record import RecordConfig

    load(RecordConfig, path, {})
    return ""  # any recipe that reads is one


def inspected(path: Path) -> str:
    return told_by("inspect", str(path), "--json")


def told_by(*words: str) -> str:
    """Run a command in this process; raise AssertionError where it says what no command says."""
    from spikestill import cli

    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        status = cli.main(list(words))
    told = errors.getvalue()
    assert "unexpected" not in told, told[-600:]
    assert "Traceback" not in told, told[-600:]
    assert status in (0, 1, 2), f"status {status}"
    return ""


FORMATS: dict[str, tuple[Callable[[Path], str], ...]] = {
    "student.safetensors": (read_student, inspected),
    "teacher.safetensors": (read_teacher, inspected),
    "core_map.h5": (read_core_map, inspected),
    "buffer.h5": (read_buffer, inspected),
    "agent.pth": (read_agent,),
    "recipe.yaml": (read_recipe,),
}


def make_corpus(folder: Path) -> None:
    """Write a small good file of every format."""
    import torch

    from spikestill.common.provenance import Provenance
    from spikestill.configs.hardware import HardwareSpec
    from spikestill.deploy.core_map import save as save_core_map
    from spikestill.deploy.mapping import map_net
    from spikestill.student.architectures import LayerSpec
    from spikestill.student.integer_net import save as save_student
    from spikestill.teacher.atari import q_network
    from spikestill.teacher.checkpoint import save_teacher
    from tests.dataset.test_format import write_buffer
    from tests.nets import random_net

    provenance = Provenance.of({"recipe": "fuzz"}, 0)
    layers = (LayerSpec(8, 2, 1, 0, 1), LayerSpec(24, 2, 1, 1, 2), LayerSpec(12, 1, 1, 0, 1))
    net = random_net(layers, 9, input_shape=(2, 6, 6))
    save_student(net, folder / "student.safetensors", provenance)
    spec = HardwareSpec(name="small", axons=128, neurons=32, cores_x=16, cores_y=16)
    save_core_map(map_net(net, spec, provenance), folder / "core_map.h5")
    write_buffer(folder / "buffer.h5")
    torch.manual_seed(0)
    weights = {name: torch.randn(shape) * 0.01 for name, shape in q_network.shapes(6).items()}
    save_teacher(folder / "teacher.safetensors", weights, "pong", 6, provenance, half=True)
    names = {
        "conv1": "network.0",
        "conv2": "network.2",
        "conv3": "network.4",
        "hidden": "network.7",
        "head": "network.9",
    }
    state = {
        f"{names[name.partition('.')[0]]}.{name.partition('.')[2]}": each for name, each in weights.items()
    }
    torch.save(state, folder / "agent.pth")
    (folder / "recipe.yaml").write_text(
        "frames: 1000\nnum_envs: 4\nenvironment:\n  game: pong\nseed: 3\nepsilon: 0.05\n"
    )


def used_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def check(read: Callable[[Path], str], path: Path, good: str) -> str:
    """Return what is wrong with how ``path`` is read, '' for nothing."""
    from spikestill.common.errors import UserError

    try:
        found = read(path)
    except UserError as error:
        return "" if path.name in str(error) or "recipe" in path.name else f"the file is not named: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "" if not good or found == good else "accepted, with other content"


def worker(folder: Path, seed: int) -> None:
    """Read case numbers from standard input, answer a line of JSON for each."""
    good: dict[tuple[str, str], tuple[str, float]] = {}
    for name, readers in FORMATS.items():
        for read in readers:
            read(folder / name)  # what is imported late
            before = used_seconds()
            good[name, read.__name__] = read(folder / name), used_seconds() - before
    names = list(FORMATS)
    with tempfile.TemporaryDirectory() as scratch:
        for line in sys.stdin:
            case = int(line)
            rng = np.random.default_rng([seed, case])
            name = names[case % len(names)]
            path = Path(scratch) / name
            path.write_bytes(damaged((folder / name).read_bytes(), rng))
            for read in FORMATS[name]:
                wanted, usual_s = good[name, read.__name__]
                before, memory = used_seconds(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                fault = check(read, path, wanted)
                seconds = used_seconds() - before - usual_s
                grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024
                if not fault and seconds > SECONDS:
                    fault = f"took {seconds:.1f} s more than the good file"
                if not fault and grown > BYTES:
                    fault = f"took {grown:,} bytes more than the good file"
                print(
                    json.dumps({"case": case, "format": name, "reader": read.__name__, "fault": fault}),
                    flush=True,
                )
            print(json.dumps({"case": case, "done": True}), flush=True)


def fuzz(seed: int, seconds: float, most: int = 10**9, first: int = 0) -> tuple[int, list[str]]:
    """Return (how many cases were read, findings) of cases from ``first`` on."""
    findings: list[str] = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        make_corpus(folder)
        case, until = first, time.monotonic() + seconds
        process: subprocess.Popen[str] | None = None
        while case - first < most and time.monotonic() < until:
            if process is None:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.hostile.fuzz", "--worker", text, "--seed", str(seed)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                )  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{case}\n")
            process.stdin.flush()
            while True:
                line = process.stdout.readline()
                if not line:
                    findings.append(
                        f"seed {seed} case {case}: the interpreter ended with status {process.wait()}"
                    )
                    process = None
                    break
                told = json.loads(line)
                if told.get("done"):
                    break
                if told["fault"]:
                    findings.append(
                        f"seed {seed} case {case} {told['format']} {told['reader']}: {told['fault']}"
                    )
            case += 1
        if process is not None:
            process.kill()
            process.wait()
    return case - first, findings


def main() -> int:
    """Run from the command line; the status is 1 where there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", type=Path)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.seed)
        return 0
    cases, findings = fuzz(arguments.seed, arguments.seconds)
    print("\n".join(findings))
    print(f"{cases} cases, {len(findings)} findings")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
