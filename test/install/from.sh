#!/usr/bin/env bash
# Makes of an earlier commit what an upgrade begins with: from.sh REF FOLDER builds its holdfast and
# kubectl-holdfast into FOLDER, and puts its deploy beside them.
set -euo pipefail
ref=$1 out=$2
cd "$(dirname "$0")/../.."
if ! git rev-parse --git-dir >/dev/null 2>&1; then
  echo "this is no git checkout, so there is no earlier version to upgrade from: clone the repository" >&2
  exit 1
fi
if ! commit=$(git rev-parse --quiet --verify "$ref^{commit}"); then
  if [ "$(git rev-parse --is-shallow-repository)" = true ]; then
    echo "$ref is not in this checkout, which is shallow: git fetch --unshallow --tags, or name a commit that is here with FROM=" >&2
  else
    echo "$ref is no commit of this checkout: git fetch --tags, or name another with FROM=" >&2
  fi
  exit 1
fi
if ! git cat-file -e "$commit:deploy/overlays/self-signed/kustomization.yaml" 2>/dev/null; then
  echo "$ref has no deploy/overlays/self-signed: it cannot be installed, name a later commit with FROM=" >&2
  exit 1
fi
product=(cmd deploy internal webhooks go.mod ':!deploy/image' ':!deploy/monitoring' ':!*_test.go' ':!*/testdata/*')
if git diff --quiet "$commit" -- "${product[@]}"; then
  echo "$ref and what is here are the same version: name an earlier commit with FROM=" >&2
  exit 1
fi
echo "from $(git log -1 --format='%h %s' "$commit"), $(git rev-list --count "$commit..HEAD") commits back;$(git diff --shortstat "$commit" -- "${product[@]}"); in deploy:"
git diff --stat=120 "$commit" -- deploy/base deploy/components deploy/overlays | cat
rm -rf "$out"
mkdir -p "$out/src"
trap 'rm -rf "$out/src"' EXIT
git archive "$commit" -- . | tar -x -C "$out/src"
(cd "$out/src" && go build -o "$out/" ./cmd/holdfast ./cmd/kubectl-holdfast)
rm -rf "$out/src/deploy/image" # a module of its own
mv "$out/src/deploy" "$out/deploy"
