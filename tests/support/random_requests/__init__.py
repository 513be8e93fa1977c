"""Random requests to two brokers, valid ones and slightly invalid ones."""
