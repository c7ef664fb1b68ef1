"""Creates the cluster of a given kind."""

from collections.abc import Callable, Mapping

from workers.spark.clusters import kubernetes, local, standalone, yarn
from workers.spark.clusters.protocol import Cluster, Password

#: The arguments are those of `of`.
ClusterOf = Callable[[str, str, Mapping[str, str], str, Password], Cluster]


def of(kind: str, address: str, reach: Mapping[str, str], deploy_mode: str, password: Password) -> Cluster:
    """The cluster of a target, or of the stored row of an application."""
    match kind:
        case "standalone":
            return standalone.Standalone(address, reach, has_driver=deploy_mode == "cluster", password=password)
        case "yarn":
            return yarn.Yarn(reach)
        case "kubernetes":
            return kubernetes.Kubernetes(address, reach)
        case _:  # the client of a Connect server is a process on this machine too
            return local.Local()
