"""Work on two threads: the results in their order, errors of either thread, and work after an error."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spikestill.teacher.control.lanes import TURN_S, OtherThread, by_turns, in_turn, quick_turns, side_by_side


@pytest.fixture
def both():
    other = OtherThread()
    yield other
    other.close()
    assert not other._thread.is_alive()


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5, 8])
def test_results_are_those_of_one_thread_and_in_their_order(both, number):
    assert both(lambda index: index * index, number) == in_turn(lambda index: index * index, number)


def test_every_second_piece_is_done_on_the_other_thread(both):
    found = both(lambda _: threading.get_ident(), 4)
    assert found[0] == found[2] == threading.get_ident()
    assert found[1] == found[3] != found[0]
    assert side_by_side(both, lambda: "one", lambda: "two") == ["one", "two"]


@pytest.mark.parametrize("broken", [0, 1])
def test_an_error_of_either_thread_comes_through_and_the_next_work_is_done(both, broken):
    def work(index):
        if index == broken:
            raise ValueError(f"piece {index}")
        return index

    with pytest.raises(ValueError, match=f"piece {broken}"):
        both(work, 2)
    assert both(lambda index: index, 3) == [0, 1, 2]


def test_turns_of_one_are_one_after_the_other_and_no_thread_waits_for_a_slower_one():
    turns, at_work = {"a": 0, "b": 0, "c": 0}, set()
    both = threading.Barrier(2, timeout=60)

    def turn(name):
        assert name not in at_work
        at_work.add(name)
        if turns[name] < 2:  # six turns in all: two at a time, or the barrier breaks
            both.wait()
        at_work.remove(name)
        turns[name] += 1
        return turns[name] < 3

    with ThreadPoolExecutor(2) as pool:
        by_turns(pool, list(turns), turn)
    assert turns == {"a": 3, "b": 3, "c": 3}


def test_an_error_in_a_turn_comes_through():
    def turn(number):
        if number == 1:
            raise ValueError("turn of 1")
        return False

    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="turn of 1"):
        by_turns(pool, [0, 1, 2], turn)


def test_threads_ask_for_the_interpreter_s_lock_sooner_within_alone():
    before = sys.getswitchinterval()

    def fails():
        with quick_turns():
            found.append(sys.getswitchinterval())
            raise ValueError("within")

    found: list[float] = []
    with pytest.raises(ValueError, match="within"):
        fails()
    assert found == [pytest.approx(TURN_S)]
    assert sys.getswitchinterval() == before > TURN_S
