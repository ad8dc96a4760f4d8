"""FIXAR's accelerator: model, SystemVerilog and agent give the same integers, and take the cycles foretold."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from spikestill.cli import main
from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.accelerator import ArraySpec
from spikestill.configs.fixed_point import FixedPointConfig
from spikestill.deploy.accelerator import costs, export, schedule
from spikestill.deploy.accelerator.model import Accelerator
from spikestill.teacher.control import fixed_ddpg, fixed_file
from spikestill.teacher.control.fixed_ddpg import FixedState

VERILATOR, YOSYS = shutil.which("verilator"), shutil.which("yosys")
needs_verilator = pytest.mark.skipif(VERILATOR is None, reason="no Verilator: apt-get install verilator")
needs_yosys = pytest.mark.skipif(YOSYS is None, reason="no yosys: apt-get install yosys")
S, A = 17, 6


def trained(updates: int, batch: int = 8, **options: object) -> FixedState:
    """An agent after some updates; its activations are 16 bits wide from the second on."""
    options = {"hidden": (12, 8), "quantisation_delay": 2, "learning_rate": 1e-3} | options
    state = fixed_ddpg.initial_state(FixedPointConfig(**options), S, A, seed=0)
    random = np.random.default_rng(0)
    for _ in range(updates):
        state, _ = fixed_ddpg.update(state, export.transitions(state, batch, random))
    return state


def assert_same(one: FixedState, other: FixedState) -> None:
    others, plain = fixed_ddpg.to_arrays(other)
    arrays, mine = fixed_ddpg.to_arrays(one)
    assert mine == plain
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


@pytest.mark.parametrize(("updates", "half"), [(1, False), (2, True)])
@pytest.mark.parametrize("spec", [ArraySpec(), ArraySpec(cores=4, side=4), ArraySpec(cores=1, side=8)])
def test_the_model_computes_what_the_agent_does_in_the_jobs_foretold(
    updates: int, half: bool, spec: ArraySpec
) -> None:
    state = trained(updates, hidden=(40, 30))
    model = Accelerator(spec)
    batch = export.transitions(state, 16, np.random.default_rng(9))
    on_model, report = fixed_ddpg.update(state, batch, model)
    on_kernels, other = fixed_ddpg.update(state, batch)
    assert report == other
    assert_same(on_model, on_kernels)
    assert model.jobs == schedule.update(spec, state.sizes("actor"), state.sizes("critic"), 16, half=half)
    assert 32 < model.peak <= 64


def test_the_papers_rate_comes_out_of_our_cycles() -> None:
    """53,826.8 IPS at 92.4 %: HalfCheetah's networks at batch 64 take as long here, to a hundredth."""
    found = costs.estimate(fixed_ddpg.initial_state(FixedPointConfig(), S, A, seed=0))
    full = {row["batch"]: row for row in found["training"]["full"]}
    assert abs(full[64]["ips"] / costs.PUBLISHED["ips"] - 1) < 0.01
    assert 0.8 < full[64]["utilisation"] < full[512]["utilisation"] < 0.924
    assert full[64]["multiply_adds"] == pytest.approx(64 * 1.29e6, rel=0.02)
    half = {row["batch"]: row for row in found["training"]["half"]}
    assert 1.2 < half[64]["ips"] / full[64]["ips"] < 1.5


def test_a_job_takes_its_loads_its_streams_and_what_fills_the_pipeline() -> None:
    spec = ArraySpec(cores=2, side=4)
    # 3 output tiles, 3 tiles of inputs of 8 columns; 9 lines a load; vectors 16 > 9.
    assert schedule.forward(spec, 12, 17, 16, half=False).cycles == 9 + 8 * 16 + 16 + schedule.FILL["forward"]
    # Five vectors wait for the lines.
    assert schedule.forward(spec, 12, 17, 5, half=False).cycles == 9 + 8 * 9 + 5 + schedule.FILL["forward"]
    assert schedule.backward(spec, 12, 17, 16).cycles == 4 + 14 * 8 + 8 + schedule.FILL["backward"]


def play(folder: Path) -> str:
    done = subprocess.run(
        ["./play.sh"], cwd=folder, capture_output=True, text=True, check=False, timeout=1700
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@needs_verilator
def test_the_gates_train_and_act_as_the_agent_does_in_the_cycles_foretold(tmp_path: Path) -> None:
    """One update in whole words and one with 16-bit activations, every line of every result, every job's cycles."""
    layout = export.write(trained(1), tmp_path, ArraySpec(cores=2, side=4), 5, 2, 8, seed=1)
    out = play(tmp_path)
    found = re.search(r"PLAYED (\d+) jobs, (\d+) lines compared, (\d+) differences", out)
    assert found is not None, out[-2000:]
    assert [int(value) for value in found.groups()] == [layout["jobs"], layout["compared_lines"], 0], out[
        -3000:
    ]
    assert layout["jobs"] == 3 + 1 + 2 * 32
    kinds = [int(kind) for kind in re.findall(r"kind (\d) cycles", out)]
    assert (kinds.count(4), kinds.count(5), kinds.count(6)) == (1, 2, 2)
    assert sum(int(cycles) for cycles in re.findall(r"cycles (\d+)\n", out)) == layout["cycles"]


@needs_verilator
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("cores", "side"), [(1, 4), (4, 8)])
def test_gates_of_other_sizes_compute_the_same(tmp_path: Path, cores: int, side: int) -> None:
    layout = export.write(trained(1), tmp_path, ArraySpec(cores=cores, side=side), 3, 2, 8, seed=1)
    assert f"PLAYED {layout['jobs']} jobs, {layout['compared_lines']} lines compared, 0 differences" in play(
        tmp_path
    )


@needs_verilator
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_papers_accelerator_does_whole_updates_of_half_cheetahs_agent(tmp_path: Path) -> None:
    state = trained(1, batch=64, hidden=(400, 300))
    layout = export.write(state, tmp_path, ArraySpec(), 10, 2, 64, seed=1)
    assert f"PLAYED {layout['jobs']} jobs, {layout['compared_lines']} lines compared, 0 differences" in play(
        tmp_path
    )


@needs_yosys
def test_yosys_understands_the_gates(tmp_path: Path) -> None:
    """An element is DSPs and no table; the optimiser's lane is pipelined to the last bit."""
    sources = " ".join(str(export.SOURCES / name) for name in ("element.sv", "divider.sv"))
    script = f"read_verilog -sv {sources}; synth_xilinx -top element -family xcup -flatten; stat"
    done = subprocess.run(["yosys", "-p", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    cells = dict(re.findall(r"^ {5}([A-Z]\w+) +(\d+)$", done.stdout, re.MULTILINE))
    assert int(cells["DSP48E2"]) == 4


def written(tmp_path: Path, state: FixedState) -> Path:
    path = tmp_path / "agent.safetensors"
    fixed_file.save(path, state, "half_cheetah", Provenance.of(state.config, 0))
    return path


def test_an_agents_file_holds_its_state_whole(tmp_path: Path) -> None:
    state = trained(3, rounding="stochastic")
    found = fixed_file.read(written(tmp_path, state))
    assert_same(state, found.state)
    assert (found.environment, found.state.config) == ("half_cheetah", state.config)


def test_estimate_and_export_take_a_fixed_point_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = str(written(tmp_path, trained(1)))
    assert main(["estimate", "--agent", agent, "--run_dir", str(tmp_path / "run"), "--json"]) == 0
    out = capsys.readouterr()
    found = json.loads(out.out.splitlines()[-1])
    assert [row["batch"] for row in found["training"]["full"]] == [64, 128, 256, 512]
    assert found["action"]["full"]["joules"] > 0
    assert "38,779.8" in out.err
    assert main(["estimate", "--agent", agent, "--run_dir", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    for text in (
        "the paper says 53,827", "An action takes", "92.4%", "2,638", "half precision       512", "mJ/update",
    ):  # fmt: skip
        assert text in told
    options = ["--accelerator.side", "4", "--batch_size", "8", "--frames", "2", "--updates", "0"]
    assert (
        main(["export", "rtl", "--agent", agent, "--run_dir", str(tmp_path / "run"), *options, "--json"]) == 0
    )
    assert sorted(path.name for path in (tmp_path / "run/rtl").iterdir()) == sorted(
        (*export.MODULES, *export.IMAGES)
    )


@pytest.mark.parametrize(
    ("options", "spec", "batch", "text"),
    [
        ({"variant": "fixed16"}, ArraySpec(), 8, "in 16 bits, the accelerator in 32"),
        ({"second_moment": "root"}, ArraySpec(), 8, "Adam has the root form and rounds nearest"),
        ({"headroom": 3}, ArraySpec(), 8, "errors have 19 binary places, its activations 20"),
        ({"rounding": "stochastic"}, ArraySpec(), 8, "Adam has the plain form and rounds stochastic"),
        ({}, ArraySpec(batch=4), 8, "8 vectors at a time: the accelerator's activation memory holds 4"),
    ],
)  # fmt: skip
def test_an_agent_that_does_not_fit_is_refused(
    tmp_path: Path, options: dict[str, object], spec: ArraySpec, batch: int, text: str
) -> None:
    with pytest.raises(UserError, match=text):
        export.write(trained(0, **options), tmp_path / "rtl", spec, 1, 1, batch, seed=0)


def test_networks_and_sums_that_would_wrap_are_refused(tmp_path: Path) -> None:
    wide = trained(0, hidden=(1024, 1024))
    with pytest.raises(
        UserError, match=r"take 1,\d+,\d+ lines of 2 words, 1,048,576 is what an address reaches"
    ):
        export.write(wide, tmp_path / "rtl", ArraySpec(side=2), 1, 0, 8, seed=0)
    seen = dataclasses.replace(trained(0), observation_size=32_769)
    with pytest.raises(
        UserError, match="actor: a layer of 32769 inputs, the 64-bit accumulators hold sums of 32768"
    ):
        export.write(seen, tmp_path / "rtl", ArraySpec(), 1, 0, 8, seed=0)
    many = ArraySpec(side=2, batch=4096)
    with pytest.raises(
        UserError, match=r"4096 vectors fills 3,219,456 lines of a bank of activations, 1,048,576 is what"
    ):
        export.write(trained(0, hidden=(300, 300)), tmp_path / "rtl", many, 1, 1, 4096, seed=0)
    assert not (tmp_path / "rtl").exists()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UserError, match=r"holds mine.txt, which this export does not write"):
        export.write(trained(0), tmp_path, ArraySpec(), 1, 0, 8, seed=0)


def test_sizes_that_are_no_power_of_two_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"side is 12, a power of two is wanted. Give --accelerator.side 8 or 16"
    ):
        ArraySpec(side=12)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, trained(0))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="not a readable safetensors file"):
        fixed_file.read(path)


def test_a_batch_beyond_the_activation_memory_is_refused_in_a_schedule() -> None:
    state = trained(0)
    with pytest.raises(UserError, match="batch of 1024: the accelerator's activation memory holds 512"):
        schedule.update(ArraySpec(), state.sizes("actor"), state.sizes("critic"), 1024, half=False)
    assert dataclasses.asdict(schedule.PAPER)["cores"] == 2
