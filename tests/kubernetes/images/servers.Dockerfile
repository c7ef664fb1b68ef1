# PostgreSQL and Redis of Debian, with what the chart relies on in the public images: user 999, and the variables POSTGRES_*.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS redis
RUN apt-get update \
 && apt-get install -y --no-install-recommends redis-server \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /data
CMD ["redis-server"]

FROM ${BASE} AS postgres
RUN groupadd --gid 999 --force --non-unique cluster \
 && useradd --uid 999 --gid 999 --non-unique --home-dir /var/lib/postgresql cluster \
 && apt-get update \
 && apt-get install -y --no-install-recommends postgresql-15 \
 && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/15
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data
COPY postgres-entrypoint /usr/local/bin/
# SIGTERM would wait until every client has gone.
STOPSIGNAL SIGINT
ENTRYPOINT ["postgres-entrypoint"]
CMD ["postgres"]
