"""Environments of a fleet, stepped together in worker processes."""
