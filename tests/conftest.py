from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell that starts the tests in the background has SIGINT ignored, and the commands that tests interrupt would
# inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = (
    "teacher/control/test_teach.py", "student/test_distill.py", "teacher/test_teach.py", "sweep/test_interrupted.py",
    "sweep/test_sweep.py", "dataset/test_recorder.py", "student/test_network.py", "docs/test_pages.py",
    "teacher/test_importing.py", "e2e/test_pipeline.py", "runtime/test_play.py", "zoo/test_zoo.py",
    "student/test_grouped.py", "runtime/test_trace.py", "teacher/test_selection.py", "hostile/test_measured.py",
    "deploy/test_accelerator.py", "e2e/test_base_install.py",
)  # fmt: skip
"""Files of tests that take 50 s and more with their long ones, the longest first, as measured on two cores; but the
first ones compile the kernels that the stages of a sweep need, which would compile them once each on a core of their
own."""


LONG = frozenset(
    line
    for line in (Path(__file__).parent / "long.txt").read_text().splitlines()
    if line[:1] not in ("", "#")
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the long tests; begin with the longest files, so that the processes end together."""
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if name in LONG or name.partition("[")[0] in LONG:
            item.add_marker("long")
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(autouse=True)
def handlers_of_signals() -> Iterator[None]:
    """Put back the handlers that a test found: Ray leaves its own of SIGTERM."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
