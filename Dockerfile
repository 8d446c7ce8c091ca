# The image of a process of a run; tools/k8s.py has the manifests around it.
#
#   docker build --tag=REGISTRY/tf_goyal:VERSION .                      # CPUs
#   docker build --tag=REGISTRY/tf_goyal:VERSION --build-arg=EXTRA=gpu .  # with CUDA

ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
# "gpu" adds CUDA's libraries; empty: none.
ARG EXTRA=""
WORKDIR /source
RUN python -m venv /opt/tf_goyal
ENV PATH=/opt/tf_goyal/bin:$PATH
COPY setup.py pyproject.toml README.md LICENSE ./
COPY flags flags
COPY tf_goyal tf_goyal
RUN pip install --no-cache-dir ".${EXTRA:+[$EXTRA]}"

FROM python:${PYTHON}-slim
# Numbers, so that Kubernetes can tell that it is not root.
RUN groupadd --gid=1000 tf_goyal && useradd --uid=1000 --gid=1000 --no-create-home tf_goyal
COPY --from=build /opt/tf_goyal /opt/tf_goyal
# The root file system may be read-only: what has to be written goes to /tmp.
ENV PATH=/opt/tf_goyal/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
USER 1000:1000
ENTRYPOINT ["python", "-m", "tf_goyal.train"]
