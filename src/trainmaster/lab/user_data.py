"""User data -> what a host does at its first boot: the part of cloud-init that people use."""

from __future__ import annotations

import base64
import email
import gzip
import re
import shlex
from collections.abc import Sequence
from typing import Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.plain_json import parsed_yaml

_MODE = re.compile(r"0?[0-7]{3,4}")
#: Keys of cloud-config that a host of the lab cannot or need not follow; they are named in its log.
_DONE: Final = frozenset(
    ("users", "ssh_authorized_keys", "ssh_keys", "write_files", "bootcmd", "runcmd", "hostname", "fqdn")
)


@dataclass
class BootPlan:
    """What the first boot does, in this order.

    Attributes:
        hostname: instead of the usual one; empty for that.
        host_keys: name of a file in ``/etc/ssh`` -> its content, from ``ssh_keys``.
        users: shell lines that make users and let their keys in.
        commands: shell lines for the rest; each is run whatever became of the one before.
        every_boot: shell lines of ``bootcmd``.
        notes: what was not done, and why.
    """

    hostname: str = ""
    host_keys: dict[str, str] = field(default_factory=dict)
    users: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    every_boot: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def script(self) -> str:
        """``firstboot.sh keys``, before sshd starts, and ``firstboot.sh data``, beside it."""
        lines = [
            "#!/bin/bash",
            "# Written by the lab from the instance's key pair and user data.",
            "mark=/var/lib/cloud/instance; log=/var/log/cloud-init-output.log",
            "again=/var/lib/cloud/scripts/per-boot",
            'mkdir -p "$mark" "$again" /var/log; touch "$log"',
            "grant() {  # USER KEYS: let somebody in",
            '  local home; home=$(getent passwd "$1" | cut -d: -f6); [ -n "$home" ] || return 0',
            '  install -d -m 700 -o "$1" "$home" "$home/.ssh" 2>/dev/null || mkdir -p "$home/.ssh"',
            '  printf "%s\\n" "$2" >> "$home/.ssh/authorized_keys"',
            '  chmod 755 "$home"; chmod 600 "$home/.ssh/authorized_keys"; chown -R "$1:" "$home/.ssh"',
            "}",
            'if [ "$1" = keys ]; then',
            '  [ -e "$mark/keys-done" ] && exit 0',
            *(f"  {line}" for line in self.users),
            '  touch "$mark/keys-done"',
            "  exit 0",
            "fi",
            'cd /; exec >> "$log" 2>&1 < /dev/null',
            *(f"echo {shlex.quote('note: ' + note)}" for note in self.notes),
            *self.every_boot,
            'for script in "$again"/*; do [ ! -x "$script" ] || "$script"; done',
            '[ -e "$mark/boot-finished" ] && exit 0',
            *self.commands,
            'touch "$mark/boot-finished"',
        ]
        return "\n".join(lines) + "\n"


def plan_boot(user_data: bytes, keys: Sequence[str], user: str) -> BootPlan:
    """Read user data as cloud-init does.

    Args:
        user_data: a script, a ``#cloud-config``, a MIME message of such parts; gzipped or not; or nothing.
        keys: public keys of the instance's key pair.
        user: the image's own user, who gets them.
    """
    plan = BootPlan()
    if keys:
        plan.users.append(_grant(user, keys))
        # As on Amazon's images: root's key says whom to log in as.
        words = f'Please login as the user "{user}" rather than the user "root".'
        command = f"echo '{words}'; sleep 1; exit 142"
        options = f"no-port-forwarding,no-agent-forwarding,no-X11-forwarding,command={_double(command)}"
        plan.users.append(_grant("root", [f"{options} {key}" for key in keys]))
    _add(plan, _unpacked(user_data), user)
    return plan


def _double(text: str) -> str:
    escaped = text.replace('"', '\\"')
    return f'"{escaped}"'


def _unpacked(data: bytes) -> bytes:
    if data[:2] == b"\x1f\x8b":
        try:
            return gzip.decompress(data)
        except (OSError, EOFError):
            return b"\xff broken gzip"
    return data


def _add(plan: BootPlan, data: bytes, user: str) -> None:
    if not data.strip():
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        plan.notes.append("user data that is neither text nor gzip: ignored")
        return
    if text.startswith("#!"):
        number = len(plan.commands)
        encoded = base64.b64encode(text.encode()).decode()
        path = f"$mark/part-{number:03}"
        plan.commands.append(f'echo {encoded} | base64 -d > "{path}"; chmod 700 "{path}"; "{path}"')
    elif text.startswith("#cloud-config"):
        _add_config(plan, text, user)
    elif re.match(r"(content-type|mime-version):", text, re.IGNORECASE):
        for part in email.message_from_string(text).walk():
            payload = part.get_payload(decode=True)
            if not part.is_multipart() and isinstance(payload, bytes):
                _add(plan, _unpacked(payload), user)
    else:
        first = text.splitlines()[0][:60]
        plan.notes.append(
            f"user data that begins with {first!r}: the lab runs scripts (#!) and #cloud-config only"
        )


def _add_config(plan: BootPlan, text: str, user: str) -> None:
    try:
        config = parsed_yaml(text)
    except ValueError as error:
        plan.notes.append("cloud-config is no YAML: " + " ".join(str(error).split()))
        return
    if config is None:
        return
    if not isinstance(config, dict):
        plan.notes.append("cloud-config is no mapping: ignored")
        return
    plan.hostname = str(config.get("hostname") or plan.hostname)
    for name, key in (config.get("ssh_keys") or {}).items():
        kind, _, which = str(name).partition("_")
        if re.fullmatch(r"[a-z0-9]+", kind) and which in ("private", "public"):
            plan.host_keys[f"ssh_host_{kind}_key{'.pub' if which == 'public' else ''}"] = str(key)
    for entry in config.get("users") or []:
        _add_user(plan, entry)
    if granted := config.get("ssh_authorized_keys"):
        plan.users.append(_grant(user, _texts(granted)))
    for entry in config.get("write_files") or []:
        _add_file(plan, entry)
    plan.every_boot += [_command(c) for c in config.get("bootcmd") or []]
    plan.commands += [_command(c) for c in config.get("runcmd") or []]
    ignored = sorted(str(key) for key in config if key not in _DONE)
    if ignored:
        plan.notes.append(f"cloud-config keys that the lab does not know: {', '.join(ignored)}")


def _add_user(plan: BootPlan, entry: Any) -> None:
    if entry == "default":
        return
    if isinstance(entry, str):
        entry = {"name": entry}
    if not isinstance(entry, dict) or not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", str(entry.get("name", ""))):
        plan.notes.append(f"a user without a proper name: {entry!r}")
        return
    name = str(entry["name"])
    words = ["useradd", "-m", "-s", str(entry.get("shell") or "/bin/bash"), "-p", "*"]
    if home := entry.get("homedir") or entry.get("home"):
        words += ["-d", str(home)]
    if groups := entry.get("groups"):
        words += ["-G", groups if isinstance(groups, str) else ",".join(_texts(groups))]
    plan.users.append(f"id -u {name} > /dev/null 2>&1 || {shlex.join([*words, name])}")
    rules = entry.get("sudo")
    if rules and rules is not True:
        rule = "".join(f"{name} {line}\n" for line in _texts(rules))
        path = f"/etc/sudoers.d/90-lab-{name}"
        plan.users.append(f"printf %s {shlex.quote(rule)} > {path}; chmod 440 {path}")
    granted = entry.get("ssh_authorized_keys") or entry.get("ssh-authorized-keys")
    if granted:
        plan.users.append(_grant(name, _texts(granted)))


def _add_file(plan: BootPlan, entry: Any) -> None:
    if not isinstance(entry, dict) or not str(entry.get("path", "")).startswith("/"):
        plan.notes.append(f"write_files without an absolute path: {entry!r}")
        return
    content = entry.get("content")
    data = content if isinstance(content, bytes) else str("" if content is None else content).encode()
    encoding = str(entry.get("encoding") or "text/plain")
    try:
        if "b64" in encoding or "base64" in encoding:
            data = base64.b64decode(data)
        if "gz" in encoding:
            data = gzip.decompress(data)
    except (ValueError, OSError, EOFError):
        plan.notes.append(f"write_files: {entry['path']}: the content is not {encoding}")
        return
    path, mode = shlex.quote(str(entry["path"])), str(entry.get("permissions") or "0644")
    arrow = ">>" if entry.get("append") else ">"
    encoded = base64.b64encode(data).decode()
    lines = f"mkdir -p $(dirname {path}); echo {encoded} | base64 -d {arrow} {path}"
    if _MODE.fullmatch(mode):
        lines += f"; chmod {mode} {path}"
    if owner := entry.get("owner"):
        lines += f"; chown {shlex.quote(str(owner))} {path}"
    plan.commands.append(lines)


def _command(entry: Any) -> str:
    words = shlex.join(_texts(entry)) if isinstance(entry, list) else shlex.join(["sh", "-c", str(entry)])
    return f"{words} || echo exit code $?: {shlex.quote(words)}"


def _grant(user: str, keys: Sequence[str]) -> str:
    lines = "\n".join(key.strip() for key in keys)
    return f"grant {shlex.quote(user)} {shlex.quote(lines)}"


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
