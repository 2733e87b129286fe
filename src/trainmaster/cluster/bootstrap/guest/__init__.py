"""What runs on hosts, with whatever Python is there: sent over the connection, never imported from here.

Only `trees` is: both ends of a connection speak it.
"""
