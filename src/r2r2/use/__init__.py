"""How people use it: the command line."""
