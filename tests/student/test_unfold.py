import numpy as np
import pytest
import torch

from spikestill.common.errors import UserError
from spikestill.common.provenance import file_sha256
from spikestill.common.zoo import zoo_path
from spikestill.student import distill, integer_net
from spikestill.student.architectures import architecture, centred
from spikestill.student.beside import beside
from spikestill.student.network import StudentNetwork
from spikestill.student.unfold import check_same_net, unfold
from tests.student.test_distill import config, folder  # noqa: F401

SHIPPED = zoo_path("pong", "student-1chip.safetensors")


def network(window="centred", name="1chip"):
    layers = architecture(name)
    return StudentNetwork(centred(layers, 84) if window == "centred" else layers, 6, game="pong")


def pictures(batches=2):
    rng = np.random.default_rng(0)
    return [
        torch.from_numpy(rng.integers(0, 256, (8, 4, 84, 84), dtype=np.uint8)).contiguous(
            memory_format=torch.channels_last
        )
        for _ in range(batches)
    ]


def test_the_shipped_student_unfolds_and_folds_to_itself():
    net, _ = integer_net.load(SHIPPED)
    made = network()
    unfold(net, made, pictures())
    again = made.to_integer()
    for index, (ours, theirs) in enumerate(zip(again.layers, net.layers, strict=True)):
        np.testing.assert_array_equal(ours.weight_OIHW, theirs.weight_OIHW)
        np.testing.assert_array_equal(
            integer_net.effective_theta(ours, first=index == 0),
            integer_net.effective_theta(theirs, first=index == 0),
        )
    for layer in made.ternary_layers():
        before = layer.ternary.clone()
        layer.requantise()
        assert torch.equal(before, layer.ternary)


def test_its_statistics_are_those_of_the_deployed_nets_own_sums():
    net, _ = integer_net.load(SHIPPED)
    made, batch = network(), pictures(1)
    unfold(net, made, batch)
    sums: list[list[np.ndarray]] = [[], []]
    for stack in batch[0].numpy():
        spikes = integer_net.naive_forward(net, stack)
        sums[0].append(integer_net.layer_sums(net.layers[0], stack))
        sums[1].append(integer_net.layer_sums(net.layers[1], spikes[0]))
    for index, found in enumerate(sums):
        layer = made.ternary_layers()[index]
        seen = np.stack(found)[:, :, : layer.visible, : layer.visible]
        np.testing.assert_allclose(layer.mu, seen.mean(axis=(0, 2, 3)), rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(layer.variance, seen.var(axis=(0, 2, 3)), rtol=1e-4, atol=1e-3)


def test_distil_goes_on_from_a_finished_student(folder, tmp_path, capsys):  # noqa: F811
    result = distill.run(config(folder, initial=SHIPPED, steps=2), tmp_path)
    assert "begins with the layers" not in capsys.readouterr().err
    net, provenance = integer_net.load(result.artefact)
    shipped, _ = integer_net.load(SHIPPED)
    assert set(provenance.parents) == {"buffer", "teacher", "initial"}
    same = [
        np.mean(ours.weight_OIHW == theirs.weight_OIHW)
        for ours, theirs in zip(net.layers, shipped.layers, strict=True)
    ]
    assert min(same) > 0.9


def test_another_net_is_refused():
    net, _ = integer_net.load(SHIPPED)
    with pytest.raises(
        UserError, match=r"layer 0 \(features, kernel, stride, pad, groups\) is \(.*\), the net to"
    ) as hint:
        check_same_net(net, network("published"), SHIPPED)
    assert "--window" in str(hint.value.remedy)
    with pytest.raises(UserError, match=r"layer 0 "):
        check_same_net(net, network("published", "4chip"), SHIPPED)


def test_distil_begins_with_the_student_of_another_game(folder, tmp_path, capsys):  # noqa: F811
    foreign = zoo_path("seaquest", "student-1chip.safetensors")
    # With minutes a second network is trained for a moment, to measure the pace.
    result = distill.run(config(folder, initial=foreign, steps=2, minutes=5), tmp_path)
    told = capsys.readouterr().err
    assert told.count("begins with the layers of a student of seaquest, to play pong\n") == 1
    net, provenance = integer_net.load(result.artefact)
    theirs, _ = integer_net.load(foreign)
    assert (theirs.game, theirs.actions) == ("seaquest", 18)
    assert (net.game, net.actions) == ("pong", 6)
    assert provenance.parents["initial"] == file_sha256(foreign)
    for ours, layer in zip(net.layers, theirs.layers, strict=True):
        assert np.mean(ours.weight_OIHW == layer.weight_OIHW) > 0.9


def test_distil_begins_with_two_students_side_by_side(folder, tmp_path, capsys):  # noqa: F811
    other = zoo_path("pong", "student-1chip-sparse.safetensors")
    halves = {"architecture": "1chip-wide", "initial": SHIPPED, "initial_beside": other}
    # With minutes a second network is trained for a moment, to measure the pace.
    result = distill.run(config(folder, steps=1, minutes=5, **halves), tmp_path)
    assert "begins with the layers" not in capsys.readouterr().err
    net, provenance = integer_net.load(result.artefact)
    began = beside(integer_net.load(SHIPPED)[0], integer_net.load(other)[0], other)
    for ours, theirs in zip(net.layers, began.layers, strict=True):
        assert ours.weight_OIHW.shape == theirs.weight_OIHW.shape
        assert np.mean(ours.weight_OIHW == theirs.weight_OIHW) > 0.9
    resumed = distill.run(config(folder, steps=2, **halves), tmp_path, resume=True)
    _, last = integer_net.load(resumed.artefact)
    for made in (provenance, last):
        assert made.parents["initial"] == file_sha256(SHIPPED)
        assert made.parents["initial_beside"] == file_sha256(other)


def test_two_students_that_make_no_net_are_refused(folder, tmp_path):  # noqa: F811
    sparse = zoo_path("pong", "student-1chip-sparse.safetensors")
    halves = {"architecture": "1chip-wide", "initial": SHIPPED, "initial_beside": sparse}
    with pytest.raises(UserError, match=r"initial_beside .* without initial"):
        config(folder, initial_beside=sparse)
    with pytest.raises(
        UserError, match=r"architecture 1chip, which is one net. Give --architecture 1chip-wide"
    ):
        config(folder, **{**halves, "architecture": "1chip"})

    def told(**options):
        with pytest.raises(UserError) as refused:
            distill.run(config(folder, **{**halves, **options}), tmp_path)
        return str(refused.value)

    assert "give --initial_beside another finished 1-chip student" in told(initial_beside=None).lower()
    assert "equal halves learn the same" in told(initial_beside=SHIPPED)
    foreign = zoo_path("seaquest", "student-1chip.safetensors")
    assert told(initial_beside=foreign).startswith(f"{foreign}: number of actions: 18, beside 6")
    absent = tmp_path / "absent.safetensors"
    assert told(initial_beside=absent).startswith(str(absent))
    teacher = folder / "teacher.safetensors"
    for option in ("initial", "initial_beside"):
        assert told(**{option: teacher}).startswith(str(teacher))


def test_a_file_of_another_kind_is_named(folder, tmp_path):  # noqa: F811
    with pytest.raises(UserError, match=r"core_map-1chip.h5: is no safetensors file"):
        distill.run(config(folder, initial=zoo_path("pong", "core_map-1chip.h5")), tmp_path)
    with pytest.raises(UserError, match=r"'spikestill.distill-checkpoint' wanted"):
        distill.run(config(folder, initial=folder / "teacher.safetensors"), tmp_path)
