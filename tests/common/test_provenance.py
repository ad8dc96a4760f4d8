"""The record that every artefact carries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spikestill.common.provenance import Provenance


def test_a_record_comes_back_as_it_was() -> None:
    made = Provenance.of({"steps": 3}, seed=5)
    assert Provenance.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("name", "value", "because"),
    [
        ("parents", 3, "parents is '3', a dict wanted"),
        ("parents", {"student": 3}, "parents has what is no text"),
        ("config", [], r"config is '\[\]', a dict wanted"),
        ("commit", None, "commit is 'None', a str wanted"),
        ("colour", "red", "unknown field 'colour'"),
    ],
)
def test_a_record_of_another_form_is_refused(name: str, value: Any, because: str) -> None:
    fields = json.loads(Provenance.of({}, seed=0).to_json()) | {name: value}
    with pytest.raises(ValueError, match=because):
        Provenance.from_json(json.dumps(fields))
