"""Trained parameters, their moments and their loss scale; one step of Adam, or none where a gradient overflowed.

Compound loss scaling (Björck 2021, method 5): gradients keep the loss's scale, and so do the moments; ε is scaled
alike. Where a gradient is not finite the step is left out, and scale, moments and ε are halved. After a run of good
steps all are doubled, where the moments stay finite. ``amp`` divides the gradients instead, ``none`` has no scale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.configs.control import MethodsConfig
from spikestill.teacher.control.operations import AdamRule

COUNTERS = ("steps", "scale", "good", "skipped", "in_a_row")


@dataclasses.dataclass
class Trained:
    """Parameters that one Adam steps: those of one network, or of several of the same sizes.

    Attributes:
        p_NP, g_NP, m_NP, w_NP: parameters, gradients, both moments, of N networks.
        c_NP: Kahan's compensation; (N, 0) without.
        steps: of Adam.
        scale: of the loss.
        good: steps since the scale changed.
        skipped: steps left out so far.
        in_a_row: steps left out since the last one that was made.
    """

    p_NP: Any
    g_NP: Any
    m_NP: Any
    w_NP: Any
    c_NP: Any
    steps: int = 0
    scale: float = 1.0
    good: int = 0
    skipped: int = 0
    in_a_row: int = 0

    @staticmethod
    def new(o: Any, initial_NP: npt.NDArray[np.float64], kahan: bool, scale: float) -> Trained:
        """Return parameters that no step has changed yet."""
        zeros_NP = np.zeros_like(initial_NP)
        m, w, g, c = (o.rows(each) for each in (*(zeros_NP,) * 3, zeros_NP if kahan else zeros_NP[:, :0]))
        return Trained(o.rows(initial_NP), g, m, w, c, scale=scale)

    def arrays(self, o: Any) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state by name; gradients are none of it."""
        counters = np.array([getattr(self, name) for name in COUNTERS], np.float64)
        kept = {name: o.host(getattr(self, f"{name}_NP")).copy() for name in "pmwc"}
        return {**kept, "counters": counters}

    def restore(self, o: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what :meth:`arrays` returned.

        Raises:
            ValueError: a shape differs.
        """
        for name in "pmwc":
            own = getattr(self, f"{name}_NP")
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, {tuple(own.shape)} wanted")
            own[...] = o.array(arrays[name])
        for name, value in zip(COUNTERS, arrays["counters"].tolist(), strict=True):
            setattr(self, name, float(value) if name == "scale" else int(value))


def step(
    o: Any, trained: Trained, rule: AdamRule, methods: MethodsConfig, part: tuple[int, int] = (0, 1)
) -> None:
    """Step all networks by their gradients, which are finite; :func:`count` goes before.

    Args:
        o: operations.
        trained: parameters.
        rule: of the optimiser.
        methods: of Björck 2021.
        part: (k, n) steps the k-th of n shares of the parameters; every parameter is stepped by itself.
    """
    names = ("p_NP", "m_NP", "w_NP", "c_NP", "g_NP")
    p, m, w, c, g = (share_of(getattr(trained, name), part) for name in names)
    scale = trained.scale
    if methods.loss_scaling == "amp":
        o.multiply(g, 1.0 / scale)
        scale = 1.0
    o.adam(p, m, w, c, g, trained.steps, scale, rule)


def share_of(array_NP: Any, part: tuple[int, int]) -> Any:
    """Return the k-th of n shares of an array's elements, flat, as a view; ``part`` is (k, n). One share of all is the
    array itself, whose rows need not lie one behind the other."""
    number, shares = part
    if shares == 1:
        return array_NP
    flat = array_NP.reshape(-1)
    return flat[len(flat) * number // shares : len(flat) * (number + 1) // shares]


def count(o: Any, trained: Trained, finite: bool, methods: MethodsConfig) -> bool:
    """Count an update whose gradients are finite or not, and change the scale where that is due.

    Returns:
        True where the step is to be made: always without loss scaling.
    """
    if methods.loss_scaling == "none":
        trained.steps += 1
        return True
    if finite:
        trained.steps, trained.good, trained.in_a_row = trained.steps + 1, trained.good + 1, 0
        return True
    trained.skipped, trained.in_a_row, trained.good = trained.skipped + 1, trained.in_a_row + 1, 0
    trained.scale *= 0.5
    if methods.loss_scaling == "compound":
        _rescale(o, trained, 0.5, bool(methods.hadam))
    return False


def grow(o: Any, together: Sequence[Trained], methods: MethodsConfig) -> None:
    """Double the scale of all that one loss trains after ``loss_scale_period`` good steps, where the moments of all
    stay finite; call after the step."""
    if methods.loss_scaling == "none" or together[0].good < methods.loss_scale_period:
        return
    for trained in together:
        trained.good = 0
    if methods.loss_scaling == "compound":
        before = [(o.copy(trained.m_NP), o.copy(trained.w_NP)) for trained in together]
        if not all([_rescale(o, trained, 2.0, bool(methods.hadam)) for trained in together]):
            for trained, (m_NP, w_NP) in zip(together, before, strict=True):
                trained.m_NP[...], trained.w_NP[...] = m_NP, w_NP
            return
    for trained in together:
        trained.scale *= 2.0


def _rescale(o: Any, trained: Trained, factor: float, root_form: bool) -> bool:
    """Multiply the moments: w as the gradients where it is a root (hAdam), else by the square of that."""
    finite = [o.multiply(each, factor) for each in trained.m_NP]
    finite += [o.multiply(each, factor if root_form else factor**2) for each in trained.w_NP]
    return all(finite)
