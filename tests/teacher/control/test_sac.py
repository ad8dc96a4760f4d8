import numpy as np
import pytest
import torch

from spikestill.common.precision.names import smallest, vanishes
from spikestill.common.precision.rounding import number_format
from spikestill.configs.control import MethodsConfig
from spikestill.teacher.control import networks
from spikestill.teacher.control.optimiser import grow
from tests.teacher.control.agents import OFF, Agent, D, config_of, numbers


def oracle(agent, batches):
    """The same training with PyTorch's gradients and Adam: (actor, critics, log α, target) as one vector."""
    config, settings = agent.config, agent.settings
    sac = config.algorithm == "sac"

    def parts(flat, sizes):
        return [torch.tensor(each) for layer in networks.layers(flat, sizes) for each in layer]

    def net(weights, x):
        for index in range(0, len(weights), 2):
            x = x @ weights[index] + weights[index + 1]
            x = torch.relu(x) if index + 2 < len(weights) else x
        return x

    def pi(weights, obs, noise):
        mean, z = net(weights, obs).chunk(2, 1)
        low, high = config.log_std_low, config.log_std_high
        log_std = low + 0.5 * (high - low) * (torch.tanh(z) + 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        u = mean + log_std.exp() * noise
        a = torch.tanh(u)
        density = normal.log_prob(u) - 2 * (np.log(2.0) - u - torch.log(1 + torch.exp(-2 * u)))
        return a, density.sum(1)

    actor = parts(agent.state.actor.p_NP[0], settings.actor_sizes)
    critics = [parts(each, settings.critic_sizes) for each in agent.state.critics.p_NP]
    targets = [[each.clone() for each in critic] for critic in critics]
    target_actor = [each.clone() for each in actor]
    log_alpha = torch.tensor([np.log(config.initial_temperature)])
    for each in [*actor, *(w for critic in critics for w in critic), log_alpha]:
        each.requires_grad_()
    adams = [
        torch.optim.Adam(group, lr=config.learning_rate)
        for group in (actor, [w for critic in critics for w in critic], [log_alpha])
    ]

    def minimise(adam, loss, group):
        adam.zero_grad()
        for weight, gradient in zip(group, torch.autograd.grad(loss, group), strict=True):
            weight.grad = gradient
        adam.step()

    for index, (batch, noise) in enumerate(batches):
        obs, action, reward, going_on, following = (torch.tensor(np.asarray(each)) for each in batch)
        with torch.no_grad():
            alpha = log_alpha.exp() if sac else torch.zeros(1)
            if sac:
                a, density = pi(actor, following, torch.tensor(noise.next_BD))
            else:
                added = (config.target_noise * torch.tensor(noise.next_BD)).clamp(-0.5, 0.5)
                a = (torch.tanh(net(target_actor, following)) + added).clamp(-1, 1)
                density = torch.zeros(len(obs))
            values = torch.cat([net(each, torch.cat([following, a], 1)) for each in targets], 1)
            y = reward + config.discount * going_on * (values.min(1).values - alpha * density)
        x = torch.cat([obs, action], 1)
        loss = sum(((net(each, x)[:, 0] - y) ** 2).mean() for each in critics)
        minimise(adams[1], loss, [w for critic in critics for w in critic])
        if index % config.actor_period == 0:
            if sac:
                a, density = pi(actor, obs, torch.tensor(noise.now_BD))
            else:
                a, density = torch.tanh(net(actor, obs)), torch.zeros(len(obs))
            # SAC's actor follows the smaller of both critics, DDPG's and TD3's the first one.
            asked = critics if sac else critics[:1]
            values = torch.cat([net(each, torch.cat([obs, a], 1)) for each in asked], 1)
            minimise(adams[0], (alpha * density - values.min(1).values).mean(), actor)
            if sac:
                minimise(adams[2], (log_alpha.exp() * (-density.detach() + D)).mean(), [log_alpha])
        if index % config.target_period == 0:
            with torch.no_grad():
                for pair in [*zip(targets, critics, strict=True), (target_actor, actor)]:
                    for target, weight in zip(*pair, strict=True):
                        target.lerp_(weight, config.target_rate)
    found = [*actor, *(w for critic in critics for w in critic)]
    found += [log_alpha] if sac else []
    found += [w for target in targets for w in target]
    return np.concatenate([each.detach().numpy().reshape(-1) for each in found])


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("sac", {}),
        ("sac", {"actor_period": 3}),
        ("ddpg", {}),
        ("ddpg", {"twin_critics": True, "hidden": (16, 8, 4)}),
        ("ddpg", {"twin_critics": True, "target_noise": 0.3, "actor_period": 2, "target_period": 2}),
    ],
)
def test_in_fp64_updates_are_those_of_pytorch(algorithm, options):
    agent = Agent(config_of(algorithm, **options))
    rng = np.random.default_rng(1)
    batches = [numbers(rng) for _ in range(30)]
    wanted = oracle(agent, batches)
    for each in batches:
        agent.update(each)
    np.testing.assert_allclose(agent.weights(), wanted, rtol=1e-9, atol=1e-12)


DOUBLING = {"loss_scale_period": 40}
"""The scale doubles on its way."""
IDENTITIES = [
    {"hadam": True}, {"normal_fix": True}, {"kahan_momentum": True}, {"loss_scaling": "compound", **DOUBLING},
    {"kahan_gradients": True, "kahan_actor": True}, {"loss_scaling": "amp", **DOUBLING},
    {"hadam": True, "normal_fix": True, "kahan_momentum": True, "loss_scaling": "compound", "kahan_gradients": True,
     **DOUBLING},
]  # fmt: skip


@pytest.mark.parametrize("algorithm", ["sac", "ddpg"])
@pytest.mark.parametrize("methods", IDENTITIES, ids=lambda methods: "+".join(methods))
def test_in_fp64_every_method_but_the_softplus_fix_changes_nothing(algorithm, methods):
    plain = Agent(config_of(algorithm))
    other = Agent(config_of(algorithm, methods=OFF | methods))
    for seed in range(100):
        plain.update(numbers(np.random.default_rng(seed)))
        other.update(numbers(np.random.default_rng(seed)))
    if "loss_scaling" in methods:
        assert other.state.critics.scale == 4 * other.config.methods.loss_scale
    np.testing.assert_allclose(other.weights(), plain.weights(), rtol=1e-9, atol=1e-12)


def test_in_fp16_all_six_methods_stay_near_fp64_and_plain_sac_does_not():
    exact = Agent(config_of("sac", precision="fp64"))
    six = Agent(config_of("sac", precision="fp16", methods={}))
    plain = Agent(config_of("sac", precision="fp16"))
    start = exact.weights().copy()
    with np.errstate(all="ignore"):
        for seed in range(60):
            for agent in (exact, six, plain):
                agent.update(numbers(np.random.default_rng(seed)))
    moved = np.linalg.norm(exact.weights() - start)
    assert np.linalg.norm(six.weights() - exact.weights()) < 0.2 * moved
    # Adam's epsilon is 0 in fp16, and so is the second moment of a small gradient.
    assert not np.isfinite(plain.weights()).all()


def test_an_overflow_leaves_the_step_out_and_halves_scale_and_moments():
    agent = Agent(config_of("sac", precision="fp16", methods={}))
    for seed in range(3):
        agent.update(numbers(np.random.default_rng(seed)))
    before = agent.state.critics.p_NP.copy(), agent.state.critics.m_NP.copy(), agent.state.critics.scale
    batch, noise = numbers(np.random.default_rng(3))
    with np.errstate(all="ignore"):
        agent.update((batch._replace(reward_B=np.full(16, 6e4)), noise))
    critics = agent.state.critics
    assert np.array_equal(critics.p_NP, before[0])
    assert critics.scale == before[2] / 2
    assert (critics.skipped, critics.in_a_row, critics.good) == (1, 1, 0)
    np.testing.assert_allclose(critics.m_NP, before[1] / 2, atol=2**-24)


@pytest.mark.parametrize(("hadam", "largest"), [(True, 4e4), (False, 2e4)])
def test_a_scale_that_moments_cannot_follow_stays_and_so_do_they(hadam, largest):
    """After enough good steps the scale doubles, where twice the moments of all that one loss trains are finite."""
    agent = Agent(config_of("sac", precision="fp16", methods={"hadam": hadam, "loss_scale_period": 5}))
    o, methods, together = agent.o, agent.settings.methods, [agent.state.actor, agent.state.critics]
    scale, rng = together[0].scale, np.random.default_rng(0)
    for trained in together:
        trained.m_NP[...] = o.array(rng.standard_normal(trained.m_NP.shape))
        trained.w_NP[...] = o.array(rng.random(trained.w_NP.shape))
    together[1].w_NP[1, 7] = largest  # doubled, or times four where it is no root, beyond 65,504
    before = [(trained.m_NP.copy(), trained.w_NP.copy()) for trained in together]
    for trained in together:
        trained.good = 5
    grow(o, together, methods)
    for trained, (m_NP, w_NP) in zip(together, before, strict=True):
        assert (trained.scale, trained.good) == (scale, 0)
        assert np.array_equal(trained.m_NP, m_NP)
        assert np.array_equal(trained.w_NP, w_NP)
    together[1].w_NP[1, 7] = 1.0
    for trained in together:
        trained.good = 5
    grow(o, together, methods)
    for trained, (m_NP, _) in zip(together, before, strict=True):
        assert trained.scale == 2 * scale
        np.testing.assert_allclose(trained.m_NP, 2 * m_NP, rtol=1e-3, atol=2.0**-24)
    assert together[1].w_NP[1, 7] == (2.0 if hadam else 4.0)


@pytest.mark.parametrize("algorithm", ["sac", "ddpg"])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp8-e5m2", "fp8-e4m3", "e6m2"])
def test_every_number_of_a_low_precision_agent_is_one_of_its_format(precision, algorithm):
    agent = Agent(config_of(algorithm, precision=precision, methods={}))
    with np.errstate(all="ignore"):
        for seed in range(20):
            agent.update(numbers(np.random.default_rng(seed)))
    for name, array in agent.state.arrays(agent.o).items():
        assert np.isfinite(array).all(), name
        if "counters" not in name and name != "updates":
            assert np.array_equal(array, agent.o.form.round(array)), name
    for group in agent.state.groups.values():
        assert group.steps >= 10


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, (1e4, 10_000)),
        ({"loss_scaling": "compound"}, (1e4, 10_000)),
        ({"loss_scaling": "amp"}, (65_536.0, 2_000)),
        ({"loss_scaling": "amp", "loss_scale": 1e4, "loss_scale_period": 10_000}, (1e4, 10_000)),
    ],
)
def test_amp_begins_with_its_own_scale_and_period(given, wanted):
    methods = MethodsConfig(**given)
    assert (methods.loss_scale, methods.loss_scale_period) == wanted
    agent = Agent(config_of(precision="fp16", methods=given))
    assert agent.state.critics.scale == wanted[0]


def test_what_a_format_ends_at_limits_kahan_s_scale_and_the_softplus_fix():
    limits = {}
    for precision in ("fp32", "fp16", "fp8-e5m2", "fp8-e4m3"):
        methods = MethodsConfig().resolved(number_format(precision))
        limits[precision] = methods.kahan_scale, round(methods.softplus_limit, 2)
    usual = (1e4, 10.0)
    assert limits == {"fp32": usual, "fp16": usual, "fp8-e5m2": usual, "fp8-e4m3": (112.0, 6.1)}


@pytest.mark.parametrize(
    ("precision", "rewards", "halvings"), [("fp16", 1e4, 12), ("fp8-e4m3", 50.0, 1), ("fp8-e5m2", 1e3, 8)]
)
def test_a_scale_that_overflows_halve_often_never_makes_epsilon_0(precision, rewards, halvings):
    """ε times the scale would be 0 in the format; with loss scaling of another kind it is, as published."""
    agent, rng = Agent(config_of("sac", precision=precision, methods={})), np.random.default_rng(0)
    with np.errstate(all="ignore"):
        for _ in range(150):
            batch, noise = numbers(rng)
            agent.update((batch._replace(reward_B=batch.reward_B * rewards), noise))
    critics = agent.state.critics
    assert critics.skipped >= halvings
    assert vanishes(critics.scale * agent.settings.adam.epsilon, precision)
    assert agent.o.scalar(agent.settings.adam.scaled_epsilon(critics.scale)) == smallest(precision)
    assert critics.steps > 100
    assert np.isfinite(agent.weights()).all()
    amp = Agent(config_of("sac", precision=precision, methods={"loss_scaling": "amp"}))
    assert amp.settings.adam.scaled_epsilon(1.0) == amp.settings.adam.epsilon
