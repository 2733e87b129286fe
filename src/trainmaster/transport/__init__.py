"""Commands and byte streams to machines: this one, and others over SSH.

Nothing here imports asyncssh before something is connected; it comes with ``trainmaster[hosts]``.
"""
