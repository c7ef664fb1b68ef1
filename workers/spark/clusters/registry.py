"""The cluster managers by kind, the name that the database stores."""

from collections.abc import Callable, Mapping

from workers.spark.clusters.connect import Connect
from workers.spark.clusters.kubernetes import Kubernetes
from workers.spark.clusters.local import Local
from workers.spark.clusters.protocol import Cluster, Password
from workers.spark.clusters.standalone import Standalone
from workers.spark.clusters.status import UnknownClusterError
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


def of(kind: str, address: str, reach: Mapping[str, str], deploy_mode: str, password: Password) -> Cluster:
    """The cluster of a target, or of the stored row of an application; UnknownClusterError."""
    if kind not in CLUSTERS:
        raise UnknownClusterError(
            f"This worker has no Spark master of the kind {kind!r} ({address}): upgrade it to the release that used it."
        )
    return CLUSTERS[kind](address, reach, deploy_mode, password)
