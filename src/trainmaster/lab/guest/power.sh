#!/bin/sh
# `shutdown`, `poweroff`, `halt` and `reboot` of a host: process 1 does what is asked.
# shutdown [-h|-P|-H|-r|-k] [now|+MINUTES|HH:MM] [WALL]; shutdown -c
name=$(basename "$0")
planned=/run/lab/shutdown.pid
fail() { echo "$name: $1" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "must be root"
signal=USR1
[ "$name" = reboot ] && signal=USR2
now() { kill -"$1" 1; exit 0; }
[ "$name" = shutdown ] || now "$signal"
cancel=""
dry=""
while [ $# -gt 0 ]; do
  case $1 in
    -r|--reboot) signal=USR2 ;;
    -c) cancel=1 ;;
    -k) dry=1 ;;
    -h|-P|-H|--poweroff|--halt|--no-wall) ;;
    -*) fail "unknown option $1" ;;
    *) break ;;
  esac
  shift
done
forget() {
  if [ -e "$planned" ]; then kill -- "-$(cat "$planned")" 2>/dev/null; rm -f "$planned"; fi
  return 0
}
if [ -n "$cancel" ]; then forget; exit 0; fi
case ${1:-+1} in
  now|+0) seconds=0 ;;
  +*[!0-9]*) fail "no time: $1" ;;
  +[0-9]*) seconds=$((${1#+} * 60)) ;;
  [0-9]*:[0-9][0-9]) seconds=$((($(date -d "$1" +%s) - $(date +%s) + 86400) % 86400)) || fail "no time: $1" ;;
  *) [ $# = 0 ] && seconds=60 || fail "no time: $1" ;;
esac
[ -z "$dry" ] || exit 0
forget
[ "$seconds" -gt 0 ] || now "$signal"
setsid sh -c "echo \$\$ > $planned; sleep $seconds; kill -$signal 1" > /dev/null 2>&1 < /dev/null &
while [ ! -s "$planned" ]; do sleep 0.01; done
echo "Shutdown scheduled in $seconds s, use 'shutdown -c' to cancel." >&2
