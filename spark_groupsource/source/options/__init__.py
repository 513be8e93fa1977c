"""Options of the source: tables, parsers, schemas."""
