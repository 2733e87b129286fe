#!/bin/sh
# All tests, three groups at once: the lab's mostly wait for hosts, those of decisions and maths only compute.
set -u
python=${1:-python3}
logs=$(mktemp -d)
lab=tests/integration/lab
runs="$lab/test_lab_runs.py $lab/test_lab_schedules.py $lab/test_lab_adopting.py"
end() {
    # shellcheck disable=SC2046 # they are numbers
    kill $(jobs -p) 2>/dev/null
    rm -rf "$logs"
}
trap end EXIT
trap 'exit 130' INT TERM
# shellcheck disable=SC2086 # it is a list
"$python" -m pytest $runs >"$logs/runs" 2>&1 &
runs_of_lab=$!
{
    "$python" -m pytest src tests/unit >"$logs/unit" 2>&1
    code=$?
    # shellcheck disable=SC2046,SC2086 # they are lists
    "$python" -m pytest $lab $(printf -- '--ignore=%s ' $runs) >"$logs/lab" 2>&1 || code=1
    exit $code
} &
unit_and_lab=$!
"$python" -m pytest tests --ignore=tests/unit --ignore=$lab
code=$?
wait $runs_of_lab || code=1
wait $unit_and_lab || code=1
for group in unit runs lab; do
    echo "--- $group:"
    cat "$logs/$group"
done
exit $code
