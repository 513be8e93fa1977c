"""Schema registry: client, headers, references."""
