"""Gangs over the nodes of a cluster, for all engines: their turn, their places, what becomes of them."""
