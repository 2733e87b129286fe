"""`PlainLauncher`: programs of any kind that need no framework's variables."""

from __future__ import annotations

from trainmaster.launchers.base import Gang, Launcher, Member


class PlainLauncher(Launcher):
    """Adds nothing for a single process, and the list of hosts for a gang.

    ``TRAINMASTER_HOSTS`` names each member's host in rank order, so that a program of any kind
    finds the others; ``TRAINMASTER_INDEX`` and ``TRAINMASTER_WORLD_SIZE`` come from Trainmaster itself.

    >>> alone = Gang((Member("worker", 0, "127.0.0.1"),))
    >>> PlainLauncher().environment(alone, alone.chief)
    {}
    >>> pair = Gang((Member("worker", 0, "10.0.0.1"), Member("worker", 1, "10.0.0.2")))
    >>> PlainLauncher().environment(pair, pair.members[1])
    {'TRAINMASTER_HOSTS': '10.0.0.1,10.0.0.2'}
    """

    name = "plain"

    def environment(self, gang: Gang, member: Member) -> dict[str, str]:
        """``TRAINMASTER_HOSTS`` when there are others."""
        if gang.world_size == 1:
            return {}
        return {"TRAINMASTER_HOSTS": ",".join(other.host for other in gang.members)}

    def explain(self, log_tail: str) -> str:
        """What PyTorch is known to say: a single process needs no framework in its recipe."""
        from trainmaster.launchers.torchrun import TorchrunLauncher

        return TorchrunLauncher().explain(log_tail)
