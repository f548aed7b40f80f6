"""Loss functions of plain arrays."""
