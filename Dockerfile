# docker build --target cpu -t achieve:cpu .      then: docker run --rm -v "$PWD/runs:/home/runs" achieve:cpu train --preset quick
# docker build --target cuda -t achieve:cuda .    then: docker run --rm --gpus all -v "$PWD/runs:/home/runs" achieve:cuda train --preset ad
FROM python:3.12-slim-bookworm AS base
# Triton compiles its launchers with the system's C compiler.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/achieve
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src

# The wheels of PyPI bring CUDA along; the host needs NVIDIA's driver and container toolkit.
FROM base AS cuda
RUN pip install --no-cache-dir -c constraints.txt '.[minigrid,tensorboard]'
WORKDIR /home
ENTRYPOINT ["achieve"]
CMD ["--help"]

FROM base AS cpu
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
      -c constraints.txt 'torch==2.13.0+cpu' '.[minigrid,tensorboard]'
WORKDIR /home
ENTRYPOINT ["achieve"]
CMD ["--help"]
