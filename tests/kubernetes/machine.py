"""What the cluster is made of: packages of Debian, programs compiled from Go modules, and container images. Kept between runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from compose.stack import CHECKOUT, call, say

HERE = Path(__file__).resolve().parent
#: Compiled programs and images stay here. The cluster has its own folder beside them, which is deleted.
KEPT = Path(os.environ.get("KUBERNETES_KEPT") or CHECKOUT / "build/kubernetes")
#: A program that each package brings.
PACKAGES = {
    "containerd": "containerd", "runc": "runc", "etcd": "etcd-server", "iptables": "iptables", "nft": "nftables",
    "ipset": "ipset", "conntrack": "conntrack", "ip": "iproute2", "nsenter": "util-linux", "openssl": "openssl",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}  # fmt: skip
#: The names by which one binary is called.
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
VERSION = "1.34.4"
#: Tags of the same images: an upgrade is a change of the tag.
TAGS = ("first", "second")
POSTGRES, REDIS, PAUSE = "paceline-test-postgres:15", "paceline-test-redis:7", "paceline-test-pause:1"


class NotRunError(Exception):
    """This machine lacks something that the cluster needs."""


def require() -> None:
    """Install missing packages of Debian. Everything else that the machine lacks is an error."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise NotRunError("the cluster needs Linux and root: its nodes have namespaces, cgroups and mounts of their own.")
    missing = sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})
    if missing:
        if shutil.which("apt-get") is None:
            raise NotRunError(f"this machine lacks {', '.join(missing)} (names of Debian's packages). Install them.")
        say(f"Installing {' '.join(missing)}")
        # The packages must start no services.
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        install = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "-qq", "--no-install-recommends", *missing]
        for command in (["apt-get", "update", "-qq"], install):
            if subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False).returncode:
                raise NotRunError(f"`{' '.join(command)}` failed. Install {' '.join(missing)} by hand.")
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        raise NotRunError("no Docker engine answers, which builds the images: start one, or set DOCKER_HOST.")


def compile_programs() -> Path:
    """Compile Kubernetes, CoreDNS, kube-router's firewall and the pause program. Returns their folder."""
    folder = KEPT / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    source = HERE / "programs"
    stamp = folder / "compiled-from"
    wanted = "".join(file.read_text(encoding="utf-8") for file in sorted(source.rglob("*")) if file.is_file())
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        if shutil.which("go") is None:
            raise NotRunError("there is no `go` command, which compiles Kubernetes: install Go 1.24 or newer.")
        say("Compiling Kubernetes; this takes a quarter of an hour on two free cores, and 4 GB of Go's caches")
        versions = [f"-X k8s.io/component-base/version.git{name}={value}" for name, value in
                    (("Version", f"v{VERSION}"), ("Major", VERSION[0]), ("Minor", VERSION.split(".")[1]))]  # fmt: skip
        for program in ("pause", "dns", "firewall", "kube"):
            command = [
                "go",
                "build",
                "-trimpath",
                "-ldflags",
                " ".join(["-s -w", *versions]),
                "-o",
                str(folder / program),
                f"./{program}",
            ]
            environment = os.environ | {"CGO_ENABLED": "0"}
            if subprocess.run(command, cwd=source, env=environment, stdout=sys.stderr, check=False).returncode:
                raise NotRunError(f"`{' '.join(command)}` failed in {source}. It needs a Go module proxy.")
        stamp.write_text(wanted, encoding="utf-8")
    for name in KUBERNETES:
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to("kube")
    return folder


def build_images(programs: Path) -> Path:
    """Build the images of Paceline, of its servers and of pods, and store them as one archive."""
    archive = KEPT / "images.tar"
    names = []
    for target, name in (("full", "paceline"), ("slim", "paceline-slim")):
        first, *others = [f"{name}:{tag}" for tag in TAGS]
        build(first, CHECKOUT, "--target", target)
        for other in others:
            call("docker", "tag", first, other)
        names += [first, *others]
    for target, name in (("postgres", POSTGRES), ("redis", REDIS)):
        build(name, HERE / "images", "--target", target, "--file", str(HERE / "images/servers.Dockerfile"))
    build(PAUSE, programs, "--file", str(HERE / "images/pause.Dockerfile"))
    say(f"Saving the images to {archive}")
    call("docker", "save", "--output", str(archive), *names, POSTGRES, REDIS, PAUSE)
    return archive


def build(name: str, folder: Path, *options: str) -> None:
    say(f"Building {name}")
    # The network of the host is for machines whose registries answer there only; elsewhere it changes nothing.
    command = ["docker", "build", "--network", "host", "--tag", name, *options, str(folder)]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise NotRunError(f"`{' '.join(command)}` failed.")
