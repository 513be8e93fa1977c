"""The version number, at its only place: setup.cfg reads it from this source text."""

__version__ = "0.1.0"
