"""Cluster metadata, request routing, offset requests."""
