import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.memory import free_memory, room_for


def test_a_ring_that_will_outgrow_the_memory_is_refused_before_it_is_made():
    frames = free_memory() // 500
    made = []
    with (
        pytest.raises(
            UserError, match=rf"ring_frames {frames} needs [\d.,]+ GB of memory, [\d.,]+ GB are free"
        ) as told,
        room_for("ring_frames", frames, 1000, frames),
    ):
        made.append(frames)
    assert not made
    assert told.value.remedy == "lower --ring_frames"


def test_only_what_is_filled_takes_memory():
    frames = free_memory() // 500
    with room_for("ring_frames", frames, 1000, 10):
        pass
    with room_for("ring_frames", 10, 1000, frames):
        pass


def test_a_ring_that_the_system_refuses_whole_is_told_the_same():
    # More than 128 TiB, which no process can address.
    with (
        pytest.raises(UserError, match=r"^ring_frames 1000000000000 needs 1,000,000\.00 GB"),
        room_for("ring_frames", 10**12, 1000, 1),
    ):
        np.zeros((10**12, 1000), np.uint8)
