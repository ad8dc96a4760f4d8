"""Updates that were written down against the operations one by one: the same bits, on one thread and on two."""

import time

import numpy as np
import pytest

from spikestill.teacher.control import lanes
from spikestill.teacher.control import learner as learners
from spikestill.teacher.control.actor_critic import Batch
from spikestill.teacher.control.blas import compiled_code_calls, one_thread
from spikestill.teacher.control.lanes import OtherThread, in_turn
from spikestill.teacher.control.learner import FloatLearner
from spikestill.teacher.control.program import can_be_recorded
from tests.teacher.control.agents import D, S, config_of

TD3 = {"twin_critics": True, "target_noise": 0.0, "actor_period": 2, "target_period": 3}
AGENTS = {
    "sac": {"algorithm": "sac"},
    "sac, rarer": {"algorithm": "sac", "actor_period": 2, "target_period": 2, "batch_size": 7},
    "ddpg": {"algorithm": "ddpg"},
    "ddpg, twins": {"algorithm": "ddpg", **TD3},
    "ddpg, few transitions": {"algorithm": "ddpg", "batch_size": 5},
}
HASTY = {"loss_scale_period": 5}
"""The loss scale doubles within a test, too."""

pytestmark = pytest.mark.skipif(
    not compiled_code_calls(), reason="NumPy has another library than OpenBLAS with 64-bit integers"
)


@pytest.fixture(autouse=True)
def _one_thread_each():
    with one_thread():
        yield


@pytest.fixture
def other():
    thread = OtherThread()
    yield thread
    thread.close()
    assert not thread._thread.is_alive()


def batch_of(seed, size, scale=1.0):
    rng = np.random.default_rng(seed)
    obs, following = (rng.standard_normal((size, S)).astype(np.float32) for _ in range(2))
    action = rng.uniform(-1, 1, (size, D)).astype(np.float32)
    reward = (scale * rng.standard_normal(size)).astype(np.float32)
    return Batch(obs, action, reward, (rng.uniform(size=size) < 0.9).astype(np.float32), following)


def trained(learner, first, last, size):
    """Do updates; some overflow fp16."""
    found = []
    for index in range(first, last):
        scale = 1e4 if index in (6, 7, 15) else 1.0
        found.append(learner.update(batch_of(index, size, scale), np.random.default_rng(index)))
    return found


def one_by_one(monkeypatch, config, both=in_turn):
    with monkeypatch.context() as patched:
        patched.setattr(learners, "can_be_recorded", lambda *_: False)
        return FloatLearner(config, S, D, 0, both)


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert np.array_equal(left[name], right[name], equal_nan=True), name


@pytest.mark.parametrize("precision", ["fp32", "fp64", "fp16", "bf16"])
@pytest.mark.parametrize("agent", AGENTS)
def test_a_program_gives_what_its_operations_give_bit_for_bit(agent, precision, other, monkeypatch):
    methods = HASTY if precision == "fp16" else {}
    config = config_of(precision=precision, methods=methods, **AGENTS[agent])
    plain = one_by_one(monkeypatch, config)
    others = [FloatLearner(config, S, D, 0, both) for both in (in_turn, other)]
    wanted = trained(plain, 0, 20, config.batch_size)
    for learner in others:
        assert trained(learner, 0, 20, config.batch_size) == wanted
        assert learner._programs
        same(learner.arrays(), plain.arrays())
    assert not plain._programs
    groups = plain.state.groups.values()
    if precision == "fp16":
        assert any(group.skipped for group in groups)
        assert any(group.good < group.steps for group in groups)
    else:
        assert not any(group.skipped for group in groups)


def test_a_loss_scale_that_doubles_with_every_update_does_so(monkeypatch):
    config = config_of(precision="fp16", methods={"loss_scale_period": 1}, algorithm="sac")
    plain, program = one_by_one(monkeypatch, config), FloatLearner(config, S, D, 0)
    first = plain.state.critics.scale
    assert trained(plain, 0, 4, config.batch_size) == trained(program, 0, 4, config.batch_size)
    assert program._programs
    same(plain.arrays(), program.arrays())
    assert plain.state.critics.scale > first


def test_an_error_while_the_other_thread_s_part_is_compiled_is_told(other, monkeypatch):
    def fails(*_):
        raise MemoryError("no room for the kernel")

    config = config_of(precision="fp32", methods={}, algorithm="ddpg")
    learner = FloatLearner(config, S, D, 0, other)
    with monkeypatch.context() as patched:
        patched.setattr(lanes.program_kernel, "serve", fails)
        with pytest.raises(MemoryError, match="no room"):
            trained(learner, 0, 1, config.batch_size)
    assert len(trained(learner, 0, 1, config.batch_size)) == 1


def test_programs_of_another_format_are_refused_on_the_same_thread(other):
    first, second = (
        FloatLearner(config_of(precision=precision, methods={}, algorithm="ddpg"), S, D, 0, other)
        for precision in ("fp32", "fp64")
    )
    trained(first, 0, 1, 16)
    with pytest.raises(AssertionError):
        trained(second, 0, 1, 16)


def test_it_goes_on_from_a_checkpoint_in_the_arrays_that_it_knows(other, monkeypatch):
    config = config_of(precision="fp16", methods=HASTY, algorithm="ddpg")
    whole, resumed = FloatLearner(config, S, D, 0, in_turn), FloatLearner(config, S, D, 1, other)
    trained(whole, 0, 9, config.batch_size)
    trained(resumed, 30, 33, config.batch_size)
    resumed.restore(whole.arrays())
    assert trained(whole, 9, 20, config.batch_size) == trained(resumed, 9, 20, config.batch_size)
    same(whole.arrays(), resumed.arrays())


def test_two_programs_and_other_work_take_turns_on_one_thread(other, monkeypatch):
    config = config_of(precision="fp32", methods={}, algorithm="sac")
    plain, several = one_by_one(monkeypatch, config), [FloatLearner(config, S, D, 0, other) for _ in range(2)]
    for index in range(4):
        wanted = trained(plain, index, index + 1, config.batch_size)
        for learner in several:
            assert trained(learner, index, index + 1, config.batch_size) == wanted
            assert other(lambda number: number, 3) == [0, 1, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "ddpg", "target_noise": 0.2},
        {"algorithm": "sac", "precision": "fp16", "methods": {"loss_scaling": "amp"}},
        {"algorithm": "sac", "precision": "bf16", "methods": {"loss_scaling": "none"}},
        {"algorithm": "ddpg", "batch_size": 1},
        {"algorithm": "sac", "hidden": (5, 1)},
    ],
    ids=["noise drawn on the way", "amp", "no scale in few bits", "one transition", "one unit"],
)
def test_what_a_program_cannot_do_is_done_one_by_one(options):
    options = {"precision": "fp32", "methods": {}} | options
    learner = FloatLearner(config_of(**options), S, D, 0)
    assert not can_be_recorded(learner.o, learner.settings)
    plain = FloatLearner(
        config_of(**options | {"target_noise": 0.0, "batch_size": 4, "methods": {}, "hidden": (8, 8)}),
        S,
        D,
        0,
    )
    assert can_be_recorded(plain.o, plain.settings)


def test_a_thread_without_programs_rests_and_hears_of_the_next_one(other):
    config = config_of(precision="fp32", methods={}, algorithm="ddpg")
    learner = FloatLearner(config, S, D, 0, other)
    trained(learner, 0, 2, config.batch_size)
    began = time.thread_time(), time.process_time()
    time.sleep(1.0)
    own, whole = time.thread_time() - began[0], time.process_time() - began[1]
    assert whole - own < 0.5
    assert len(trained(learner, 2, 4, config.batch_size)) == 2
