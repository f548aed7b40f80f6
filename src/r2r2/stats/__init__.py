"""Scores, their statistics with bootstrap intervals, and the paper's numbers."""
