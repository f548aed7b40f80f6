"""Small Markov chains as row-stochastic matrices, [n, n] in float64.

`examples` has one chain for each kind of structure that the lemmas and the flows depend on.
Random chains are functions of a NumPy generator.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from r2r2.config.errors import invalid_value

Floats = NDArray[np.float64]

SHAPE = (3, 4)  # of the grid world
STATES = SHAPE[0] * SHAPE[1]  # of every example, so that flows on all of them are one computation
PERMUTATIONS = 8  # averaged in a random doubly stochastic chain
CONCENTRATION = 0.2  # of the rows of a random chain: a few likely next states
TOLERANCE = 1e-12  # of an equation between entries


class Chain(NamedTuple):
    """A Markov chain with a name."""

    name: str
    matrix: Floats  # [n, n], every row sums to 1
    description: str


def examples(seed: int = 0) -> tuple[Chain, ...]:
    """Return the chains of `r2r2 theory`, all with `STATES` states; symmetric ones first.

    Example:
        >>> [chain.name for chain in examples()][:2]
        ['grid world', 'random symmetric']
    """
    rng = np.random.default_rng(seed)
    symmetric = random_symmetric(STATES, rng)
    lazy = (symmetric + np.eye(STATES)) / 2
    return (
        Chain("grid world", grid_world(*SHAPE), "five moves on a 3 x 4 grid; walls stop a move"),
        Chain("random symmetric", symmetric, "with negative eigenvalues"),
        Chain("lazy symmetric", lazy, "the same, but stays with probability 1/2: none negative"),
        Chain("ring, period 2", ring(STATES), "left or right on a ring of even length"),
        Chain("doubly stochastic", random_doubly_stochastic(STATES, rng), "not symmetric"),
        Chain("directed cycle", directed_cycle(STATES), "deterministic, period 12"),
        Chain("drifting walk", drifting_walk(STATES), "reversible, prefers one direction"),
        Chain("random ergodic", random_ergodic(STATES, rng), "no structure"),
        Chain("absorbing walk", absorbing_walk(STATES), "both ends are never left"),
    )


def grid_world(height: int, width: int) -> Floats:
    """Return a walk on a grid: stay or move in four directions, each with probability 1/5.

    A move into a wall stays in place, which makes the matrix symmetric.

    Example:
        >>> grid_world(1, 2)
        array([[0.8, 0.2],
               [0.2, 0.8]])
    """
    _check_states("height * width", height * width)
    p = np.zeros((height * width, height * width))
    for y in range(height):
        for x in range(width):
            for dy, dx in ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)):
                inside = 0 <= y + dy < height and 0 <= x + dx < width
                target = (y + dy) * width + x + dx if inside else y * width + x
                p[y * width + x, target] += 0.2
    return p


def random_doubly_stochastic(states: int, rng: np.random.Generator) -> Floats:
    """Return a random mean of permutation matrices: rows and columns sum to 1."""
    _check_states("states", states)
    weights = rng.dirichlet(np.ones(PERMUTATIONS))
    eye = np.eye(states)
    p: Floats = sum(w * eye[rng.permutation(states)] for w in weights) + np.zeros_like(eye)
    return p


def random_symmetric(states: int, rng: np.random.Generator) -> Floats:
    """Return a random symmetric chain, the mean of a doubly stochastic one and its transpose."""
    p = random_doubly_stochastic(states, rng)
    return (p + p.T) / 2


def random_ergodic(states: int, rng: np.random.Generator) -> Floats:
    """Return a chain without structure: rows of a Dirichlet distribution, all entries > 0."""
    _check_states("states", states)
    sparse = rng.dirichlet(np.full(states, CONCENTRATION), size=states)
    return 0.9 * sparse + 0.1 / states


def ring(states: int) -> Floats:
    """Return the walk to the left or right neighbor on a ring; of period 2 if `states` is even."""
    cycle = directed_cycle(states)
    return (cycle + cycle.T) / 2


def directed_cycle(states: int) -> Floats:
    """Return the deterministic walk around a ring: a permutation matrix of period `states`."""
    _check_states("states", states)
    return np.roll(np.eye(states), 1, axis=1)


def drifting_walk(states: int, right: float = 0.4, left: float = 0.3) -> Floats:
    """Return the walk on a line that goes right or left with these probabilities, else stays.

    It is reversible, so its eigenvalues are real, but its stationary distribution is not uniform.
    """
    _check_states("states", states)
    p = right * np.eye(states, k=1) + left * np.eye(states, k=-1)
    return p + np.diag(1 - p.sum(axis=1))


def absorbing_walk(states: int) -> Floats:
    """Return the symmetric walk on a line whose two end states are never left."""
    p = drifting_walk(states, 0.5, 0.5)
    p[[0, -1]] = np.eye(states)[[0, -1]]
    return p


class Structure(NamedTuple):
    """Which assumptions hold for a chain, measured on its matrix."""

    symmetric: bool
    doubly_stochastic: bool
    irreducible: bool  # every state is reached from every other
    aperiodic: bool  # no eigenvalue but 1 has modulus 1


def structure(p: Floats) -> Structure:
    """Return which assumptions hold for a chain.

    Example:
        >>> structure(ring(4))
        Structure(symmetric=True, doubly_stochastic=True, irreducible=True, aperiodic=False)
    """
    states = len(p)
    reached = np.linalg.matrix_power((p > 0) + np.eye(states), states - 1) > 0
    eigenvalues = np.linalg.eigvals(p)
    on_circle = np.abs(np.abs(eigenvalues) - 1) < 1e-8
    return Structure(
        symmetric=bool(np.abs(p - p.T).max() < TOLERANCE),
        doubly_stochastic=bool(np.abs(p.sum(axis=0) - 1).max() < TOLERANCE),
        irreducible=bool(reached.all()),
        aperiodic=bool((np.abs(eigenvalues[on_circle] - 1) < 1e-8).all()),
    )


def _check_states(name: str, states: int) -> None:
    if states < 2:
        raise invalid_value(name, "an integer >= 2", states)
