"""Environments: building tasks, task suites, rendering, and a pool of workers."""
