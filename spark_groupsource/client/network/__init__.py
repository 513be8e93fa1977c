"""Connections to brokers: TLS, SASL, retries."""
