"""What this machine must have for a lab."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Final

from trainmaster.lab.errors import LabError
from trainmaster.lab.shell import call
from trainmaster.spec.errors import MissingPartError, UsageError

#: Program -> the Debian package that has it.
TOOLS: Final = {
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "tc": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "pivot_root": "util-linux",
}
#: Beside the daemon's own; they come with the extra ``[lab]``.
MODULES: Final = ("moto", "flask", "flask_cors", "boto3", "cryptography")


def why_not() -> str:
    """Why there can be no lab here; empty if there can."""
    if os.geteuid() != 0:
        return "it needs root: it makes network namespaces, mounts and control groups"
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if missing:
        return f"it needs the packages {', '.join(missing)}"
    modules = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if modules:
        return f"it needs the Python packages {', '.join(modules)}"
    try:
        call(["unshare", "--user", "--net", "--mount", "--pid", "--fork", "true"])
    except LabError as error:
        return f"it may not make namespaces here ({error})"
    return ""


def require() -> None:
    """Say what is missing.

    Raises:
        UsageError: this user or machine cannot have a lab.
        MissingPartError: the extra ``[lab]`` is not installed.
    """
    reason = why_not()
    if not reason:
        return
    if "Python packages" in reason:
        raise MissingPartError(f"no lab: {reason}", "pip install 'trainmaster[lab]'")
    hints = {
        "root": "Run it as root, with sudo for example.",
        "namespaces": "A container must be privileged; `sysctl user.max_user_namespaces` must not be 0.",
        "packages": f"apt-get install {reason.rpartition('packages ')[2].replace(',', '')}",
    }
    hint = next((text for word, text in hints.items() if word in reason), "")
    raise UsageError(f"no lab: {reason}", hint or "A container must be privileged for that.")
