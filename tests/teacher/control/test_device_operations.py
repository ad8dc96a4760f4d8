"""The operations of a GPU, run on the CPU in PyTorch's own fp16 and held to the host's emulation; on a GPU too.

Elementwise operations of fp16 numbers are the same bit for bit but where a function of PyTorch's differs in fp32's last
bit; products may differ in the last bit of the format, for their sums have another order.
"""

import inspect

import numpy as np
import pytest
import torch

from spikestill.common.errors import UserError
from spikestill.common.precision.names import NATIVE
from spikestill.common.precision.rounding import number_format
from spikestill.teacher.control import networks
from spikestill.teacher.control.device_operations import DeviceOperations
from spikestill.teacher.control.learner import FloatLearner, first_overflow, mean_or_sample
from spikestill.teacher.control.operations import AdamRule, HostOperations, Layer, PolicyRule
from tests.teacher.control.agents import OFF, Agent, D, S, config_of, numbers, pictured

DEVICES = [torch.device("cpu"), pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)]
on_each_device = pytest.mark.parametrize("device", DEVICES, ids=str)
in_low_formats = pytest.mark.parametrize("precision", ["fp16", "bf16"])
RULE = PolicyRule(low=-5.0, high=2.0, added=1e-4, limit=10.0, normal_fix=True, softplus_fix=True)
PIXELS = {"game": "pixelled_test", "filters": 4, "features": 6, "hidden": (12, 10), "std_added": 1e-4}


def both_operations(precision, device):
    form = number_format(precision)
    return HostOperations(form), DeviceOperations(form, device)


def drawn(host, *shape, scale=1.0, seed=0):
    """Numbers of the format: some ordinary, some tiny, some near the largest."""
    rng = np.random.default_rng(seed)
    spread = np.exp2(rng.choice([-20.0, -8.0, 0.0, 0.0, 0.0, 6.0], shape))
    return host.array(scale * rng.standard_normal(shape) * spread)


def ulps(found, wanted, form):
    """The largest distance in steps of the format; NaN and infinity must be in the same places."""
    assert np.array_equal(np.isfinite(found), np.isfinite(wanted))
    there = np.isfinite(wanted)
    step = np.maximum(np.abs(wanted[there]), 2.0 ** (2 - 2 ** (form.exponent - 1))) * 2.0**-form.mantissa
    return float(np.max(np.abs(found[there].astype(float) - wanted[there]) / step, initial=0.0))


def test_it_has_every_operation_of_the_host_with_the_same_arguments():
    def signatures(cls):
        found = {
            name: list(inspect.signature(each).parameters)
            for name, each in inspect.getmembers(cls, inspect.isfunction)
        }
        return {name: [*map(plain, names)] for name, names in found.items() if not name.startswith("_")}

    def plain(name):
        # A factor of a row is (B,) on the host, (B, 1) on a device.
        return name.replace("_B1", "_B").replace("_1O", "_O")

    assert signatures(DeviceOperations) == signatures(HostOperations)


@on_each_device
@in_low_formats
@pytest.mark.parametrize("kahan", [True, False])
@pytest.mark.parametrize("root_form", [True, False])
def test_a_step_of_adam_in_a_native_format_is_the_emulated_one(precision, device, kahan, root_form):
    host, other = both_operations(precision, device)
    rule = AdamRule(rate=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, root_form=root_form, kahan=kahan)
    size = 3000
    arrays = [drawn(host, size, seed=seed) for seed in range(4)]
    arrays[2] = np.abs(arrays[2])
    arrays.insert(3, host.zeros(size if kahan else 0))
    tensors = [other.array(each) for each in arrays]
    for step in range(1, 6):
        gradient = drawn(host, size, seed=step)
        for o, (p, m, w, c, g) in ((host, arrays), (other, tensors)):
            g[...] = o.array(gradient)
            with np.errstate(all="ignore"):
                o.adam(p, m, w, c, g, step, 1e4, rule)
    for ours, theirs in zip(arrays[:4], tensors[:4], strict=True):
        found = other.host(theirs)
        if device.type == "cpu":
            assert np.array_equal(found, ours, equal_nan=True)
        else:  # a division by a number of the host is a multiplication there
            assert ulps(found, ours, host.form) <= 2


@on_each_device
@in_low_formats
def test_a_step_of_the_target_is_the_emulated_one(precision, device):
    host, other = both_operations(precision, device)
    p, target, total, c = (drawn(host, 2000, seed=seed) for seed in range(4))
    tensors = [other.array(each) for each in (p, target, total, c)]
    host.average(target, p, 0.005)
    host.average_kahan(total, c, target, p, 0.005, 100.0)
    other.average(tensors[1], tensors[0], 0.005)
    other.average_kahan(tensors[2], tensors[3], tensors[1], tensors[0], 0.005, 100.0)
    for ours, theirs in zip((target, total, c), tensors[1:], strict=True):
        assert ulps(other.host(theirs), ours, host.form) <= (0 if device.type == "cpu" else 2)


@on_each_device
@in_low_formats
@pytest.mark.parametrize("fixes", [True, False])
def test_the_policy_and_its_gradient_are_the_emulated_ones(precision, device, fixes):
    """Functions of PyTorch differ from the C library's in fp32's last bit, which a rounding seldom shows. On a CPU
    PyTorch rounds a number that is added (log 2, ½ log 2π) to the format, on a GPU and here it is an fp32 one."""
    host, other = both_operations(precision, device)
    rule = RULE if fixes else PolicyRule(**{**vars(RULE), "normal_fix": False, "softplus_fix": False})
    head, noise, g_action = (host.array(np.random.default_rng(seed).standard_normal((400, n)) * 2) for seed, n in
                             ((0, 2 * D), (1, D), (2, D)))  # fmt: skip
    with np.errstate(all="ignore"):
        ours = host.sample(head, noise, rule)
        gradient = host.sample_backward(ours, g_action, 0.25, rule)
        theirs = other.sample(other.array(head), other.array(noise), rule)
        their_gradient = other.sample_backward(theirs, other.array(g_action), 0.25, rule)
    found = {name: other.host(getattr(theirs, name)) for name in ours._fields} | {
        "gradient": other.host(their_gradient)
    }
    for name, wanted in {**ours._asdict(), "gradient": gradient}.items():
        same = (found[name] == wanted) | (np.isnan(found[name]) & np.isnan(wanted))
        assert same.mean() > (0.7 if name in ("density_B", "gradient") else 0.98), name
        finite = np.isfinite(found[name]) & np.isfinite(wanted)
        assert (np.isfinite(found[name]) == np.isfinite(wanted)).mean() > 0.99, name
        there, here = found[name][finite], wanted[finite]
        assert (np.abs(there - here) / np.maximum(1.0, np.abs(here))).max() < 8 * 2.0**-host.form.mantissa, (
            name
        )


@on_each_device
@in_low_formats
def test_products_differ_in_the_last_bit_at_most(precision, device):
    host, other = both_operations(precision, device)
    rng = np.random.default_rng(0)
    x, weight, bias, g = (
        host.array(rng.standard_normal(shape)) for shape in ((64, 300), (300, 40), (40,), (64, 40))
    )
    layer, into = Layer(weight, bias), Layer(host.empty(300, 40), host.empty(40))
    there = Layer(other.array(weight), other.array(bias))
    into_there = Layer(other.empty(300, 40), other.empty(40))
    host.weight_gradient(x, g, into)
    for each in into:
        host.finish(each.reshape(-1))
    other.weight_gradient(other.array(x), other.array(g), into_there)
    pairs = [
        (other.linear(other.array(x), there, True), host.linear(x, layer, True)),
        (other.backward(other.array(g), there, other.array(x)), host.backward(g, layer, x)),
        (into_there.weight_IO, into.weight_IO), (into_there.bias_O, into.bias_O),
    ]  # fmt: skip
    for theirs, ours in pairs:
        # Sums that cancel have a larger error than their own last bit: measured by the terms', 300 of size 1.
        assert np.abs(other.host(theirs) - ours).max() <= 16 * 2.0**-host.form.mantissa
        assert (other.host(theirs) == ours).mean() > 0.9


@on_each_device
def test_standardised_weights_of_the_published_width_do_not_overflow_in_fp16(device):
    """39,200 inputs, as large as a training came to: with a variance of 1 the sums would pass 65,504."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((39_200, 3)) * 0.008
    x = np.maximum(rng.standard_normal((4, 39_200)), 0) * 3
    # One picture that lies along an output's weights.
    x[0] = np.maximum(weight[:, 0], 0) * 600
    for o in both_operations("fp16", device):
        standard, _ = o.standardised(o.array(weight), 1e-5)
        out = o.host(o.linear(o.array(x), Layer(standard, o.zeros(3)), False))
        wide = o.host(standard).astype(np.float64)
        norms = np.linalg.norm(wide, axis=0)
        assert np.all((norms > 0.85) & (norms <= 1.001))
        assert np.isfinite(out).all()
        assert (x @ wide).max() * 39_200**0.5 > 65_504


@on_each_device
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("sac", {"methods": {"kahan_actor": True}}),
        ("sac", {"methods": OFF | {"loss_scaling": "amp"}, "actor_period": 2}),
        ("sac", {"methods": {"hadam": True, "normal_fix": True, "kahan_momentum": True, "loss_scaling": "compound",
                             "kahan_gradients": True, "loss_scale_period": 10}}),
        ("sac", {"methods": {"loss_scaling": "compound"}, **PIXELS}),
        ("sac", {"methods": {"weight_standardisation": True, "feature_limit": True}, **PIXELS, "crop": 0}),
        ("ddpg", {"twin_critics": True, "target_noise": 0.3, "actor_period": 2, "target_period": 2}),
        ("ddpg", {}),
    ],
)  # fmt: skip
def test_in_fp64_updates_are_those_of_the_host(algorithm, options, device):
    agents = []
    for o in both_operations("fp64", device):
        agent = Agent(config_of(algorithm, **options), o=o)
        pixels = agent.settings.encoder is not None
        for seed in range(4 if pixels else 30):
            rng = np.random.default_rng(seed)
            report = agent.update(pictured(rng, agent.settings) if pixels else numbers(rng))
        agents.append((agent.weights(), o.host(report["values"][0])))
        assert agent.state.critics.steps > 0
    # Pictures are divided by 255 in the format's own type on both.
    np.testing.assert_allclose(agents[1][0], agents[0][0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(agents[1][1], agents[0][1], rtol=1e-8, atol=1e-11)


@on_each_device
@pytest.mark.parametrize("pixels", [False, True])
def test_in_fp16_a_training_stays_as_near_to_fp64_as_the_emulated_one(pixels, device):
    options = {"methods": {}, **(PIXELS if pixels else {})}
    encoder = {"weight_standardisation": pixels, "feature_limit": pixels}
    exact = Agent(config_of("sac", precision="fp64", **options | {"methods": OFF | encoder}))
    host, other = both_operations("fp16", device)
    agents = [exact, *(Agent(config_of("sac", precision="fp16", **options), o=o) for o in (host, other))]
    start = exact.weights().copy()
    with np.errstate(all="ignore"):
        for seed in range(5 if pixels else 40):
            for agent in agents:
                rng = np.random.default_rng(seed)
                agent.update(pictured(rng, agent.settings) if pixels else numbers(rng))
    moved = np.linalg.norm(exact.weights() - start)
    apart = [np.linalg.norm(agent.weights() - exact.weights()) for agent in agents[1:]]
    assert apart[1] < 1.5 * apart[0]
    assert apart[1] < (0.5 if pixels else 0.2) * moved
    native = agents[2].state
    assert native.critics.p_NP.dtype == torch.float16
    assert native.critics.scale == agents[1].state.critics.scale
    assert native.critics.skipped == agents[1].state.critics.skipped


@on_each_device
def test_naive_fp16_breaks_there_too(device):
    agent = Agent(config_of("sac", precision="fp16"), o=DeviceOperations(number_format("fp16"), device))
    for seed in range(3):
        agent.update(numbers(np.random.default_rng(seed)))
    assert not agent.o.finite(agent.state.critics.p_NP)


@on_each_device
def test_an_overflow_leaves_the_step_out_and_halves_scale_and_moments(device):
    agent = Agent(
        config_of("sac", precision="fp16", methods={}), o=DeviceOperations(number_format("fp16"), device)
    )
    for seed in range(3):
        agent.update(numbers(np.random.default_rng(seed)))
    critics = agent.state.critics
    before = critics.p_NP.clone(), critics.m_NP.clone(), critics.scale
    batch, noise = numbers(np.random.default_rng(3))
    agent.update((batch._replace(reward_B=np.full(16, 6e4)), noise))
    assert torch.equal(critics.p_NP, before[0])
    assert torch.equal(critics.m_NP, before[1] * 0.5)
    assert (critics.scale, critics.skipped, critics.in_a_row) == (before[2] / 2, 1, 1)


@on_each_device
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_what_it_saves_the_host_restores_and_acts_by(precision, device):
    host, other = both_operations(precision, device)
    config = config_of("sac", precision=precision, methods={})
    there, here = Agent(config, o=other), Agent(config, seed=1, o=host)
    for seed in range(5):
        there.update(numbers(np.random.default_rng(seed)))
    saved = there.state.arrays(other)
    here.state.restore(host, saved)
    restored = here.state.arrays(host)
    assert saved.keys() == restored.keys()
    for name, array in saved.items():
        assert array.dtype == restored[name].dtype, name
        assert np.array_equal(array, restored[name]), name
    obs = np.random.default_rng(9).standard_normal((50, S)).astype(np.float32)
    first, second = (mean_or_sample(each.o, each.state, each.settings, obs, None) for each in (there, here))
    np.testing.assert_allclose(first, second, atol=0.02)


def test_a_copy_of_the_state_tells_which_operation_overflows_first(monkeypatch):
    agent = Agent(
        config_of("sac", precision="fp16"), o=DeviceOperations(number_format("fp16"), torch.device("cpu"))
    )
    monkeypatch.setattr("spikestill.teacher.control.learner.operations_of", lambda _: agent.o)
    batch, noise = numbers(np.random.default_rng(0))
    with torch.no_grad():
        networks.layers(agent.state.critics.p_NP[0], agent.settings.critic_sizes)[1].weight_IO.fill_(60000.0)
    before = agent.state.critics.p_NP.clone()
    found = first_overflow(agent.state, agent.settings, batch, noise)
    assert found == "matrix product, forward"
    assert torch.equal(agent.state.critics.p_NP, before)


def test_a_learner_on_a_device_updates_reports_and_gives_its_weights(monkeypatch, tmp_path):
    """As with --device cuda, but that the device is the processor."""
    monkeypatch.setattr("spikestill.teacher.control.learner.compute_device", lambda _: torch.device("cpu"))
    learner = FloatLearner(config_of("sac", precision="fp16", methods={}, device="cuda"), S, D, 0)
    host = FloatLearner(config_of("sac", precision="fp16", methods={}), S, D, 0)
    assert isinstance(learner.o, DeviceOperations)
    for seed in range(5):
        batch, _ = numbers(np.random.default_rng(seed))
        reports = [each.update(batch, np.random.default_rng(seed)) for each in (learner, host)]
    assert reports[0].keys() == reports[1].keys()
    assert reports[0]["loss"] == pytest.approx(reports[1]["loss"], rel=0.05)
    assert learner.weights().keys() == host.weights().keys()
    assert all(each.dtype == np.float32 for each in learner.weights().values())
    obs, action = np.zeros((4, S), np.float32), np.zeros((4, D), np.float32)
    np.testing.assert_allclose(learner.values(obs, action), host.values(obs, action), atol=0.02)


@pytest.mark.parametrize("precision", ["e5m2", "fp8-e4m3"])
def test_a_format_that_a_gpu_does_not_compute_is_refused(precision):
    with pytest.raises(
        UserError, match=rf"device cuda with precision {precision}.*{', '.join(NATIVE)}.*--device cpu"
    ):
        config_of("sac", precision=precision, methods={}, adam_epsilon=1e-5, device="cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_learner_says_so():
    with pytest.raises(UserError, match="device cuda: PyTorch sees no CUDA device"):
        FloatLearner(config_of("sac", device="cuda"), S, D, 0)


def test_a_gpu_sums_products_in_fp32():
    DeviceOperations(number_format("fp16"), torch.device("cpu"))
    matmul = torch.backends.cuda.matmul
    assert not matmul.allow_fp16_reduced_precision_reduction
    assert not matmul.allow_bf16_reduced_precision_reduction
    assert not matmul.allow_tf32


@on_each_device
def test_every_network_s_parameters_begin_where_products_like_it(device):
    agent = Agent(
        config_of("sac", precision="fp16", methods={}), o=DeviceOperations(number_format("fp16"), device)
    )
    assert agent.state.critics.p_NP.shape[1] % 8, "else nothing is shown"
    for group in (agent.state.critics.p_NP, agent.state.critics.g_NP, agent.state.target_NP):
        assert [network.data_ptr() % 16 for network in group] == [0, 0]


@on_each_device
def test_a_step_in_slices_is_the_step_of_the_whole(device, monkeypatch):
    agents = []
    for slices in (1 << 22, 100):
        monkeypatch.setattr("spikestill.teacher.control.device_operations.SLICE", slices)
        o = DeviceOperations(number_format("fp16"), device)
        agents.append(Agent(config_of("sac", precision="fp16", methods={}), o=o))
        for seed in range(3):
            agents[-1].update(numbers(np.random.default_rng(seed)))
    assert np.array_equal(agents[0].weights(), agents[1].weights())


@pytest.mark.parametrize("values", [[1.0, np.nan], [np.inf, 0.0], [-np.inf], [65504.0, -65504.0], []])
def test_finite_tells_nan_and_infinity_of_either_sign(values):
    o = DeviceOperations(number_format("fp16"), torch.device("cpu"))
    assert o.finite(o.array(values)) == bool(np.isfinite(values).all())


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_wide_agent_learns_on_a_gpu_what_it_learns_on_the_host(precision):
    """Wide enough for the kernels that a published width meets."""
    form = number_format(precision)
    config = config_of("sac", precision=precision, methods={}, hidden=(1024, 1024), batch_size=256)
    agents = [
        Agent(config, o=o) for o in (HostOperations(form), DeviceOperations(form, torch.device("cuda")))
    ]
    start = agents[0].weights().copy()
    for seed in range(3):
        for agent in agents:
            agent.update(numbers(np.random.default_rng(seed), 256))
    moved = np.linalg.norm(agents[0].weights() - start)
    apart = np.linalg.norm(agents[1].weights() - agents[0].weights())
    assert apart < (0.02 if precision == "fp32" else 0.3) * moved
