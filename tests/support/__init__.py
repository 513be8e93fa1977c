"""Helpers of the tests, imported as ``support.<module>``."""
