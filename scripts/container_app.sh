#!/usr/bin/env bash
# In the Dockerfile, after setup.sh: copies into FOLDER what rn50 itself added to the layer of its
# requirements (setup.sh --stack), so that a change of the code makes a layer of a few MB.
#   scripts/container_app.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:?a folder expected}"
find . -path ./.venv -prune -o -type d \( -name datasets -o -name results \) -prune -o \
  ! -type d ! -name datasets ! -name results ! -name .setup.lock -print0 |
  tar --null --files-from=- -c | tar -x -C "$1"
find .venv -newer .venv/stack.stamp ! -type d ! -name '*.log' -print0 |
  tar --null --files-from=- -c | tar -x -C "$1"
