"""Embedded broker: serves the Kafka protocol from a log directory in Kafka's file format."""
