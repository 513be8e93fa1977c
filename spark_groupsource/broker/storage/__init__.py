"""Partition logs on disk, in the file formats of Apache Kafka."""
