"""Replay: ring buffers on the device, prioritized sampling, normalization."""
