"""The program: training as one page."""
