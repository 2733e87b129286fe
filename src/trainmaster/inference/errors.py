"""What is wrong with a request, or with a model."""

from __future__ import annotations


class ModelError(Exception):
    """The model cannot be served; the text says why and what to do."""


class RequestError(Exception):
    """A request is refused.

    Attributes:
        status: of HTTP.
        retry_after_s: later it may help; 0 if it will not.
    """

    def __init__(self, message: str, status: int = 400, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s
