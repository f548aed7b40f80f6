"""Terms for `representation.extra`, right and wrong; the right ones also work in PyTorch."""

import numpy as np

NUMBER = 3


def size(z):
    return (z**2).mean()


def distance(z, target):
    return ((z - target) ** 2).mean()


def everything(z, batch, *, predicted, target, weight=2.0):
    return weight * (((predicted - target) ** 2).mean() + (z.sum(-1) * batch.reward).mean())


def squares(z):
    return z**2


def count(z):
    return (z > 0).sum()


def nothing(z):
    del z


def in_numpy(z):
    return np.mean(np.asarray(z))


def needs_more(z, other):
    return (z * other).mean()
