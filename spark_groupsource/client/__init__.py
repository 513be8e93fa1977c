"""Kafka client: network, cluster metadata, records, group membership, admin."""
