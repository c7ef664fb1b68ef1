"""The Helm chart: valid for each Kubernetes version, restricted, and in agreement with the settings and commands of Paceline."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from scheduler.cli import paceline
from scheduler.settings import Settings, types
from scheduler.settings.environment import OTHER_NAMES
from scheduler.settings.model import environment_names

from .rendering import DEPLOY, VERSIONS, Object, RenderError, containers, key, lint, pods, render
from .value_sets import VALUE_SETS, WRONG

KEDA = json.loads(Path(__file__).with_name("keda.schema.json").read_text(encoding="utf-8"))
# It would read the definitions of a version, which are megabytes, for each object.
utils.schema_contents = cache(utils.schema_contents)
every_set = pytest.mark.parametrize("name", VALUE_SETS)


@cache
def problem(text: str, version: str) -> str | None:
    """The errors of an object, as JSON, for a Kubernetes version. Most objects are in many value sets."""
    one = json.loads(text)
    try:
        if one["apiVersion"].startswith("keda.sh/"):
            jsonschema.validate(one, KEDA)
        else:
            kubernetes_validate.validate(one, version, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        return f"{one['kind']} {one['metadata']['name']}: {error}"
    return None


@pytest.fixture
def objects(name: str) -> list[Object]:
    return render(VALUE_SETS[name])


def test_there_are_thirty_value_sets() -> None:
    assert len(VALUE_SETS) >= 30


@every_set
def test_lint(name: str) -> None:
    assert lint(VALUE_SETS[name]) == ""


@pytest.mark.parametrize("version", VERSIONS)
@every_set
def test_every_object_is_valid(objects: list[Object], version: str) -> None:
    assert [found for resource in objects if (found := problem(json.dumps(resource, sort_keys=True), version))] == []


def test_the_check_finds_a_misspelled_field_and_an_unknown_version() -> None:
    deployment = next(resource for resource in render({}) if resource["kind"] == "Deployment")
    deployment["spec"]["replica"] = 3
    assert "replica" in (problem(json.dumps(deployment), "1.33") or "")
    del deployment["spec"]["replica"]
    deployment["apiVersion"] = "apps/v1beta1"
    assert problem(json.dumps(deployment), "1.33")

    scaled = next(resource for resource in render(VALUE_SETS["autoscaling"]) if resource["kind"] == "ScaledObject")
    scaled["spec"]["triggers"][0]["metadata"]["target"] = "1"
    assert "target" in (problem(json.dumps(scaled), "1.33") or "")


@every_set
def test_names_are_unique(objects: list[Object]) -> None:
    names = [(resource["kind"], resource["metadata"]["name"]) for resource in objects]
    assert len(names) == len(set(names))


@every_set
def test_every_pod_is_restricted_and_has_limits(objects: list[Object]) -> None:
    for pod, template in pods(objects):
        spec = template["spec"]
        # Otherwise a Service named paceline-web would set PACELINE_WEB_PORT, which is a setting.
        assert spec["enableServiceLinks"] is False, pod
        assert spec["automountServiceAccountToken"] is False, pod
        assert spec["securityContext"]["runAsNonRoot"] is True, pod
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, pod
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), pod
        assert all("hostPath" not in volume for volume in spec["volumes"]), pod
        for container in containers(template):
            security = container["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]}, pod
            assert security["readOnlyRootFilesystem"] is True, pod
            assert security["allowPrivilegeEscalation"] is False, pod
            assert "memory" in container["resources"]["limits"], (pod, container["name"])
            assert "cpu" in container["resources"]["requests"], (pod, container["name"])
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            volumes = {volume["name"] for volume in spec["volumes"]}
            volumes |= {"data"} if container["name"] == "postgres" else set()
            assert mounts <= volumes, (pod, mounts - volumes)


@every_set
def test_every_long_running_container_has_probes(objects: list[Object]) -> None:
    for pod, template in pods([resource for resource in objects if resource["kind"] != "Job"]):
        for container in template["spec"]["containers"]:
            assert {"livenessProbe", "readinessProbe"} <= container.keys(), pod
            port = container["ports"][0]["name"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container.get(probe, {}).get("httpGet", {"port": port})["port"] == port, (pod, probe)


@every_set
def test_secrets_come_by_reference_only(objects: list[Object]) -> None:
    assert [resource["metadata"]["name"] for resource in objects if resource["kind"] == "Secret"] == []
    for pod, template in pods(objects):
        for container in containers(template):
            for variable in container.get("env", []):
                is_secret = any(word in variable["name"] for word in ("PASSWORD", "_URL", "KEY", "AUTH"))
                assert not (is_secret and "value" in variable), (pod, variable["name"])


@every_set
def test_every_variable_is_a_setting_and_every_command_exists(objects: list[Object]) -> None:
    known = environment_names().keys() | OTHER_NAMES
    for pod, template in pods(objects):
        for container in containers(template):
            names = {variable["name"] for variable in container.get("env", [])}
            assert {name for name in names if name.startswith("PACELINE_")} <= known, pod
            arguments = container.get("args", [])
            if arguments[:1] == ["paceline"]:
                parse(arguments[1:])


def parse(arguments: list[str]) -> None:
    """Parse arguments as the command line does, and run nothing."""
    command: Any = paceline
    context = paceline.make_context("paceline", list(arguments))
    while hasattr(command, "resolve_command"):
        _, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(command.name, rest, parent=context)


@every_set
def test_every_selector_selects_a_pod_of_this_chart(objects: list[Object]) -> None:
    labels = [template["metadata"]["labels"] for _, template in pods(objects)]

    def selects(selector: dict[str, str]) -> bool:
        return any(selector.items() <= label.items() for label in labels)

    for resource in objects:
        spec, where = resource.get("spec", {}), (resource["kind"], resource["metadata"]["name"])
        match resource["kind"]:
            case "Service":
                assert selects(spec["selector"]), where
            case "Deployment" | "StatefulSet":
                own = spec["template"]["metadata"]["labels"]
                assert spec["selector"]["matchLabels"].items() <= own.items(), where
                assert sum(spec["selector"]["matchLabels"].items() <= other.items() for other in labels) == 1, where
            case "PodDisruptionBudget":
                assert selects(spec["selector"]["matchLabels"]), where
            case "NetworkPolicy":
                assert selects(spec["podSelector"]["matchLabels"]), where
            case "ScaledObject":
                target = next(other for other in objects if (other["kind"], other["metadata"]["name"])
                              == ("Deployment", spec["scaleTargetRef"]["name"]))  # fmt: skip
                assert "replicas" not in target["spec"], where
            case "Ingress":
                backend = spec["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"]
                assert backend in {other["metadata"]["name"] for other in objects if other["kind"] == "Service"}, where


@every_set
def test_every_container_port_is_open(objects: list[Object]) -> None:
    """For each container port of Paceline, a NetworkPolicy selects its pod."""
    policies = [resource["spec"] for resource in objects if resource["kind"] == "NetworkPolicy"]
    if not policies:
        return
    for pod, template in pods(objects):
        own = template["metadata"]["labels"]
        open_ports = {
            port["port"]
            for policy in policies
            if policy["podSelector"]["matchLabels"].items() <= own.items()
            for rule in policy.get("ingress", [])
            for port in rule["ports"]
        }
        ports = {port["containerPort"] for container in template["spec"]["containers"] for port in container.get("ports", [])}
        assert ports <= open_ports, pod


@every_set
def test_behind_an_ingress_the_web_process_knows_its_clients_and_its_cookies(objects: list[Object]) -> None:
    """Otherwise all clients have one address, and the wrong passwords of one lock out all."""
    ingresses = [one["spec"] for one in objects if one["kind"] == "Ingress" and "web" in one["metadata"]["name"]]
    for pod, template in pods(objects):
        if pod.endswith("-web"):
            (container,) = template["spec"]["containers"]
            environment = {variable["name"]: variable.get("value") for variable in container["env"]}
            settings = Settings.load({name: value for name, value in environment.items() if value and "PACELINE_WEB" in name})
            assert bool(settings.web.proxies) == bool(ingresses), pod
            assert settings.web.secure_cookies == any("tls" in spec for spec in ingresses), pod


@every_set
def test_every_config_map_and_claim_exists(objects: list[Object], name: str) -> None:
    maps = {resource["metadata"]["name"] for resource in objects if resource["kind"] == "ConfigMap"}
    claims = {resource["metadata"]["name"] for resource in objects if resource["kind"] == "PersistentVolumeClaim"}
    claims |= {"dags", "shared-data", "shared-logs"}  # those of users, in the value sets
    for pod, template in pods(objects):
        for volume in template["spec"]["volumes"]:
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps, pod
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims, pod


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_rejected(name: str) -> None:
    values, words = WRONG[name]

    with pytest.raises(RenderError) as raised:
        render(values)

    assert words in str(raised.value)


def test_a_new_configuration_restarts_every_process_and_migrates_again() -> None:
    def marks(values: Object) -> dict[str, Any]:
        return {
            resource["metadata"]["labels"]["app.kubernetes.io/component"]: (
                resource["spec"]["template"]["metadata"].get("annotations")
            )
            if resource["kind"] == "Deployment"
            else resource["metadata"]["name"]
            for resource in render(values)
            if resource["kind"] in {"Deployment", "Job"}
        }

    before, after = marks({}), marks({"config": "[core]\nparallelism = 9\n"})

    assert before.keys() == after.keys()
    assert [component for component in before if before[component] == after[component]] == []


def test_prometheus_finds_the_pods_that_serve_metrics() -> None:
    templates = [template for _, template in pods(render(VALUE_SETS["metrics"]))]

    found = [
        one["metadata"]["annotations"] for one in templates if "prometheus.io/scrape" in one["metadata"].get("annotations", {})
    ]
    assert sorted(one["prometheus.io/port"] for one in found) == ["8974", "8975", "8975", "8975", "8976"]
    assert not [one for _, one in pods(render({})) if "prometheus.io/scrape" in one["metadata"].get("annotations", {})]


def test_schedulers_read_a_repository_as_a_bundle_and_no_pod_shares_a_folder_of_code() -> None:
    for name, expected in {
        "git": "default=git+https://git.example.org/dags.git#ref=main&folder=dags",
        "private git": "default=git+https://git.example.org/d.git#ref=v1&folder=&key=/etc/paceline/git/key",
        "git over SSH": "sales=git+ssh://git@git.example.org/d.git#ref=main&folder=dags"
                        "&key=/etc/paceline/git/key&known_hosts=/etc/paceline/git/known_hosts",
    }.items():  # fmt: skip
        found = {}
        for pod, template in pods(render(VALUE_SETS[name])):
            variables = {variable["name"]: variable.get("value") for variable in template["spec"]["containers"][0].get("env", [])}
            found[pod] = variables.get("PACELINE_BUNDLES_SOURCES")
            assert "dags" not in {volume["name"] for volume in template["spec"]["volumes"]}, pod
            mounted = {mount["mountPath"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
            assert ("/etc/paceline/git" in mounted) == (name != "git" and pod.endswith("-scheduler")), (name, pod)
        assert {pod.rpartition("-")[2]: source for pod, source in found.items() if source} == {"scheduler": expected}
        (source,) = types.bundle_sources(expected)
        assert source.is_git


def test_who_waits_for_the_database_waits_in_one_process_with_a_deadline() -> None:
    """A loop in a shell would start a Python for each look, and end never."""
    pods = {key(one): one["spec"]["template"]["spec"] for one in render({}) if one["kind"] in {"Deployment", "Job"}}
    waits = [
        container["args"] for pod in pods.values() for container in (*pod.get("initContainers", ()), *pod["containers"])
        if "db" in container.get("args", ())
    ]  # fmt: skip
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"]["migrate"]["command"]
    unit = (DEPLOY / "systemd/paceline-migrate.service").read_text()

    assert len(waits) == len(pods)
    for arguments in [*waits, compose, unit.partition("ExecStart=/opt/paceline/bin/")[2].splitlines()[0].split()]:
        assert arguments[:2] == ["paceline", "db"] and arguments[2] in {"check", "migrate"}
        assert arguments[3] == "--wait" and float(arguments[4]) > 0


def test_two_releases_share_no_name() -> None:
    first, second = (
        {(resource["kind"], resource["metadata"]["name"]) for resource in render(VALUE_SETS["everything"], release=release)}
        for release in ("blue", "green")
    )

    assert first & second == set()
