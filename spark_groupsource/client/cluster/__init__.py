"""Metadata of a Kafka cluster, request routing, offset requests."""
