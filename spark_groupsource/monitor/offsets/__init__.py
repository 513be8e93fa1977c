"""Lag, offsets, resets, the log of offsets."""
