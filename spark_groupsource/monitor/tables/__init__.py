"""Tables: columns, rows, estimates, filters, results; records of topics."""
