"""What is no artefact of ours is refused by name, whatever it is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import h5py
import pytest

from spikestill.common.errors import UserError
from spikestill.configs.hardware import hardware
from spikestill.configs.pipeline import InspectConfig
from spikestill.configs.play import PlayConfig
from spikestill.deploy import core_map
from spikestill.deploy.exports import nir_graph
from spikestill.deploy.mapping import map_net
from spikestill.inspection import read, run
from spikestill.runtime import play
from tests.nets import small_net


def safetensors(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "neither safetensors nor HDF5"),
        (b"PK\x03\x04 a zip, say", "neither safetensors nor HDF5"),
        (b"\xff" * 64, r"its header has 18,446,\S+ bytes, 2\.\.\S+ are read"),
        (safetensors({})[:-1], "neither safetensors nor HDF5"),
        (safetensors([1]), "neither safetensors nor HDF5"),
        (
            safetensors({"__metadata__": {"schema": "else.where"}}),
            "its schema is 'else.where', and shown are spikestill's teacher",
        ),
        (safetensors({}), "its schema is 'none'"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 40, "damaged HDF5"),
    ],
)
def test_a_foreign_or_damaged_file_is_named_with_its_fault(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"file\.bin: .*{message}"):
        read(path)


def test_an_hdf5_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = [1, 2]
    with pytest.raises(UserError, match=r"x\.h5: its schema is 'none', and shown are"):
        read(tmp_path / "x.h5")


def test_a_good_export_is_not_called_damaged(tmp_path: Path) -> None:
    nir_graph.write(small_net(0), tmp_path / "student.nir", "threshold", 1e-4, False)
    with pytest.raises(UserError, match="its schema is 'none'") as told:
        read(tmp_path / "student.nir")
    assert "NIR" in str(told.value.remedy)


def test_a_trace_is_shown(tmp_path: Path) -> None:
    config = PlayConfig(
        agent="random", max_speed=True, seconds=0.3, view="none", trace=tmp_path / "t.h5", seed=3
    )
    told = play.run(config, tmp_path).summary
    found = read(tmp_path / "t.h5")
    assert (found.kind, found.figures["game"], found.figures["seed"]) == ("trace", "pong", 3)
    assert found.provenance is not None
    (row,) = found.figures["agents"]
    assert (row["agent"], row["frames"], row["plays"]) == ("random", told["ticks"], "its own game")
    assert row["with spikes"] == 0


def test_a_page_replaces_no_artefact(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--html is '.*core_map\.h5', only \.html is written"):
        InspectConfig(path=tmp_path / "core_map.h5", html=tmp_path / "core_map.h5")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.h5: no such file"):
        read(tmp_path / "nothing.h5")


@pytest.mark.parametrize("chip", [-1, 9])
def test_a_core_map_on_a_chip_that_is_not_there_is_shown_with_the_rule_that_it_breaks(
    tmp_path: Path, chip: int
) -> None:
    good = map_net(small_net(0), hardware("ranc"))
    chips = good.chip_C.copy()
    chips[0] = chip
    for name, each in (("good", good), ("bad", dataclasses.replace(good, chip_C=chips))):
        core_map.save(each, tmp_path / name)
    assert read(tmp_path / "good").figures["rules"] == "obeyed"
    assert f"core 0: chip {chip}" in read(tmp_path / "bad").figures["rules"]
    with pytest.raises(UserError, match=r"bad: core map breaks the rule 'placement range'"):
        run(InspectConfig(path=tmp_path / "bad", html=tmp_path / "page.html"), tmp_path)
