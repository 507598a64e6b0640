# rn50 in a container; docs/containers.md has the commands.
#   --target cpu (default)   CPU ranks over MPI or Gloo
#   --target gpu             GPU ranks over NCCL, CUDA 11.8 from pip; not run on a GPU
#   --target system          with the MXNet and Horovod of BASE_IMAGE, such as
#                            nvcr.io/nvidia/mxnet:24.06-py3; never run in it
# Any Debian or Ubuntu with Python 3.10 to 3.13 will do as BASE_IMAGE. Versions are pinned in
# requirements*.txt and scripts/setup*.sh alone; apt's are those of the dated base.
ARG BASE_IMAGE=debian:bookworm-20250520-slim

FROM ${BASE_IMAGE} AS runtime
WORKDIR /opt/rn50
# hadolint ignore=DL3008
RUN export DEBIAN_FRONTEND=noninteractive \
    && apt-get update \
    && if ! { command -v python3.13 || command -v python3.12 || command -v python3.11 \
        || command -v python3.10; }; then apt-get install -y --no-install-recommends python3; fi \
    && apt-get install -y --no-install-recommends \
        ca-certificates libgomp1 libquadmath0 openmpi-bin openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --no-create-home --home-dir /tmp rn50 \
    && install -d -m 1777 /data /results \
    && ln -s /data datasets \
    && ln -s /results results
# HOME: writable whoever `--user` names. vader: the default seccomp profile forbids ranks to read each
# other's memory.
ENV PATH=/opt/rn50/.venv/bin:$PATH \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib \
    OMPI_MCA_btl_vader_single_copy_mechanism=none
VOLUME ["/data", "/results"]

# --- cpu: everything that the requirements decide, then rn50 itself ------------------------------
FROM runtime AS cpu-stack
COPY requirements requirements
COPY train/mxnet_import.py train/
COPY scripts/setup.sh scripts/
# No cache of packages in a layer.
ENV UV_NO_CACHE=1 PIP_NO_CACHE_DIR=1
RUN scripts/setup.sh --stack

FROM cpu-stack AS cpu-build
COPY . .
RUN scripts/setup.sh && scripts/container_app.sh /app

FROM runtime AS cpu
COPY --from=cpu-stack /opt/rn50/.venv .venv
COPY --from=cpu-build /app ./
ARG COMMIT=
ENV RN50_COMMIT=${COMMIT}
LABEL org.opencontainers.image.revision=${COMMIT}
USER 1000
ENTRYPOINT ["/opt/rn50/run_and_time.sh"]

# --- gpu: the same over NCCL ---------------------------------------------------------------------
FROM ${BASE_IMAGE} AS gpu-stack
WORKDIR /opt/rn50
COPY requirements-gpu.txt ./
COPY requirements requirements
COPY train/mxnet_import.py train/
COPY scripts/setup.sh scripts/setup_gpu.sh scripts/horovod_kernels.cc scripts/
ENV UV_NO_CACHE=1 PIP_NO_CACHE_DIR=1
RUN scripts/setup.sh --gpu --stack

FROM gpu-stack AS gpu-build
COPY . .
RUN scripts/setup.sh --gpu && scripts/container_app.sh /app

FROM runtime AS gpu
# CUDA_CACHE_PATH: what the driver compiles as it runs. With the results it outlives the container.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    CUDA_CACHE_PATH=/results/.cuda-cache
COPY --from=gpu-stack /opt/rn50/.venv .venv
COPY --from=gpu-build /app ./
ARG COMMIT=
ENV RN50_COMMIT=${COMMIT}
LABEL org.opencontainers.image.revision=${COMMIT}
USER 1000
ENTRYPOINT ["/opt/rn50/run_and_time.sh"]

# --- system: on an image that has MXNet and Horovod for its GPUs already -------------------------
FROM ${BASE_IMAGE} AS system
WORKDIR /opt/rn50
COPY . .
RUN scripts/setup.sh --system-mxnet \
    && install -d -m 1777 /data /results \
    && rm -rf datasets results \
    && ln -s /data datasets \
    && ln -s /results results
ENV PATH=/opt/rn50/.venv/bin:$PATH \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib
ARG COMMIT=
ENV RN50_COMMIT=${COMMIT}
LABEL org.opencontainers.image.revision=${COMMIT}
VOLUME ["/data", "/results"]
USER 1000
ENTRYPOINT ["/opt/rn50/run_and_time.sh"]

# Without --target. The stages of gpu come last: the classic builder makes all that precede its target.
FROM cpu
