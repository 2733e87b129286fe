"""Machines that are pods of a Kubernetes, with the rights of one namespace."""
