"""Two nets as one: they read the same picture, side by side, and their votes are added.

Layers of both have the same geometry but for the number of features and groups. A layer's features are those of the
first net, then those of the second, and so are its groups; so no neuron of one net reads a neuron of the other. The
first layer has one group, which reads the picture.

Two students whose trainings went differently err in different places, so their sum errs less. Where both fit one chip,
it is the better student for cores that would lie idle.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.student.integer_net import IntegerLayer, IntegerNet


def places(first: int, features: int, groups: int, actions: int) -> npt.NDArray[np.int64]:
    """Return which feature of a net's last layer comes to each place, int64 (features,), where others come before it.

    Feature f votes for action f mod A. Behind ``first`` others, place p votes for (first + p) mod A. So features change
    places within their group, whose inputs they all read. Where a group has one feature of an action more than places
    for it, that feature takes a place that is left over, and votes for another action there.

    Args:
        first: features that come before.
        features: of the layer.
        groups: divides ``features``.
        actions: A.
    """
    size, found = features // groups, np.empty(features, np.int64)
    for begin in range(0, features, size):
        own = np.arange(begin, begin + size)
        left = {action: list(own[own % actions == action]) for action in range(actions)}
        over = []
        for place in own:
            fitting = left[int(first + place) % actions]
            if fitting:
                found[place] = fitting.pop(0)
            else:
                over.append(place)
        found[over] = [feature for fitting in left.values() for feature in fitting]
    return found


def _geometry(net: IntegerNet) -> dict[str, object]:
    """Return what two nets must share to stand side by side."""
    told = {"input": net.input_shape, "number of actions": net.actions, "number of layers": len(net.layers)}
    return told | {
        f"layer {index} (inputs and features of a group, kernel, stride, pad)": (
            each.weight_OIHW.shape[1],
            each.features // each.groups if index else "any",
            each.kernel,
            each.stride,
            each.pad,
        )
        for index, each in enumerate(net.layers)
    }


def beside(one: IntegerNet, other: IntegerNet, path: Path) -> IntegerNet:
    """Return the net that is ``one`` and ``other`` side by side.

    Its votes are the sum of theirs, but for those of a few features: fewer than A a group of the second half, which
    :func:`places` has no place for; and at the ends of both halves and of the whole the last features mod A, which
    vote in one of these nets and not in the other.

    Args:
        one: the first half; the net is for its game.
        other: the second half.
        path: of ``other``, for what is wrong with it.

    Raises:
        UserError: they read other pictures, choose among other numbers of actions, or differ in number or geometry of
            the layers.
    """
    wanted, found = _geometry(one), _geometry(other)
    what = next((what for what in wanted if wanted[what] != found.get(what)), None)
    if what is not None:
        raise UserError(
            f"{path}: {what}: {found[what]}, beside {wanted[what]}",
            "give --initial and --initial_beside two students of one architecture, window and number of actions",
        )
    layers = []
    for index, (first, second) in enumerate(zip(one.layers, other.layers, strict=True)):
        weight_OIHW, theta_O = second.weight_OIHW, second.theta_O
        if index == len(one.layers) - 1:
            order = places(first.features, second.features, second.groups, one.actions)
            weight_OIHW, theta_O = weight_OIHW[order], theta_O[order]
        layers.append(
            IntegerLayer(
                np.concatenate([first.weight_OIHW, weight_OIHW]),
                np.concatenate([first.theta_O, theta_O]),
                first.stride,
                first.pad,
                first.groups + second.groups if index else first.groups,
            )
        )
    return dataclasses.replace(one, layers=tuple(layers))
