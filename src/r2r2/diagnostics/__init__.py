"""Diagnostics of representations and values."""
