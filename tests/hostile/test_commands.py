"""What the command line says to what nobody means, and to surroundings in which it cannot work."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spikestill import cli, console
from spikestill.common.errors import UserError, printable
from spikestill.common.provenance import Provenance
from spikestill.common.run_lock import run_lock
from spikestill.common.surroundings import check_thread_counts, spin_briefly
from spikestill.common.zoo import zoo_path
from spikestill.student.architectures import LayerSpec
from spikestill.student.integer_net import save
from tests.nets import random_net

STUDENT = zoo_path("pong", "student-1chip.safetensors")


def command(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spikestill", *words],
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
        **options,
    )


def test_an_option_given_twice_is_refused(capsys):
    assert cli.main(["record", "pong", "--frames=5", "--frames=6"]) == cli.BAD_ARGUMENTS
    assert "--frames is given twice: '5' and '6'" in capsys.readouterr().err


def test_a_run_dir_that_is_a_file_says_so(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main(["record", "pong", "--run_dir", str(tmp_path / "file")]) == cli.BAD_ARGUMENTS
    assert "is a file, a folder is wanted" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["1:30", "9" * 5000, "0b_", "nan"])
def test_a_number_that_is_none_is_refused(value, capsys):
    assert cli.main(["record", "pong", f"--frames={value}"]) == cli.BAD_ARGUMENTS
    assert "unexpected" not in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "99999", "9" * 100])
@pytest.mark.parametrize("name", ["NUMBA_NUM_THREADS", "OMP_NUM_THREADS"])
def test_a_thread_count_that_is_none_is_named(name, value):
    with pytest.raises(UserError, match=f"{name} is .* in the environment, a number of threads is 1..4096"):
        check_thread_counts({name: value})


def test_thread_counts_that_are_some_pass():
    check_thread_counts({"OMP_NUM_THREADS": "4,2", "NUMBA_NUM_THREADS": "8", "MKL_NUM_THREADS": ""})


@pytest.mark.parametrize("given", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_threads_spin_briefly_unless_the_environment_says_otherwise(given: dict[str, str]) -> None:
    environment = dict(given)
    spin_briefly(environment)
    assert environment == (given or {"GOMP_SPINCOUNT": "3000"})


def test_the_command_names_a_thread_count(monkeypatch, capsys):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "0")
    assert cli.main(["verify"]) == cli.BAD_ARGUMENTS
    assert "NUMBA_NUM_THREADS is '0' in the environment" in capsys.readouterr().err


def test_a_full_standard_output_is_one_line():
    with open("/dev/full", "w") as full:
        done = command("inspect", str(STUDENT), "--json", stdout=full)
    assert done.returncode == cli.FAILED
    assert done.stderr == "spikestill: standard output cannot be written (No space left on device)\n"


def test_a_closed_standard_output_takes_no_file_in_its_place(tmp_path):
    script = (
        f'exec "{sys.executable}" -m spikestill inspect "{STUDENT}" --html "{tmp_path / "page.html"}" >&-'
    )
    done = subprocess.run(["sh", "-c", script], stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 0
    assert done.stderr == ""
    assert (tmp_path / "page.html").read_text().startswith("<!")


def test_the_second_command_in_a_run_folder_says_who_is_there(tmp_path):
    folder = tmp_path / "run"
    with run_lock(folder, "teach"):
        with (
            pytest.raises(
                UserError, match=rf"run: `spikestill teach` \(process {os.getpid()}, since .* at work there"
            ),
            run_lock(folder, "distill"),
        ):
            pass
        done = command("map", "--student", str(STUDENT), "--run_dir", str(folder), stdout=subprocess.DEVNULL)
        assert done.returncode == cli.FAILED
        assert f"`spikestill teach` (process {os.getpid()}" in done.stderr
    assert not folder.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["teach", "pong"], ["import", "agent.zip", "--game", "pong"], ["record", "pong"], ["distill"], ["map"],
        ["run", "pong"], ["sweep", "table2"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_nothing_is_made_where_another_command_makes_something(words, tmp_path, capsys):
    assert words[0] in cli.MAKERS
    with run_lock(tmp_path, "teach"):
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        assert cli.main([*words, "--run_dir", str(tmp_path)]) == cli.FAILED
        assert f"`spikestill teach` (process {os.getpid()}" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_two_of_a_command_that_only_reads_do_not_share_a_folder(tmp_path, capsys):
    """And what makes something may be at work beside them."""
    save(random_net((LayerSpec(8, 8, 8, 0, 1),), 3), tmp_path / "student.safetensors", Provenance.of({}, 0))
    few = ["--frames", "2", "--naive_frames", "1", "--lava_frames", "0", "--stock_frames", "0"]
    with run_lock(tmp_path, "verify", ".lock-verify"):
        assert cli.main(["verify", *few, "--run_dir", str(tmp_path)]) == cli.FAILED
        assert f"`spikestill verify` (process {os.getpid()}" in capsys.readouterr().err
    with run_lock(tmp_path, "teach"):
        cli.main(["verify", *few, "--run_dir", str(tmp_path)])
        assert "at work there" not in capsys.readouterr().err


WICKED = "\x1b]0;owned\x07\x1b[2J\x9b\r\u202e\ud800é"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b\r\u202e\ud800é"


def test_control_characters_are_shown_and_not_sent():
    assert printable(f"a\n{WICKED}") == f"a\n{SHOWN}"
    assert printable("pong, 84 × 84") == "pong, 84 × 84"
    assert console.shown([WICKED]) == SHOWN
    assert console.heading(WICKED) == SHOWN


@pytest.mark.parametrize("words", [["inspect"], ["evaluate", "pong", "--agent", "student", "--student"]])
def test_what_a_file_says_does_not_steer_the_terminal(words, tmp_path, capsys):
    """Escape sequences clear the screen, name the window, fill the clipboard."""
    path, held = tmp_path / "student.safetensors", WICKED.replace("\ud800", "")
    provenance = Provenance.of({}, 0)
    provenance = dataclasses.replace(provenance, commit=held, parents={held: held})
    net = random_net((LayerSpec(8, 8, 8, 0, 1),), 3)
    if words[0] == "evaluate":
        net.__dict__["game"] = held  # what the net itself would refuse, and its reader does
    save(net, path, provenance)
    run_dir = ["--run_dir", str(tmp_path / "run")] if words[0] == "evaluate" else []
    status = cli.main([*words, str(path), *run_dir])
    assert status == (cli.FAILED if run_dir else 0)
    told = "".join(capsys.readouterr())
    assert r"\x1b]0;owned" in told
    assert not set("\x1b\x07\x9b\r\u202e") & set(told)


def test_a_lock_goes_with_its_process(tmp_path):
    code = f"""
import os, pathlib
from spikestill.common.run_lock import run_lock
lock = run_lock(pathlib.Path({str(tmp_path)!r}), "teach")
lock.__enter__()
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", code], timeout=60)
    assert (tmp_path / ".lock").exists()
    with run_lock(tmp_path, "teach"):
        pass
    assert not (tmp_path / ".lock").exists()


def test_a_lock_is_no_way_to_other_files(tmp_path):
    (tmp_path / "precious").write_text("content")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="cannot be written"), run_lock(tmp_path, "teach"):
        pass
    assert (tmp_path / "precious").read_text() == "content"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UserError, match=r"locked: cannot be written \(Permission denied\)"):
        run_lock(tmp_path / "locked", "map").__enter__()
