"""Simulation of whole applications of one group.

Processes, threads, the network, the brokers and the clock are replaced.
"""
