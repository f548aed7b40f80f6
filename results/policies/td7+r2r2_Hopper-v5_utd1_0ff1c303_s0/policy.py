"""td7+r2r2 on Hopper-v5, seed 0, as a trained policy that needs NumPy only.

    from policy import Policy
    policy = Policy()  # reads policy.npz beside this file
    action = policy(observation)  # one observation, or a batch of them

Run `python policy.py` to check that it computes the same here as where it was exported.
README.md describes observations and actions.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

# Path and shape of each part of an observation, in the order of the flat vector.
OBSERVATION = [((), (11,))]
OBSERVATION_SIZE = 11
ACTION_SHAPE = (3,)
FILE = Path(__file__).with_name("policy.npz")


def network(x, w):
    """Map normalized observations [batch, 11] to actions in [-1, 1]."""
    h1 = x @ w[8] + w[9]
    h2 = h1 > 0.0
    h3 = np.where(h2, h1, np.expm1(np.where(h2, 0.0, h1))) @ w[10] + w[11]
    h4 = h3 > 0.0
    h5 = np.where(h4, h3, np.expm1(np.where(h4, 0.0, h3))) @ w[12] + w[13]
    h6 = np.maximum(np.sum(np.abs(h5), axis=1).reshape(-1, 1) / 256.0, 1e-08)
    h7 = x @ w[0] + w[1]
    h8 = np.maximum(np.sum(np.abs(h7), axis=1).reshape(-1, 1) / 256.0, 1e-08)
    h9 = np.maximum(np.concatenate((h7 / h8, h5 / h6), axis=1) @ w[2] + w[3], 0.0)
    return np.tanh(np.maximum(h9 @ w[4] + w[5], 0.0) @ w[6] + w[7])


class Policy:
    """Maps observations to actions in the environment's own range.

    An observation is an array of shape (11,); a batch has one more axis.
    An observation that is not finite gives NaN for all entries of its action.
    """

    def __init__(self, file=FILE):
        with np.load(file, allow_pickle=False) as arrays:
            self._weights = [arrays[f"weight{n}"] for n in range(17)]
            self._low, self._high = arrays["action_low"], arrays["action_high"]
            self._mean, self._deviation = arrays["mean"], arrays["deviation"]

    def __call__(self, observation):
        """Return the action of an observation, or the actions of a batch."""
        flat, is_batch = flatten(observation)
        low, high = self._low, self._high
        with np.errstate(all="ignore"):
            x = ((flat - self._mean) / self._deviation).astype(np.float32)
            action = (low + high) / 2 + (high - low) / 2 * network(x, self._weights)
            action = np.clip(action, low, high)
        finite = np.isfinite(x).all(axis=1, keepdims=True)
        action = np.where(finite, action, np.nan).astype(np.float32)
        action = action.reshape(-1, *ACTION_SHAPE)
        return action if is_batch else action[0]


def flatten(observation):
    """Return observations as [batch, 11], and whether they were a batch."""
    if OBSERVATION[0][0] == ():  # one array
        array = as_array(observation, "observation")
        is_batch = batch_axis(array, OBSERVATION[0][1])
        is_batch = flat_batch_axis(array) if is_batch is None else is_batch
        if is_batch is None:
            raise wrong_shape(array, OBSERVATION[0][1], "observation")
        return as_rows(array, is_batch, OBSERVATION_SIZE), is_batch
    if not isinstance(observation, (Mapping, tuple)):
        array = as_array(observation, None)
        if array is not None and (is_batch := flat_batch_axis(array)) is not None:
            return as_rows(array, is_batch, OBSERVATION_SIZE), is_batch
    return join(observation)


def join(observation):
    """Return the parts of a dict or tuple as [batch, 11], and whether they were a batch."""
    rows, batches = [], set()
    for path, shape in OBSERVATION:
        part, name = observation, "observation"
        for key in path:
            part, name = get_item(part, key, name), f"{name}[{key!r}]"
        array = as_array(part, name)
        is_batch = batch_axis(array, shape)
        if is_batch is None:
            raise wrong_shape(array, shape, name)
        rows.append(as_rows(array, is_batch, int(np.prod(shape))))
        batches.add(len(array) if is_batch else None)
    if len(batches) > 1:
        raise ValueError("observation: its parts have different batch sizes")
    return np.concatenate(rows, axis=1), batches != {None}


def get_item(value, key, name):
    """Return an item of a dict or a tuple."""
    if isinstance(value, Mapping):
        if key in value:
            return value[key]
        raise ValueError(f"{name}: expected a key {key!r}, got the keys {[*value]}")
    if isinstance(key, str) or not isinstance(value, (tuple, list)):
        expected = "a dict" if isinstance(key, str) else "a tuple"
        raise ValueError(f"{name}: expected {expected}, got a {type(value).__name__}")
    if key >= len(value):
        raise ValueError(f"{name}: expected at least {key + 1} entries, got {len(value)}")
    return value[key]


def as_array(value, name):
    """Return numbers as an array; for others, raise an error or, without a name, return None."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    if name is None:
        return None
    raise ValueError(f"{name}: expected an array of numbers, got a {type(value).__name__}")


def batch_axis(array, shape):
    """Return whether an array of a shape has a batch axis; None if it has another shape."""
    if array.shape == shape:
        return False
    return True if array.ndim and array.shape[1:] == shape else None


def flat_batch_axis(array):
    """Return whether a flat observation has a batch axis; None if it is not one."""
    return batch_axis(array, (OBSERVATION_SIZE,))


def as_rows(array, is_batch, size):
    """Return an array as [batch, size]."""
    return array.reshape(len(array) if is_batch else 1, size)


def wrong_shape(array, shape, name):
    """Return the error of an array with a wrong shape."""
    batch = ("batch", *shape)
    return ValueError(f"{name}: expected shape {shape} or {batch}, got {array.shape}")


def self_check():
    """Return the largest difference from the actions that the exporting program computed."""
    policy = Policy()
    with np.load(FILE, allow_pickle=False) as arrays:
        observations, expected = arrays["check_observations"], arrays["check_actions"]
    scale = (policy._high - policy._low).reshape(ACTION_SHAPE)
    return float(np.max(np.abs(policy(observations).astype(np.float64) - expected) / scale))


if __name__ == "__main__":
    difference = self_check()
    print(f"largest difference from the exported policy: {difference:.1e} of the action range")
    raise SystemExit(0 if difference < 1e-5 else "the policy does not compute the same here")
