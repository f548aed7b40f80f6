"""Statistics of scores, and the paper's numbers."""
