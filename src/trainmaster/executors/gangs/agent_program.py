"""A node's `Agent` at the other end of an SSH channel: one JSON frame per call on standard input.

``python -m trainmaster.executors.gangs.agent_program NODE``, with what `Agent` takes as JSON. It ends with
its stream, or when its driver has not asked for anything for a while; supervisor and members go on.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from trainmaster.executors.gangs.agent import PATIENCE_S, Agent
from trainmaster.executors.process_limits import forbid_core_dumps
from trainmaster.executors.wire import Splitter, encode
from trainmaster.spec.errors import LeaseLostError, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.executors.wire import Message

_THREADS = 4
_LAST_S = 0.1
_READ_BYTES = 1 << 20


class AgentProgram:
    """Answers calls from threads: one waits for news while others hand over commands.

    Args:
        agent: whose methods are called.
        threads: most calls at a time.
        output: file descriptor that the answers go to.
    """

    def __init__(self, agent: object, threads: int = _THREADS, output: int = 1) -> None:
        self._agent = agent
        self._output = output
        self._threads = threads
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Until standard input ends."""
        splitter = Splitter()
        poll = select.poll()
        poll.register(0, select.POLLIN)
        heard_at = time.monotonic()
        with ThreadPoolExecutor(self._threads) as pool:
            while time.monotonic() - heard_at < PATIENCE_S:
                if not poll.poll(int(PATIENCE_S * 1000)):
                    break
                try:
                    data = os.read(0, _READ_BYTES)
                except OSError:  # the connection was reset
                    data = b""
                if not data:
                    break
                heard_at = time.monotonic()
                for call in splitter.feed(data):
                    pool.submit(self._answer, call)
            time.sleep(_LAST_S)  # what came last is still done
            os._exit(0)  # a thread may wait for news

    def _answer(self, call: Message) -> None:
        try:
            found: Message = {"result": getattr(self._agent, call["do"])(*call["args"])}
        except LeaseLostError as error:
            found = {"error": [Exception.__str__(error), error.hint], "fenced": True}
        except TrainmasterError as error:
            found = {"error": [Exception.__str__(error), error.hint]}
        except Exception as error:  # noqa: BLE001 - told to the driver
            found = {"error": [f"{type(error).__name__}: {error}", ""]}
        view = memoryview(encode({"id": call["id"], **found}))
        with self._lock:
            while view:
                view = view[os.write(self._output, view) :]


def main(arguments: list[str]) -> None:
    """Serve one driver."""
    forbid_core_dumps()
    AgentProgram(Agent(json.loads(arguments[0]))).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
