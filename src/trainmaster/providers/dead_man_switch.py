"""The dead-man switch of a rented machine: it ends itself when its lease is not renewed.

It needs neither the cloud's API nor the network: a loop on the machine reads a file that the driver of the
run renews over SSH (`renewal_command`). Time is the machine's uptime, which no clock that is set changes. The
script is user data, for cloud-init and for the lab's first boot; the machine must be rented with
``InstanceInitiatedShutdownBehavior=terminate``, so that switching off is giving back.
"""

from __future__ import annotations

import math
import re
import shlex
from typing import Final

#: On a file system in memory: what was written before a reboot means nothing after it.
DIRECTORY: Final = "/run/trainmaster"
#: Where it lies itself.
_STATE: Final = "/var/lib/trainmaster"
#: How often the machine looks, seconds.
TICK_S: Final = 5
#: A lease is renewed so many times before it would be over.
RENEWALS: Final = 3
#: A machine that does not go down when asked is switched off after so long.
FORCE_AFTER_S: Final = 90
#: With this a command ends that has brought what does not run there, as its image lacks something.
SELF_DELETION_FAILS: Final = 3
_MAX_LEASE_S: Final = 7 * 86400
#: Names of those who may renew it.
USER: Final = r"[a-z_][a-z0-9_-]{0,31}"

#: For `sh`: once `begin_lease SECONDS` was called, or its variables are set, `lease_holds` waits a moment
#: each time, and fails when the lease in `$dir` is over (`$missing` is 0 then) or removed.
LEASE_FUNCTIONS: Final = r"""
up() { read -r now rest < "$uptime" && now=${now%%.*}; }
begin_lease() { tick=2 uptime=/proc/uptime; up; until=$((now + $1)) missing=0; echo "$until" > "$dir/lease"; }
lease_holds() {
  sleep "$tick" & wait $!
  up
  if [ -f "$dir/lease" ]; then
    missing=0
    # What is no number is no renewal, and no reason to end either: the last lease still holds.
    if read -r asked 2>/dev/null < "$dir/lease"; then
      case $asked in ''|*[!0-9]*) ;; *) [ "$asked" -le $((now + @MOST@)) ] && until=$asked ;; esac
    fi
    [ "$now" -le "$until" ]
  else
    missing=$((missing + 1))
    [ "$missing" -lt 2 ]
  fi
}
""".strip().replace("@MOST@", str(_MAX_LEASE_S))
_SCRIPT: Final = r"""#!/bin/sh
# Trainmaster's dead-man switch: this machine switches itself off (and so is given back) when its lease,
# the uptime in @DIR@/lease, is over, or when that file is removed.
umask 022
PATH=${PATH:-/bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
mkdir -p @STATE@ || exit 1
cat > @STATE@/deadman <<'END_OF_DEADMAN'
#!/bin/sh
dir=@DIR@ tick=@TICK@ uptime=@UPTIME@
lease=$dir/lease
@FUNCTIONS@
# The one that is killed last when memory is short.
{ echo -1000 > @OOM@; } 2>/dev/null
trap '' HUP
mkdir -p "$dir"
chown @USER@ "$dir" 2>/dev/null || chmod 777 "$dir"
up
first=$((now + @LEASE@))
# A renewal may have been quicker than this script.
if read -r until 2>/dev/null < "$lease" && [ "$until" -gt "$first" ] 2>/dev/null; then :; else
  echo "$first" > "$lease.first" && mv -f "$lease.first" "$lease"
  until=$first
fi
chown @USER@ "$lease" 2>/dev/null || chmod 666 "$lease"
echo $$ > "$dir/deadman.pid"
missing=0
while lease_holds; do :; done
why="nobody has renewed its lease"
[ "$missing" = 0 ] || why="its lease was removed"
message="trainmaster: this machine ends itself: $why"
{ echo "$message" >> @STATE@/deadman.log; echo "$message" > @CONSOLE@; } 2>/dev/null
# Where a machine that is off is still there, what was brought deletes it: also one whose disk takes no word.
said=@STATE@/deadman.log
{ true >> "$said"; } 2>/dev/null || said=/dev/null
[ ! -x @STATE@/ending ] || timeout -k 5 @FORCE@ @STATE@/ending >> "$said" 2>&1
# Asked more than once: a shutdown may be refused (a logged-in user's inhibitor) or hang in a service.
shutdown -h now
sleep @FORCE@
systemctl poweroff -ff 2>/dev/null || poweroff -f || halt -f -p
sleep @FORCE@
echo o > @SYSRQ@
END_OF_DEADMAN
chmod 755 @STATE@/deadman
started=""
if [ -d @SYSTEMD@ ] && command -v systemctl > /dev/null; then
  # As a service it comes back after a reboot, and when somebody ends it.
  cat > @UNITS@/trainmaster-deadman.service <<'END_OF_UNIT'
[Unit]
Description=Trainmaster's dead-man switch
[Service]
ExecStart=@STATE@/deadman
Restart=always
RestartSec=1
OOMScoreAdjust=-1000
[Install]
WantedBy=multi-user.target
END_OF_UNIT
  systemctl daemon-reload && systemctl enable trainmaster-deadman.service \
    && systemctl start --no-block trainmaster-deadman.service && started=1
fi
if [ -z "$started" ]; then
  # cloud-init runs what lies there at every boot; without it a reboot is not covered.
  if [ -d @PERBOOT@ ]; then
    again=@PERBOOT@/trainmaster-deadman
    printf '#!/bin/sh\nsetsid %s > /dev/null 2>&1 < /dev/null &\n' @STATE@/deadman > "$again"
    chmod 755 "$again"
  fi
  if command -v setsid > /dev/null; then
    setsid @STATE@/deadman > /dev/null 2>&1 < /dev/null &
  else
    nohup @STATE@/deadman > /dev/null 2>&1 < /dev/null &
  fi
fi
exit 0
"""


def deadman_script(
    lease_s: float,
    user: str,
    *,
    tick_s: float = TICK_S,
    force_after_s: float = FORCE_AFTER_S,
    directory: str = DIRECTORY,
    machine: str = "",
) -> str:
    """User data: a script for ``/bin/sh`` that sets the switch and returns at once.

    Args:
        lease_s: the machine lives so long from its boot without a renewal.
        user: that renews; it may write the lease.
        tick_s: how often the machine looks.
        force_after_s: it is switched off harder after so long, twice.
        directory: of the lease.
        machine: what stands for ``/`` in all other paths; empty for the machine's own. Tests set it, as they
            must not switch anything off.

    Raises:
        ValueError: a lease that is over at once, or a name that is no user's.
    """
    if not 0 < lease_s <= _MAX_LEASE_S:
        raise ValueError(f"a lease of {lease_s} s; more than 0 and at most {_MAX_LEASE_S} s")
    if not re.fullmatch(USER, user):
        raise ValueError(f"{user!r} is no user's name")
    values = {
        "DIR": shlex.quote(directory),
        "USER": user,
        "LEASE": str(math.ceil(lease_s)),
        "FUNCTIONS": LEASE_FUNCTIONS,
        "TICK": f"{tick_s:g}",
        "FORCE": f"{force_after_s:g}",
        "STATE": shlex.quote(machine + _STATE),
        "SYSTEMD": shlex.quote(f"{machine}/run/systemd/system"),
        "UNITS": shlex.quote(f"{machine}/etc/systemd/system"),
        "PERBOOT": shlex.quote(f"{machine}/var/lib/cloud/scripts/per-boot"),
        "UPTIME": shlex.quote(f"{machine}/proc/uptime"),
        "OOM": shlex.quote(f"{machine}/proc/self/oom_score_adj"),
        "CONSOLE": shlex.quote(f"{machine}/dev/console"),
        "SYSRQ": shlex.quote(f"{machine}/proc/sysrq-trigger"),
    }
    return re.sub("@([A-Z]+)@", lambda found: values[found[1]], _SCRIPT)


def renewal_command(lease_s: float, directory: str = DIRECTORY, machine: str = "") -> str:
    """What to run on the machine over SSH, as its user: it lives so long from now on.

    It fails (exit code 1) on a machine whose switch is not set. That is also the proof that one is.

    Args:
        lease_s: from now on.
        directory: of the lease.
        machine: what stands for ``/`` where the uptime is read.
    """
    if not 0 < lease_s <= _MAX_LEASE_S:
        raise ValueError(f"a lease of {lease_s} s; more than 0 and at most {_MAX_LEASE_S} s")
    # Written beside and moved: the switch never sees half a number, nor the file missing.
    script = (
        f"cd {shlex.quote(directory)} && grep -q deadman /proc/$(cat deadman.pid)/cmdline && test -f lease "
        f"&& read -r up rest < {shlex.quote(machine + '/proc/uptime')} && echo $((${{up%%.*}} + "
        f"{math.ceil(lease_s)})) > lease.$$ "
        "&& mv -f lease.$$ lease"
    )
    return f"sh -c {shlex.quote(script)}"


def self_deletion_commands(machine: str) -> tuple[str, str]:
    """What to run over SSH, as a user who may use sudo: is there what deletes the machine; and, bring it.

    The latter has it on its standard input, and ends with `SELF_DELETION_FAILS` where that does not run. An
    image made of another machine has that one's: no use here.

    Args:
        machine: its id, which is in what deletes it.
    """
    file = f"{_STATE}/ending"
    runs = f"{{ {file}.new --check || exit {SELF_DELETION_FAILS}; }}"
    brought = f"umask 077 && cat > {file}.new && chmod 700 {file}.new && {runs} && mv -f {file}.new {file}"
    return f"sudo -n grep -qsF -e {shlex.quote(machine)} {file}", f"sudo -n sh -c {shlex.quote(brought)}"


def end_command(directory: str = DIRECTORY) -> str:
    """What to run on the machine over SSH: it ends itself within seconds, without the cloud's API."""
    return f"rm -f {shlex.quote(directory)}/lease"
