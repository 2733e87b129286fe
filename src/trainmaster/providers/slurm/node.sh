# shellcheck shell=bash
# TERM alone comes some time before the end of what is preempted, for saving; USR2 when all is given back.
trap : USR1 HUP INT TERM
trap 'exit 0' USR2
umask 077
dir=$TM_DIR-$SLURMD_NODENAME
for old in "$TM_SCRATCH/tm-slurm-$TM_HOME-"????????????"-$SLURMD_NODENAME"; do # of jobs that were killed
  [ -O "$old" ] && [ -f "$old/deadman.pid" ] || continue
  kill -0 "$(cat "$old/deadman.pid")" 2>/dev/null || rm -rf "$old"
done
rm -rf "$dir"; mkdir -p "$TM_SCRATCH" 2>/dev/null; mkdir -m 700 "$dir" && [ -O "$dir" ] || exit 42
echo $$ > "$dir/deadman.pid"
sshd=$(PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin command -v sshd) || { rm -rf "$dir"; exit 41; }
[ "$(id -u)" != 0 ] || mkdir -p -m 755 /run/sshd
printf '%s' "$TM_HOST_KEY" | base64 -d > "$dir/host_key"
printf '%s\n' "$TM_KEY" > "$dir/authorized_keys"
# With SHLVL bash reads no .bashrc before each command: what that sets the job has, and it may be slow.
set -- SetEnv "TRAINMASTER_HANDED_ON=\"$TM_KEPT\"" SHLVL=1
for name in $TM_KEPT $TM_ALSO; do
  value=${!name-}
  case $value in ''|*\"*|*$'\n'*) ;; *) set -- "$@" "$name=\"$value\"" ;; esac
done
cat > "$dir/sshd_config" <<END_OF_CONFIG
Port $TM_PORT
HostKey $dir/host_key
AuthorizedKeysFile $dir/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxSessions 200
ClientAliveInterval 60
ClientAliveCountMax 3
MaxStartups 100:30:200
LogLevel ERROR
$*
END_OF_CONFIG
unset TM_HOST_KEY
@FUNCTIONS@
left_here() { # read by grep, the directory is no word of its command: it would find itself
  printf %s "$dir/" | grep -lFf - /proc/[0-9]*/cmdline 2>/dev/null | cut -d / -f 3
}
clean() { # with what a run has left here: some sites lose sight of what has left its parent
  trap '' TERM USR2; kill $server $! $(left_here)
  for tenth in {1..70}; do [ -n "$(left_here)" ] || break; sleep .1; done
  kill -KILL $(left_here); rm -rf "$dir" || rm -rf "$dir"; exit 0
}
begin_lease "$TM_LEASE"
trap clean USR2
"$sshd" -D -f "$dir/sshd_config" & server=$!
failed=0
while lease_holds; do
  if ! kill -0 $server 2>/dev/null; then
    failed=$((failed + 1)); [ "$failed" -lt 15 ] || { rm -rf "$dir"; exit 43; }
    "$sshd" -D -f "$dir/sshd_config" & server=$!
  fi
done
clean
