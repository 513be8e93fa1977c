"""Read tasks and what they carry."""
