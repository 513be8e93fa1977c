"""Runtimes of the group and transaction coordinators."""
