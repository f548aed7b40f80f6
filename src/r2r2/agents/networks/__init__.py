"""Networks of the agents."""
