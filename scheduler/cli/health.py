"""`paceline alive` and `paceline doctor`: the health of the processes on this machine, and the checks of an installation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from paceline.exceptions import PacelineError, SettingsError
from scheduler.cli import lazy, options, output
from scheduler.process import health, pidfile

if TYPE_CHECKING:
    from scheduler.embedded.checks import Finding
    from scheduler.settings import Settings


ROLES = ("scheduler", "worker", "waiter")
SILENT = f"It does not answer within {health.ANSWER_S:g} s."
#: The health of a process: its name, status, why it is unhealthy, and its parts.
Health = dict[str, Any]


class UnhealthyError(PacelineError):
    """A process of this role is unhealthy, or none runs."""


@click.command()
@click.argument("role", metavar="KIND", type=click.Choice(ROLES))
def alive(role: str) -> None:
    """Exit 0 if the scheduler, worker or waiter on this machine is healthy, else 1. Short form of `paceline doctor --role`."""
    examine(role)


def examine(role: str) -> None:
    """Raise UnhealthyError unless processes of this role run on this machine and all are healthy.

    They are all processes with a socket in this home, or else the one at the port of the role.
    """
    settings = options.settings()
    section = getattr(settings, role)
    healths = list(_by_socket(settings, role))
    if not healths and section.health_port:
        healths = list(_by_port(section.health_address, section.health_port))
    wrong = [health for health in healths if health["status"] != "healthy"]
    if output.json_wanted():
        output.print_json({"ok": bool(healths) and not wrong, "role": role, "processes": healths})
    if not healths:
        raise UnhealthyError(f"No {role} runs on this machine with this home: see its log, or start one with `paceline {role}`.")
    if wrong:
        raise UnhealthyError(" ".join(f"{health['process']}: {health['message']}" for health in wrong))


def _by_socket(settings: Settings, role: str) -> Iterator[Health]:
    for path in pidfile.sockets(settings.run_folder, role):
        try:
            report = health.ask(path)
        except TimeoutError:
            yield _unhealthy(path.stem, SILENT)
        except OSError as error:
            yield _unhealthy(path.stem, f"It cannot be reached: {error.strerror}.")
        else:
            yield from _reported(report)


def _by_port(address: str, port: int) -> Iterator[Health]:
    here = "127.0.0.1" if address in {"0.0.0.0", "::", ""} else address  # noqa: S104 - every address includes this one
    try:
        yield from _reported(health.ask_port(here, port))
    except TimeoutError:
        yield _unhealthy(f"{here}:{port}", SILENT)


def _unhealthy(process: str, message: str) -> Health:
    return {"process": process, "status": "unhealthy", "message": message, "parts": {}}


def _reported(report: Health | None) -> Iterator[Health]:
    if report is not None:
        wrong = [part["message"] for part in report["parts"].values() if part["status"] == "unhealthy"]
        names = {name: report[name] for name in ("process", "status")}
        yield names | {"message": " ".join(wrong), "parts": report["parts"]}


DEEP_COLUMNS = ["invariant", "dag_id", "run_id", "task_id", "map_index", "what", "since"]


@click.command()
@click.option("--role", type=click.Choice(ROLES), help="Check only the processes of this role on this machine.")
@click.option("--deep", "deep_wanted", is_flag=True, help="Check the invariants of the database and the broker.")
@options.as_json
def doctor(role: str | None, deep_wanted: bool) -> None:
    """Check servers, versions and configuration, and show how to fix each problem. Exit 1 if there is a problem.

    With --role, the result is the same as GET /health of these processes; use it as the health check of a container. With --deep,
    the command lists each row that violates an invariant for longer than schedulers need to repair it.
    """
    if role is not None and not deep_wanted:
        # This is the health check of containers, every few seconds, so it does not import the modules of the other checks.
        examine(role)
        return
    if deep_wanted:
        click.get_current_context().exit(0 if _examine_rows() else 1)
    from scheduler.embedded import checks

    try:
        settings = options.settings()
        findings = [*checks.machine(settings), *_java(settings), *checks.servers(settings, lazy.as_paceline_error)]
    except SettingsError as error:
        findings = [checks.bad("settings", str(error), "Correct it; `paceline config check` validates all settings.")]
    healthy = all(finding.ok for finding in findings)
    if output.json_wanted():
        output.print_json({"ok": healthy, "versions": checks.versions(), "checks": [asdict(finding) for finding in findings]})
    else:
        _print(findings, checks.versions(), healthy=healthy)
    click.get_current_context().exit(0 if healthy else 1)


def _examine_rows() -> bool:
    """Print the rows of the database and the messages of the broker that violate an invariant; whether there is none."""
    from scheduler.messaging.brokers import Brokers
    from scheduler.store.upkeep import invariants

    settings = options.settings()
    with contextlib.closing(Brokers(settings)) as brokers:
        broken = invariants.find(invariants.Tools(options.engine(), settings, brokers))
    rows = [{"invariant": violation.name} | asdict(violation) for violation in broken]
    if output.json_wanted():
        output.print_json({"ok": not rows, "broken": [{name: row[name] for name in DEEP_COLUMNS} for row in rows]})
        return not rows
    output.table(rows, DEEP_COLUMNS, empty="Every invariant holds.")
    if rows:
        output.say(
            f"{len(rows)} to look at. What exceeds a limit ends by itself. For any other row, clear or mark the task instance,"
            " and report a bug."
        )
    return not rows


def _java(settings: Settings) -> Iterator[Finding]:
    """The Java that Spark would start, and whether it starts from a class archive."""
    from scheduler.embedded import checks
    from workers.spark import java
    from workers.spark import java as runtime

    path, install = runtime.find_java(), checks.sentence(runtime.INSTALL)
    if path is None:
        yield checks.bad("java", "No Java was found; PySpark tasks fail here.", install)
        return
    version = runtime.java_version(path)
    if version is not None and version < runtime.OLDEST_JAVA:
        yield checks.bad(
            "java", f"{path} is version {version}; Spark needs {runtime.OLDEST_JAVA}.", checks.sentence(runtime.INSTALL)
        )
    else:
        archived = java.archive_path(settings).is_file()
        start = "starts from an archive of Spark's classes" if archived else "would start sooner after `paceline spark archive`"
        yield checks.good("java", f"{path}, version {version or 'unknown'}; {start}")
        if settings.tables.warehouse:
            yield _tables_of_spark(settings)


def _tables_of_spark(settings: Settings) -> Finding:
    """Whether Spark can use the catalog of tables."""
    from scheduler.embedded import checks
    from workers.spark import iceberg

    try:
        jars = iceberg.fetched(settings)
    except iceberg.JarsMissingError as missing:
        message, _, fix = str(missing).partition(": ")
        if settings.tables.spark_packages == iceberg.NONE:
            return checks.good("spark-tables", message)
        return checks.bad("spark-tables", f"{message}; PySpark tasks run without the catalog.", checks.sentence(fix))
    where = "fetches the jars of Iceberg with its first task" if jars is None else f"uses {', '.join(jars)}"
    return checks.good("spark-tables", f"Spark {where} for tables")


def _print(findings: list[Finding], versions: dict[str, str], *, healthy: bool) -> None:
    from rich.text import Text

    screen = output.console()
    screen.print(Text(", ".join(f"{name} {version}" for name, version in versions.items()), style="dim"))
    for finding in findings:
        mark = Text("ok       ", style="green") if finding.ok else Text("PROBLEM  ", style="bold red")
        screen.print(mark + Text(f"{finding.check}: {finding.message}"))
        if not finding.ok:
            screen.print(Text(f"         {finding.fix}", style="yellow"))
    problems = sum(not finding.ok for finding in findings)
    screen.print("Nothing to fix." if healthy else f"{problems} to fix.")
