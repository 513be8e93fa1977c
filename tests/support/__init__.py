"""What several test rooms share; imported as ``support.<module>``."""
