"""Agents as records of pure functions."""
