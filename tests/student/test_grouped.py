"""The CPU's kernels beside PyTorch's own operations."""

import numpy as np
import pytest
import torch
from numba import njit

from spikestill.common.kernel_arrays import kernel_array
from spikestill.common.vectors import add_products, read, write
from spikestill.student import grouped, narrow_kernel, quantise
from spikestill.student.architectures import ARCHITECTURES, LayerSpec, architecture, centred
from spikestill.student.network import StudentNetwork
from tests.nets import SMALL_ON_STACKS as SMALL

# One lane and several, in one piece and in several; a first layer that pads, strides that leave pixels unread.
ODD = (
    LayerSpec(8, 7, 5, 2, 1),
    LayerSpec(24, 4, 3, 1, 2),
    LayerSpec(18, 2, 1, 1, 3),
    LayerSpec(10, 1, 1, 0, 2),
)


def made(layers, dtype, actions=3):
    """Return a network whose thresholds lie between two sums, and stacks."""
    generator = torch.Generator().manual_seed(0)
    network = StudentNetwork(layers, actions, dtype=dtype, seed=1)
    for layer in network.ternary_layers():
        layer.mu.uniform_(0.1, 0.4, generator=generator)
        layer.variance.uniform_(1.0, 3.0, generator=generator)
        with torch.no_grad():
            layer.gamma.uniform_(0.2, 1.0, generator=generator)
    stacks = torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8, generator=generator)
    return network, stacks


def trained_once(network, stacks, way, kept, penalty=0.5, renormalise=True):
    """Return votes, statistics, spikes and all gradients of one way to propagate."""
    weights = network.working_weights()
    rates, statistics, spikes = getattr(network, way)(stacks, weights, renormalise, penalty, kept)
    generator = torch.Generator().manual_seed(2)
    loss = (rates * torch.randn(rates.shape, generator=generator)).sum()
    for index in sorted(kept):
        loss = loss + (spikes[index].float() * torch.randn(spikes[index].shape, generator=generator)).mean()
    layers = network.ternary_layers()
    leaves = [*weights, *(layer.gamma for layer in layers), *(layer.beta for layer in layers)]
    return rates, statistics, spikes, torch.autograd.grad(loss, leaves)


ONE_CHIP = centred(architecture("1chip"), 84)
NETS_FORMATS_FORMS = [
    pytest.param(layers, dtype, form, id=f"{name}-{dtype}-{form}", marks=[pytest.mark.slow] * seldom)
    for name, layers in (("small", SMALL), ("odd", ODD), ("1chip", ONE_CHIP))
    for dtype in (torch.float32, torch.bfloat16)
    for form in ("layers", "squares")
    for seldom in [layers is ONE_CHIP and (dtype, form) != (torch.float32, "layers")]
]


@pytest.mark.parametrize(("layers", "dtype", "form"), NETS_FORMATS_FORMS)
def test_group_by_group_is_what_convolutions_give(layers, dtype, form):
    network, stacks = made(layers, dtype)
    network.sparsity_form = form
    kept = (0, len(layers) - 2, len(layers) - 1)
    ours = trained_once(network, stacks, "_group_by_group", kept)
    theirs = trained_once(network, stacks, "_by_convolutions", kept)
    torch.testing.assert_close(ours[0], theirs[0])
    for found, expected in zip(ours[1], theirs[1], strict=True):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert ours[2].keys() == theirs[2].keys()
    for index in kept:
        assert torch.equal(ours[2][index], theirs[2][index])
    for found, expected in zip(ours[3], theirs[3], strict=True):
        error = (found.float() - expected.float()).norm() / expected.float().norm()
        assert error < (2e-2 if dtype == torch.bfloat16 else 2e-3)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_grouped_pass_of_every_table_1_net_is_exact(name):
    network, stacks = made(architecture(name), torch.float32)
    with torch.no_grad():
        weights = network.working_weights()
        *_, ours = network._group_by_group(stacks[:1], weights, True, 0.0, range(len(weights)))
        *_, theirs = network._by_convolutions(stacks[:1], weights, True, 0.0, range(len(weights)))
    for index in theirs:
        assert torch.equal(ours[index], theirs[index]), index


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_batchs_own_statistics_normalise_as_the_plain_formulas(dtype):
    """One layer, from the sums on."""
    layer = grouped.plan([LayerSpec(32, 1, 1, 0, 2)], 16, [5, 5], 6, 4)[0]
    generator = torch.Generator().manual_seed(0)
    s = torch.randint(-60, 60, (6, 5, 5, 2, 16), generator=generator).to(dtype)
    dy = torch.randn((6, 5, 5, 2, 16), generator=generator).to(dtype)
    plain_s, plain_dy = s.reshape(-1, 32), dy.reshape(-1, 32)
    laid_out = s.reshape(1, 150, 2, 16).permute(0, 2, 1, 3).contiguous().view(-1)
    affine = torch.stack([torch.rand(32, generator=generator), torch.randn(32, generator=generator) * 0.2])
    pressure = quantise.Pressure(0.01, 0.3)
    y, plain, normal = grouped.normalised_step(laid_out, affine, None, pressure, layer, True, dtype)
    variance, mean = quantise.statistics(plain_s)
    torch.testing.assert_close(normal[0], mean)
    torch.testing.assert_close(normal[2], variance)
    assert plain is not None
    assert torch.equal(plain.view(-1, 32), quantise.fire(plain_s, normal[3], normal[4]))
    assert torch.equal(y, plain)
    found = grouped.step_gradient(laid_out, dy.view(-1), None, normal, layer)
    mu, scale, _, slope, offset, *_, pushed = normal
    torch.testing.assert_close(pushed, pressure.on(plain.view(-1, 32).float().mean(dim=0)))
    expected = quantise.step_gradient(plain_s, plain_dy, mu, scale, slope, offset, pushed)
    ds = found[0].view(2, 150, 16).permute(1, 0, 2).reshape(-1, 32)
    for one, other in zip((ds, *found[1:]), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-3)


def test_statistics_survive_a_mean_far_above_the_spread():
    layer = grouped.plan([LayerSpec(5, 1, 1, 0, 1)], 5, [10, 10], 50, 4)[0]
    s = 30_000.0 + torch.randint(-3, 4, (5000, 5), generator=torch.Generator().manual_seed(0)).float()
    _, _, normal = grouped.normalised_step(
        s.view(-1), torch.ones(2, 5), None, quantise.Pressure(0, 0), layer, False, torch.float32
    )
    expected_variance, expected_mu = torch.var_mean(s.double(), dim=0, correction=0)
    torch.testing.assert_close(normal[2].double(), expected_variance, rtol=1e-4, atol=0)
    torch.testing.assert_close(normal[0].double(), expected_mu, rtol=1e-6, atol=0)


@njit
def product(x, w, out, counts, steps, rows, columns, lanes):
    add_products(x, 0, w, 0, out, 0, counts, steps, rows, columns, lanes)


@pytest.mark.parametrize("lanes", [8, 16])
def test_a_tile_of_products_is_the_matrix_product(lanes):
    rng = np.random.default_rng(0)
    x, w = (
        rng.normal(size=(4, 2, 5)).astype(np.float32),
        rng.normal(size=(2, 5, 2 * lanes)).astype(np.float32),
    )
    out = np.ones((4, 2 * lanes), np.float32)
    steps = (10, 5, 1, 10 * lanes, 2 * lanes, 2 * lanes)
    product(x.reshape(-1), w.reshape(-1), out.reshape(-1), (2, 5), steps, (0,) * 4, (0,) * 2, (0,) * lanes)
    np.testing.assert_allclose(out, 1 + np.einsum("iot,otj->ij", x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lanes", [1, 8, 16])
def test_a_tile_of_pairs_is_the_matrix_product(lanes):
    generator = torch.Generator().manual_seed(0)
    x, w = (
        torch.randn(shape, generator=generator).bfloat16() for shape in ((4, 2, 5, 2), (2, 5, 2 * lanes, 2))
    )
    out = np.ones((4, 2 * lanes), np.float32)
    steps = (10, 5, 1, 10 * lanes, 2 * lanes, 2 * lanes)
    pairs = [kernel_array(each).view(np.uint32) for each in (x, w)]
    product(*pairs, out.reshape(-1), (2, 5), steps, (0,) * 4, (0,) * 2, (0,) * lanes)
    expected = 1 + np.einsum("iotp,otjp->ij", x.double().numpy(), w.double().numpy())
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


NARROW = {
    "pixels": (0, LayerSpec(32, 8, 4, -4, 1), 4, 18),
    "pixels, an odd row": (0, LayerSpec(8, 8, 3, 2, 1), 4, 27),
    "spikes": (1, LayerSpec(64, 3, 1, 1, 4), 32, 8),
    "spikes, an odd row": (1, LayerSpec(24, 4, 2, 1, 3), 24, 9),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "pixels" else pytest.mark.slow) for name in NARROW]
)
def test_products_of_pairs_are_those_of_single_numbers(name, monkeypatch):
    """Sums bit for bit, in both formats of the products; gradients but for the order of their sums."""
    place, spec, channels, out = NARROW[name]
    side = 84 if place == 0 else (out - 1) * spec.stride + spec.kernel - 2 * spec.pad
    # The layer's place decides what it reads.
    before = [LayerSpec(channels, 1, 1, 0, 1)] * place
    [*_, layer] = grouped.plan([*before, spec], channels, [side] * (place + 1) + [out], 6, 2)
    generator = torch.Generator().manual_seed(0)
    shape = (layer.sums.groups, layer.sums.width, layer.fan_in)
    weight = torch.randint(-1, 2, shape, generator=generator).float()
    ds = torch.randn(6 * out**2 * spec.features, generator=generator).bfloat16()
    if place:
        x = torch.randint(0, 2, (6 * side**2 * channels,), generator=generator).bfloat16()
        weight = weight.bfloat16()
    else:
        x = torch.randint(0, 256, (6, channels, side, side), dtype=torch.uint8, generator=generator)
    assert grouped.is_narrow(layer, x)
    found = []
    for paired in (False, True):
        monkeypatch.setattr(grouped, "in_pairs", lambda *_, paired=paired: paired)
        single = () if place == 0 else (grouped.sums(x.float(), weight.float(), layer),)
        found.append(
            (grouped.sums(x, weight, layer), *single, *grouped.sums_gradient(x, ds, weight, layer, place > 0))
        )
    for one, other in zip(*found, strict=True):
        if one is None:
            assert other is None
            assert place == 0
        elif one is found[0][-1]:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(one.abs().max()))
        elif one is found[0][-2]:
            torch.testing.assert_close(one.float(), other.float(), rtol=1e-2, atol=1e-2)
        else:
            assert torch.equal(one, other)
            assert bool((one != 0).any())


@pytest.mark.parametrize(
    ("spec", "narrow"),
    [
        (LayerSpec(48, 1, 1, 0, 3), False),
        (LayerSpec(576, 4, 2, 1, 12), False),
        (LayerSpec(192, 4, 2, 1, 12), True),
    ],
    ids=["products", "patches", "narrow"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_spikes_are_whole_to_the_largest(spec, narrow, dtype):
    """128 spikes with weights of one sign, in each way that a layer is computed."""
    channels = 128 * spec.groups // spec.kernel**2
    side, out = (5, 5) if spec.kernel == 1 else (8, 4)
    *_, layer = grouped.plan(
        [LayerSpec(channels, 1, 1, 0, 1), spec], channels, [side, side, out], 2, dtype.itemsize
    )
    shape = (layer.sums.groups, layer.sums.width, 128)
    weight = torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(0)).float()
    weight[:, 0], weight[:, 1] = 1.0, -1.0
    weight[:, 2], weight[:, 2, 77] = 1.0, 0.0
    x = torch.ones(2 * channels * side**2, dtype=dtype)
    assert grouped.is_narrow(layer, x) == narrow
    found = grouped.sums(x, weight.to(dtype), layer).float()
    # In the middle of an image all inputs of a patch are there.
    middle = (out // 2) * out + out // 2
    blocks = found.view(-1, spec.groups, layer.sums.block, out**2, layer.sums.width)[:, :, :, middle]
    assert torch.equal(blocks, weight.sum(dim=2)[None, :, None].expand_as(blocks))
    assert {-128.0, 127.0, 128.0} <= set(blocks.unique().tolist())


def test_rounding_to_bf16_is_pytorchs():
    @njit
    def rounded(source, target):
        for i in range(0, source.shape[0], 16):
            write(target, i, read(source, i, (0,) * 16))

    generator = torch.Generator().manual_seed(0)
    values = torch.randn(4096, generator=generator) * 10 ** (8 * torch.randn(4096, generator=generator))
    values[:32] = torch.tensor([1.00390625, 1.01171875, -1.00390625, 0.0] * 8)  # between two, and zero
    found = np.zeros(len(values), np.uint16)
    rounded(values.numpy(), found)
    assert np.array_equal(found, kernel_array(values.bfloat16()))


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize(("rows", "columns"), [(8, 16), (18, 32), (24, 16), (3, 8), (40, 128), (9, 24)])
def test_tiles_leave_registers_free(rows, columns, width):
    tile = narrow_kernel.tile(rows, columns, width)
    many, across, lanes = (len(part) for part in tile)
    assert columns % (across * lanes) == 0
    assert many <= rows
    assert many * across <= (16 if width == 16 else 12)
