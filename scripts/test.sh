#!/bin/sh
# All tests, in three groups at once: the lab's mostly wait for hosts, those of decisions and maths only compute.
set -u
python=${1:-python3}
logs=$(mktemp -d)
end() {
    # shellcheck disable=SC2046 # they are numbers
    kill $(jobs -p) 2>/dev/null
    rm -rf "$logs"
}
trap end EXIT
trap 'exit 130' INT TERM
"$python" -m pytest src tests/unit >"$logs/unit" 2>&1 &
unit=$!
"$python" -m pytest tests/integration/lab >"$logs/lab" 2>&1 &
lab=$!
"$python" -m pytest tests --ignore=tests/unit --ignore=tests/integration/lab
code=$?
wait $unit || code=1
echo "--- src and tests/unit:"
cat "$logs/unit"
wait $lab || code=1
echo "--- tests/integration/lab:"
cat "$logs/lab"
exit $code
