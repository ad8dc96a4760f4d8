"""Experience replay that stores each frame once, with n-step returns and proportional priorities.

Slot (t, e) of the ring holds, for environment e at step t: the newest frame of the observation,
the action taken on it, the clipped reward and whether the return ended there. A slot whose action
was ignored (the observation after the end of a game) is not ``valid``: it is never sampled, but
a truncated return bootstraps from it. ``start`` marks the first observation of a game.
Sources: Mnih 2015 (replay), Schaul 2016 (priorities p^alpha, weights (N P)^-beta).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.atari import FRAMES, MAX_ACTIONS, PIXELS, SIDE
from spikestill.common.compiling import njit
from spikestill.common.training import check_arrays

MIN_PRIORITY = 1e-3
RINGS = ("frames", "action", "reward", "done", "valid", "start")
"""What a replay keeps of every slot."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Where a batch lies in the replay, and all of it that is small.

    Attributes:
        time, env: slots (B,) of s_t.
        time_next: slots (B,) of the state to bootstrap from, s_{t+k}.
        action: int64 (B,).
        reward: float32 (B,), sum of discount^i r_{t+i} for i < k.
        discount: float32 (B,), discount^k, 0 where the return ended.
        weight: float32 (B,), importance weights, at most 1.
    """

    time: npt.NDArray[np.int64]
    env: npt.NDArray[np.int64]
    time_next: npt.NDArray[np.int64]
    action: npt.NDArray[np.int64]
    reward: npt.NDArray[np.float32]
    discount: npt.NDArray[np.float32]
    weight: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.time)

    def share(self, index: int, shares: int) -> Batch:
        """Return share ``index`` of ``shares`` contiguous ones."""
        bounds = [len(self) * part // shares for part in (index, index + 1)]
        return Batch(*(getattr(self, f.name)[bounds[0] : bounds[1]] for f in dataclasses.fields(self)))


@njit(cache=True, nogil=True)
def _gather(frames, start, times, envs, out):  # type: ignore[no-untyped-def]
    """Write stacks (B, pixels, 4) whose newest frame is (times, envs); before a start frames are zero."""
    capacity = frames.shape[0]
    pixels = frames.shape[2]
    for b in range(len(times)):
        t, e = times[b], envs[b]
        have = 1
        while have < 4 and not start[(t - have + 1) % capacity, e]:
            have += 1
        f3 = frames[t, e]
        f2 = frames[(t - 1) % capacity, e]
        f1 = frames[(t - 2) % capacity, e]
        f0 = frames[(t - 3) % capacity, e]
        m2 = np.uint8(255 if have > 1 else 0)
        m1 = np.uint8(255 if have > 2 else 0)
        m0 = np.uint8(255 if have > 3 else 0)
        row = out[b]
        for p in range(pixels):
            row[p, 0] = f0[p] & m0
            row[p, 1] = f1[p] & m1
            row[p, 2] = f2[p] & m2
            row[p, 3] = f3[p]


@njit(cache=True, nogil=True)
def _n_step(reward, done, valid, times, envs, n, discount):  # type: ignore[no-untyped-def]
    """Return (sum of discounted rewards, bootstrap slot, bootstrap discount) of each start slot."""
    capacity = reward.shape[0]
    size = len(times)
    total = np.zeros(size, np.float32)
    slot = np.empty(size, np.int64)
    factor = np.empty(size, np.float32)
    for b in range(size):
        t, e, scale, ended = times[b], envs[b], 1.0, False
        for _ in range(n):
            if not valid[t, e]:
                break
            total[b] += scale * reward[t, e]
            scale *= discount
            ended = done[t, e]
            t = (t + 1) % capacity
            if ended:
                break
        slot[b] = t
        factor[b] = 0.0 if ended else scale
    return total, slot, factor


@njit(cache=True, nogil=True)
def _tree_set(tree, leaves, values):  # type: ignore[no-untyped-def]
    half = len(tree) // 2
    for i in range(len(leaves)):
        node = leaves[i] + half
        tree[node] = values[i]
        node //= 2
        while node >= 1:
            tree[node] = tree[2 * node] + tree[2 * node + 1]
            node //= 2


@njit(cache=True, nogil=True)
def _tree_find(tree, masses):  # type: ignore[no-untyped-def]
    half = len(tree) // 2
    found = np.empty(len(masses), np.int64)
    for i in range(len(masses)):
        node, mass = 1, masses[i]
        while node < half:
            node *= 2
            if mass >= tree[node] and tree[node + 1] > 0.0:
                mass -= tree[node]
                node += 1
        found[i] = node - half
    return found


def check_state(
    arrays: Mapping[str, npt.NDArray[Any]], like: Mapping[str, npt.NDArray[Any]], length: int, leaves: int
) -> None:
    """Raise ValueError or LookupError unless ``arrays`` are a replay's state, of the dtypes and shapes of ``like``.

    Args:
        arrays: of a checkpoint.
        like: an empty replay's.
        length: most steps of a stream.
        leaves: most priorities.
    """
    check_arrays(arrays, {"scalars": like["scalars"]})
    written, largest = arrays["scalars"].tolist()
    if written != int(written) or written < 0 or largest <= 0:
        raise ValueError(f"a replay of {written} steps, and a largest priority of {largest}")
    used = min(int(written), length)
    dtypes = {name: like[name].dtype for name in RINGS}
    # A GPU's replay keeps actions as it indexes with them; a checkpoint goes from one to the other.
    if arrays["action"].dtype in (np.uint8, np.int64):
        dtypes["action"] = arrays["action"].dtype
    check_arrays(arrays, {name: np.empty((used, *like[name].shape[1:]), dtypes[name]) for name in RINGS})
    if arrays["action"].size and not (arrays["action"].min() >= 0 and arrays["action"].max() < MAX_ACTIONS):
        raise ValueError(f"an action outside 0..{MAX_ACTIONS - 1}")
    found = arrays["leaves"]
    check_arrays(arrays, {"leaves": np.empty(len(found), np.float64)})
    if len(found) > leaves or not bool((found >= 0).all()):
        raise ValueError(f"{len(found)} priorities, at most {leaves}, none below 0, wanted")


class Replay:
    """A ring of frames for ``num_envs`` streams of equal length.

    Args:
        capacity: frames in all; rounded down to a multiple of ``num_envs``.
        num_envs: streams E.
        n_step: rewards summed before bootstrapping.
        discount: discount of one step.
        alpha: exponent of the priorities; 0 samples uniformly.
    """

    def __init__(self, capacity: int, num_envs: int, n_step: int, discount: float, alpha: float) -> None:
        self.length = capacity // num_envs
        self.num_envs, self.n_step, self.discount, self.alpha = num_envs, n_step, discount, alpha
        shape = (self.length, num_envs)
        self.frames = np.zeros((*shape, PIXELS), np.uint8)
        self.action = np.zeros(shape, np.uint8)
        self.reward = np.zeros(shape, np.float32)
        self.done = np.zeros(shape, np.bool_)
        self.valid = np.zeros(shape, np.bool_)
        self.start = np.zeros(shape, np.bool_)
        leaves = 1 << max(1, (self.length * num_envs - 1).bit_length())
        self.tree = np.zeros(2 * leaves, np.float64)
        self.max_priority = 1.0
        self.written = 0

    def append(
        self,
        frame_EP: npt.NDArray[np.uint8],
        action_E: npt.NDArray[np.integer[Any]],
        reward_E: npt.NDArray[np.float32],
        done_E: npt.NDArray[np.bool_],
        valid_E: npt.NDArray[np.bool_],
        start_E: npt.NDArray[np.bool_],
    ) -> None:
        """Store one step of every stream: the observation's newest frame (E, 7056) and what followed it."""
        slot = self.written % self.length
        self.frames[slot] = frame_EP
        self.action[slot], self.reward[slot], self.done[slot] = action_E, reward_E, done_E
        self.valid[slot], self.start[slot] = valid_E, start_E
        self.written += 1
        # The slots that this one makes sampleable, and those whose stack is about to lose its oldest frame.
        self._set_leaves((slot - self.n_step) % self.length, self.written > self.n_step)
        self._set_leaves((slot + FRAMES) % self.length, False)
        self._set_leaves(slot, False)

    def _set_leaves(self, slot: int, sampleable: bool) -> None:
        leaves = slot * self.num_envs + np.arange(self.num_envs)
        values = np.where(self.valid[slot] & sampleable, self.max_priority**self.alpha, 0.0)
        _tree_set(self.tree, leaves, values)

    def __len__(self) -> int:
        return min(self.written, self.length) * self.num_envs

    def sample(self, rng: np.random.Generator, batch_size: int, beta: float) -> Batch:
        """Return a batch drawn with probability proportional to p^alpha, stratified (Schaul 2016, 3.3)."""
        total = self.tree[1]
        masses = (np.arange(batch_size) + rng.random(batch_size)) * (total / batch_size)
        # Shuffled, for a sorted batch would put the same part of the ring into the same share.
        leaves = rng.permutation(_tree_find(self.tree, masses))
        time, env = np.divmod(leaves, self.num_envs)
        reward, time_next, discount = _n_step(
            self.reward, self.done, self.valid, time, env, self.n_step, self.discount
        )
        probability = self.tree[leaves + len(self.tree) // 2] / total
        weight = (probability * len(self)) ** -beta
        return Batch(
            time, env, time_next, self.action[time, env].astype(np.int64), reward, discount,
            (weight / weight.max()).astype(np.float32),
        )  # fmt: skip

    def mean_pixel(self) -> float:
        """Return the mean pixel of the first frames, at most 64 of each stream."""
        return float(self.frames[: min(self.written, 64)].mean())

    def stacks(self, time: npt.NDArray[np.int64], env: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return stacks (B, 84, 84, 4), channels last, oldest frame first."""
        out = np.empty((len(time), PIXELS, FRAMES), np.uint8)
        _gather(self.frames, self.start, time, env, out)
        return out.reshape(-1, SIDE, SIDE, FRAMES)

    def set_priorities(self, batch: Batch, error: npt.NDArray[np.float32]) -> None:
        """Set priorities |error| + 1e-3 of the batch's slots; slots that left the window stay out."""
        if self.alpha == 0.0:
            return
        leaves = batch.time * self.num_envs + batch.env
        priority = np.abs(error.astype(np.float64)) + MIN_PRIORITY
        self.max_priority = max(self.max_priority, float(priority.max()))
        alive = self.tree[leaves + len(self.tree) // 2] > 0.0
        _tree_set(self.tree, leaves[alive], priority[alive] ** self.alpha)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state as arrays, for a checkpoint; the frames only as far as written."""
        used = min(self.written, self.length)
        arrays = {name: getattr(self, name)[:used] for name in RINGS}
        return arrays | {
            "leaves": self.tree[len(self.tree) // 2 :],
            "scalars": np.array([self.written, self.max_priority], np.float64),
        }

    def set_state(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Restore what :meth:`state` returned, here or on a device.

        Raises:
            ValueError, LookupError: an array is missing, misshapen or not finite.
        """
        check_state(arrays, self.state(), self.length, len(self.tree) // 2)
        for name in RINGS:
            getattr(self, name)[: len(arrays[name])] = arrays[name]
        half = len(self.tree) // 2
        leaves = arrays["leaves"]
        self.tree[half : half + len(leaves)] = leaves
        for level in range(half.bit_length() - 1, 0, -1):
            low, high = 1 << (level - 1), 1 << level
            self.tree[low:high] = self.tree[2 * low : 2 * high : 2] + self.tree[2 * low + 1 : 2 * high : 2]
        self.written = int(arrays["scalars"][0])
        self.max_priority = float(arrays["scalars"][1])
