# A plain CUDA image with the packages of requirements/gpu.txt. Neither built nor tried on a GPU. In a clone:
#   docker build --file requirements/gpu.Dockerfile --tag rerule .
#   docker run --rm --gpus all --ipc=host --volume "$PWD/outputs:/rerule/outputs" rerule rerule --help
# --ipc=host: the processes of a run pass weights through shared memory, of which Docker gives 64 MB.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04
# Ubuntu keeps no older versions that could be pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3.12 python3.12-dev python3.12-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3.12 -m venv /opt/rerule
ENV PATH=/opt/rerule/bin:$PATH
WORKDIR /rerule
COPY requirements/gpu.txt requirements/
RUN pip install --no-cache-dir --no-deps -r requirements/gpu.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY recipe recipe
COPY reward reward
COPY data_prep data_prep
COPY benchmarks benchmarks
COPY examples examples
RUN pip install --no-cache-dir --no-deps -e .
