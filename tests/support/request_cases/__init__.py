"""Requests that are sent to the embedded broker and to Kafka to compare the responses, by API."""
