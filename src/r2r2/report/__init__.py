"""What it shows: NumPy and matplotlib only, never JAX."""
