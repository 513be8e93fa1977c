"""Fetching and producing of record batches."""
