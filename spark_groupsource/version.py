"""Version of the package; setup.cfg reads it from this file."""

__version__ = "0.1.0"
