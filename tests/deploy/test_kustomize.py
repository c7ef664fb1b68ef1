"""The kustomize folders: the same objects as the chart."""

import json
import shutil
import subprocess

import pytest
import yaml

from .rendering import DEPLOY, Object, key, kustomized, plain, render
from .value_sets import SCALED

KUSTOMIZE = DEPLOY / "kustomize"
#: Each folder with the values of the chart that give the same objects.
FOLDERS: dict[str, Object] = {
    "base": {},
    "trial": {"postgres": {"enabled": True}, "redis": {"enabled": True}},
    "autoscaling": {
        "autoscaler": {"enabled": True},
        "workers": {name: {"autoscaling": SCALED} for name in ("default", "spark", "spark-heavy")},
    },
}


def by_key(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {key(resource): plain(resource) for resource in objects}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_has_the_objects_of_the_chart(folder: str) -> None:
    ours, of_chart = by_key(kustomized(KUSTOMIZE / folder)), by_key(render(FOLDERS[folder]))

    assert ours.keys() == of_chart.keys()
    assert [one for one in ours if json.dumps(ours[one], sort_keys=True) != json.dumps(of_chart[one], sort_keys=True)] == []


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
@pytest.mark.parametrize("folder", FOLDERS)
def test_kubectl_builds_the_same(folder: str) -> None:
    built = subprocess.run(["kubectl", "kustomize", str(KUSTOMIZE / folder)], capture_output=True, text=True, check=True).stdout

    assert by_key(list(yaml.safe_load_all(built))) == by_key(kustomized(KUSTOMIZE / folder))
