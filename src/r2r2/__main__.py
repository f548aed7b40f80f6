"""`python -m r2r2` is `r2r2`."""

from r2r2.cli.main import entry

entry()
