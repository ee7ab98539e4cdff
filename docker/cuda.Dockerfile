# The image of the CUDA build: the x86 image and NVIDIA's compiler and headers from Python packages. No driver and no GPU is
# needed to build; to run, the container engine hands in both. `nox -s image -- cuda` builds it; docs/containers.md explains it.

# The pin of docker/pins.toml; both are written by `nox -s image -- --update-pins`.
ARG BASE=debian@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171
