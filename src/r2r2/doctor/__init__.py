"""What `r2r2 doctor` examines: packages, devices, rendering, cache and disk; imports no JAX."""
