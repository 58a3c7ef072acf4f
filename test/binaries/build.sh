#!/usr/bin/env bash
# Builds the real parts into a folder: build.sh DIR NAME...
# What is there and newer than this module's go.mod is left alone.
set -euo pipefail
cd "$(dirname "$0")"
out=$1
shift
mkdir -p "$out"

# The API server derives the versions that it speaks from its own, which a build outside its
# repository has to be told.
kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
IFS=. read -r major minor _ <<<"${kubernetes#v}"
version=k8s.io/component-base/version
declare -A package=(
  [etcd]=go.etcd.io/etcd/server/v3
  [etcdctl]=go.etcd.io/etcd/etcdctl/v3
  [etcdutl]=go.etcd.io/etcd/etcdutl/v3
  [kube-apiserver]=k8s.io/kubernetes/cmd/kube-apiserver
  [kubectl]=k8s.io/kubernetes/cmd/kubectl
  [kube-controller-manager]=k8s.io/kubernetes/cmd/kube-controller-manager
  [kube-scheduler]=k8s.io/kubernetes/cmd/kube-scheduler
)

missing=()
for name in "$@"; do
  [ -n "${package[$name]:-}" ] || { echo "build.sh: no binary is called $name; there are: ${!package[*]}" >&2; exit 2; }
  if [ ! -x "$out/$name" ] || [ "$out/$name" -ot go.mod ] || [ "$out/$name" -ot build.sh ]; then
    missing+=("$name")
  fi
done
[ ${#missing[@]} -gt 0 ] || exit 0
echo "Building the control plane from Go modules. The first time this takes about 5 minutes on two cores, and the parts after it 3; later it is cached."
for name in "${missing[@]}"; do
  ./progress.sh "$name" env CGO_ENABLED=0 go build -v -trimpath -ldflags "-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=$major -X $version.gitMinor=$minor" \
    -o "$out/$name.new" "${package[$name]}"
  mv "$out/$name.new" "$out/$name"
done
