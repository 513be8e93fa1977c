"""Fetch sessions and delayed fetches."""
