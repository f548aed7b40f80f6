"""Many updates of many members as one compiled program, plain or fast."""
