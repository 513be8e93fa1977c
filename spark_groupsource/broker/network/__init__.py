"""Sockets of the broker: listeners, connections, authentication."""
