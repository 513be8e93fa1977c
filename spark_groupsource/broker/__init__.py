"""Embedded broker: the Kafka protocol and Kafka's file formats."""
