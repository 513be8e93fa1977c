"""Spark's interfaces: lookup, readers, listeners."""
