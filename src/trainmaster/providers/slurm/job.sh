# shellcheck shell=bash
umask 077
code=0 told=0 pids=
# A run that has waited in the queue for it may be over, or have lost its driver. A comment that is as it was
# submitted says nothing of that: some sites let nobody change it.
until=$(timeout 20 scontrol -o show job "$SLURM_JOB_ID" 2>/dev/null \
  | sed -n 's/.* Comment=@MARK@:[^ ]*:\([0-9][0-9]*\).*/\1/p' | sort -n | tail -n 1)
[ -z "$until" ] || [ "$until" = @UNTIL@ ] || [ "$(date +%s)" -le $((until + @DIFFERS@)) ] || exit 45
# It comes here when the job has ended: else Slurm would have its nodes wait for what runs there (`KillWait`).
trap 'told=143; [ -z "$pids" ] || kill -USR2 $pids 2>/dev/null' TERM
export TM_SCRATCH=@SCRATCH@ TM_HOME=@HOME@ TM_LEASE=@LEASE@ TM_KEY=@KEY@ TM_HOST_KEY=@HOST_KEY@
export TM_KEPT='@KEPT@' TM_ALSO='@ALSO@'
IFS= read -r -d '' TM_NODE <<'END_OF_NODE'
@NODE@
END_OF_NODE
export TM_NODE
before() {
:
@BEFORE@
}
if [ -n '@LOGIN@' ]; then # `module` is known to logins only, and `sbatch` has handed nothing on
  path=$PATH; . /etc/profile < /dev/null > /dev/null 2>&1; PATH=$PATH:$path
fi
known=$(export -p)
before || exit 44
for name in $(export -p | grep -Fxve "$known" | sed -n 's/^declare -x \([A-Za-z0-9_]*\)=.*/\1/p'); do
  case "$name: $TM_KEPT :" in SLURM* | TM_* | LMOD* | _* | *" $name "*) ;; *) TM_KEPT="$TM_KEPT $name" ;; esac
done
node() { # group, number, cores, name of the directory, port
  export TM_DIR=$TM_SCRATCH/$4 TM_PORT=$5
  srun --quiet $1 --relative="$2" --nodes=1 --ntasks=1 --cpus-per-task="$3" --kill-on-bad-exit=0 --no-kill \
    --mpi=none --export=ALL bash -c 'eval "$TM_NODE"' trainmaster-deadman < /dev/null > /dev/null 2>&1 &
  pids="$pids $!"
}
@NODES@
for pid in $pids; do
  while :; do # a signal ends `wait`, too
    wait "$pid"; ended=$?
    kill -0 "$pid" 2>/dev/null || break
  done
  [ "$code" != 0 ] || code=$ended
done
[ "$told" = 0 ] || code=$told
exit "$code"
