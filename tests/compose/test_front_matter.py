"""The promises of README, Compose file and constraints, checked without starting anything."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from scheduler.settings.environment import IMAGES, OTHER_NAMES, STORE_PREFIXES
from scheduler.settings.model import environment_names

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "config/.env.example").read_text(encoding="utf-8")
FOLDERS = ("config", "docs", "bench")
PAGES = [
    str(page.relative_to(ROOT))
    for page in (*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md")))
]


def test_the_readme_shows_a_dag_that_parses_before_line_25() -> None:
    before, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition("```python\n")
    source, _, _ = rest.partition("```\n")

    names: dict[str, object] = {"__name__": "readme"}
    exec(compile(source, "README.md", "exec"), names)

    assert (before + source).count("\n") < 25


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]

    assert [target for target in targets if "://" not in target and not (ROOT / page).parent.joinpath(target).exists()] == []


def test_compose_requires_every_password_and_the_example_names_every_variable() -> None:
    used = set(re.findall(r"\$\{(\w+)", COMPOSE))
    required = set(re.findall(r"\$\{(\w+):\?", COMPOSE))

    assert used == set(re.findall(r"^#?(\w+)=", EXAMPLE, re.MULTILINE))
    assert {name for name in used if name.endswith("PASSWORD")} | {"PACELINE_CORE_FERNET_KEY"} == required


def test_every_image_that_is_not_ours_can_be_pinned_by_its_digest() -> None:
    services = yaml.safe_load(COMPOSE)["services"]
    images = {service["image"] for service in services.values()} | {services["migrate"]["build"]["args"]["PYTHON"]}

    replaceable = re.compile(r"\$\{(PACELINE_\w+_IMAGE):-[\w.:-]+\}")
    assert {image for image in images if not replaceable.fullmatch(image)} == {"paceline:latest"}
    assert {replaceable.sub(r"\1", image) for image in images} - {"paceline:latest"} <= IMAGES


def test_the_page_on_installation_has_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^\| `(\w+)` \| ", page.partition("| extra |")[2].partition("\n\n")[0], re.MULTILINE)) == set(
        project["optional-dependencies"]
    )


def test_compose_sets_only_settings_that_exist() -> None:
    named = set(re.findall(r"^ +(PACELINE_\w+):", COMPOSE, re.MULTILINE))
    assert {name for name in named if not name.startswith(STORE_PREFIXES)} <= set(environment_names()) | OTHER_NAMES


def test_each_service_gets_the_passwords_that_it_needs_and_no_others() -> None:
    """A Compose file repeats parts by anchors, so the whole must be read as YAML."""
    services = yaml.safe_load(COMPOSE)["services"]

    found = {name: set(re.findall(r"PACELINE_(\w+)_PASSWORD", str(service))) for name, service in services.items()}

    of_workers = {name: {"WORKER", "REDIS_WORKER", "SPARK"} for name in ("worker", "worker-spark", "worker-spark-heavy", "waiter")}
    assert found == of_workers | {
        "spark-master": {"SPARK"}, "spark-worker": set(), "postgres": {"POSTGRES"}, "flower": {"REDIS_FLOWER", "FLOWER"},
        "web": {"WEB", "REDIS_WEB"},
        "redis": {"REDIS_SCHEDULER", "REDIS_WORKER", "REDIS_WEB", "REDIS_FLOWER"}, "scheduler": {"SCHEDULER", "REDIS_SCHEDULER"},
        "migrate": {"POSTGRES", "SCHEDULER", "WORKER", "WEB"},
    }  # fmt: skip


def test_no_service_has_rights_of_roots_or_takes_all_memory() -> None:
    services = yaml.safe_load(COMPOSE)["services"]

    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "mem_limit" in service, name
        assert "cap_add" not in service or name == "postgres"


def test_no_service_shows_its_environment_through_pid_1() -> None:
    """Docker's own init is a program that every user may read, so the kernel shows its environment to its user."""
    services = yaml.safe_load(COMPOSE)["services"]

    assert [name for name, service in services.items() if service.get("init")] == []


def test_no_password_stands_on_a_command_line() -> None:
    services = yaml.safe_load(COMPOSE)["services"]

    for name, service in services.items():
        # $$ is for the shell of the container.
        assert re.findall(r"(?<!\$)\$\{?\w+", str(service.get("command", ""))) == [], name


def test_flower_sees_neither_data_nor_logs_nor_dags() -> None:
    mounted = yaml.safe_load(COMPOSE)["services"]["flower"]["volumes"]

    assert mounted == ["./config/paceline.toml:/opt/paceline/config/paceline.toml:ro"]


def test_make_env_writes_missing_passwords_for_its_owner_only(tmp_path: Path) -> None:
    for name in (".make/env", "config/.env.example"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    env = tmp_path / ".env"
    env.write_text("PACELINE_WORKER_PASSWORD=mine\n", encoding="utf-8")

    for _ in range(2):
        subprocess.run([sys.executable, tmp_path / ".make/env"], check=True)

    written = dict(line.split("=", 1) for line in env.read_text(encoding="utf-8").splitlines())
    assert set(written) == set(re.findall(r"\$\{(\w+):\?", COMPOSE)) | {"PACELINE_CORE_FERNET_KEY"}
    assert written["PACELINE_WORKER_PASSWORD"] == "mine"
    assert all(written.values())
    assert env.stat().st_mode & 0o777 == 0o600


def test_only_pages_and_flower_are_published_and_only_on_this_machine() -> None:
    published = re.findall(r'^ +- "([\d.]+):\$\{PACELINE_(\w+)_PORT:-(\d+)\}:(\d+)"$', COMPOSE, re.MULTILINE)
    assert published == [("127.0.0.1", "WEB", "8080", "8080"), ("127.0.0.1", "FLOWER", "5555", "5555")]
    assert COMPOSE.count("ports:") == 2


def test_every_package_the_project_names_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    groups = project["dependency-groups"].values()
    named = [*project["project"]["dependencies"], *(name for names in (*extras, *groups) for name in names)]
    # A group may include another one by its name, in a table.
    wanted = [name for name in named if isinstance(name, str)]
    pinned = re.findall(r"^([\w.-]+)==[\w.]+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)

    def plain(name: str) -> str:
        return re.split(r"[\[<>=]", name)[0].lower().replace("_", "-")

    # An extra may include others of this project.
    assert {plain(name) for name in wanted} - {project["project"]["name"]} <= {plain(name) for name in pinned}


def test_the_list_of_decisions_is_complete() -> None:
    listed = re.findall(r"\]\((\d{4}-[^)]+)\)", (ROOT / "docs/adr/README.md").read_text(encoding="utf-8"))

    assert listed == sorted(page.name for page in (ROOT / "docs/adr").glob("[0-9]*.md"))


def test_the_image_copies_from_stages_that_it_has_and_from_files_in_its_context() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    bases, stages = zip(*re.findall(r"(?m)^FROM (\S+) AS ([\w-]+)$", dockerfile), strict=True)
    included = set(re.findall(r"(?m)^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8")))
    copied = {one for line in re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", dockerfile) for one in line.split()}

    used = re.findall(r"--from=([\w-]+)", dockerfile)
    assert set(used) <= set(stages)
    assert set(stages) - {*used, *bases} == {"slim", "full"}
    assert {one for one in copied if one not in included and one.partition("/")[0] not in included} == set()
