"""What runs on hosts, with whatever Python is there: sent over the connection, never imported from here.

Only `trees` and words of `answering` and `stores` are: both ends of a connection speak them.
"""
