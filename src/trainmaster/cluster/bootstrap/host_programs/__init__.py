"""What runs on hosts, with whatever Python is there: sent over the connection.

Only `answering` is imported as well: what it says and how it locks is the same for the worker on a node.
"""
