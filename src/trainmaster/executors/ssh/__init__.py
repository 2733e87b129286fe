"""Gangs over hosts that are reached by SSH alone: nothing is installed there but the supervisor."""
