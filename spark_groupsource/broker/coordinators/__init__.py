"""Group and transaction coordinator runtimes."""
