import jax
import jax.numpy as jnp
import numpy as np
import pytest

from r2r2.replay import sum_tree


def filled(weights, fanout):
    index = jnp.arange(len(weights))
    return sum_tree.assign(sum_tree.init(len(weights), fanout), index, weights)


@pytest.mark.parametrize(
    ("rows", "fanout", "levels"), [(5, 8, 1), (8, 8, 1), (9, 8, 2), (65, 8, 3)]
)
def test_levels(rows, fanout, levels):
    tree = sum_tree.init(rows, fanout)
    assert len(tree.levels) == levels
    assert tree.levels[-1].shape[0] == 1
    assert len(tree.weights) >= rows


def test_inverse_cdf_by_hand():
    # Running sums 2, 2, 5, 10; u x 10 = 2 is reached at once, 2.1 at the third.
    weights = jnp.array([2.0, 0.0, 3.0, 5.0])
    uniforms = jnp.array([1e-6, 0.2, 0.21, 0.5, 0.51, 1.0])
    drawn = sum_tree.inverse_cdf(jnp.tile(weights, (6, 1)), uniforms)
    assert drawn.tolist() == [0, 0, 2, 2, 3, 3]


@pytest.mark.parametrize("uniform", [0.0, 1e-30, 0.5, 1.0])
def test_weight_zero_is_never_sampled_even_at_the_ends(uniform):
    weights = jnp.array([0.0, 0.0, 1.0, 0.0, 2.0, 0.0])
    drawn = sum_tree.inverse_cdf(weights[None], jnp.array([uniform]))
    assert drawn[0] in (2, 4)


def test_sums_stay_exact_after_many_changes():
    rng = np.random.default_rng(0)
    tree = filled(jnp.asarray(rng.uniform(size=300)), fanout=8)
    assign = jax.jit(sum_tree.assign)
    for _ in range(200):
        index = rng.integers(300, size=20)
        tree = assign(tree, index, jnp.asarray(rng.uniform(0, 1e4, size=20)))
    # Small again: sums kept by differences would still carry the large ones' errors.
    tree = assign(tree, jnp.arange(300), jnp.full(300, 1e-3))
    for below, above in zip(tree.levels, tree.levels[1:], strict=False):
        sums = jnp.sum(below, axis=-1)
        np.testing.assert_array_equal(above.reshape(-1)[: len(sums)], sums)


def test_assigning_a_row_twice_keeps_sums_consistent():
    tree = filled(jnp.ones(20), fanout=4)
    tree = sum_tree.assign(tree, jnp.array([3, 3, 7]), jnp.array([5.0, 6.0, 2.0]))
    assert tree.weights[3] in (5.0, 6.0)
    np.testing.assert_allclose(jnp.sum(tree.levels[-1]), jnp.sum(tree.weights))


def test_tree_of_a_fleet_equals_those_of_its_members():
    rng = np.random.default_rng(1)
    weights = jnp.asarray(rng.uniform(size=(3, 50)))
    trees = jax.vmap(lambda w: filled(w, 4))(weights)
    member, index = jnp.array([[2, 2], [0, 0]]), jnp.array([[7, 49], [3, 4]])
    new = jnp.array([[9.0, 8.0], [7.0, 6.0]])
    together = sum_tree.assign(trees, index, new, member=(member,))
    for place, who in ((0, 2), (1, 0)):
        tree = jax.tree.map(lambda x, who=who: x[who], trees)
        alone = sum_tree.assign(tree, index[place], new[place])
        for a, b in zip(together.levels, alone.levels, strict=True):
            np.testing.assert_array_equal(a[who], b)
    for a, b in zip(together.levels, trees.levels, strict=True):
        np.testing.assert_array_equal(a[1], b[1])


def exact_probabilities(tree: sum_tree.SumTree) -> np.ndarray:
    """Each row's probability in exact arithmetic on the float32 numbers of a walk.

    At a level a place is drawn for the uniforms k / 2^23 (k = 1 .. 2^23) between two
    float32 running sums: counted, not assumed.
    """
    grid = (1 - np.arange(2**23, dtype=np.float32) / np.float32(2**23))[::-1]
    probability = np.ones(1)
    for level in reversed(tree.levels):
        rows = []
        for parent, block in zip(probability, level, strict=False):
            sums = np.asarray(jnp.cumsum(block))
            total = np.where(np.asarray(block) > 0, sums, 0).max()
            reach = np.searchsorted(grid * total, sums, side="right")
            count = np.diff(np.maximum.accumulate(reach), prepend=0)
            rows.append(parent * count / 2**23)
        probability = np.concatenate(rows)
    return probability


def test_probabilities_of_a_million_rows_are_within_two_percent():
    rng = np.random.default_rng(2)
    size = 1_000_000
    # LAP's priorities are at least 1; max(error, 1)^0.4 rarely passes 10.
    weights = np.clip(rng.lognormal(0.3, 0.8, size), 1, 40).astype(np.float32)
    tree = jax.jit(lambda w: filled(w, 128))(weights)
    exact = weights.astype(np.float64) / weights.astype(np.float64).sum()
    blocks = rng.integers(len(tree.levels[0]), size=30)
    # The walk above a block is shared: check all upper levels and some whole blocks.
    upper = sum_tree.SumTree(tree.levels[1:])
    of_block = exact_probabilities(upper)[: len(tree.levels[0])]
    for block in (0, len(tree.levels[0]) - 1, *blocks):
        rows = slice(block * 128, min((block + 1) * 128, size))
        alone = sum_tree.SumTree((tree.levels[0][block][None],))
        drawn = of_block[block] * exact_probabilities(alone)[: rows.stop - rows.start]
        np.testing.assert_allclose(drawn, exact[rows], rtol=0.02)


def test_samples_follow_the_weights():
    weights = jnp.asarray(np.r_[np.zeros(100), np.ones(100), np.full(100, 3.0)])
    tree = filled(weights, fanout=8)
    uniforms = 1 - jax.random.uniform(jax.random.key(0), (100_000, 3))
    counts = np.bincount(jax.jit(sum_tree.sample)(tree, uniforms), minlength=300)
    assert not counts[:100].any()
    # 250 and 750 expected a row; six deviations.
    np.testing.assert_allclose(counts[100:200], 250, atol=6 * 250**0.5)
    np.testing.assert_allclose(counts[200:300], 750, atol=6 * 750**0.5)
