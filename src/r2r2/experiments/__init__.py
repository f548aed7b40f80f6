"""Experiments: grids of runs, planned as fleets and carried out by an engine."""
