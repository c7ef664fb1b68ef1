"""The login of the Flower of a local stack."""

from pathlib import Path

from scheduler.embedded import stack
from scheduler.embedded.stack import stack_commands


def test_a_home_has_one_login_for_its_owner_alone(tmp_path: Path) -> None:
    login = stack.flower_login(tmp_path, {})

    assert login is not None
    assert login.startswith("paceline:")
    assert len(login) > 25
    assert stack.flower_login(tmp_path, {}) == login
    assert (tmp_path / "flower.password").stat().st_mode & 0o777 == 0o600


def test_a_login_from_the_environment_is_left_alone(tmp_path: Path) -> None:
    assert stack.flower_login(tmp_path, {"FLOWER_BASIC_AUTH": "ann:secret"}) is None
    assert list(tmp_path.iterdir()) == []


def test_only_flower_gets_its_login() -> None:
    commands = stack_commands({}, schedulers=1, workers=[("default", 1)], waiters=1, flower=True, flower_login="paceline:x")

    assert {command.name: (command.environment or {}).get("FLOWER_BASIC_AUTH") for command in commands} == {
        "scheduler-1": None, "worker-1": None, "waiter-1": None, "flower": "paceline:x",
    }  # fmt: skip
