from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from spikestill.common.provenance import Provenance
from spikestill.configs.hardware import hardware
from spikestill.configs.pipeline import InspectConfig
from spikestill.core_page import core_page
from spikestill.deploy import core_map as core_map_format
from spikestill.deploy.core_map import NONE, CoreMap
from spikestill.deploy.mapping import map_net
from spikestill.inspection import run
from spikestill.student.architectures import LayerSpec
from tests.nets import random_net

LAYERS = (
    LayerSpec(16, 8, 4, 2, 1),
    LayerSpec(48, 3, 2, 1, 4),
    LayerSpec(70, 2, 2, 0, 2),
    LayerSpec(20, 1, 1, 0, 2),
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SMALL_CHIPS = dataclasses.replace(hardware("truenorth"), cores_x=8, cores_y=8, chips_x=4, chips_y=4)


@pytest.fixture(scope="module")
def core_map() -> CoreMap:
    return map_net(random_net(LAYERS, 2), SMALL_CHIPS, Provenance.of({}, 0))


def test_the_data_are_the_maps(core_map: CoreMap) -> None:
    page = core_page(core_map, None)
    assert core_map.chips > 1
    assert len(page["cores"]) == len(page["sends"]) == core_map.cores
    for index in (0, core_map.cores // 2, core_map.cores - 1):
        chip, x, y, layer, splitter, neurons, _ = page["cores"][index]
        assert page["chips"][chip]["chip"] == core_map.chip_C[index]
        assert (x, y, layer, splitter) == (
            core_map.x_C[index], core_map.y_C[index], core_map.core_layer_C[index], int(core_map.core_relay_C[index]),
        )  # fmt: skip
        assert neurons == round(100 * core_map.used_CN[index].mean())
        pairs = np.array(page["sends"][index], int).reshape(-1, 2)
        driving = core_map.dest_core_CN[index][core_map.dest_core_CN[index] != NONE]
        assert {int(a): int(n) for a, n in pairs} == {
            int(a): int((driving == a).sum()) for a in np.unique(driving)
        }
    traffic = np.array(page["traffic"])
    assert traffic.sum() == (core_map.dest_core_CN != NONE).sum()
    core, neuron = np.nonzero(core_map.dest_core_CN != NONE)
    crossing = core_map.chip_C[core] != core_map.chip_C[core_map.dest_core_CN[core, neuron]]
    assert traffic.sum() - np.trace(traffic) == crossing.sum()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_the_page_draws_itself_in_a_browser(core_map: CoreMap, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    core_map_format.save(core_map, tmp_path / "core_map.h5")
    page = tmp_path / "page.html"
    run(InspectConfig(path=tmp_path / "core_map.h5", html=page), tmp_path)
    # What the pointer does, done by the page's own events: take the first core's middle, then ask for another view.
    data = core_page(core_map, None)
    chip, x, y, layer, *_ = data["cores"][0]
    left, top = (min(each[axis] for each in data["chips"]) for axis in "xy")
    across, down = data["chips"][chip]["x"] - left, data["chips"][chip]["y"] - top
    wide, high = data["size"]
    poke = f"""<script>
      const canvas = document.getElementById("cores"), box = canvas.getBoundingClientRect();
      const cell = Number(canvas.dataset.cell);
      canvas.dispatchEvent(new PointerEvent("pointermove", {{
        clientX: box.left + {across} * ({wide} * cell + 2) + ({x} + 0.5) * cell,
        clientY: box.top + {down} * ({high} * cell + 2) + ({y} + 0.5) * cell }}));
      document.querySelector('[data-view="axons"]').click();
    </script>"""
    page.write_text(page.read_text().replace("</body>", poke + "</body>"))
    shown = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    assert f"core 0: chip {core_map.chip_C[0]}, x {x}, y {y}; computes layer {layer}" in shown
    assert re.search(r'data-view="axons"[^>]*aria-pressed="true"', shown)
    assert "75 %" in shown
    assert re.search(r'data-view="rate"[^>]*disabled', shown)
    assert "Traffic between chips" in shown
