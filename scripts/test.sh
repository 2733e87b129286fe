#!/bin/sh
# All tests: those of decisions and maths beside the others, which mostly wait for processes and hosts.
set -u
python=${1:-python3}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$python" -m pytest src tests/unit >"$log" 2>&1 &
unit=$!
trap 'kill $unit 2>/dev/null; rm -f "$log"; exit 130' INT TERM
"$python" -m pytest tests --ignore=tests/unit
code=$?
wait $unit
unit_code=$?
echo "--- src and tests/unit:"
cat "$log"
[ $code -eq 0 ] && [ $unit_code -eq 0 ]
