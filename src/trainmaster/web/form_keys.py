"""Keys of forms that start runs: a form that is sent twice, as by a double click, starts one."""

from __future__ import annotations

import secrets

from trainmaster.service.driving.submissions import RunRequest


def new_key() -> str:
    """For a form that is shown."""
    return secrets.token_hex(16)


def key_of(form_key: str, request: RunRequest) -> str:
    """For `Submissions.submit`: the same form with other content, as after the browser's Back, is another."""
    return f"{form_key}-{request.digest()}" if form_key else ""
