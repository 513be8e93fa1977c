"""Simulation of the group coordinator: broker, clients, network, clock and checks."""
