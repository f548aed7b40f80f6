"""What is run: every number of the project, as frozen dataclasses."""
