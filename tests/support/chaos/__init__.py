"""Processes and checks of the chaos runs."""
