"""Commands and byte streams to machines: this one, others over SSH, pods, and bundles of a Ray.

Nothing here imports asyncssh before something is connected; it comes with ``trainmaster[hosts]``.
"""
