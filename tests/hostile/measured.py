"""What a refusal costs: the processor's time and the memory of this process and of those that it started."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spikestill.common.errors import UserError
from tests.hostile.fuzz import BYTES, SECONDS, Peak, used_seconds
from tests.hostile.readers import Refused

MIB = 1 << 20
ATTEMPTS = 3


def refused(read: Callable[[], object], peak: Peak, match: str, seconds: float = SECONDS) -> None:
    """Assert that ``read`` is refused in these words, before it has taken much.

    Args:
        read: reads a hostile file, directly or by a command.
        peak: watches the memory.
        match: what the refusal says.
        seconds: of the processor that it may take; what a good file takes is not taken off. It may take more where
            something else of this process is at work, such as the collector of garbage: the least of a few counts.
    """
    taken: list[float] = []
    while not taken or (taken[-1] >= seconds and len(taken) < ATTEMPTS):
        memory, before = peak.restart(), used_seconds()
        with pytest.raises((UserError, Refused), match=match):
            read()
        taken.append(used_seconds() - before)
        assert max(peak.bytes, peak.shared_once()) - memory < BYTES
    assert min(taken) < seconds, taken
