"""Runs on a server whose lease is over: it deletes itself by a credential that can do nothing else.

It is sent as text, and runs with the Python of the server's image, 3.6 or newer: that knows no
``from __future__ import annotations``.
"""

import http.client
import json
import ssl
import sys
import time
import urllib.request

#: The switch gives it a minute.
_PAUSES_S = (1, 2, 4, 8, 15, 0)


def delete_itself(keystone: str, id: str, secret: str, server: str, authorities: str) -> None:
    """Exits with 1 if it cannot.

    Args:
        keystone: its address.
        id: of the credential.
        secret: of it.
        server: address of itself at Nova.
        authorities: certificates of those that are believed beside the system's; may be empty.
    """
    context = ssl.create_default_context()
    if authorities:
        context.load_verify_locations(cadata=authorities)
    identity = {"methods": ["application_credential"], "application_credential": {"id": id, "secret": secret}}
    body = json.dumps({"auth": {"identity": identity}}).encode()

    def answered(method: str, address: str, headers: "dict[str, str]", data: "bytes | None" = None) -> str:
        request = urllib.request.Request(address, data, headers, method=method)  # noqa: S310 - the cloud's
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
            return str(answer.headers.get("X-Subject-Token"))

    for pause_s in _PAUSES_S:
        try:
            token = answered("POST", keystone + "/auth/tokens", {"Content-Type": "application/json"}, body)
            answered("DELETE", server, {"X-Auth-Token": token})
            return
        except (OSError, http.client.HTTPException) as error:
            print("this server cannot delete itself:", error)  # noqa: T201 - into the switch's log
            time.sleep(pause_s)
    sys.exit(1)
