"""Gangs on this machine, by its supervisor."""
