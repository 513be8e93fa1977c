"""Positions: checkpoint, offset JSON, planning, data loss."""
