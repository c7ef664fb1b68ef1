"""Serves external metrics to the HorizontalPodAutoscaler: the number that the autoscaler of the chart answers. Runs in a pod."""

import json
import ssl
import urllib.request
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GROUP = "external.metrics.k8s.io/v1beta1"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/").split("/")
        # /apis/GROUP/VERSION/namespaces/NAMESPACE/METRIC, where the metric has the name of the ScaledObject.
        if path == ["apis", *GROUP.split("/")]:
            self._answer(200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP, "resources": []})
        elif len(path) == 6:
            self._answer(200, value(path[4], path[5]))
        else:
            self._answer(404, {})

    def _answer(self, status: int, found: Any) -> None:
        content = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def value(namespace: str, metric: str) -> Any:
    autoscaler = metric.replace("-worker-", "-autoscaler-")
    with urllib.request.urlopen(f"http://{autoscaler}.{namespace}.svc:8977/workers", timeout=10) as answer:
        workers = json.load(answer)["workers"]
    item = {
        "metricName": metric,
        "metricLabels": {},
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": str(workers),
    }
    return {"kind": "ExternalMetricValueList", "apiVersion": GROUP, "metadata": {}, "items": [item]}


if __name__ == "__main__":
    server = ThreadingHTTPServer(("0.0.0.0", 8443), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("/files/tls.crt", "/files/tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()
