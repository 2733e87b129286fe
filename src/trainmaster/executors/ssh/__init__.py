"""Gangs on nodes that are reached over SSH, with nothing else on them."""

#: What serves a driver on a node: a process of its own.
AGENT_PROGRAM = "trainmaster.executors.ssh.node_agent"
#: A script of a node, and what it tells.
STATUSES = "statuses"
