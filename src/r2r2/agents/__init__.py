"""Agents: algorithms as pure functions of a state of arrays."""
