"""The query as a member: ownership, start positions, reports."""
