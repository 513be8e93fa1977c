"""The reader process beside the driver."""
