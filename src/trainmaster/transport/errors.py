"""What can go wrong with a machine at the other end of a connection.

* TrainmasterError
  + ProviderError                                     somebody cannot be reached; later may help
    - UnreachableError        no connection, or it was lost
      + ConnectionLostError   it was lost while a command ran
    - RemoteTimeoutError      connected, but a command was not done in time
  + UsageError                exit code 2
    - LoginRefusedError       the host does not take the user or the key
    - HostKeyError            the host shows another key than it did, or than the inventory says
  + CommandError              a command failed on the host
"""

from __future__ import annotations

from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError


class UnreachableError(ProviderError):
    """No connection, or it was lost."""


class ConnectionLostError(UnreachableError):
    """It was lost while a command ran."""


class RemoteTimeoutError(ProviderError):
    """Connected, but a command was not done in time."""


class LoginRefusedError(UsageError):
    """The host does not take the user or the key."""


class HostKeyError(UsageError):
    """The host shows another key than it did, or than the inventory says."""


class CommandError(TrainmasterError):
    """A command failed on the host.

    Attributes:
        code: its exit code; None if a signal or a lost connection ended it.
    """

    def __init__(self, message: str, hint: str = "", code: int | None = None) -> None:
        self.code = code
        super().__init__(message, hint)
