"""Chooses the cluster by its kind."""

from collections.abc import Mapping

from workers.spark.clusters import connect, kubernetes, local, standalone, yarn
from workers.spark.clusters.protocol import Cluster, Password


def _no_password(conn_id: str) -> None:
    """For a cluster that is asked without signing."""


def of(kind: str, address: str, reach: Mapping[str, str], deploy_mode: str, password: Password = _no_password) -> Cluster:
    """The cluster that a target names, or that the stored row of an application does."""
    match kind:
        case "standalone":
            return standalone.Standalone(address, reach, has_driver=deploy_mode == "cluster", password=password)
        case "yarn":
            return yarn.Yarn(reach)
        case "kubernetes":
            return kubernetes.Kubernetes(address, reach)
        case "connect":
            return connect.Connect(address)
        case _:
            return local.Local()
