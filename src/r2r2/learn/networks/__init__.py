"""Networks as Equinox modules that act on the last axis."""
