"""Agents made by the libraries themselves, saved by them, and imported: the same scores for the same stacks."""

from __future__ import annotations

import importlib
import pickle
import re
import shutil
import subprocess
import sys
import types
import warnings
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from spikestill import inspection
from spikestill.common.errors import UserError
from spikestill.configs.importing import ImportConfig
from spikestill.configs.record import RecordConfig
from spikestill.dataset.reader import BufferReader
from spikestill.dataset.recorder import run as record
from spikestill.teacher import importing
from spikestill.teacher.checkpoint import read_teacher
from spikestill.teacher.importing import run
from spikestill.teacher.policy import load_teacher

warnings.filterwarnings("ignore", module="stable_baselines3")


class Frames(gymnasium.Env):
    """Only the spaces of a game: what the libraries build their networks for."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


def cleanrl(monkeypatch: pytest.MonkeyPatch, script: str) -> Any:
    """Return the network of CleanRL's own ``dqn_atari`` or ``ppo_atari``, for Pong's 6 actions.

    The released scripts import what newer Pythons and Gymnasium no longer have, for parts that no network needs.
    """
    monkeypatch.setitem(sys.modules, "gym", gymnasium)
    flags = types.ModuleType("distutils.util")
    flags.strtobool = bool  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "distutils.util", flags)
    monkeypatch.setitem(sys.modules, "distutils", types.ModuleType("distutils"))
    module = importlib.import_module(f"cleanrl.{script}")
    torch.manual_seed(0)
    spaces = types.SimpleNamespace(single_action_space=Frames.action_space)
    return (module.QNetwork if script == "dqn_atari" else module.Agent)(spaces)


def stacks() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (3, 4, 84, 84), np.uint8)


def imported(path: Path, folder: Path, **options: object) -> np.ndarray:
    (folder / "teacher.safetensors").unlink(missing_ok=True)
    run(ImportConfig(path=path, game="pong", **options), folder)
    return load_teacher(folder / "teacher.safetensors").q_values(stacks())


@pytest.mark.parametrize("kind", ["DQN", "QR-DQN", "PPO", "A2C"])
def test_agents_of_stable_baselines3_score_as_before(tmp_path: Path, kind: str) -> None:
    import sb3_contrib
    import stable_baselines3

    make = {
        "DQN": stable_baselines3.DQN, "QR-DQN": sb3_contrib.QRDQN, "PPO": stable_baselines3.PPO,
        "A2C": stable_baselines3.A2C,
    }[kind]  # fmt: skip
    model = make("CnnPolicy", Frames(), seed=1, **({"buffer_size": 10} if kind.endswith("DQN") else {}))
    model.save(tmp_path / "agent.zip")
    obs = torch.from_numpy(stacks())
    with torch.no_grad():
        if kind == "DQN":
            wanted = model.policy.q_net(obs)
        elif kind == "QR-DQN":
            wanted = model.policy.quantile_net(obs).mean(dim=1)
        else:
            wanted = model.policy.get_distribution(obs).distribution.logits
    found = torch.from_numpy(imported(tmp_path / "agent.zip", tmp_path))
    if kind in ("PPO", "A2C"):
        # torch.distributions stores logits less their log-sum-exp: the softmax is the policy.
        found, wanted = found.softmax(dim=1), wanted.softmax(dim=1)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    provenance = read_teacher(tmp_path / "teacher.safetensors")[3]
    assert set(provenance.parents) == {"source"}
    with pytest.raises(
        UserError, match=r"teacher\.safetensors: is there from before, and import would replace it"
    ):
        run(ImportConfig(path=tmp_path / "agent.zip", game="pong"), tmp_path)
    with pytest.raises(UserError, match=r"agent\.zip: plays with 6 actions, freeway has 3"):
        run(ImportConfig(path=tmp_path / "agent.zip", game="freeway"), tmp_path / "freeway")
    for library, options in (("auto", {"output": 1}), ("sb3", {"divide_by": 255})):
        with pytest.raises(UserError, match=f"{next(iter(options))} is .* not for sb3"):
            run(
                ImportConfig(path=tmp_path / "agent.zip", game="pong", library=library, **options),
                tmp_path / "new",
            )


@pytest.mark.parametrize("script", ["dqn_atari", "ppo_atari"])
def test_state_dicts_of_cleanrl_score_as_before(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = cleanrl(monkeypatch, script)
    torch.save(agent.state_dict(), tmp_path / "dqn_atari.cleanrl_model")
    x = torch.from_numpy(stacks()).float()
    with torch.no_grad():
        wanted = agent(x) if script == "dqn_atari" else agent.actor(agent.network(x / 255.0))
    found = torch.from_numpy(imported(tmp_path / "dqn_atari.cleanrl_model", tmp_path))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


class Wide(nn.Module):
    """A network that is not the Nature network: two layers, pixels in 0..1, a value beside the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 8, 12, stride=8), nn.ELU(), nn.Flatten(), nn.Linear(800, 7))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.body(x)
        return found[:, 6:], found[:, :6]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """Files that PyTorch's own exporters wrote of one network, and its scores."""
    folder = tmp_path_factory.mktemp("programs")
    torch.manual_seed(0)
    network, x = Wide().eval(), torch.from_numpy(stacks()).float() / 255.0
    torch.jit.trace(network, x).save(str(folder / "net.ts"))
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        network,
        (x,),
        str(folder / "net.onnx"),
        dynamic_shapes=({0: batch},),
        verbose=False,
        external_data=False,
    )
    torch.onnx.export(network, (x[:1],), str(folder / "one.onnx"), verbose=False, external_data=False)
    torch.onnx.export(network, (x,), str(folder / "beside.onnx"), dynamic_shapes=({0: batch},), verbose=False)
    torch.export.save(
        torch.export.export(network, (x,), dynamic_shapes=({0: batch},)), str(folder / "net.pt2")
    )
    with torch.no_grad():
        return folder, network(x)[1]


@pytest.mark.parametrize("name", ["net.ts", "net.onnx", "one.onnx", "beside.onnx"])
def test_programs_score_as_before_and_are_recorded(
    programs: tuple[Path, torch.Tensor], name: str, tmp_path: Path
) -> None:
    folder, wanted = programs
    found = torch.from_numpy(imported(folder / name, tmp_path, divide_by=255.0, output=1))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    config = RecordConfig(teacher=tmp_path / "teacher.safetensors", frames=64, num_envs=4)
    with BufferReader(record(config, tmp_path).artefact) as reader:
        assert len(reader) > 0
        assert reader.actions == 6
    with pytest.raises(UserError, match=r"is an imported program .* Nature network are wanted"):
        read_teacher(tmp_path / "teacher.safetensors")
    with pytest.raises(UserError, match="not in fp16"):
        load_teacher(tmp_path / "teacher.safetensors", "fp16")
    contents = inspection.read(tmp_path / "teacher.safetensors")
    assert contents.figures["program"] in ("onnx", "torchscript")
    assert contents.figures["actions"] == 6


def test_programs_that_do_not_fit_are_refused(programs: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    folder, _ = programs
    (tmp_path / "cut.onnx").write_bytes((folder / "net.onnx").read_bytes()[:900])
    (tmp_path / "text.onnx").write_text("no network")
    (tmp_path / "alone.onnx").write_bytes((folder / "beside.onnx").read_bytes())
    cut = tmp_path / "cut" / "beside.onnx"
    cut.parent.mkdir()
    cut.write_bytes((folder / "beside.onnx").read_bytes())
    cut.with_name("beside.onnx.data").write_bytes((folder / "beside.onnx.data").read_bytes()[:400])
    small = torch.jit.trace(nn.Flatten(), torch.zeros(2, 4, 84, 84))
    small.save(str(tmp_path / "flat.ts"))
    for path, options, match in (
        (folder / "net.pt2", {}, r"net.pt2: a torch.export archive.*torch.onnx.export"),
        (folder / "net.onnx", {}, "scores 1 actions, pong has 6"),
        (folder / "net.onnx", {"output": 5}, "has 2 outputs, output 5 is asked for"),
        (folder / "net.ts", {"output": 5}, "net.ts: fails on a stack of frames"),
        (tmp_path / "cut.onnx", {}, "not a network that ONNX Runtime can run"),
        (tmp_path / "text.onnx", {}, "not a network that ONNX Runtime can run"),
        (
            tmp_path / "alone.onnx",
            {},
            r"alone.onnx: its weights lie in beside.onnx.data, which cannot be read",
        ),
        (cut, {}, r"its weights lie in beside.onnx.data, which cannot be read"),
        (tmp_path / "flat.ts", {}, "scores 28224 actions, pong has 6"),
        (folder / "net.onnx", {"library": "torchscript"}, "not readable as TorchScript"),
    ):
        with pytest.raises(UserError, match=match):
            run(ImportConfig(path=path, game="pong", **options), tmp_path / "out")
    assert not (tmp_path / "out" / "teacher.safetensors").exists()


def test_weights_beside_a_network_count_as_its_size(
    programs: tuple[Path, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = programs[0] / "beside.onnx"
    monkeypatch.setattr(importing, "AGENT_BYTES", path.stat().st_size)
    with pytest.raises(UserError, match=r"beside.onnx: [\d,]+ bytes, at most [\d,]+ are read") as caught:
        run(ImportConfig(path=path, game="pong", divide_by=255.0, output=1), tmp_path)
    assert "cannot be read" not in str(caught.value)


@pytest.mark.slow
def test_the_command_that_converts_an_export_archive_does(
    programs: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    folder, wanted = programs
    archive = shutil.copy(folder / "net.pt2", tmp_path)
    with pytest.raises(UserError) as caught:
        run(ImportConfig(path=archive, game="pong"), tmp_path)
    command = re.search(r'python -c "(.*)"', str(caught.value.remedy))
    assert command is not None
    subprocess.run([sys.executable, "-c", command[1]], cwd=tmp_path, check=True, capture_output=True)
    found = torch.from_numpy(imported(tmp_path / "net.onnx", tmp_path, divide_by=255.0, output=1))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


class Bytes(nn.Module):
    """Takes pixels as they are, uint8 and channels last, and divides them itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().div(255.0).mean(dim=(1, 2))[:, [0, 1, 2, 3, 0, 1]]


def test_a_network_of_bytes_is_not_divided_for(tmp_path: Path) -> None:
    x = torch.from_numpy(stacks()).permute(0, 2, 3, 1).contiguous()
    batch = torch.export.Dim("batch")
    path = tmp_path / "bytes.onnx"
    torch.onnx.export(
        Bytes().eval(), (x,), str(path), dynamic_shapes=({0: batch},), verbose=False, external_data=False
    )
    torch.testing.assert_close(torch.from_numpy(imported(path, tmp_path)), Bytes()(x), rtol=1e-4, atol=1e-6)
    with pytest.raises(UserError, match="takes uint8 pixels, which cannot be divided by 255"):
        run(ImportConfig(path=path, game="pong", divide_by=255.0), tmp_path / "out")


class Payload:
    def __reduce__(self):
        return (Path.touch, (Path("unpickled"),))


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"network.0.weight": Payload()}, tmp_path / "evil.pth")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Payload()))
    torch.save(nn.Linear(2, 2), tmp_path / "whole.pth")
    for name in ("evil.pth", "plain.pkl", "whole.pth"):
        with pytest.raises(UserError, match=rf"{name}: holds more than tensors") as caught:
            run(ImportConfig(path=tmp_path / name, game="pong"), tmp_path)
        assert "agent-tensors.pth" in str(caught.value.remedy)
    assert not (tmp_path / "unpickled").exists()
    assert not (tmp_path / "teacher.safetensors").exists()


@pytest.mark.parametrize("kind", ["object", "legacy", "pickle"])
def test_the_command_that_saves_the_tensors_alone_does(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = cleanrl(monkeypatch, "dqn_atari")
    path = tmp_path / "agent.pth"
    network = nn.Sequential()
    network.network = agent.network  # the same names, of classes that another process can import
    if kind == "pickle":
        path.write_bytes(pickle.dumps(network.state_dict()))
    else:
        torch.save(network, path, _use_new_zipfile_serialization=kind == "object")
    with pytest.raises(UserError, match="holds more than tensors") as caught:
        run(ImportConfig(path=path, game="pong"), tmp_path)
    command = re.search(r'python -c "(.*)"', str(caught.value.remedy))
    assert command is not None
    subprocess.run([sys.executable, "-c", command[1]], cwd=tmp_path, check=True, capture_output=True)
    with torch.no_grad():
        wanted = agent(torch.from_numpy(stacks()).float())
    found = torch.from_numpy(imported(tmp_path / "agent-tensors.pth", tmp_path))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["PPO", "DQN"])
def test_an_agent_with_layers_of_its_own_is_refused(tmp_path: Path, kind: str) -> None:
    """Six units, as many as actions, so that every shape fits."""
    import stable_baselines3

    make, options = (
        (stable_baselines3.PPO, {}) if kind == "PPO" else (stable_baselines3.DQN, {"buffer_size": 10})
    )
    layers = [512] if kind == "PPO" else [6]
    make("CnnPolicy", Frames(), policy_kwargs={"net_arch": layers}, **options).save(tmp_path / "agent.zip")
    with pytest.raises(
        UserError, match=r"policy_net\.0\.weight has no place|q_net\.q_net\.2\.weight has no place"
    ):
        run(ImportConfig(path=tmp_path / "agent.zip", game="pong"), tmp_path)


def test_damaged_agents_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import stable_baselines3

    stable_baselines3.A2C("CnnPolicy", Frames()).save(tmp_path / "agent.zip")
    content = bytearray((tmp_path / "agent.zip").read_bytes())
    with zipfile.ZipFile(tmp_path / "agent.zip") as archive:
        content[archive.getinfo("policy.pth").header_offset + 2000] ^= 255
    (tmp_path / "agent.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"agent\.zip: a damaged archive: Bad CRC-32"):
        run(ImportConfig(path=tmp_path / "agent.zip", game="pong"), tmp_path)
    agent = dict(cleanrl(monkeypatch, "dqn_atari").state_dict())
    bias, weight = agent["network.9.bias"], agent["network.9.weight"]
    for state, match in (
        ({**agent, 7: bias}, "holds a dict of network.0.weight, .* a state dict wanted"),
        (
            {**agent, "network.9.weight": weight.to_sparse()},
            r"network\.9\.weight is .*sparse.*dense floats wanted",
        ),
        ({**agent, "network.9.bias": bias.to(torch.complex64)}, r"is torch\.complex64 .*dense floats wanted"),
        ({**agent, "network.11.bias": bias}, r"network\.11\.bias has no place in the Nature network"),
    ):
        torch.save(state, tmp_path / "agent.pth")
        with pytest.raises(UserError, match=match):
            run(ImportConfig(path=tmp_path / "agent.pth", game="pong"), tmp_path)
    # Whatever byte of an old file is wrong: it is refused, or the byte was part of a number.
    torch.save(
        {"network.0.bias": torch.zeros(32)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False
    )
    whole = (tmp_path / "old.pth").read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.choice(len(whole), 60, replace=False):
        damaged = bytearray(whole)
        damaged[place] = rng.integers(256)
        (tmp_path / "old.pth").write_bytes(damaged)
        with pytest.raises(UserError):
            run(ImportConfig(path=tmp_path / "old.pth", game="pong"), tmp_path)


def test_quantiles_of_another_shape_are_refused() -> None:
    head = {"head.weight": torch.zeros(12), "head.bias": torch.zeros(12)}
    with pytest.raises(UserError, match=r"weights \(12,\) and 12 biases, which is no linear layer"):
        importing.mean_of_quantiles(head, 6, Path("agent.zip"))
    head = {"head.weight": torch.zeros(12, 512), "head.bias": torch.zeros(6)}
    with pytest.raises(UserError, match=r"weights \(12, 512\) and 6 biases"):
        importing.mean_of_quantiles(head, 6, Path("agent.zip"))


def test_what_is_no_agent_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    (tmp_path / "cut.pth").write_bytes(b"PK\x03\x04 cut")
    torch.save({"a": torch.zeros(2)}, tmp_path / "strange.pth")
    agent = cleanrl(monkeypatch, "dqn_atari").state_dict()
    torch.save({**agent, "network.9.bias": torch.full((6,), float("nan"))}, tmp_path / "nan.pth")
    torch.save({**agent, "network.7.weight": torch.zeros(512, 3137)}, tmp_path / "wide.pth")
    wide = {"network.9.weight": torch.zeros(306, 512), "network.9.bias": torch.zeros(306)}
    torch.save({**agent, **wide}, tmp_path / "c51.pth")
    for name, match in (
        ("none.zip", "no such file"),
        ("other.zip", "not a readable PyTorch file"),
        ("cut.pth", "not a readable PyTorch file"),
        ("strange.pth", r"no agent of cleanrl that is known here \(it holds a "),
        ("nan.pth", "head.bias holds NaN"),
        ("wide.pth", r"hidden.weight is \(512, 3137\), the Nature network's is \(512, 3136\)"),
        ("c51.pth", "scores 306 actions, pong has 6"),
    ):
        with pytest.raises(UserError, match=match):
            run(ImportConfig(path=tmp_path / name, game="pong"), tmp_path)
    torch.save(agent, tmp_path / "pong.pth")
    with pytest.raises(UserError, match="scores 6 actions, breakout has 4"):
        run(ImportConfig(path=tmp_path / "pong.pth", game="breakout"), tmp_path)
    with pytest.raises(UserError, match=r"has no policy\.pth"):
        run(ImportConfig(path=tmp_path / "pong.pth", game="pong", library="sb3"), tmp_path)
