"""Sinks: what tasks report is sent to MLflow, too, from what is stored here; nothing waits for it."""
