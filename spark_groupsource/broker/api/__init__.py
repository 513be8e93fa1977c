"""Request handlers, one module per API family, and the table of served versions."""
