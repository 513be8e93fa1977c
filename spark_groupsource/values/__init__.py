"""Decoding of keys and values into typed columns: JSON, Avro, Kafka's serdes.

A decoder takes a block of values and returns one Arrow array. A malformed value is null in the array and has a reason;
the mode of the query decides what becomes of its record.
"""
