"""JSON values as columns."""
