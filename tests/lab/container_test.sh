#!/usr/bin/env bash
# Builds the image's target cpu and holds runs in it against runs outside. `make container-test`.
#   tests/lab/container_test.sh [BASE_IMAGE]     default: a Debian made with debootstrap (root)
# SUITE=bookworm (default) or trixie: which. ENGINE=podman or docker; default: docker where its daemon
# answers, else podman.
set -euo pipefail
cd "$(dirname "$0")/../.."
image=rn50:cpu-test
base=${1:-}

if [ -z "${ENGINE:-}" ]; then
  ENGINE=podman
  if docker info >/dev/null 2>&1; then ENGINE=docker; fi
fi
command -v "$ENGINE" >/dev/null || {
  echo "container_test: error: $ENGINE expected, found none (apt-get install podman runc)" >&2
  exit 2
}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/rn50-container.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

if [ -z "$base" ]; then
  suite=${SUITE:-bookworm}
  base=localhost/rn50-base:$suite
  "$ENGINE" image inspect "$base" >/dev/null 2>&1 ||
    tests/lab/container_base.sh "$suite" | "$ENGINE" import - "$base"
fi
# Podman's defaults want to raise limits and a pure cgroup version, which some machines refuse.
if [ "$ENGINE" = podman ] && ! podman run --rm "$base" true 2>/dev/null; then
  export CONTAINERS_CONF=$PWD/tests/lab/containers.conf
  podman run --rm "$base" true
fi

SECONDS=0
"$ENGINE" build --network=host --target cpu --build-arg "BASE_IMAGE=$base" \
  --build-arg "COMMIT=$(git describe --always --abbrev=40 --dirty 2>/dev/null || true)" \
  -t "$image" . >"$scratch/build.log" 2>&1 || {
  tail -n 30 "$scratch/build.log" >&2
  echo "container_test: error: the build failed" >&2
  exit 1
}
echo "$ENGINE: built in $SECONDS s, $(("$("$ENGINE" image inspect -f '{{.Size}}' "$image")" / 1000000)) MB"
RN50_ENGINE=$ENGINE RN50_IMAGE=$image "${PYTHON:-.venv/bin/python}" -m pytest --nightly tests/lab/test_image.py
