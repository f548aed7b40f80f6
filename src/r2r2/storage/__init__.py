"""Files of a run: written whole, read without running code."""
