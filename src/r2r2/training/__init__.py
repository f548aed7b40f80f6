"""Training: the loop of a run and everything that it consists of."""
