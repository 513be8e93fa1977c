"""Reading and writing of record batches over the wire."""
