"""Tells those who want to know what happened to runs."""
