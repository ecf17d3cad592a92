# verl's image (CPython 3.12, CUDA 13.0, torch 2.11.0, vLLM 0.24.0, flash-attn 2.8.3) with this project. It has no
# verl, and its other packages here are older than verl 0.9.1 needs. Neither built nor tried on a GPU. In a clone:
#   docker build --file requirements/verl.Dockerfile --tag rerule .
# The tag of the image moves: --build-arg IMAGE=verlai/verl@sha256:... holds the one that you have tried.
ARG IMAGE=verlai/verl:vllm024.latest
FROM ${IMAGE}
WORKDIR /rerule
RUN pip install --no-cache-dir --no-deps \
    verl==0.9.1 transformers==5.9.0 TransferQueue==0.1.11 scipy==1.17.1 numpy==2.3.5 \
    && pip install --no-cache-dir rouge-score==0.1.2
COPY pyproject.toml setup.py README.md LICENSE ./
COPY recipe recipe
COPY reward reward
COPY data_prep data_prep
COPY benchmarks benchmarks
COPY examples examples
RUN pip install --no-cache-dir --no-deps -e .
