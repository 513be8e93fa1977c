"""Rebalances: sources, rules, findings, sentences."""
