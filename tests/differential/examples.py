"""The example files of Airflow that are known not to load here, and how they are read in Airflow."""

from pathlib import Path

from support.airflow_differences import Difference

#: The examples of Airflow 3.3.2 and its providers.
COUNT = 68

#: Examples that do not load after `paceline migrate-airflow`, each with words of the message that names the reason.
NOT_MIGRATED = {
    "example_workday_timetable.py": "schedulers never run user code",
}
#: Examples that load after the rewrite with core.airflow_imports only, since they use provider packages for Airflow.
WITH_PROVIDERS = {"example_analytics.py"}

#: Examples with other edges than in Airflow: Difference.SETUP_IN_BLOCK.
OTHER_EDGES = {"example_setup_teardown_taskflow.py": {"outer_setup", "section_1.inner_teardown"}}

#: DAGs whose runs end otherwise than with `dag.test()`, each with its class of differences.
OTHER_RUNS = {
    # They wait for another DAG: `dag.test()` until it is stopped, a run in memory not at all.
    "example_external_task": Difference.RUNS_IN_MEMORY,
    "example_external_task_marker_child": Difference.RUNS_IN_MEMORY,
    "example_task_state_store_async": Difference.COROUTINES_AND_STATE,
    "read_asset_event": Difference.ASSETS_OF_ONE_URI,
}

#: DAGs whose ends are not compared: with `dag.test()`, their sensors wait one after the other for about eight minutes.
SLOW = {"example_sensors"}

#: The modules that the provider packages which come with Airflow need next to Paceline's.
LIBRARIES = ("deprecated", "methodtools.py", "more_itertools", "sqlparse", "wirerope", "wrapt")

#: Prints {file: {DAG: {task: [trigger rule, [downstream tasks]]}}} of the files that are its arguments, in Airflow.
STRUCTURE = """
import importlib.util, json, logging, sys, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
from airflow.sdk import DAG
from airflow.sdk.definitions._internal.contextmanager import DagContext

found = {}
for number, path in enumerate(sys.argv[1:]):
    DagContext.autoregistered_dags.clear()
    spec = importlib.util.spec_from_file_location(f"example_{number}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    DagContext.current_autoregister_module_name = spec.name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        found[path] = repr(error)
        continue
    finally:
        DagContext.current_autoregister_module_name = None
    held = [value for value in vars(module).values() if isinstance(value, DAG)]
    dags = {dag.dag_id: dag for dag in [*held, *(dag for dag, _ in DagContext.autoregistered_dags)]}
    found[path] = {
        name: {
            task.task_id: [str(getattr(task.trigger_rule, "value", task.trigger_rule)), sorted(task.downstream_task_ids)]
            for task in dag.tasks
        }
        for name, dag in dags.items()
    }
print(json.dumps(found))
"""


def name(path: Path | str) -> str:
    """The file name of an example, by which it is listed here."""
    return Path(path).name


def is_example(path: Path) -> bool:
    """Whether a file of a folder of examples is one, and no module of others."""
    return path.name != "__init__.py"
