from __future__ import annotations

import json

import numpy as np
import pytest

from tests.hostile import damage, readers
from tests.hostile.cases import subjects
from tests.hostile.fuzz import fuzz


def test_a_case_is_the_same_file_each_time():
    content = bytes(range(256)) * 40
    first, again = (damage.damaged(content, np.random.default_rng([1, 2])) for _ in range(2))
    assert first == again != content


def test_every_place_of_a_document_is_altered_some_time():
    whole = {"a": [1, 2], "b": {"c": "text"}}
    found = [
        json.loads(damage.document(json.dumps(whole).encode(), np.random.default_rng(n))) for n in range(400)
    ]
    assert any("a" not in each for each in found if isinstance(each, dict))
    assert any(
        each["b"].get("c") != "text"
        for each in found
        if isinstance(each, dict) and isinstance(each.get("b"), dict)
    )
    assert any(not isinstance(each, dict) for each in found)


def test_what_is_read_has_a_name_each():
    names = [subject.name for subject in subjects()]
    assert len(set(names)) == len(names)


def test_some_seconds_of_damaged_files_find_nothing():
    cases, findings, _ = fuzz(seed=1, seconds=60, most=60, quick=True)
    assert findings == []
    assert cases > 5


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_minutes_of_damaged_files_find_nothing():
    cases, findings, _ = fuzz(seed=2, seconds=300)
    assert findings == []
    assert cases > 100


def test_a_command_that_fails_in_a_way_nobody_thought_of_is_a_finding(monkeypatch):
    def absent(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nothing")

    monkeypatch.setattr("spikestill.inspection.run", absent)
    with pytest.raises(AssertionError, match="unexpected ZeroDivisionError: nothing"):
        readers.told("inspect", "file.h5")


def test_pythons_own_words_are_none(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"seed: \xe2\x82")
    with pytest.raises(readers.Refused, match=r"recipe\.yaml.*unexpected end of data"):
        readers.told("record", "--config", path, "--print_config")
