"""Kafka protocol: messages, framing, version negotiation, SASL, coordinator records."""
