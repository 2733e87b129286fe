"""`find_shell`: what opens a shell where a run's member works, on this machine or on a rented one."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.providers.base import root_on_nodes
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.runs.known_nodes import KnownNodes
from trainmaster.service.runs.member_ways import (
    MACHINES_S,
    check_member,
    find_way,
    marks_of,
    members_of,
    processes_here,
)
from trainmaster.service.runs.summary import is_driven
from trainmaster.service.service import Service
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.processes import ON_MACHINE, end_begun_by

#: A node has the code after so long while its run is driven.
_CODE_S: Final = 120
#: What OpenSSH exits with when it was ended, or has lost its machine.
_LOST: Final = 255
#: What asks a command to end.
_ENDS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# On a node: the directory of the run's code, which may just be on its way; then the environment of the first
# process of the member, if it runs there; then the line, by a shell, whose exit code `xargs` would hide. By
# itself `xargs` takes 128 KiB at once, and would begin the line again with the rest of a larger environment.
# What is found may have ended before it is read: nothing is said of that, and the next one is taken.
# Without a terminal nothing ends what was begun when the caller is gone: that of the login is looked at.
_THERE: Final = """\
( [ -d /proc/$PPID ] || exit
  while [ -d /proc/$$ ] && [ -d /proc/$PPID ]; do sleep 1; done
  [ ! -d /proc/$$ ] || kill -s TERM -- -$$ ) </dev/null >/dev/null 2>&1 &
n=0; until cd %(code)s 2>/dev/null; do
  n=$((n + 1)); [ $n -lt %(wait)d ] || { echo %(late)s >&2; break; }; sleep 0.2
done
line=%(line)s
of_member() {
  found=$(ls -d /proc/[0-9]*/environ 2>/dev/null | sort -t/ -k3n)
  for mark in %(marks)s; do
    [ -z "$found" ] || found=$(grep -lzxF "$mark" $found 2>/dev/null)
  done
  [ -z "$found" ] || grep -lz "^TRAINMASTER_ROLE=" $found 2>/dev/null
}
with_all() { xargs -x -s 2000000 -n 100000 -0 -a "$@"; }
%(inside)sfor one in $(of_member); do
  { code=$(exec 3>&1 >&4 5>&2 2>/dev/null; with_all "$one" sh -c '
    exec 2>&5 5>&-; line=$1; shift; [ $# -gt 0 ] || exit 1
    env -i TERM="${TERM:-}" SHELL="${SHELL:-/bin/sh}" "$@" sh -c "$line" 3>&- 4>&-
    echo $? >&3' sh "$line"); } 4>&1
  case $?:$code in 1:|123:) continue;; esac
  exit "${code:-255}"
done
exec sh -c "$line"
"""

# On a machine: what runs in a container is found by the engine's client, which has the attempt's name and the
# engine's settings in its environment. What is begun there has a mark: no engine ends it with its client.
# What runs in Apptainer or Enroot is an ordinary process, whose namespaces are entered.
_INSIDE: Final = """\
inner=%(inner)s
value() { { tr '\\0' '\\n' <"$2"; } 2>/dev/null | sed -n "s/^$1=//p" | head -n 1; }
ended() {
  leader='' asked=' ' more=y
  while [ -n "$more" ]; do # what was begun after the others were listed has the mark, too
    more=
    for one in $(ls -d /proc/[0-9]*/environ | sort -t/ -k3n | xargs grep -lzxF "TRAINMASTER_EXEC=$$")
    do
      session=$(sed 's/.*) //' "${one%%environ}stat" 2>/dev/null | cut -d' ' -f4)
      pid=${one#/proc/} pid=${pid%%/environ}; : "${leader:=$session}"
      case $asked in *" $pid "*) continue;; esac
      [ "$session" != "$leader" ] || { asked="$asked$pid "; kill -s STOP "$pid" && more=y; }
    done
  done 2>/dev/null # each is stopped first: what one begins as it ends is its own
  for one in $asked; do kill -s TERM "$one"; kill -s CONT "$one"; done 2>/dev/null
  exit 143
}
for one in $(of_member); do
  [ "$(readlink "${one%%environ}ns/mnt")" != "$(readlink /proc/self/ns/mnt)" ] || continue
  attempt=$(value TRAINMASTER_ATTEMPT_ID "$one")
  member=$(value TRAINMASTER_ROLE "$one")-$(value TRAINMASTER_INDEX "$one")
  if [ -n "$(value APPTAINER_CONTAINER "$one")$(value SINGULARITY_CONTAINER "$one")" ] \\
    || [ "$(value container "$one")" = enroot ]; then
    pid=${one%%/environ} user=--user
    [ "$(readlink "${pid}/ns/user")" != "$(readlink /proc/self/ns/user)" ] || user=
    set -- nsenter --target "${pid##*/}" $user --preserve-credentials --mount --pid bash -c
    set -- env -i TERM="${TERM:-}" "$@"
    "$@" : 2>/dev/null </dev/null || { [ ! -d "$pid" ] || echo %(closed)s >&2; continue; }
    exec "$@" 'cd "$1"; shift; exec bash -c "$@"' bash "$PWD" "$inner" bash "$line" "$attempt" "$member"
  fi
  for client in $(grep -lzxF "TRAINMASTER_ATTEMPT_ID=$attempt" /proc/[0-9]*/environ 2>/dev/null); do
    words=$(tr '\\0' '\\n' 2>/dev/null <"${client%%environ}cmdline")
    printf '%%s\\n' "$words" | grep -qxF "trainmaster.member=$member" || continue
    name=$(printf '%%s\\n' "$words" | sed -n '/^--name$/{n;p;q}')
    terminal=; [ ! -t 0 ] || terminal=-t
    trap ended TERM HUP INT
    { code=$(exec 3>&1 >&4 5>&2 2>/dev/null; with_all "$client" sh -c '
      exec 2>&5 5>&-
      inner=$1 line=$2 attempt=$3 member=$4 name=$5 terminal=$6 mark=$7 program=$8; shift 8
      [ $# -gt 0 ] || exit 1
      env -i TERM="${TERM:-}" "$@" "$program" exec -i $terminal -e "TRAINMASTER_EXEC=$mark" -w "$PWD" \
        "$name" bash -c "$inner" bash "$line" "$attempt" "$member" 3>&- 4>&-
      echo $? >&3' sh "$inner" "$line" "$attempt" "$member" "$name" "$terminal" "$$" "${words%%%%
*}"); } 4>&1
    case $?:$code in 1:|123:) continue;; esac
    exit "${code:-255}"
  done
done
%(outside)s
"""
# In a container, which may have nothing but a bash: the line, with what the first process of the member has.
_INNER: Final = """\
first=0
for file in /proc/[0-9]*/environ; do
  pid=${file//[!0-9]/} found=" " pairs=()
  while IFS= read -rd '' pair; do pairs+=("$pair"); done 2>/dev/null <"$file"
  for pair in "${pairs[@]}"; do
    case $pair in
      "TRAINMASTER_ATTEMPT_ID=$2") found+="attempt ";;
      "TRAINMASTER_ROLE=${3%-*}") found+="role ";;
      "TRAINMASTER_INDEX=${3##*-}") found+="index ";;
    esac
  done
  [[ $found == *attempt* && $found == *role* && $found == *index* ]] || continue
  ((first && pid > first)) || { first=$pid; given=("${pairs[@]}"); }
done 2>/dev/null
for pair in "${given[@]}"; do export -- "$pair"; done 2>/dev/null
exec bash -c "$1"
"""

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class MemberShell:
    """What opens a shell where a member is.

    Attributes:
        command: to execute.
        directory: in which; empty for that of the caller.
        environment: of the caller, or that of the member.
    """

    command: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]

    def call(self, files: tuple[int, int, int]) -> int:
        """Execute it until it ends; its exit code.

        What asks this process to end ends all that it has begun, too, but for what has a session of its own:
        by SIGTERM, on a terminal by SIGHUP, as a closed one does. A terminal sends its SIGINT to the command
        itself, which may go on.

        Args:
            files: descriptors of its standard input, output and error.

        Raises:
            KeyboardInterrupt: it was ended by SIGINT.
        """
        asked: set[int] = set()
        begun: list[subprocess.Popen[bytes]] = []
        is_terminal = os.isatty(files[0])

        def end(number: int, _frame: FrameType | None) -> None:
            asked.add(number)
            if number != signal.SIGINT or not is_terminal:
                for one in begun:
                    end_begun_by(one.pid, signal.SIGHUP if is_terminal else signal.SIGTERM)

        is_main = threading.current_thread() is threading.main_thread()  # others cannot have handlers
        heard = [each for each in _ENDS if is_main and signal.getsignal(each) != signal.SIG_IGN]
        before = {number: signal.signal(number, end) for number in heard}
        stdin, stdout, stderr = files
        where, environ = self.directory or None, dict(self.environment)
        try:
            begun += [
                subprocess.Popen(
                    self.command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=where, env=environ
                )
            ]
            for number in asked:  # before there was anything to end
                end(number, None)
            code = begun[0].wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        # OpenSSH says that it lost its machine, and our clients that they were ended, where a program dies.
        is_cut = bool(asked) and not is_terminal and code in (_LOST, 128 + signal.SIGTERM)
        if signal.SIGINT in asked and (code < 0 or is_cut):
            raise KeyboardInterrupt
        if is_cut:
            return 128 + signal.SIGTERM
        return 128 - code if code < 0 else code


def find_shell(
    service: Service,
    run: str,
    member: str | None,
    command: Sequence[str],
    environ: Mapping[str, str],
    tell: Callable[[str], None] = lambda _: None,
    *,
    is_terminal: bool | None = None,
    patience_s: float = MACHINES_S,
    is_for_others: bool = False,
    nodes: KnownNodes | None = None,
) -> MemberShell:
    """Where a member is, and by which command one gets there: in its container, if it has one and that runs.

    Args:
        service: of the home.
        run: its id.
        member: such as ``worker-1``; None for the first one there is.
        command: to run there instead of a shell; a single word is a line for a shell.
        environ: of the caller: credentials of the provider.
        tell: shows a line to the user: machines of a run that has just begun are waited for.
        is_terminal: it gets one there; None: if it is a shell.
        patience_s: for how long they are.
        is_for_others: who types there is not the user of this machine: the client does nothing else for him.
        nodes: machines of which the cloud need not be asked.

    Raises:
        NotFoundError: the run has no such member, or its machines are gone.
        UsageError: several of its clusters have a machine of that name.
        MissingPartError: there is no OpenSSH client here.
    """
    row = service.database.run_row(run)
    if capabilities_of(row["provider"]).is_here:
        shell = environ.get("SHELL") or "/bin/bash"
        check_member(service, run, member)
        code = service.home_of(run).code_directory(run)
        if not code.is_dir():
            raise NotFoundError(f"the working copy of {run} is gone: {code}", "It was removed by somebody.")
        if inside := _inside(service, row, member, command):
            there = _there(code, run, member, command, inside=inside, wait=1, late="")
            return MemberShell(("sh", "-c", there), str(code), dict(environ))
        words = (shell, *(["-c", _line(command)] if command else []))
        return MemberShell(words, str(code), {**environ, **_environment_of(run, member)})
    way = find_way(service, run, member, environ, tell, patience_s, is_for_others=is_for_others, nodes=nodes)

    code_there = f"{root_on_nodes(way.home_id)}/runs/{run}/code"
    there = _there(
        code_there,
        run,
        member,
        command,
        inside=_inside(service, row, member, command),
        wait=5 * _CODE_S if is_driven(row, service.database.clock_s()) else 1,
        late=f"{run}: its code is not on {way.machine} yet, or no longer",
    )
    there = f"exec sh -c {shlex.quote(there)}"  # whatever shell the login has
    has_terminal = not command if is_terminal is None else is_terminal
    words = (*way.command, *(("-t",) if has_terminal else ()), way.address, there)
    return MemberShell(words, "", dict(environ))


def _there(
    code: object, run: str, member: str | None, command: Sequence[str], *, inside: str, wait: int, late: str
) -> str:
    """What a shell of the machine does."""
    return _THERE % {
        "code": shlex.quote(str(code)),
        "marks": shlex.join(f"{name}={value}" for name, value in marks_of(run, member).items()),
        "line": shlex.quote(_line(command) if command else 'exec "${SHELL:-/bin/sh}" -l'),
        "wait": wait,
        "late": shlex.quote(late),
        "inside": inside,
    }


def _inside(service: Service, row: Mapping[Any, Any], member: str | None, command: Sequence[str]) -> str:
    """What goes into the container of a member; empty where none is in one, or the machine is meant."""
    from trainmaster.service.runs.stored_recipe import stored_recipe

    run, experiments = row["id"], stored_recipe(row).experiments.values()
    if (command and command[0].startswith(ON_MACHINE)) or not any(each.container for each in experiments):
        return ""
    if member is not None and member not in members_of(service, run):  # the name of a machine
        return ""
    said = f"echo {shlex.quote(f'{run}: its container does not run, so this is its machine')} >&2"
    is_always = all(each.container for each in experiments)
    words = {"inner": _INNER, "closed": f"{run}: a container of Apptainer with setuid cannot be entered"}
    inside = _INSIDE % {
        **{key: shlex.quote(text) for key, text in words.items()},
        "outside": said if is_always else ":",
    }
    return inside if command else f"given=$line; line='exec bash'\n{inside}line=$given\n"


def _line(command: Sequence[str]) -> str:
    """A command for a shell, as ssh gives it: one word is what the user has quoted as a whole.

    >>> _line(["pwd; ls"]), _line(["cat", "a b"])
    ('pwd; ls', "cat 'a b'")
    """
    return command[0] if len(command) == 1 else shlex.join(command)


def _environment_of(run: str, member: str | None) -> dict[str, str]:
    """What a member that runs on this machine has in its environment; empty if none does."""
    return next((environ for _, environ in processes_here(run, member)), {})
