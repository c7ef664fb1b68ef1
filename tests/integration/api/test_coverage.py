"""The operations of Airflow's client that the other tests of this folder call."""

import inspect
import re
from pathlib import Path

from airflow_client import client as airflow

#: Pages, and operations that Paceline does not have: they return 501, see scheduler/api/routes/unsupported.py.
LEFT_OUT = {"login", "logout", "enqueue_connection_test", "get_connection_test"}


def operations() -> set[str]:
    apis = [kind for name, kind in vars(airflow).items() if name.endswith("Api") and inspect.isclass(kind)]
    names = {name for api in apis for name, member in vars(api).items() if inspect.isfunction(member)}
    return {
        name for name in names if not name.startswith("_") and not name.endswith(("_with_http_info", "_without_preload_content"))
    }


def test_every_operation_is_called_by_a_test() -> None:
    texts = [
        path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name
    ]
    called = set(re.findall(r"\.(\w+?)(?:_without_preload_content)?[(,]", "\n".join(texts)))

    assert operations() - called == LEFT_OUT
    assert len(operations() & called) > 100
