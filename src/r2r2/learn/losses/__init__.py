"""Losses as functions of arrays, one formula each."""
