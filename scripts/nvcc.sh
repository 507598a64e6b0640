#!/usr/bin/env bash
# scripts/nvcc.sh FOLDER PYTHON: makes FOLDER a CUDA 11.8 toolkit that compiles Horovod, without
# root and without installing anything: Debian's nvcc, taken out of its package, and NVIDIA's headers
# from PyPI. PYTHON has nvidia-cuda-runtime-cu11 installed. 105 MB of download, 5 s here.
set -euo pipefail
folder=$1 python=$2
headers=nvidia-cuda-nvcc-cu11==11.8.89 # crt/: what nvcc includes by itself
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

for tool in apt-get dpkg ar; do
  command -v "$tool" >/dev/null || {
    echo "$tool expected, found none" >&2
    exit 1
  }
done
partial=$folder.partial-$$
trap 'rm -rf "$partial"' EXIT
mkdir -p "$partial/work/lists/partial" "$partial/work/cache/archives/partial" "$partial/bin" \
  "$partial/nvvm/bin" "$partial/lib64"
work=$(cd "$partial/work" && pwd)
runtime=$("$python" -c 'import nvidia.cuda_runtime as runtime; print(runtime.__path__[0])')

# An apt of our own: its sources, its lists, its cache. Where the machine is no Debian, Debian's keys
# come by the machine's own apt.
cd "$work"
if ! [ -f "$keyring" ]; then
  apt-get download debian-archive-keyring
  dpkg -x debian-archive-keyring_*.deb keys
  keyring=$work/keys$keyring
fi
echo "deb [signed-by=$keyring] http://deb.debian.org/debian bookworm non-free" >sources.list
cat >apt.conf <<END
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$work/lists";
Dir::Cache "$work/cache";
Acquire::Retries "2";
Acquire::http::Timeout "30";
APT::Sandbox::User "";
END
export APT_CONFIG=$work/apt.conf
apt-get update -q
apt-get download -q nvidia-cuda-toolkit
dpkg -x nvidia-cuda-toolkit_11.8.*.deb deb
"$python" -m pip --disable-pip-version-check download -q --no-deps "$headers" -d wheel
"$python" -m zipfile -e wheel/*.whl wheel
cd "$OLDPWD"

debian=$work/deb/usr/lib/nvidia-cuda-toolkit
cp -r "$debian"/bin/{nvcc,cicc,crt} "$work"/deb/usr/bin/{cudafe++,fatbinary,ptxas,nvlink,bin2c} \
  "$partial/bin"
cp -r "$debian/libdevice" "$partial/nvvm"
cp -r "$runtime/include" "$partial"
cp -r "$work/wheel/nvidia/cuda_nvcc/include/." "$partial/include"
cp "$runtime/lib/libcudart.so.11.0" "$partial/lib64"
ln -s libcudart.so.11.0 "$partial/lib64/libcudart.so"
ar rcs "$partial/lib64/libcudadevrt.a" # nvcc links to it always; nothing of Horovod needs it
cat >"$partial/bin/nvcc.profile" <<'END'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64" $(_SPACE_)
END
rm -rf "$partial/work"
"$partial/bin/nvcc" --version
rm -rf "$folder"
mv "$partial" "$folder"
