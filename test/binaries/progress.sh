#!/usr/bin/env bash
# Runs a command that builds something, and prints one line with the time that it took:
#   progress.sh NAME COMMAND...
# On a terminal the line counts while the command runs. What takes less than two seconds prints nothing.
# If the command fails, its errors follow; what go says of downloads and packages is left out.
set -uo pipefail
name=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT

started=$SECONDS
"$@" >"$log" 2>&1 &
command=$!
trap 'kill "$command" 2>/dev/null; exit 130' INT TERM
while kill -0 "$command" 2>/dev/null; do
  if [ -t 1 ] && [ $((SECONDS - started)) -ge 2 ]; then
    printf '\r  %-24s %4d s, %d modules downloaded, %d packages compiled' "$name" $((SECONDS - started)) \
      "$(grep -c '^go: downloading' "$log")" "$(grep -c '^[^ ]*$' "$log")"
  fi
  sleep 0.2
done
wait "$command"
status=$?
took=$((SECONDS - started))
if [ "$status" -ne 0 ]; then
  printf '\r  %-24s failed after %d s\n' "$name" "$took"
  grep -Ev '^go: downloading|^[^ ]*$' "$log" >&2
elif [ "$took" -ge 2 ]; then
  [ -t 1 ] && printf '\r\033[K'
  printf '  %-24s %4d s\n' "$name" "$took"
fi
exit "$status"
