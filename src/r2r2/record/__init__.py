"""Memory of a run: its folder, events, evaluations and weights."""
