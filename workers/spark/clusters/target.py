"""The target of an application, from its operator and connection. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from scheduler.authoring.connection import Connection
from scheduler.exceptions import FailTask

DEFAULT_MASTER = "local[*]"
STANDALONE_PORT = 7077
#: The keys in the extra of a connection of type spark, beside conf keys, which start with "spark.".
EXTRA = frozenset({
    "conf", "deploy-mode", "deploy_mode", "spark-binary", "spark_binary", "queue", "namespace", "rest_port", "ui_port",
    "resourcemanager", "kubectl", "yarn",
})  # fmt: skip
#: The extras that requests to the cluster need.
REACH = frozenset({"rest_port", "ui_port", "resourcemanager", "namespace", "kubectl", "yarn"})
_MASTERS = (
    ("local", re.compile(r"local(\[.*\]|-cluster\[.*\])?")),
    ("standalone", re.compile(r"spark://[^/\s]+")),
    ("yarn", re.compile(r"yarn")),
    ("kubernetes", re.compile(r"k8s://\S+")),
    ("connect", re.compile(r"sc://\S+")),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster and deploy mode. `kind` is one of _MASTERS; `reach` has the data for requests, without secrets, since it is
    stored.
    """

    kind: str
    master: str
    deploy_mode: str = "client"
    binary: str | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)
    yarn_queue: str | None = None
    reach: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_cluster_mode(self) -> bool:
        return self.deploy_mode == "cluster"

    @property
    def address(self) -> str:
        """The master without the parameters of a Connect URL, which may contain a token."""
        return self.master.partition("/;")[0]


def choose(master: str | None, deploy_mode: str | None, binary: str | None, connection: Connection | None) -> Target:
    """The target of one task, whose arguments take precedence over its connection; FailTask if they do not fit."""
    extra = _extra(connection)
    wanted = master or (_master(connection) if connection is not None else DEFAULT_MASTER)
    kind = kind_of(wanted)
    mode = deploy_mode or str(extra.get("deploy-mode") or extra.get("deploy_mode") or "client")
    if mode not in {"client", "cluster"}:
        raise FailTask(f"The deploy mode cannot be {mode!r}: write client or cluster.")
    if mode == "cluster" and kind in {"local", "connect"}:
        raise FailTask(f"The master {wanted} has no deploy mode cluster: remove it, or use a cluster as master.")
    conf = {**(extra.get("conf") or {}), **{key: value for key, value in extra.items() if key.startswith("spark.")}}
    reach = {key: str(extra[key]) for key in sorted(REACH & extra.keys())}
    if kind == "standalone" and connection is not None and connection.password:
        reach["conn_id"] = connection.conn_id  # its password signs requests to the master's REST server
    return Target(
        kind=kind,
        master=wanted,
        deploy_mode=mode,
        binary=binary or extra.get("spark-binary") or extra.get("spark_binary"),
        conf=conf,
        yarn_queue=extra.get("queue"),
        reach=reach,
    )


def kind_of(master: str) -> str:
    """The cluster manager of a master URL; FailTask if there is none."""
    for kind, pattern in _MASTERS:
        if pattern.fullmatch(master):
            return kind
    raise FailTask(
        f"The Spark master cannot be {master!r}: write local[N], spark://host:port, yarn, k8s://https://host:port or sc://host:port."
    )


def _master(connection: Connection) -> str:
    host = connection.host or ""
    if connection.conn_type == "spark_connect" and host and "://" not in host:
        host = f"sc://{host}"
    port = "" if connection.port is None else f":{connection.port}"
    if not host:
        raise FailTask(
            f"The connection {connection.conn_id!r} has no master: set its host, such as spark://host, yarn or local[2]."
        )
    if host == "yarn" or host.startswith(("local", "k8s://", "sc://", "spark://")):
        token = f"/;token={quote(connection.password, safe='')}" if connection.password and host.startswith("sc://") else ""
        return host + (port if "://" in host else "") + token
    # As from a URI: in spark://host:port?deploy-mode=cluster the scheme is the type of the connection.
    return f"spark://{host}{port or f':{STANDALONE_PORT}'}"


def _extra(connection: Connection | None) -> dict[str, Any]:
    if connection is None:
        return {}
    if connection.conn_type not in {"spark", "spark_sql", "spark_connect"}:
        raise FailTask(f"The connection {connection.conn_id!r} has the type {connection.conn_type!r}, not spark: use another one.")
    extra = connection.extra_dejson
    unknown = sorted(key for key in extra if key not in EXTRA and not key.startswith("spark."))
    if unknown:
        raise FailTask(
            f"The extra of connection {connection.conn_id!r} has the unknown key {unknown[0]!r}; "
            f"known are {', '.join(sorted(EXTRA))} and spark.*."
        )
    if not isinstance(extra.get("conf") or {}, Mapping):
        raise FailTask(f"The conf in the extra of connection {connection.conn_id!r} must be an object of spark.* keys.")
    return extra
