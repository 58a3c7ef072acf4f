#!/usr/bin/env bash
# Renders the overlays, in guard mode and in full mode, into one file each: render.sh KUBECTL FOLDER IMAGE TAG
set -euo pipefail
kubectl=$1 out=$2 image=$3 tag=$4
# A tag in the image would be followed by another, and neither may be anything but a name.
if [[ ! ${image##*/} =~ ^[a-z0-9._-]+$ || ! $tag =~ ^[A-Za-z0-9_][A-Za-z0-9._-]*$ ]]; then
  echo "IMAGE is '$image' and TAG is '$tag': they are an image's name without a tag, and its tag, as in IMAGE=registry.example.com/holdfast TAG=v1" >&2
  exit 2
fi
deploy=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
work=$(mktemp -d "$out/.render-XXXXXX")
trap 'rm -rf "$work"' EXIT
at=$(realpath --relative-to="$work" "$deploy")
for overlay in openshift cert-manager self-signed; do
  # The image below the component, which gives it to the quorum guard's pods as well.
  mkdir -p "$work/$overlay" "$work/$overlay-full-mode"
  cat >"$work/$overlay/kustomization.yaml" <<EOF
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../$at/overlays/$overlay]
images: [{name: holdfast, newName: "$image", newTag: "$tag"}]
EOF
  cat >"$work/$overlay-full-mode/kustomization.yaml" <<EOF
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../$overlay]
components: [../$at/components/full-mode]
EOF
  for name in "$overlay" "$overlay-full-mode"; do
    "$kubectl" kustomize "$work/$name" >"$out/holdfast-$name.yaml"
  done
done
