"""Frames shifted at random."""

from __future__ import annotations

import numpy as np
import pytest

from spikestill.student.augmentation import at_random, shifted


@pytest.mark.parametrize("down", [-3, 0, 2])
@pytest.mark.parametrize("right", [-1, 0, 4])
def test_a_shift_is_a_crop_of_the_picture_with_its_edges_repeated(down, right):
    x = np.random.default_rng(0).integers(0, 256, (2, 4, 9, 11)).astype(np.uint8)
    wide = np.pad(x, ((0, 0), (0, 0), (5, 5), (5, 5)), mode="edge")
    found = shifted(x, np.array([[down, right], [0, 0]]))
    np.testing.assert_array_equal(found[0], wide[0, :, 5 - down : 14 - down, 5 - right : 16 - right])
    np.testing.assert_array_equal(found[1], x[1])


def test_every_offset_is_drawn_and_none_beyond():
    x = np.zeros((400, 4, 9, 9), np.uint8)
    x[:, :, 4, 4] = 1
    found = at_random(np.random.default_rng(1), x, 2)
    places = {tuple(int(each) - 4 for each in np.argwhere(stack[0])[0]) for stack in found}
    assert places == {(down, right) for down in range(-2, 3) for right in range(-2, 3)}
    assert (found == found[:, :1]).all()
