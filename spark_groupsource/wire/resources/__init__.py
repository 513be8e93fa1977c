"""Message schemas of coordinator records, as JSON."""
