"""Spark data source: options, planning, streaming session, read tasks."""
