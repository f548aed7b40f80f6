"""Policies without JAX: NumPy programs and the noise of their actions."""
