"""Benchmarks: what `r2r2 bench` measures."""
