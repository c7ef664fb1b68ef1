"""SQL as text: statements, tables, columns, parameters and templates."""

import pytest

from paceline.tables import sql

SCRIPT = """\
-- The orders of a day.
with a as (select id, amount * 2 as x from sales.orders where day = :day and t = '{{ ds }}' and q::int = 1)
insert into sales.out (id, y)
select a.id, a.x + b.z as y from a join lake.sales.b b on a.id = b.id where {{ params.k }} > 1;
merge into sales.o using sales.n on o.id = n.id when matched then update set *;
select * from sales.out
"""


def parsed(text: str, dialect: str = "spark") -> sql.Script:
    return sql.parse(sql.without_templates(text) or "", dialect)


def test_a_script_has_its_statements_and_tables() -> None:
    script = parsed(SCRIPT)

    assert [(one.target, one.reads, one.is_query) for one in script.statements] == [
        ("sales.out", ("sales.b", "sales.orders"), False),
        ("sales.o", ("sales.n",), False),
        (None, ("sales.out",), True),
    ]
    assert script.statements[2].text == "select * from sales.out"
    assert set(script.reads) == {"sales.b", "sales.orders", "sales.n"}
    assert script.writes == ("sales.out", "sales.o")
    assert script.parameters == {"day"}


def test_a_column_has_its_sources() -> None:
    assert sql.columns(parsed(SCRIPT), "spark") == {
        "sales.out": {"id": [("sales.orders", "id")], "y": [("sales.b", "z"), ("sales.orders", "amount")]}
    }


@pytest.mark.parametrize(
    "condition",
    [
        "where id in (select id from sales.days where shop = k)",
        "where exists (select * from sales.days where day = id)",
        "group by id having sum(amount) > (select avg(amount) from sales.days)",
        "qualify row_number() over (order by id) > (select count(k) from sales.days)",
    ],
)
def test_a_condition_with_a_subquery_takes_no_column_its_sources(condition: str) -> None:
    script = parsed(f"insert into sales.out select id, sum(amount) as total from sales.orders {condition}", "duckdb")

    assert set(script.reads) == {"sales.orders", "sales.days"}
    assert sql.columns(script, "duckdb") == {"sales.out": {"id": [("sales.orders", "id")], "total": [("sales.orders", "amount")]}}
    assert "sales.days" in script.statements[0].tree.sql(), "the statement itself is unchanged"


@pytest.mark.parametrize("value", ["(select max(day) from sales.days)", "id in (select k from sales.days)"])
def test_a_value_of_a_subquery_takes_no_other_column_its_sources(value: str) -> None:
    script = parsed(f"insert into sales.out select id, {value} as other, amount from sales.orders", "duckdb")

    columns = sql.columns(script, "duckdb")["sales.out"]

    assert (columns["id"], columns["amount"]) == ([("sales.orders", "id")], [("sales.orders", "amount")])
    assert ("sales.days", "day") not in columns["other"], "the text does not show of which table the column is"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("select 1;\nselect a frm b c\nwhere", 2, "at 'select a frm b'"),
        ("select 1;\nfoo", 2, "'foo' is not a statement"),
        ("select 1;\nselect 'a\n\n, 'b'; select 2", 4, "no closing '"),
        ("select 1;\nselect 'a\n\n", 2, "no closing '"),
        ('select 1;\n\nselect "a\n\n;', 3, 'no closing "'),
        ("select 1;\n/* a", 2, "not closed"),
        ("select 1;\nselect 2\nfrom", 3, "got the end of the statement, at 'from'"),
        ("-- nothing\n", 1, "has no statement"),
    ],
)
def test_an_error_has_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(sql.SqlError, match=problem) as error:
        sql.parse(text, "duckdb")
    assert error.value.line == line


def test_the_name_of_a_table_in_a_template_is_not_known() -> None:
    assert parsed("insert into sales.{{ params.t }} select * from {{ params.ns }}.a, sales.b").reads == ("sales.b",)
    assert sql.without_templates("{% if x %}select 1{% endif %}") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select :day where a like 'x%' -- :day", "select %(day)s where a like 'x%%' -- :day"),
        ("select ':day', a::day, b[1:day]", "select ':day', a::day, b[1:day]"),
        ("select %(day)s where a like 'x%%'", "select %(day)s where a like 'x%%'"),
    ],
)
def test_parameters_are_written_as_postgresql_has_them(text: str, expected: str) -> None:
    assert sql.bound(text, {"day"})[0] == expected


def test_parameters_are_written_as_duckdb_has_them() -> None:
    (one,) = sql.parse("select :day, ':day', a::int, b[1:n], {'a':day}, (:n) -- :x", "duckdb").statements
    assert one.text == "select $day, ':day', a::int, b[1:n], {'a':day}, ($n)"
    assert one.parameters == {"day", "n"}


def test_parameters_follow_brackets_commas_and_operators_without_blanks() -> None:
    (one,) = sql.parse("insert into a.b values (:x,:y), ([:x,:y],array[:x][:y]),(l[:x], :x~:y)", "duckdb").statements
    assert one.text == "insert into a.b values ($x,$y), ([$x,$y],array[$x][:y]),(l[:x], $x~$y)"
    assert sql.bound("select (:day,:day), array[:day], l[:day]", {"day"})[0] == (
        "select (%(day)s,%(day)s), array[%(day)s], l[:day]"
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("select o.day from orders o where Shop = 1", {"o", "orders", "day", "shop"}),
        ("select count(*) as n from orders join s.t using (shop)", {"n", "orders", "s", "t", "shop"}),
        ("select day from orders; select * from others", {"orders", "day"}),
        ("select 1", set()),
        ("select day from s.orders", set()),
        *((text, None) for text in (
            "from orders", "select o.* from orders o", "select orders from orders", "select a from orders as t(a, b)",
            "select {{ x }} from orders", "select #2, day from orders", "select columns('a.*') from orders", "summarize orders",
            "select day from orders natural join others", "pivot orders on day using sum(amount)",
        )),
    ],
)  # fmt: skip
def test_the_names_beside_a_table_are_all_that_its_columns_can_be(text: str, names: set[str] | None) -> None:
    plain = sql.without_templates(text)
    assert plain is not None
    assert sql.names_beside(sql.parse(plain, "duckdb").statements, "orders") == names


@pytest.mark.parametrize(
    ("text", "writes"),
    [
        ("insert into a.b select 1{{ n }}::decimal(10, {{ n }})", ("a.b",)),
        ("-- a model\n{{ config(materialized='table') }}\ninsert into a.b select * from {{ ref('c') }} limit {{ n }}", ("a.b",)),
        ("{{ before }}; insert into a.b select 1", ("a.b",)),
        ("select 1;\n/* then */ {{ hint }} insert into a.b select * from {{ t }}", ("a.b",)),
        ("insert into a.b select 1 as x {{ cols }} from c.d", ("a.b",)),
        ("insert into a.b select x, {{ cols }} 2 as y from c.d", ("a.b",)),
    ],
)
def test_a_template_may_be_a_name_a_number_or_nothing(text: str, writes: tuple[str, ...]) -> None:
    script = sql.parse_template(text, "duckdb")
    assert script is not None and script.writes == writes


def test_a_text_that_no_template_makes_valid_has_the_line_of_its_error() -> None:
    with pytest.raises(sql.SqlError, match="at 'selct 1'") as error:
        sql.parse_template("{{ config() }}\nselct 1 from {{ t }}", "duckdb")
    assert error.value.line == 2


def test_statements_are_split_where_the_dialect_ends_them() -> None:
    function = "create function f(x int) returns int language plpgsql as $$ begin; return x; end; $$"
    text = f"-- first;\n{function};\n checkpoint; select ';' /* ; */ ;; "

    assert sql.split(text, "postgres") == [function, "checkpoint", "select ';'"]
    with pytest.raises(sql.SqlError, match="no statement"):
        sql.split(" ; -- nothing", "postgres")
