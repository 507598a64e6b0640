#!/usr/bin/env bash
# In the Dockerfile, for Horovod's GPU build: installs CUDA 11's nvcc by apt where there is none.
# Debian 12 has 11.8 in non-free, Ubuntu 22.04 has 11.5 in multiverse; nothing of it reaches the image.
set -euo pipefail
command -v nvcc >/dev/null && exit
# shellcheck source=/dev/null
. /etc/os-release
if [ "$ID" = debian ]; then
  echo "deb http://deb.debian.org/debian $VERSION_CODENAME contrib non-free non-free-firmware" \
    >/etc/apt/sources.list.d/nvcc.list
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nvidia-cuda-toolkit
nvcc --version
