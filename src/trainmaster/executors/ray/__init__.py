"""Gangs over many nodes, with Ray Core."""
