import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from spikestill.common.errors import UserError
from spikestill.common.memory import group_memory
from spikestill.dataset.format import BufferWriter
from spikestill.dataset.reader import BufferReader, frames_at_hand
from tests.dataset.test_format import block, header, write_buffer


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """70 vector steps of 2 streams; steps 9 and 40 of stream 1 are not valid, a game starts after each."""
    path = tmp_path_factory.mktemp("reader") / "buffer.h5"
    with BufferWriter.create(path, header()) as writer:
        while writer.rows < 70:
            first = writer.rows
            frames, steps = block(first, min(writer.room(), 70 - first))
            for row in (9, 40):
                if first <= row < first + len(steps.valid):
                    steps.valid[row - first, 1] = False
                    steps.start[row - first + 1, 1] = True
            writer.write(frames, steps)
        writer.commit()
    with BufferReader(path) as opened:
        yield opened


def expected_stack(time, stream):
    frames = block(max(0, time - 3), time - max(0, time - 3) + 1)[0][stream]
    began = max(start for start in ((0,) if stream == 0 else (0, 10, 41)) if start <= time)
    have = min(4, time - began + 1)
    stack = np.zeros((4, 7056), np.uint8)
    stack[4 - have :] = frames[len(frames) - have :]
    return stack.reshape(4, 84, 84)


def test_steps_are_the_valid_ones_in_order_of_time(reader):
    time, stream = reader.locate(np.arange(len(reader)))
    expected = [(t, e) for t in range(70) for e in range(2) if (t, e) not in ((9, 1), (40, 1))]
    assert list(zip(time.tolist(), stream.tolist(), strict=True)) == expected
    assert len(reader) == 138
    assert (reader.game, reader.actions) == ("pong", 3)


def test_stacks_are_zero_padded_where_a_game_starts(reader):
    stacks = reader.stacks(np.arange(len(reader)))
    for index in range(len(reader)):
        time, stream = (int(value) for value in reader.locate(index))
        assert np.array_equal(stacks[index], expected_stack(time, stream))


def test_samples_are_steps_of_the_range_asked_for_and_depend_on_the_generator_alone(reader):
    batch = reader.sample(np.random.default_rng(1), 500, start=30, stop=60)
    assert batch.stacks.shape == (500, 4, 84, 84)
    assert batch.q_values.shape == (500, 3)
    times = batch.q_values[:, 0].astype(int)
    allowed = reader.locate(np.arange(30, 60))[0]
    assert set(times) == set(allowed.tolist())
    assert np.array_equal(batch.actions, times % 3)
    again = reader.sample(np.random.default_rng(1), 500, start=30, stop=60)
    assert all(np.array_equal(one, two) for one, two in zip(batch, again, strict=True))


def test_step_outside_the_buffer_is_refused(reader):
    for index in (-1, 138):
        with pytest.raises(IndexError, match=r"the buffer has 0\.\.137"):
            reader.stacks([index])


def test_the_least_limit_of_the_control_groups_counts(tmp_path):
    inner = tmp_path / "slice" / "job"
    inner.mkdir(parents=True)
    process = tmp_path / "cgroup"
    process.write_text("1:cpu:/elsewhere\n0::/slice/job\n")
    assert group_memory(tmp_path, process) == sys.maxsize
    for folder, limit, used in ((inner, "max", 5_000), (inner.parent, "9000", 6_000)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 100\ninactive_file 1000\n")
    assert group_memory(tmp_path, process) == 9_000 - 6_000 + 1_000
    (inner / "memory.max").write_text("4000\n")
    assert group_memory(tmp_path, process) == 0
    assert group_memory(tmp_path, tmp_path / "missing") == sys.maxsize


def test_empty_buffer_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no steps"):
        BufferReader(write_buffer(tmp_path / "empty.h5", 0))


def test_negative_memory_is_refused(tmp_path):
    with pytest.raises(UserError, match="memory is -1 bytes, at least 0 wanted"):
        BufferReader(write_buffer(tmp_path / "buffer.h5", 3), -1)


@settings(deadline=None, max_examples=50)
@given(arrays(np.bool_, st.tuples(st.integers(1, 20), st.integers(1, 3))))
def test_frames_at_hand_counts_from_the_last_start(start):
    start[0] = True
    have = frames_at_hand(start, 4)
    for stream in range(start.shape[1]):
        count = 0
        for row in range(start.shape[0]):
            count = 1 if start[row, stream] else count + 1
            assert have[row, stream] == min(count, 4)
