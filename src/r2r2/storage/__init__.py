"""Run folders: atomic writes, logs, weights and checkpoints, read without pickle."""
