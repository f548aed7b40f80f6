"""What a program's products come to, as JAX has traced it."""

import jax
import jax.numpy as jnp

from r2r2.compute.flops import flops_of, largest_product

X = jnp.ones((4, 4))
PRODUCT = 2 * 4**3  # operations of X @ X


def flops(function, *arguments):
    return flops_of(jax.make_jaxpr(function)(*arguments).jaxpr)


def test_every_turn_of_a_loop_counts_where_they_are_known():
    def known(x):
        return jax.lax.scan(lambda c, _: (c @ c, None), x, length=5)[0]

    assert flops(known, X) == 5 * PRODUCT


def test_a_loop_of_unknown_length_counts_once():
    def unknown(x, count):
        return jax.lax.fori_loop(0, count, lambda _, c: c @ c, x)

    assert flops(unknown, X, 7) == PRODUCT


def test_of_branches_the_longer_one_counts():
    def either(x, flag):
        return jax.lax.cond(flag, lambda c: c @ c @ c, lambda c: c @ c, x)

    assert flops(either, X, True) == 2 * PRODUCT


def test_what_nobody_uses_is_not_counted():
    def wasteful(x):
        jnp.dot(x, x)
        return x @ x

    assert flops(wasteful, X) == PRODUCT


def test_products_inside_compiled_functions_and_of_batches_count():
    batch = jnp.ones((3, 4, 4))
    assert flops(jax.jit(lambda x: x @ x), batch) == 3 * PRODUCT


def test_the_largest_product_is_found_wherever_it_is():
    def nested(x, flag):
        small = jnp.ones((2, 2)) @ jnp.ones((2, 2))
        large = jax.lax.cond(flag, lambda c: c, lambda c: c @ c, x)
        return jax.lax.fori_loop(0, 3, lambda _, c: c + 1, large), small

    traced = jax.make_jaxpr(nested)(X, True).jaxpr
    assert largest_product(traced) == PRODUCT
    assert largest_product(jax.make_jaxpr(jnp.sin)(X).jaxpr) == 0
