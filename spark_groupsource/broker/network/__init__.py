"""Listeners, connections and SASL authentication."""
