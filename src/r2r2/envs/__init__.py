"""Where: tasks behind one interface."""
