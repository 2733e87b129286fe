"""Pods of a Kubernetes: its API by plain HTTP, and commands in pods by its websockets."""
