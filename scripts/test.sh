#!/usr/bin/env bash
# The linters and all tests in parts: first the lab's four and others that mostly wait, for hosts and for each other's
# locks; on a new machine three wait until the first one has made the hosts' image. Whichever part ends, the next begins.
# What only computes has what the others leave from the beginning: linters and one half of the unit tests, with less
# priority than hosts and networks, which somebody waits for. The other half comes last, so that no core is idle in the
# last minutes. Each is one process that collects its own: two of pytest-xdist would each collect all, and one before
# them on a new machine.
# Ctrl-C ends all of them, with what they have started; a second one does not wait for what they take down.
set -mu -o pipefail # each part is a process group of its own; without -m, what runs in the background ignores SIGINT
python=${1:-python3}
at_once=8
parts=(hosts unit lint lab runs crossings others servers remote volumes middle rest last contract doors)
lab=tests/integration/lab
others=(tests/integration/test_[!cs]*.py)
servers=(tests/integration/test_s*.py)
middle=(tests/integration/test_cli_[a-f]*.py)
last=(tests/integration/test_cli_[s-z]*.py)
runs=("$lab"/test_lab_{runs,schedules,adopting,hand_over}.py "$lab"/test_lab_t*.py)
crossings=("$lab"/test_lab_crossings.py "$lab"/test_lab_o*.py)
doors=(tests/unit/{api,db,service,web}) # half of the unit tests, by processor time
hosts=("$lab"/test_lab_[dikln]*.py "$lab"/test_lab_h[do]*.py)
# Once more where real hosts, processes and networks are at work, which a busy machine can delay; what only decides
# must pass at once. What needed it is listed at the end, and more than eight of them are a failure.
again="--reruns 1 -r R"
reruns_max=8
patience_s=60 # taking a lab down takes some seconds
"$python" -m compileall -qq -j 0 src # on a new machine each of the first parts would do it for itself
logs=$(mktemp -d)
export TRAINMASTER_TESTS_SEEN_COMMANDS=$logs/commands # the first call of a verb is a real one, once in all parts
mkdir "$logs/commands"
export TRAINMASTER_EXAMPLES="${TRAINMASTER_EXAMPLES:-10}" # of each property, and at most twice as many where it names a number
groups=()

signal_all() {
    for group in "${groups[@]}"; do
        kill -s "$1" -- "-$group" 2>/dev/null
    done
}
are_there() {
    for group in "${groups[@]}"; do
        kill -s 0 -- "-$group" 2>/dev/null && return 0
    done
    return 1
}
interrupted() {
    trap 'signal_all KILL' INT TERM
    echo "interrupted: what the tests have started is taken down" >&2
    signal_all INT # as a terminal would: pytest takes fixtures down
    for ((tries = 0; tries < patience_s * 10; tries++)); do
        are_there || break
        sleep 0.1
    done
    signal_all KILL
    exit 130
}
trap 'rm -rf "$logs"' EXIT
trap interrupted INT TERM

# What each part prints is in a file of its name; the first one's is seen at once.
run() {
    if [ "$1" = "${parts[0]}" ]; then
        "$python" -m pytest "${@:2}" 2>&1 | tee -i "$logs/$1"
    elif [ "$1" = lint ]; then
        nice -n 5 make --no-print-directory lint >"$logs/$1" 2>&1
    elif [ "$1" = unit ]; then # with less priority it may take longer
        nice -n 5 make --no-print-directory unit UNIT="-o timeout=600 ${*:2}" >"$logs/$1" 2>&1
    elif [ "$1" = doors ]; then
        make --no-print-directory unit UNIT="${*:2}" >"$logs/$1" 2>&1
    else
        "$python" -m pytest "${@:2}" >"$logs/$1" 2>&1
    fi
}
begin() {
    {
        how=failed
        run "$@" && touch "$logs/$1.passed" && how=passed
        echo "$1 $how after $((SECONDS / 60)) min $((SECONDS % 60)) s" >&2
    } </dev/null &
    groups+=($!)
}
arguments_of() {
    case $1 in
    lint) ;;
    unit) echo src tests/unit "${doors[@]/#/--ignore=}" ;;
    doors) echo "${doors[@]}" ;;
    contract) echo $again tests/contract ;;
    volumes) echo $again tests/integration/volumes ;;
    remote) echo $again tests/integration/remote ;;
    runs) echo $again "${runs[@]}" ;;
    crossings) echo $again "${crossings[@]}" ;;
    hosts) echo $again "${hosts[@]}" ;;
    lab) echo $again $lab "${runs[@]/#/--ignore=}" "${crossings[@]/#/--ignore=}" "${hosts[@]/#/--ignore=}" ;;
    others) echo $again "${others[@]}" ;;
    servers) echo $again "${servers[@]}" ;;
    middle) echo $again "${middle[@]}" ;;
    last) echo $again "${last[@]}" ;;
    rest)
        echo $again tests/integration "${others[@]/#/--ignore=}" "${servers[@]/#/--ignore=}" "${middle[@]/#/--ignore=}" "${last[@]/#/--ignore=}" \
            --ignore=tests/integration/{lab,volumes,remote,places}
        ;;
    esac
}
for part in "${parts[@]}"; do
    while [ "$(jobs -pr | wc -l)" -ge $at_once ]; do
        wait -n
    done
    begin "$part" $(arguments_of "$part")
done
wait

code=0
for part in "${parts[@]:1}" "${parts[0]}"; do
    [ -e "$logs/$part.passed" ] || code=1
    [ "$part" = "${parts[0]}" ] && continue # it was seen
    echo "--- $part:"
    cat "$logs/$part"
done
reruns=$(cat "${parts[@]/#/$logs/}" | grep '^RERUN ' | sort -u)
if [ -n "$reruns" ]; then
    echo "--- passed or failed only when they were run once more:"
    echo "$reruns"
    if [ "$(echo "$reruns" | wc -l)" -gt "$reruns_max" ]; then
        echo "more than $reruns_max tests had to be run once more" >&2
        code=1
    fi
fi
exit $code
