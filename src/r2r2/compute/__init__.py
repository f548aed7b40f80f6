"""Many updates of many members as one fast compiled program."""
