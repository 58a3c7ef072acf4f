#!/usr/bin/env bash
# Builds the real parts into a folder: build.sh DIR [NAME...], all of them without a name.
# VERSIONS=1.30-3.5 has another module's versions, one beside this file: Kubernetes 1.30, etcd 3.5.
# What is there and newer than the module's go.mod is left alone.
set -euo pipefail
cd "$(dirname "$0")"
progress=$PWD/progress.sh
script=$PWD/build.sh
out=$1
shift
if [ -n "${VERSIONS:-}" ]; then
  [ -f "$VERSIONS/go.mod" ] || { echo "build.sh: there are no versions $VERSIONS; there are:" */ >&2; exit 2; }
  cd "$VERSIONS"
fi
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

[ $# -gt 0 ] || set -- "${!package[@]}"
missing=()
for name in "$@"; do
  [ -n "${package[$name]:-}" ] || { echo "build.sh: no binary is called $name; there are: ${!package[*]}" >&2; exit 2; }
  if [ ! -x "$out/$name" ] || [ "$out/$name" -ot go.mod ] || [ "$out/$name" -ot "$script" ]; then
    missing+=("$name")
  fi
done
[ ${#missing[@]} -gt 0 ] || exit 0
echo "Building the control plane (Kubernetes ${kubernetes#v}) from Go modules. The first time this takes about 5 minutes on two cores, and the parts after it 3; later it is cached."
for name in "${missing[@]}"; do
  "$progress" "$name" env CGO_ENABLED=0 go build -v -ldflags "-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=$major -X $version.gitMinor=$minor" \
    -o "$out/$name.new" "${package[$name]}"
  mv "$out/$name.new" "$out/$name"
done
