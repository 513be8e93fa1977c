"""Tables: columns, rows, selections, results."""
