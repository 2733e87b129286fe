"""`Openings`: connections to other machines that are being made; a machine may let us wait for long."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Final
from weakref import WeakValueDictionary

from trainmaster.api.proxy.upstream import PIECE_BYTES
from trainmaster.spec.errors import TrainmasterError

#: At once to one place: all but the first wait for its login, and none needs a thread for that.
_OF_EACH: Final = 4
_MOST: Final = 64


class Openings:
    """Has threads of its own: who asks whether somebody may get in never waits for a machine."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    async def open(
        self, place: Hashable, work: Callable[[], socket.socket]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a place, when it is its turn.

        Raises:
            ConnectionError: there is none, with what `work` said.
        """
        turn = self._turns.setdefault(place, asyncio.Semaphore(_OF_EACH))
        async with turn:
            try:
                stream = await asyncio.get_running_loop().run_in_executor(self._threads, work)
            except TrainmasterError as error:
                raise ConnectionError(str(error)) from None
        return await asyncio.open_connection(sock=stream, limit=PIECE_BYTES)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_MOST, "openings")
