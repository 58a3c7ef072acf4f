#!/usr/bin/env bash
# Prints what go test has to be given to run the long tests, those that call tier.Long: -run with their names, and
# their packages.
set -euo pipefail
cd "$(dirname "$0")/../.."
files=$(grep -rl --include='*_test.go' '^	tier\.Long(t)$' cmd internal webhooks test | sort)
# shellcheck disable=SC2086 # no name of a Go file has spaces
names=$(awk '
  /^func Test/ { name = $2; sub(/\(.*/, "", name) }
  /^\ttier\.Long\(t\)$/ { print name }' $files | sort -u | paste -sd'|')
echo "-run ^($names)\$ $(xargs -n1 dirname <<<"$files" | sort -u | sed 's|^|./|' | paste -sd' ')"
