"""Request handlers by API family, and the table of served versions."""
