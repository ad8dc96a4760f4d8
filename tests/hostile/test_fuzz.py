from __future__ import annotations

import numpy as np
import pytest

from tests.hostile.fuzz import damaged, fuzz


def test_a_case_is_the_same_file_each_time():
    content = bytes(range(256)) * 40
    assert damaged(content, np.random.default_rng([1, 2])) == damaged(content, np.random.default_rng([1, 2]))
    assert damaged(content, np.random.default_rng([1, 2])) != content


def test_some_seconds_of_damaged_files_find_nothing():
    cases, findings = fuzz(seed=1, seconds=60, most=60)
    assert findings == []
    assert cases > 5


@pytest.mark.slow
def test_minutes_of_damaged_files_find_nothing():
    cases, findings = fuzz(seed=2, seconds=200)
    assert findings == []
    assert cases > 100
