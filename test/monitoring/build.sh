#!/usr/bin/env bash
# Builds Prometheus and promtool into a folder: build.sh DIR. What is there and newer than this module's
# go.mod is left alone. Service discovery is left out: the sandbox's address is known.
set -euo pipefail
cd "$(dirname "$0")"
out=$1
mkdir -p "$out"
for name in prometheus promtool; do
  if [ -x "$out/$name" ] && [ "$out/$name" -nt go.mod ] && [ "$out/$name" -nt build.sh ]; then
    continue
  fi
  echo "building $name (minutes the first time, then cached)"
  started=$SECONDS
  CGO_ENABLED=0 go build -tags remove_all_sd -ldflags "-s -w" -o "$out/$name.new" "github.com/prometheus/prometheus/cmd/$name"
  mv "$out/$name.new" "$out/$name"
  echo "  $name: built in $((SECONDS - started)) s"
done
