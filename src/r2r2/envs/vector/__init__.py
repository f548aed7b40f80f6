"""A pool of environments in worker processes."""
