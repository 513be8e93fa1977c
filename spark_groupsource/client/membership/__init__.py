"""Group membership of the client: state machine, member threads, heartbeats."""
