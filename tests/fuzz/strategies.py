"""The cases: mostly garbage near valid values, since pure garbage never gets past the first check."""

import base64
import hashlib
import json
from typing import Any

from hypothesis import strategies as st
from support import hostile

from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.settings import model as settings_module

#: Texts that have broken programs: paths, SQL, shells, templates, terminals, Unicode, numbers.
NASTY = (
    "", " ", ".", "..", "../../etc/passwd", "/etc/passwd", "a/../../b", "..\\..\\x", "~", "~root", "-", "--", "--help", "-rf", "\0",
    "a\0b", "a\nb", "\r\n", "\t", "\x1b[2J", "\x7f", "%00", "%2e%2e%2f", "%s", "%(x)s", "%d%n", "{}", "{0}", "{{ 7 * 7 }}",
    "{% raw %}", "${HOME}", "$(id)", "`id`", "; id", "| id", "&& id", "' or 1=1 --", "'; drop table dag_run; --", '"', "\\", "\\0",
    "null", "None", "true", "NaN", "Infinity", "-1", "0", "1e309", str(2**63), str(-(2**70)), "0x10", "१२", "é",
    "e\u0301", "İ", "ß",
    "\u202e\u2066", "\ufeff", "\u2028", "\ud800", "💥", "a" * 300, "ä" * 300, "💥" * 100, "CON", "aux.txt", "a.", "a ", " a", "a:b",
    "manual__2025-01-01T00:00:00+00:00", "default", "default_pool", "[bold]x[/bold]", "[/]", "<script>", "*", "?", "[a-z]", "!x",
)  # fmt: skip

texts = st.one_of(
    st.sampled_from(NASTY),
    st.text(max_size=40),
    st.text(st.characters(codec=None), max_size=20),
    st.builds(lambda a, b: a + b, st.sampled_from(NASTY), st.sampled_from(NASTY)),
    st.text("abcAZ09_.-~:+ /", max_size=30),
    st.text(min_size=200, max_size=400),
)
numbers = st.one_of(st.integers(), st.sampled_from([0, -1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1]), st.floats())
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
objects = st.dictionaries(texts, values, max_size=5)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _file(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


deep = st.integers(1, 5000).map(lambda depth: "[" * depth + "]" * depth)
#: Values of --conf.
confs = st.one_of(objects.map(_dump), objects.map(json.dumps), values.map(_dump), texts, deep.map(lambda text: f'{{"a": {text}}}'))

_parts = st.fixed_dictionaries(
    {},
    optional={
        "body": st.one_of(values, st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode()), values.map(
            lambda value: base64.b64encode(json.dumps(value).encode()).decode())),
        "content_type": st.one_of(values, st.sampled_from(["application/x-python-serialize", "application/x-yaml", "text/plain"])),
        "content_encoding": values,
        "headers": st.one_of(values, st.dictionaries(st.sampled_from(sorted(hostile.message()["headers"])), values, max_size=3)),
        "properties": st.one_of(
            values, st.dictionaries(st.sampled_from(sorted(hostile.message()["properties"])), values, max_size=2)
        ),
    },
)  # fmt: skip
#: Items of the broker's list, as bytes. None of them is a dispatch: the ids are wrong, or a part is.
messages = st.one_of(
    st.sampled_from(sorted(hostile.items("/nonexistent/bomb").items()))
    .map(lambda item: item[1])
    .filter(lambda item: len(item) < 10_000),
    st.binary(max_size=200),
    values.map(lambda value: json.dumps(value).encode()),
    st.builds(lambda ti, dispatch, parts: hostile.raw(hostile.message(ti, dispatch, **parts)), values, values, _parts),
    st.builds(lambda parts: hostile.raw(hostile.message(**parts)), _parts),
)

#: Members of the sorted sets by which schedulers and waiters are woken.
_tokens = st.sampled_from(["run:", "next:", "queue", "plan", "notify", "deferral", "run:1", "next:2", ""])
wakeups = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.builds(lambda token, rest: token.encode() + rest, _tokens, st.binary(max_size=20)),
        st.builds(lambda token, text: (token + text).encode("utf-8", "surrogatepass"), _tokens, texts),
        st.builds(lambda token, number: f"{token}{number}".encode(), _tokens, st.integers()),
        st.builds(lambda token, count: token.encode() + b"9" * count, _tokens, st.integers(1, 10_000)),
    ),
    min_size=1,
    max_size=20,
)

_DAG = json.loads(
    SerializedDag(
        dag_id="d",
        file="f.py",
        schedule={"kind": "never"},
        tasks=(
            SerializedTask(task_id="t", operator="E", runtime="empty"),
            SerializedTask(task_id="u", operator="E", runtime="empty"),
        ),
    ).to_json()
)
_numbers_json = st.sampled_from(["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-0", "1.0"])


def _changed(whole: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A dict with some values replaced, and some keys more."""
    return st.dictionaries(st.one_of(st.sampled_from(sorted(whole)), texts), values, max_size=3).map(
        lambda changes: whole | changes
    )


def _row(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    data = _dump(content)
    digest = hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()
    return {"dag_id": "d", "content_hash": digest, "data": data, "is_paused_upon_creation": None} | changes


_contents = st.one_of(
    _changed(_DAG),
    st.lists(_changed(_DAG["tasks"][0]), max_size=3).map(lambda tasks: _DAG | {"tasks": tasks}),
    _changed(_DAG["schedule"]).map(lambda schedule: _DAG | {"schedule": schedule}),
)
_rows = st.one_of(st.builds(_row, _contents, st.just({})), st.builds(lambda row: _row(_DAG, row), objects), values)
_readings = st.one_of(
    st.lists(_rows, max_size=3).map(lambda rows: {"dags": rows, "modules": [], "settled": True}),
    _changed({"dags": [_row(_DAG, {})], "modules": [], "settled": True}),
    _changed({"message": "m", "line": 1, "traceback": ""}).map(lambda found: {"problem": found}),
    values,
)


def _spoilt(whole: bytes, at: int, piece: bytes) -> bytes:
    at %= len(whole) + 1
    return whole[:at] + piece + whole[at + len(piece) :]


def _answers(valid: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Bytes of a pipe: JSON, JSON with a piece of garbage in it, and garbage."""
    whole = valid.map(lambda value: json.dumps(value).encode())
    return st.one_of(
        whole,
        valid.map(_dump).map(_file),
        st.builds(_spoilt, whole, st.integers(0, 2000), st.binary(max_size=8)),
        st.builds(lambda text, number: text.replace(b"null", number.encode()), whole, _numbers_json),
        st.builds(lambda first, second: first + b"\n" + second, whole, whole),
        st.builds(lambda text, size: text[:size], whole, st.integers(0, 500)),
        st.binary(max_size=200),
        deep.map(str.encode),
    )


#: Data in the result pipe of a child that reads a DAG file.
answers = _answers(_readings)
#: Data that a callback writes into the pipe of its process.
call_answers = _answers(
    st.one_of(_changed({"count": 1, "error": None}), _changed({"problem": None}), _changed({"ended": 0, "fault": None}), values)
)
_COMMANDS = [
    "ping", "stats", "active", "registered", "conf", "query_task", "shutdown", "revoke", "pool_grow", "rate_limit", "election", "x",
    "enable_events", "heartbeat", "clock", "hello", "",
]  # fmt: skip
_commands = st.one_of(
    _changed({"method": "ping", "arguments": {}, "destination": None, "pattern": None, "matcher": None}),
    st.builds(lambda method, arguments: {"method": method, "arguments": arguments}, st.sampled_from(_COMMANDS), objects),
    st.builds(lambda reply, ticket: {"method": "ping", "reply_to": reply, "ticket": ticket}, values, values),
)
#: Messages in the workers' mailboxes; never a command that would stop a worker.
commands = st.one_of(
    st.builds(
        lambda body, headers: hostile.raw(hostile.message(body=base64.b64encode(body).decode(), headers=headers)),
        _answers(_commands),
        st.dictionaries(st.sampled_from(["clock", "expires", "compression", "ticket"]), values, max_size=2),
    ),
    messages,
)

#: Lines, and parts of lines, of DAG files.
_SNIPPETS = r"""
from paceline import DAG, dag, task, Asset, Param, task_group, chain
from paceline.operators import *
import os, sys, signal
with DAG(
'd'
, schedule=
None
'* * * * *'
'@daily'
'not cron'
):
)
(
:
    BashOperator(task_id='t', bash_command='true')
    @task
    def f(): pass
    f()
@dag()
def d():
d()
raise ValueError('\0')
raise SystemExit(3)
sys.exit()
1/0
x = [
'''
"
\
if True:
class A: pass
import nowhere
from . import x
exec('x')
lambda: 0
raise KeyboardInterrupt
raise type('E\ud800', (Exception,), {})('x')
raise Exception('a' * 100_000)
def r(): r()
r()
os._exit(5)
print('x' * 100_000)
sys.stdout.close()
os.close(3)
sys.setrecursionlimit(10**6)
del __builtins__
tags=['a', 1]
default_args={'retries': -1}
t >> t
max_active_runs=0
start_date=3
params={'x': Param(1, type='string')}
globals().clear()
sys.modules.clear()
raise BaseException
raise MemoryError
DAG('\ud800')
DAG('a/../b')
DAG('x' * 300)
DAG('\0')
DAG('')
signal.alarm(1)
os.kill(os.getpid(), 9)
os.environ.clear()
os.chdir('/')
""".strip().split("\n")
_VALID = """
from paceline import DAG
from paceline.operators import BashOperator
with DAG({!r}, schedule={!r}, **{!r}):
    BashOperator(task_id={!r}, bash_command={!r}, **{!r})
"""
_DAG_OPTIONS = ["max_active_runs", "max_active_tasks", "tags", "params", "start_date", "default_args", "catchup", "description"]
_TASK_OPTIONS = [
    "retries", "retry_delay", "pool", "pool_slots", "queue", "priority_weight", "trigger_rule", "env", "email", "sla", "doc_md",
    "execution_timeout", "max_active_tis_per_dag", "weight_rule", "map_index_template",
]  # fmt: skip
_STARTS = [b"\xef\xbb\xbf", b"\xff\xfe", b"# -*- coding: nothing -*-\n", b"# -*- coding: utf-16 -*-\n", b"\0"]


def _options(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), values, max_size=2)


def _parens(depth: int) -> bytes:
    return _file("x = " + "(" * depth + ")" * depth + "  # scheduler DAG")


def _blocks(depth: int) -> bytes:
    return _file("".join(f"{' ' * level}if True:\n" for level in range(depth)) + "# scheduler DAG")


def _answering(data: bytes) -> bytes:
    return f"# scheduler DAG\nimport os\nos.write(3, b'\\n\\x1e' + {data!r})\nos._exit(0)\n".encode()


sources = st.one_of(
    answers.map(_answering),
    st.binary(max_size=120),
    st.lists(st.sampled_from(_SNIPPETS), max_size=14).map("\n".join).map(_file),
    st.lists(st.sampled_from(_SNIPPETS), max_size=10).map("".join).map(_file),
    st.builds(_VALID.format, texts, st.one_of(st.none(), texts), _options(_DAG_OPTIONS), texts, texts, _options(_TASK_OPTIONS)).map(
        _file
    ),
    st.integers(1, 3000).map(_parens),
    st.integers(1, 400).map(_blocks),
    st.integers(1, 1_000_000).map(lambda size: b"# scheduler DAG\nx = '" + b"a" * size + b"'"),
    st.builds(lambda start, rest: start + b"# scheduler DAG\n" + _file(rest), st.sampled_from(_STARTS), st.sampled_from(_SNIPPETS)),
)
#: Names of files below the DAGs folder; None of them leaves it.
file_names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40).map(lambda name: name + ".py")

_SECTIONS = {name: list(keys) for name, keys in settings_module.layout().items()}
_NAMES = sorted(settings_module.environment_names())
_URLS = [
    "postgresql://a:Sesame-1@h/d", "redis://:Sesame-1@h/0", "postgresql://[", "redis://:Sesame-1@[::1", "http://a:Sesame-1@h",
    "a:Sesame-1@h", "postgresql:a:Sesame-1@h", "://a:Sesame-1@h",
]  # fmt: skip
_names = st.one_of(
    st.sampled_from(_NAMES),
    st.sampled_from(_NAMES).map(lambda name: name + "X"),
    texts.map(lambda text: f"PACELINE_{text}"),
)
environments = st.dictionaries(
    _names,
    st.one_of(texts, numbers.map(str), st.sampled_from(["true", "false", "1", "0.5", "UTC"]), st.sampled_from(_URLS)),
    max_size=4,
)


def _toml(sections: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, entries in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {_dump(value)}" for key, value in entries.items()]
    return "\n".join(lines)


_section_names = st.one_of(st.sampled_from(sorted(_SECTIONS)), texts.map(_dump))
_key_names = st.one_of(st.sampled_from(sorted({key for keys in _SECTIONS.values() for key in keys})), texts.map(_dump))
_entries = st.dictionaries(_key_names, st.one_of(values, st.sampled_from(_URLS)), max_size=3)
tomls = st.one_of(
    st.dictionaries(_section_names, _entries, max_size=3).map(_toml).map(_file), st.binary(max_size=100), texts.map(_file)
)
