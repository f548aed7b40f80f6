"""Settings of runs and agents as frozen dataclasses; never imports JAX."""
