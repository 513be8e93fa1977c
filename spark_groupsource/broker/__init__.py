"""The embedded broker: one node that serves Kafka's protocol from files in Kafka's layout."""
