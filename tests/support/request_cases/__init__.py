"""Requests by API, for the comparison of two brokers' responses."""
