"""Workflows: recipes that a server keeps and runs again when data change, at times, or when it is asked."""
