"""The target of an application, from its operator and connection. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from paceline.authoring.connection import Connection
from paceline.exceptions import FailTask
from workers.spark.clusters import connect
from workers.spark.clusters.command import Target
from workers.spark.clusters.connect import Connect, Local
from workers.spark.clusters.kubernetes import Kubernetes
from workers.spark.clusters.protocol import Cluster, Password, UnknownClusterError
from workers.spark.clusters.standalone import Standalone
from workers.spark.clusters.yarn import Yarn

#: The arguments are those of `of`.
ClusterOf = Callable[[str, str, Mapping[str, str], str, Password], Cluster]
CLUSTERS: Mapping[str, type[Cluster]] = {
    "local": Local,
    "standalone": Standalone,
    "yarn": Yarn,
    "kubernetes": Kubernetes,
    "connect": Connect,
}


def cluster_of(kind: str, address: str, reach: Mapping[str, str], deploy_mode: str, password: Password) -> Cluster:
    """The cluster of a target, or of the stored row of an application; UnknownClusterError."""
    if kind not in CLUSTERS:
        raise UnknownClusterError(
            f"This worker has no Spark master of the kind {kind!r} ({address}): upgrade it to the release that used it."
        )
    return CLUSTERS[kind](address, reach, deploy_mode, password)


DEFAULT_MASTER = "local[*]"
STANDALONE_PORT = 7077
#: The keys in the extra of a connection of type spark, beside conf keys, which start with "spark.".
EXTRA = frozenset({
    "conf", "deploy-mode", "deploy_mode", "spark-binary", "spark_binary", "queue", "namespace", "rest_port", "ui_port",
    "resourcemanager", "kubectl", "use_ssl", "yarn",
})  # fmt: skip
#: The extras that requests to the cluster need.
REACH = frozenset({"rest_port", "ui_port", "resourcemanager", "namespace", "kubectl", "yarn"})


def choose(master: str | None, deploy_mode: str | None, binary: str | None, connection: Connection | None) -> Target:
    """The target of one task, whose arguments take precedence over its connection; FailTask if they do not fit."""
    extra = _extra(connection)
    wanted = master or (_master(connection) if connection is not None else DEFAULT_MASTER)
    kind = kind_of(wanted)
    mode = deploy_mode or str(extra.get("deploy-mode") or extra.get("deploy_mode") or "client")
    if mode not in {"client", "cluster"}:
        raise FailTask(f"The deploy mode cannot be {mode!r}: write client or cluster.")
    if mode == "cluster" and not CLUSTERS[kind].has_cluster_mode:
        raise FailTask(f"The master {wanted} has no deploy mode cluster: remove it, or use a cluster as master.")
    conf = {**(extra.get("conf") or {}), **{key: value for key, value in extra.items() if key.startswith("spark.")}}
    reach = {key: str(extra[key]) for key in sorted(REACH & extra.keys())} | connect.kept(wanted)
    if CLUSTERS[kind].signs_requests and connection is not None and connection.password:
        reach["conn_id"] = connection.conn_id  # for its password
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
    for kind, cluster in CLUSTERS.items():
        if cluster.masters.fullmatch(master):
            return kind
    *examples, last = (cluster.example for cluster in CLUSTERS.values())
    raise FailTask(f"The Spark master cannot be {master!r}: write {', '.join(examples)} or {last}.")


def _master(connection: Connection) -> str:
    host = connection.host or ""
    port = "" if connection.port is None else f":{connection.port}"
    if not host:
        raise FailTask(
            f"The connection {connection.conn_id!r} has no master: set its host, such as spark://host, yarn or local[2]."
        )
    if host.startswith("sc://") or (connection.conn_type == "spark_connect" and "://" not in host):
        return connect.url_of(connection)
    if "://" in host or host == "yarn" or host.startswith("local"):
        return host + (port if "://" in host else "")
    # As from a URI: in spark://host:port?deploy-mode=cluster the scheme is the type of the connection.
    return f"spark://{host}{port or f':{STANDALONE_PORT}'}"


def _extra(connection: Connection | None) -> dict[str, Any]:
    if connection is None:
        return {}
    if connection.conn_type not in {"spark", "spark_sql", "spark_connect"}:
        raise FailTask(f"The connection {connection.conn_id!r} has the type {connection.conn_type!r}, not spark: use another one.")
    extra = connection.extra_dejson
    if connection.conn_type == "spark_connect":
        connect.check_token(connection)
    unknown = sorted(key for key in extra if key not in EXTRA and not key.startswith("spark."))
    if unknown:
        raise FailTask(
            f"The extra of connection {connection.conn_id!r} has the unknown key {unknown[0]!r}; "
            f"known are {', '.join(sorted(EXTRA))} and spark.*."
        )
    if not isinstance(extra.get("conf") or {}, Mapping):
        raise FailTask(f"The conf in the extra of connection {connection.conn_id!r} must be an object of spark.* keys.")
    return extra
