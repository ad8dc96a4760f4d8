"""Videos: what was drawn is in the file, and a file that cannot be finished is not there."""

from __future__ import annotations

import resource
from pathlib import Path

import av
import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.deploy.core_map import load
from spikestill.deploy.simulator import CoreSimulator
from spikestill.runtime.activity import CorePicture, core_grid
from spikestill.runtime.display import Display, DisplayOptions
from spikestill.runtime.frame_ring import frame_dtype
from spikestill.runtime.mosaic import picture_of
from spikestill.runtime.panel import BAR, HEIGHT, LEFT, WIDTH, Panel
from spikestill.runtime.recording import VideoWriter
from spikestill.runtime.scene import Actor, Scene
from spikestill.runtime.view import side_lines
from tests.nets import random_stack
from tests.runtime.artefacts import Files

ACTIONS = ["NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"]


SCENE = Scene("pong", tuple(ACTIONS), 60.0, 4, (Actor("teacher"),))


def frame(words: int = 0, **fields: object) -> np.void:
    made = np.zeros(1, frame_dtype(1, words))
    for name, value in fields.items():
        made[0]["sessions"][0][name] = value
    return made[0]


def test_a_video_decodes_to_the_pictures_at_their_times(tmp_path: Path) -> None:
    path = tmp_path / "v.mp4"
    colours = [(200, 30, 30), (30, 200, 30), (30, 30, 200)]
    times = [0, 1, 5]
    with VideoWriter(path) as video:
        for colour, time in zip(colours, times, strict=True):
            video.add(np.full((HEIGHT, WIDTH, 3), colour, np.uint8), time)
        assert not path.exists()
    assert video.frames == 3
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        decoded = list(container.decode(stream))
        assert (stream.width, stream.height) == (WIDTH, HEIGHT)
        assert [round(float(f.time) * 60) for f in decoded] == times
    for picture, colour in zip(decoded, colours, strict=True):
        mean = picture.to_ndarray(format="rgb24").mean(axis=(0, 1))
        np.testing.assert_allclose(mean, colour, atol=12)


def test_a_video_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def write_noise() -> None:
        with VideoWriter(tmp_path / "v.mp4") as video:
            for time in range(200):
                video.add(rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8), time)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"v\.mp4: no space left on the disk \(File too large\)"):
            write_noise()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_display_that_cannot_write_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = DisplayOptions(str(tmp_path / "file" / "v.mp4"), False)
    with pytest.raises(UserError, match=r"file: File exists"):
        Display(options, SCENE, 0, (210, 160))
    (tmp_path / "folder.mp4").mkdir()
    options = DisplayOptions(str(tmp_path / "folder.mp4"), False)
    with pytest.raises(UserError, match=r"folder\.mp4: is a folder"):
        Display(options, SCENE, 0, (210, 160))


def test_the_panel_shows_the_screen_enlarged_and_what_the_agent_sees() -> None:
    panel = Panel(SCENE, frame_dtype())
    screen = np.random.default_rng(0).integers(0, 256, (210, 160, 3), dtype=np.uint8)
    stack = random_stack(1)
    canvas = panel.draw(frame(screen=screen, seen=stack[-1], answer=0, scores=np.arange(18), action=5))
    np.testing.assert_array_equal(canvas[5:635:3, 0:640:4], screen)
    seen = canvas[64 : 64 + 252 : 3, LEFT + 34 : LEFT + 34 + 252 : 3]
    np.testing.assert_array_equal(seen, np.repeat(stack[-1][:, :, None], 3, axis=2))


ONE_NUMBER = Scene(
    "cartpole_swingup", ("slide",), 100.0, 1, (Actor("teacher"),), atari=False, bounds=((-2.0, 2.0),)
)


def test_numbers_have_bars_within_their_bounds_and_the_value_beside_them(tmp_path: Path) -> None:
    ONE_NUMBER.save(tmp_path, 0)
    scene = Scene.load(tmp_path, 0)
    assert scene == ONE_NUMBER
    dtype = frame_dtype(1, 0, 18, (48, 64))
    shown = np.zeros(1, dtype)[0]
    part = shown["sessions"][0]
    part["action"], part["scores"][:3], part["value"] = -1, (1.0, 0.3, 12.34), 12.34
    assert scene.bars(part).tolist() == [0.75]
    lines = side_lines(part, "title", scene)
    assert f"  {'slide':<14} {'█' * 15}" in lines
    assert "value 12.34" in lines
    mosaic = picture_of(scene, dtype)
    bars = {}
    for number, value in ((1.0, 12.34), (-2.0, np.nan)):
        part["scores"][0], part["value"], part["answer"] = number, value, part["answer"] + 1
        drawn = mosaic.draw(shown)
        bars[number] = (drawn == BAR).all(axis=2).sum(axis=1).max()
    assert bars == {1.0: round(0.75 * (320 - 90 - 8)), -2.0: 0}
    assert scene.value(part) == ""
    part["scores"][0] = np.nan
    assert scene.bars(part).tolist() == [0.0]


def test_votes_go_from_0_and_q_values_from_the_lowest() -> None:
    part = frame(votes=True)["sessions"][0]
    part["scores"][:6] = 2, 4, 2, 2, 2, 3
    assert SCENE.bars(part).tolist() == [0.5, 1.0, 0.5, 0.5, 0.5, 0.75]
    part["votes"] = False
    assert SCENE.bars(part).tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.5]
    assert SCENE.value(part) == ""


def test_the_core_picture_lights_each_core_by_its_firing(pong: Files) -> None:
    core_map = load(pong.core_map)
    simulator = CoreSimulator(core_map)
    stack = random_stack(3)
    spikes = simulator.spikes(stack)
    trace = simulator.trace()
    share_C = trace.activity()[0]
    for core in range(0, core_map.cores, 13):
        used = core_map.used_CN[core]
        fired = spikes[core_map.core_layer_C[core]][
            core_map.feature_CN[core, used], core_map.row_CN[core, used], core_map.column_CN[core, used]
        ]
        assert share_C[core] == fired.mean()
    # A ring has room for the longest of the agents' traces, and more on the live page.
    words = trace.packed_BW.shape[1]
    shown = frame(words + 70)["sessions"][0]
    shown["trace"][:words] = trace.packed_BW[0]
    picture, caption = CorePicture(core_grid(core_map, simulator.layout))(shown)
    assert picture.shape == (320, 320, 3)
    assert caption.startswith(f"{core_map.cores:,} cores")
    brightest, darkest = int(share_C.argmax()), int(share_C.argmin())
    light_C = picture[core_map.y_C * 5 + 2, core_map.x_C * 5 + 2].sum(axis=1, dtype=int)
    assert light_C[brightest] > light_C[darkest]
