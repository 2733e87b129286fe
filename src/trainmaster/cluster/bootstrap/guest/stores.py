"""Uses an object store on a host, with credentials that come in the connection only.

Our runtime's Python runs it. Read from standard input: this program's arguments (a line of JSON), of which
``do`` is one of these:

* ``reach``: finds out whether the store can be used from here.
* ``send``: uploads files to where an artifact will be; says what a manifest will say of them.
* ``restore``: makes a directory what an artifact is.

The answer comes after a line ``@@stores``: lines of JSON, a list for each file, ``0`` now and then as a sign
of life, and at last ``null``, or an object that says what went wrong: in words, and of what kind it is
(``trouble``, see `trainmaster.objects.errors`; empty if the runtime here is too old to tell).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MARK = "@@stores"
_LIFE_S = 5.0
#: Members of the task come first: sending and hashing takes what they leave.
_NICE = 10
_speaking = threading.Lock()
#: Where distributions keep the certificates of authorities.
_ROOTS = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def main() -> int:
    """Do as told; the exit code."""
    order = json.loads(sys.stdin.buffer.readline())
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    # Set here, they show in no list of processes and in no /proc/PID/environ.
    os.environ.update(order["environment"])
    trust_somebody()
    say_line(MARK)
    threading.Thread(target=live, args=(lambda: "0",), daemon=True).start()
    if order.get("limit_s"):
        timer = threading.Timer(order["limit_s"], _give_up, (f"no answer for {order['limit_s']:g} s",))
        timer.daemon = True
        timer.start()
    try:
        _perform(order)
    except Exception as error:  # noqa: BLE001 - the caller is on another machine and has to be told
        _say({"error": type(error).__name__, "words": _words(error), "trouble": _trouble(error)})
        return 1
    _say(None)
    return 0


def _perform(order: Mapping[str, Any]) -> None:
    from trainmaster.artifacts.sending import Sender, ToSend, bring_back, entry_list, reach

    if order["do"] == "reach":
        reach(order["uri"])
    elif order["do"] == "restore":
        bring_back(order["uri"], Path(order["directory"]))
    else:
        sender = Sender(order["uri"], order["folder"], Path(order["journal"]))
        for entry in sender.send(ToSend(*each) for each in order["files"]):
            _say(entry_list(entry))


def trust_somebody() -> None:
    """A bare image has no certificates of authorities: without any, not even plain HTTP is spoken."""
    if "SSL_CERT_FILE" in os.environ or "SSL_CERT_DIR" in os.environ or any(map(os.path.isfile, _ROOTS)):
        return
    with contextlib.suppress(ImportError):  # it comes with Ray
        import certifi

        os.environ["SSL_CERT_FILE"] = certifi.where()


def _words(error: Exception) -> str:
    return " ".join(str(each).strip() for each in error.args if each) or type(error).__name__


def _trouble(error: Exception) -> str:
    with contextlib.suppress(ImportError):
        from trainmaster.objects.errors import trouble_of

        return trouble_of(error).value
    return ""


def _say(what: object) -> None:
    say_line(json.dumps(what))


def say_line(line: str) -> None:
    """Say a line; threads take turns."""
    with _speaking:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def live(word: Callable[[], str]) -> None:
    """The caller may be gone without a word: then nothing more is named, and it ends."""
    pause = threading.Event()
    while not pause.wait(_LIFE_S):
        try:
            say_line(word())
        except OSError:
            os._exit(1)


def _give_up(words: str) -> None:
    with contextlib.suppress(OSError):
        _say({"error": "TimeoutError", "words": words, "trouble": "unreachable"})
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
