"""Ansible roles of the user on the nodes of a cluster."""
