"""Replay: ring buffers on the device, prioritised sampling, normalisation."""
