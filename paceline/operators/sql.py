"""Tasks in SQL: on the tables of the catalog with DuckDB or Spark, or in the database of a connection.

A connection to PostgreSQL is used through psycopg2, any other through the hook of an installed package.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from paceline.authoring import scope, templates
from paceline.authoring.asset import TABLE, Asset, names_a_table
from paceline.authoring.connection import Connection
from paceline.authoring.frames import DataFrameReference
from paceline.authoring.graph import Graph, link
from paceline.authoring.operator import Operator
from paceline.authoring.source import Location, fault
from paceline.authoring.task_arguments import TaskArguments
from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import PacelineError
from paceline.operators.python import PythonOperator
from paceline.tables import sql, writes
from paceline.tables import sql as texts
from paceline.tables.replaced import SOURCE
from paceline.tables.spark_writes import for_spark

if TYPE_CHECKING:
    from paceline.tables.sql import Script

ENGINES = ("duckdb", "spark", "connection")
WRITES = ("append", "append_once", "overwrite_by_logical_date")
EXTENSIONS = (".sql",)
#: The most rows that a task returns.
MAX_ROWS = 10_000
NEEDS = "SQL tasks need the packages sqlglot, duckdb and pyiceberg: pip install 'paceline[tables]'."


class SqlTaskArguments(TaskArguments, total=False):
    """The arguments of tasks in SQL, except the SQL."""

    engine: str | None
    conn_id: str | None
    database: str | None
    parameters: Mapping[str, Any] | Sequence[Any] | XComArg | None
    dialect: str | None
    write: str
    write_by: str | None
    edges: bool
    checks: Sequence[Any]
    max_rows: int
    autocommit: bool
    split_statements: bool | None
    return_last: bool
    handler: Callable[[Any], Any] | None
    hook_params: Mapping[str, Any] | None
    conf: Mapping[str, Any] | None
    heavy: bool
    warm: bool


class SQLExecuteQueryOperator(Operator):
    """Runs `sql`: statements separated by semicolons, or the path of a .sql file next to the DAG file. Its rows are the result.

    `engine` is "duckdb" (the default) or "spark", both on the tables of the catalog. With `conn_id`, the SQL runs in the database
    of that connection, in `database` if given. `parameters` are the values of `:name` in the SQL; they are bound and never
    become part of the text.

    For DuckDB and Spark, the SQL is parsed with the DAG file: a syntax error is an error of that file, and the tables that it reads
    and writes become `inlets` and `outlets`. With `edges`, the task waits for the tasks of the DAG with `edges` that write what it
    reads. `dialect` is the name that sqlglot has for the dialect; with a connection, the SQL is only parsed if it is given.

    `checks` are suites of paceline.quality, of tables by their names. They run after the SQL, before its tables are seen.

    `write` is what INSERT does: "append", "append_once" or "overwrite_by_logical_date", with `write_by` as its column. See
    paceline.tables. More than `max_rows` rows are an error. `conf`, `heavy` and `warm` are those of a PySpark task.

    `autocommit`, `split_statements`, `return_last`, `handler`, `output_processor` and `hook_params` are for connections, as in
    Airflow: `handler` gets the cursor, and returns all rows if it is not given.
    """

    template_fields: Sequence[str] = ("sql", "parameters", "conn_id", "database", "hook_params")
    template_ext: Sequence[str] = EXTENSIONS
    sql: Any
    #: The DataFrames of other tasks that its SQL may name.
    sql_frames: Mapping[str, DataFrameReference] = MappingProxyType({})

    def __init__(
        self,
        *,
        sql: str | Sequence[str] | XComArg,
        engine: str | None = None,
        conn_id: str | None = None,
        database: str | None = None,
        parameters: Mapping[str, Any] | Sequence[Any] | XComArg | None = None,
        dialect: str | None = None,
        write: str = "append",
        write_by: str | None = None,
        edges: bool = False,
        checks: Sequence[Any] = (),
        max_rows: int = MAX_ROWS,
        autocommit: bool = False,
        split_statements: bool | None = None,
        return_last: bool = True,
        handler: Callable[[Any], Any] | None = None,
        output_processor: Callable[[Any], Any] | None = None,
        hook_params: Mapping[str, Any] | None = None,
        conf: Mapping[str, Any] | None = None,
        heavy: bool = False,
        warm: bool = True,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        arguments = self.argument_checks()
        if not isinstance(sql, XComArg) and not (sql and (isinstance(sql, str) or all(isinstance(one, str) for one in sql))):
            raise arguments.refuse(f"sql must be statements or the path of a .sql file, not {sql!r}.")
        self.sql = sql
        self.engine = arguments.choice("engine", engine or ("duckdb" if conn_id is None else "connection"), ENGINES)
        if (self.engine == "connection") != (conn_id is not None):
            raise arguments.refuse("engine is for the tables of the catalog, and conn_id for another database; pass one of them.")
        self.conn_id, self.database = conn_id, database
        self.parameters: Any = parameters
        if self.engine != "connection" and not isinstance(parameters, Mapping | XComArg | None):
            raise arguments.refuse(f"parameters must be a dict with a value for each :name in the SQL, not {parameters!r}.")
        self.dialect = dialect or (None if self.engine == "connection" else self.engine)
        self.write, self.write_by = arguments.choice("write", write, WRITES), write_by
        if write_by is not None and write != "overwrite_by_logical_date":
            raise arguments.refuse("write_by names the column of write='overwrite_by_logical_date'; pass both, or none.")
        if self.engine == "connection" and (write != "append" or edges):
            raise arguments.refuse("write and edges are for the tables of the catalog; leave them out with conn_id.")
        self.edges = arguments.boolean("edges", edges)
        self.checks = list(checks)
        if wrong := [one for one in self.checks if not callable(getattr(one, "check", None))]:
            raise arguments.refuse(f"checks takes suites, such as [expect('sales.orders').rows(1)], not {wrong[0]!r}.")
        self.max_rows = arguments.integer("max_rows", max_rows, least=1)
        self.autocommit, self.split_statements, self.return_last = autocommit, split_statements, return_last
        self.handler, self.output_processor = handler, output_processor
        self.hook_params: Any = hook_params
        self.spark_conf = arguments.mapping("conf", conf or {})
        self.heavy, self.warm = arguments.boolean("heavy", heavy), arguments.boolean("warm", warm)
        self.worker_runtime = self._runtime_for({"engine": self.engine})  # type: ignore[misc]
        #: The tables of its SQL, as far as it is known when the DAG file is parsed.
        self.reads: tuple[str, ...] = ()
        self.writes: tuple[str, ...] = ()
        #: What the columns that it writes come from, by table and column.
        self.sql_columns: texts.Sources = {}
        self.read_sql(scope.place(kwargs)[0])

    @classmethod
    def _runtime_for(cls, given: Mapping[str, Any]) -> str:
        return "pyspark" if given.get("engine") == "spark" else cls.worker_runtime

    def link_results(self) -> None:
        super().link_results()
        others = list(self.dag.task_dict.values()) if self.edges and self.dag is not None else []
        for other in others:
            if isinstance(other, SQLExecuteQueryOperator) and other.edges and other is not self:
                _join(*((other, self) if others.index(other) < others.index(self) else (self, other)))

    def read_sql(self, dag: Graph[Any] | None) -> None:
        """Note the tables and columns of the SQL, as far as it is known before a try. DagError if it is not valid."""
        for text, at, place in self.known_texts(dag):
            self._parse(text, at, place)
        known = {one.uri for one in self.inlets}
        self.add_inlets([Asset.table(name) for name in self.reads if names_a_table(name) and TABLE + name not in known])
        written = [name for name in self.writes if names_a_table(name)]
        self.add_outlets([Asset.table(name) for name in written if TABLE + name not in self.outlet_uris])

    def known_texts(self, dag: Graph[Any] | None) -> Iterator[tuple[str, Location, str]]:
        """The SQL that is known when the DAG file is parsed, with the place of its first line, and the name of its file."""
        for one in [self.sql] if isinstance(self.sql, str) else self.sql if isinstance(self.sql, list | tuple) else []:
            yield from self._known(one, self.at, dag)

    def _known(self, text: str, at: Location, dag: Graph[Any] | None) -> Iterator[tuple[str, Location, str]]:
        if not text.endswith(EXTENSIONS):
            yield text, at, ""
        elif "{{" not in text and dag is not None:
            folders = templates.folders_of(dag)
            path = next((path for folder in folders if (path := Path(folder) / text).is_file()), None)
            if path is None:
                raise self.argument_checks().refuse(f"the file {text!r} of sql is in none of {', '.join(folders)}.")
            yield path.read_text(encoding="utf-8"), Location(str(path), 1), text

    def _parse(self, text: str, at: Location, place: str) -> None:
        """Note the tables and columns of a text. DagError with its line if it is not valid."""
        if self.dialect is None:
            return
        try:
            script = texts.parse_template(text, self.dialect)
            if script is not None and self.engine != "connection":
                self._check(script, text)
                self.reads, self.writes = _more(self.reads, script.reads), _more(self.writes, script.writes)
                self.sql_columns = {**self.sql_columns, **texts.columns(script, self.dialect)}
        except texts.SqlError as error:
            where = f"{place}, line {error.line}" if place else f"line {error.line} of its SQL"
            # A literal of several lines starts in the line of its call, or below it.
            line = at.line + error.line - 1 if at != self.at else at.line
            raise fault(f"Task {self.task_id!r}, {where}: {error}", at=Location(at.file, line)) from None
        except ValueError as error:
            if self.dialect in ENGINES:
                raise
            raise self.argument_checks().refuse(f"dialect: {error}") from None
        except ImportError as error:
            raise self.argument_checks().refuse(f"{NEEDS} ({error})") from None

    def _check(self, script: Script, text: str) -> None:
        """SqlError for a parameter without a value."""
        given = {} if self.parameters is None else self.parameters
        if not isinstance(given, Mapping) or not (missing := sorted(script.parameters - given.keys())):
            return
        fix = "pass parameters" if self.parameters is None else "add it to parameters"
        raise texts.SqlError(f"the parameter :{missing[0]} has no value; {fix}.", texts.line_of(text, missing[0]))

    def execute(self, context: Mapping[str, Any]) -> object:
        return self.run(self.sql, context)

    def run(self, statements: str | Sequence[str], context: Mapping[str, Any]) -> object:
        """Run the SQL of one try, then its checks; its rows."""
        result = self._run(statements, context)
        for suite in self.checks:
            suite.check()
        return result

    def _run(self, statements: str | Sequence[str], context: Mapping[str, Any]) -> object:
        text = statements if isinstance(statements, str) else ";\n".join(statements)
        if not isinstance(text, str) or not text.strip():
            raise PacelineError(f"The SQL of a task must be a non-empty str, not {text!r}.")
        if self.engine == "connection":
            return self._processed(self._in_connection(text.removeprefix(texts.BYTE_ORDER_MARK)))
        script = texts.parse(text, self.engine)
        parameters = dict(self.parameters or {})
        if self.engine == "spark":
            return self._processed(self._on_spark(script, parameters, context["spark"]))
        from paceline.tables.duckdb_engine import DuckDbEngine

        catalog = writes.catalog_of(context) if script.reads or script.writes else None
        engine = DuckDbEngine(catalog, None if self.write == "append" else self._inserts(), self.sql_frames)
        return self._processed(engine.run(script, parameters, self.max_rows))

    def _processed(self, result: Any) -> Any:
        return result if self.output_processor is None else self.output_processor(result)

    def _inserts(self) -> Callable[[str, Any], None]:
        """What stores the rows of an INSERT as `write` says. Those of several INSERTs into one table stay together."""
        written: set[str] = set()

        def insert(table: str, rows: Any) -> None:
            if self.write == "append_once":
                writes.append_once(table, rows)
            else:
                writes.replace_interval(table, rows, self.write_by, adds=table in written)
            written.add(table)

        return insert

    def _on_spark(self, script: Script, parameters: Mapping[str, Any], spark: Any) -> list[tuple[Any, ...]] | None:
        rows, insert = None, self._inserts()
        for name, frame in self.sql_frames.items():
            beside = texts.names_beside(script.statements, name)
            if beside is None or beside:
                frame.named_in(beside).to_spark(spark).createOrReplaceTempView(name)
        for one in script.statements:
            rows, query = None, texts.query_of(one.tree) if self.write != "append" and one.tree.key == "insert" else None
            used = texts.parameters_of(one.tree if query is None else query) & parameters.keys()
            text = one.text if query is None else query.sql(dialect="spark")
            frame = spark.sql(text, args={name: parameters[name] for name in used})
            if query is not None and one.target is not None:
                insert(one.target, _named(frame, one, spark))
            elif one.is_query:
                rows = self._few([tuple(row) for row in frame.limit(self.max_rows + 1).collect()])
        return rows

    def _few(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if len(rows) > self.max_rows:
            raise PacelineError(f"The query returns more than {self.max_rows:,} rows; write them into a table, or add a LIMIT.")
        return rows

    def _in_connection(self, text: str) -> Any:
        split = [text]
        if self.split_statements:
            conn_type = Connection.get(self.conn_id or "").conn_type
            split = texts.split(text, self.dialect or (POSTGRES if conn_type == POSTGRES else ""))
        results = run_on_connection(
            self.conn_id or "", split, self.parameters, handler=self.handler or self._fetched, database=self.database,
            autocommit=self.autocommit, hook_params=self.hook_params,
        )  # fmt: skip
        return results[-1] if self.return_last or not self.split_statements else results

    def _fetched(self, cursor: Any) -> list[tuple[Any, ...]] | None:
        return None if cursor.description is None else self._few([tuple(row) for row in cursor.fetchmany(self.max_rows + 1)])


def _named(frame: Any, one: Any, spark: Any) -> Any:
    """The DataFrame of an INSERT with the columns of the table, by position."""
    given = [column.name for column in one.tree.this.expressions] if hasattr(one.tree.this, "expressions") else []
    names = given or [name for name in spark.table(for_spark(one.target)).columns if name != SOURCE]
    if len(names) != len(frame.columns):
        raise PacelineError(f"INSERT INTO {one.target}: the query has {len(frame.columns)} columns, and {len(names)} are needed.")
    return frame.toDF(*names)


def _more(known: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*known, *names)))


def _join(first: SQLExecuteQueryOperator, second: SQLExecuteQueryOperator) -> None:
    """Put the writer of a table before its reader; of two writers, the one that was defined first."""
    if {*first.writes} & {*second.reads, *second.writes}:
        link(first, second)
    if {*second.writes} & {*first.reads} and not {*first.writes} & {*second.writes}:
        link(second, first)


class DecoratedSQLOperator(PythonOperator, SQLExecuteQueryOperator):
    """`@task.sql`: the function returns the SQL, or the path of a .sql file, which is rendered as a template.

    With DuckDB or Spark, a parameter that receives the DataFrame of another task is a table with its name.
    The SQL of a function that only returns literals is parsed with the DAG file.
    """

    template_fields: Sequence[str] = (*PythonOperator.template_fields, *SQLExecuteQueryOperator.template_fields[1:])
    template_ext: Sequence[str] = ()

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(python_callable=python_callable, **kwargs | {"sql": "(what the function returns)"})
        self.read_sql(scope.place(kwargs)[0])

    def known_texts(self, dag: Graph[Any] | None) -> Iterator[tuple[str, Location, str]]:
        function = vars(self).get("python_callable")
        file = "" if function is None else inspect.getsourcefile(function) or ""
        for text, line in [] if function is None else _returned(function):
            yield from self._known(text, Location(file, line), dag)

    def execute(self, context: Mapping[str, Any]) -> object:
        self.sql_frames = {name: value for name, value in self._given().items() if isinstance(value, DataFrameReference)}
        returned = self.call(context)
        renderer = templates.Renderer(self.dag, EXTENSIONS, owner=f"Task {self.task_id!r}", native=False)
        self.sql = renderer.render(returned, context, "sql")
        return self.run(self.sql, context)

    def columns_taken(self, result: XComArg) -> Collection[str] | None:
        places = [name for name, value in self._given().items() if value is result] if isinstance(self.op_kwargs, Mapping) else []
        known = [texts.without_templates(text) for text, _, _ in self.known_texts(self.dag)]
        if len(places) != 1 or None in known or len(known) != len(_returned(self.python_callable)) or self.engine == "connection":
            return None
        try:
            statements = [one for text in known for one in texts.parse(text or "", self.engine).statements]
        except texts.SqlError:  # a template is more than a name, and may have columns
            return None
        return texts.names_beside(statements, places[0]) or None

    def _given(self) -> dict[str, Any]:
        """The arguments of the function, by the names of its parameters."""
        signature = inspect.signature(self.python_callable)
        return signature.bind_partial(*self._placed([*signature.parameters.values()], {}), **self.op_kwargs).arguments


def _returned(function: Callable[..., Any]) -> list[tuple[str, int]]:
    """The texts that a function returns with their lines, if it returns nothing else than literals."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return []
    returns = [node.value for node in _own(tree.body[:1]) if isinstance(node, ast.Return)]
    literals = [
        (node.value, first + node.lineno - 1) for node in returns if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return literals if len(literals) == len(returns) else []


def _own(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions and classes inside of it."""
    for node in nodes:
        for child in ast.iter_child_nodes(node):
            yield child
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                yield from _own([child])


POSTGRES = "postgres"
#: The keys in the extra of a PostgreSQL connection that are not for its client.
_NOT_OPTIONS = frozenset({"cursor", "iam", "redshift", "cluster-identifier", "aws_conn_id", "sqlalchemy_scheme"})


def run_on_connection(
    conn_id: str,
    statements: Sequence[str],
    parameters: Any,
    *,
    handler: Callable[[Any], Any],
    database: str | None = None,
    autocommit: bool = False,
    hook_params: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Run statements in one transaction, or each by itself with `autocommit`; what `handler` makes of the cursor after each.

    `:name` in a statement for PostgreSQL is the parameter of that name. Other systems get statements and parameters unchanged.
    """
    connection = Connection.get(conn_id)
    is_postgres = connection.conn_type == POSTGRES
    client = _postgres(connection, database) if is_postgres else connection.get_hook(hook_params=dict(hook_params or {})).get_conn()
    results = []
    with closing(client):
        if autocommit:
            client.autocommit = True
        with closing(client.cursor()) as cursor:
            for statement in statements:
                cursor.execute(*_call(statement, parameters, is_postgres=is_postgres))
                results.append(handler(cursor))
        if not autocommit:
            client.commit()
    return results


def _call(statement: str, parameters: Any, *, is_postgres: bool) -> tuple[Any, ...]:
    if not parameters:
        return (statement,)
    if is_postgres and isinstance(parameters, Mapping):
        text, used = sql.bound(statement, parameters)
        return (text, {name: parameters[name] for name in used if name in parameters}) if used else (text,)
    return statement, parameters


def _postgres(connection: Connection, database: str | None) -> Any:
    import psycopg2

    extra = {name: value for name, value in connection.extra_dejson.items() if name not in _NOT_OPTIONS}
    named: dict[str, Any] = {
        "host": connection.host, "port": connection.port, "user": connection.login, "password": connection.password,
        "dbname": database or connection.schema,
    }  # fmt: skip
    try:
        return psycopg2.connect(**extra | {name: value for name, value in named.items() if value is not None})
    except psycopg2.ProgrammingError as error:
        raise PacelineError(f"The extra of connection {connection.conn_id!r} is not understood: {error}") from None
