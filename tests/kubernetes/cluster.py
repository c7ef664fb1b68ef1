"""A Kubernetes cluster on this machine: a control plane, and nodes with a network, mounts, a container runtime and a kubelet each.

It runs in namespaces of its own: it changes nothing outside, cannot reach another network, and ends with the process that made it.
"""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

from compose.stack import CheckError, call, eventually, expect, say
from machine import PAUSE

Object = dict[str, Any]
BRIDGE, DOMAIN = "lab0", "cluster.local"
#: Addresses of the control plane, which is also the DNS server, and of nodes by number; pods of a node; Services.
CONTROL, NODE, PODS, SERVICES = "10.123.0.1", "10.123.0.1{}", "10.244.{}.0/24", "10.96.0.0/16"
CGROUPS = Path("/sys/fs/cgroup")
CGROUP = "paceline-kubernetes-test"
#: Settings of the whole machine that a kubelet changes. On a node, files lie over them, so that the machine keeps its own.
KERNEL = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
          "kernel/keys/root_maxbytes")  # fmt: skip
READY_WITHIN_S = 300


class Cluster:
    def __init__(self, folder: Path, programs: Path, nodes: int) -> None:
        self.folder, self.programs = folder, programs
        self._token = secrets.token_hex(16)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.nodes = [Node(self, number) for number in range(1, nodes + 1)]

    def start(self, images: Path) -> None:
        """Start all programs, load the images, and wait until the nodes are ready."""
        command("ip", "link", "set", "lo", "up")
        command("ip", "link", "add", BRIDGE, "type", "bridge")
        command("ip", "address", "add", f"{CONTROL}/24", "dev", BRIDGE)
        command("ip", "link", "set", BRIDGE, "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="utf-8")
        (self.folder / "etcd").mkdir(parents=True)
        command("mount", "-t", "tmpfs", "tmpfs", str(self.folder / "etcd"))
        self._start_control_plane()
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.load(images)
        eventually("the nodes are ready", self._nodes_are_ready, within_s=READY_WITHIN_S)

    def _start_control_plane(self) -> None:
        """etcd, the API server, the controllers, the scheduler and the DNS server."""
        folder = self.folder
        self.access(self._token, "admin")
        users = [f"{self._token},admin,admin,system:masters"]
        users += [f"{node.token},system:node:{node.name},{node.name},system:nodes" for node in self.nodes]
        (folder / "tokens.csv").write_text("\n".join(users), encoding="utf-8")
        key = folder / "accounts.key"
        command("openssl", "genrsa", "-out", str(key), "2048")
        self.run("etcd", "etcd", "--data-dir", str(folder / "etcd/data"), "--listen-client-urls", "http://127.0.0.1:2379",
                 "--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380")  # fmt: skip
        gates = "--feature-gates=HPAScaleToZero=true"
        self.run(
            "kube-apiserver",
            self.program("kube-apiserver"),
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={CONTROL}",
            f"--service-cluster-ip-range={SERVICES}",
            f"--cert-dir={folder}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
            "--enable-aggregator-routing=true",
            "--kubelet-preferred-address-types=InternalIP",
            gates,
        )
        eventually("the API server is ready", lambda: self.kubectl("get", "--raw", "/readyz", failing=True) == "ok",
                   within_s=READY_WITHIN_S)  # fmt: skip
        access = f"--kubeconfig={folder / 'admin.conf'}"
        self.run(
            "kube-controller-manager",
            self.program("kube-controller-manager"),
            access,
            f"--root-ca-file={folder / 'apiserver.crt'}",
            f"--service-account-private-key-file={key}",
            "--leader-elect=false",
            "--node-monitor-grace-period=120s",
            gates,
        )
        self.run("kube-scheduler", self.program("kube-scheduler"), access, "--leader-elect=false")
        corefile = folder / "Corefile"
        corefile.write_text(
            f"{DOMAIN} in-addr.arpa {{\n  errors\n  cache 5\n"
            f"  kubernetes {DOMAIN} in-addr.arpa {{\n    kubeconfig {folder / 'admin.conf'}\n  }}\n}}\n",
            encoding="utf-8",
        )
        self.run("dns", self.program("dns"), "-conf", str(corefile))

    def _nodes_are_ready(self) -> bool:
        self.expect_running()
        return [is_true(one, "Ready") for one in self.get("nodes")] == [True] * len(self.nodes)

    # Programs --------------------------------------------------------------------------------------------------------

    def program(self, name: str) -> str:
        return str(self.programs / name)

    def run(self, name: str, *command: str) -> None:
        """Start a program, whose output goes to a file."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def expect_running(self) -> None:
        for name, process in self._running.items():
            expect(process.poll() is None, f"{name} ended with {process.returncode}: {self.last_lines(name)}")

    def last_lines(self, name: str, number: int = 5) -> str:
        lines = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-number:])

    def access(self, token: str, name: str) -> None:
        """Write the kubeconfig of an account."""
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": f"https://{CONTROL}:6443", "insecure-skip-tls-verify": True}}],
            "users": [{"name": "lab", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        }  # fmt: skip
        (self.folder / f"{name}.conf").write_text(json.dumps(config), encoding="utf-8")

    # Objects ---------------------------------------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        """For kubectl, helm and deploy/secrets."""
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {"KUBECONFIG": str(self.folder / "admin.conf"), "PATH": path, "HOME": str(self.folder)}

    def kubectl(self, *arguments: str, failing: bool = False, given: str | None = None) -> str:
        """The output of kubectl. With `failing`, also if it fails."""
        done = subprocess.run(
            [self.program("kubectl"), *arguments], input=given, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode and not failing:
            raise CheckError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: Object, namespace: str = "default") -> None:
        self.kubectl("-n", namespace, "apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, kind: str, namespace: str = "default", selector: str = "") -> list[Object]:
        items: list[Object] = json.loads(self.kubectl("-n", namespace, "get", kind, "-l", selector, "-o", "json"))["items"]
        return items

    def describe(self, namespace: str) -> None:
        """Print what explains a failure: the pods, the events, and the ends of the logs."""
        for arguments in (("get", "pods", "-o", "wide"), ("get", "events", "--sort-by=.lastTimestamp")):
            say("\n".join(self.kubectl("-n", namespace, *arguments, failing=True).splitlines()[-60:]))
        for pod in self.get("pods", namespace):
            name = pod["metadata"]["name"]
            log = self.kubectl("-n", namespace, "logs", name, "--all-containers", "--tail", "15", failing=True)
            say(f"== {name}\n{log}")


class Node:
    """A node: its network is one end of a cable to the bridge, and its folders lie over those of the machine."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.name, self.address = f"node{number}", NODE.format(number)
        self.token = secrets.token_hex(16)
        self._cluster, self._number = cluster, number
        self._folder = cluster.folder / self.name
        self._inside: list[str] = []

    def start(self) -> None:
        folder = self._folder
        holder = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "sleep", "infinity"], start_new_session=True)
        own = Path(f"/proc/{holder.pid}/ns/net")
        eventually(f"{self.name} has a network", lambda: own.readlink() != Path("/proc/self/ns/net").readlink(), within_s=30)
        self._inside = ["nsenter", f"--target={holder.pid}", "--net", "--mount", "--uts"]
        for name in ("lib", "log", "run"):
            (folder / name).mkdir(parents=True)
        cable = f"{BRIDGE}-{self._number}"
        command(
            "ip", "link", "add", cable, "master", BRIDGE, "up", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid)
        )
        command("ip", "route", "add", PODS.format(self._number), "via", self.address)
        command(*self._inside, "sh", "-euc", f"""
            hostname {self.name}
            mount --bind {folder}/lib /var/lib; mount --bind {folder}/log /var/log; mount --bind {folder}/run /run
            ip link set lo up; ip link set eth0 up
            ip address add {self.address}/24 dev eth0; ip route add default via {CONTROL}
            echo 1 >/proc/sys/net/ipv4/ip_forward
            mkdir -p /run/lab/cni /run/lab/kernel
            for name in {" ".join(KERNEL)}; do
              cat /proc/sys/$name >/run/lab/kernel/${{name##*/}}
              mount --bind /run/lab/kernel/${{name##*/}} /proc/sys/$name
            done""")  # fmt: skip
        make_cgroups(f"{CGROUP}/{self.name}")
        self._cluster.access(self.token, self.name)
        self._write_configuration(folder / "run/lab")
        self._run("containerd", "containerd", "--config", "/run/lab/containerd.toml")
        socket = folder / "run/containerd/containerd.sock"
        eventually(f"containerd of {self.name} answers", socket.exists, within_s=60)
        access = str(self._cluster.folder / f"{self.name}.conf")
        self._run("kubelet", self._cluster.program("kubelet"), f"--kubeconfig={access}", "--config=/run/lab/kubelet.json",
                  f"--node-ip={self.address}", f"--hostname-override={self.name}")  # fmt: skip
        admin = str(self._cluster.folder / "admin.conf")
        eventually(f"{self.name} registered", lambda: self.name in self._cluster.kubectl("get", "nodes", "-o", "name"),
                   within_s=READY_WITHIN_S)  # fmt: skip
        self._run(
            "proxy",
            self._cluster.program("kube-proxy"),
            f"--kubeconfig={admin}",
            "--proxy-mode=nftables",
            f"--hostname-override={self.name}",
            f"--cluster-cidr={PODS.format(0)[:-2]}16",
            "--conntrack-max-per-core=0",
        )
        self._run("firewall", self._cluster.program("firewall"), admin, self.name, SERVICES)

    def load(self, images: Path) -> None:
        say(f"Loading the images into {self.name}")
        command(*self._inside, "ctr", "-n", "k8s.io", "images", "import", str(images))

    def output(self, *program: str) -> str:
        """What a program prints that runs on this node."""
        return call(*self._inside, *program)

    def _run(self, name: str, *program: str) -> None:
        self._cluster.run(f"{self.name}-{name}", *self._inside, *program)

    def _write_configuration(self, folder: Path) -> None:
        """The configuration of containerd, of the network of pods, and of the kubelet."""
        (folder / "containerd.toml").write_text(f"""
            version = 2
            [plugins."io.containerd.grpc.v1.cri"]
            sandbox_image = "docker.io/library/{PAUSE}"
            restrict_oom_score_adj = true
            [plugins."io.containerd.grpc.v1.cri".cni]
            bin_dir = "/usr/lib/cni"
            conf_dir = "/run/lab/cni"
            """, encoding="utf-8")  # fmt: skip
        pods = {"type": "host-local", "ranges": [[{"subnet": PODS.format(self._number)}]], "routes": [{"dst": "0.0.0.0/0"}]}
        plugins = [{"type": "ptp", "ipam": pods}, {"type": "portmap", "capabilities": {"portMappings": True}}]
        network = {"cniVersion": "0.4.0", "name": "lab", "plugins": plugins}
        (folder / "cni/10-lab.conflist").write_text(json.dumps(network), encoding="utf-8")
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP}/{self.name}",
            "failSwapOn": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDNS": [CONTROL],
            "clusterDomain": DOMAIN,
            "resolvConf": "",
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
        }
        (folder / "kubelet.json").write_text(json.dumps(kubelet), encoding="utf-8")


def is_true(one: Object, condition: str) -> bool:
    found = one.get("status", {}).get("conditions", [])
    return any(condition == entry["type"] and entry["status"] == "True" for entry in found)


def make_cgroups(path: str) -> None:
    """A group for the pods of a node in each hierarchy of the machine. In that of cpusets, a new group has no processors."""
    for hierarchy in hierarchies():
        (hierarchy / path).mkdir(parents=True, exist_ok=True)
        for parent in (CGROUP, path):
            for name in ("cpuset.cpus", "cpuset.mems"):
                file = hierarchy / parent / name
                if file.exists() and not file.read_text(encoding="utf-8").strip():
                    file.write_text((file.parent.parent / name).read_text(encoding="utf-8"), encoding="utf-8")


def remove_cgroups() -> None:
    """Remove the groups of pods as soon as the last of their processes is gone."""

    def removed() -> bool:
        # runc also makes groups in `unified`, which has no controllers beside hierarchies of version 1.
        mounts = {*hierarchies(), CGROUPS / "unified"}
        for group in (group for mount in mounts for group, _, _ in os.walk(mount / CGROUP, topdown=False)):
            try:
                Path(group).rmdir()
            except OSError:
                return False
        return True

    eventually("the control groups of the cluster are gone", removed, within_s=60)


def hierarchies() -> list[Path]:
    """The mounts of control groups: one with version 2, one for each controller with version 1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [folder for folder in CGROUPS.iterdir() if folder.is_dir() and not folder.is_symlink() and folder.name != "unified"]


def command(*arguments: str) -> None:
    done = subprocess.run(arguments, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise CheckError(f"{' '.join(arguments)}: {done.stderr.strip()}")
