#!/usr/bin/env bash
# Makes the module of other versions: versions.sh 1.34.2 3.6.16 makes 1.34-3.6. Then: make compat VERSIONS=1.34-3.6.
set -euo pipefail
cd "$(dirname "$0")"
kubernetes=$1
etcd=$2
dir=${kubernetes%.*}-${etcd%.*}
mkdir "$dir"
cd "$dir"
{
  echo "// kube-apiserver, its controllers and kubectl $kubernetes with etcd $etcd."
  echo "module github.com/holdfast-dev/holdfast/test/binaries/$dir"
  grep '^go ' ../go.mod
  sed -n '/^tool (/,/^)/p' ../go.mod
  echo "require k8s.io/kubernetes v$kubernetes"
  for part in etcdctl etcdutl server; do echo "require go.etcd.io/etcd/$part/v3 v$etcd"; done
  # What Kubernetes has in its own repository is published under other version numbers.
  mod=$(cd .. && go mod download -json "k8s.io/kubernetes@v$kubernetes" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
  sed -n "s|^[[:space:]]*\(k8s.io/[a-z-]*\) => ./staging.*|replace \1 => \1 v0${kubernetes#1}|p" "$mod"
} >go.mod
go mod tidy
