"""The report of the flights pipeline: its figures, its page and its picture, from small tables."""

import re
from pathlib import Path

import pytest
from flights_parts import chart, report

PNG = b"\x89PNG\r\n\x1a\n"


def figures(delay_min: str, flights: str = "100") -> dict[str, str]:
    delays = {"mean_dep_delay_min": "4.20", "mean_arr_delay_min": delay_min, "share_late_15": "0.2500"}
    return {"flights": flights, **delays}


@pytest.fixture
def results() -> report.Results:
    return report.Results(
        carriers=[{"carrier": "AA", **figures("-3.00")}, {"carrier": "ZZ", **figures("12.50")}],
        months=[
            {"month": "1", "scheduled": "110", "cancelled": "9", **figures("9.00")},
            {"month": "2", "scheduled": "100", "cancelled": "0", **figures("0.50")},
        ],
        routes=[{"origin": "EWR", "dest": "SJU", "dest_name": "", **figures("20.00")}],
        conditions=[
            {"condition": "hour", "value": "5", **figures("-4.00")},
            {"condition": "weather", "value": "fair", **figures("3.00")},
            {"condition": "weather", "value": "rain or snow", **figures("30.00")},
            {"condition": "plane_age", "value": "5 to 9 years", **figures("8.00")},
            {"condition": "plane_age", "value": "under 5 years", **figures("9.00")},
        ],
        names={"AA": "Able & <Brothers>", "ZZ": "Zeppelin"},
        counts={"scheduled": 210, "cancelled": 9, "not_arrived": 1, "cleaned": 200, "arr_delay_min": 950, "late": 50},
    )


@pytest.fixture
def page(results: report.Results) -> str:
    return report.render(results, report.summarize(results), picture=PNG, run_id="run<1>", checks=31)


def test_the_summary_names_the_extremes_and_counts_the_rows(results: report.Results) -> None:
    summary = report.summarize(results)

    assert summary == {
        "scheduled_rows": 210,
        "cancelled_rows": 9,
        "not_arrived_rows": 1,
        "cleaned_rows": 200,
        "carriers": 2,
        "mean_arr_delay_min": 4.75,
        "share_late_15": 0.25,
        "worst_month": 1,
        "worst_carrier": "ZZ",
        "best_carrier": "AA",
    }


def test_the_page_needs_no_other_file(page: str) -> None:
    sources = re.findall(r'(?:src|href)="([^"]{5})', page)

    assert sources == ["data:"]
    assert "@import" not in page
    assert "url(" not in page


def test_the_page_lists_airlines_latest_first_with_their_names_escaped(page: str) -> None:
    assert page.index("<td>Zeppelin") < page.index("<td>Able &amp; &lt;Brothers&gt;")
    assert "<Brothers>" not in page
    assert "run&lt;1&gt;" in page


def test_the_page_shows_early_arrivals_with_a_minus_and_in_another_colour(page: str) -> None:
    row = page[page.index("Able &amp;", page.index("<tbody>")) :].partition("</tr>")[0]

    assert "\N{MINUS SIGN}3.0" in row
    assert 'class="early" style="width:10.0%"' in row


def test_the_page_orders_ages_by_years_and_names_an_airport_without_a_name_by_its_code(page: str) -> None:
    assert page.index("Under 5 years") < page.index("5 to 9 years")
    assert "<td>SJU</td>" in page


def test_the_picture_is_a_png_and_the_same_each_time(tmp_path: Path) -> None:
    def draw(name: str) -> bytes:
        target = tmp_path / name
        chart.draw(target, carriers=[("A", -3.0), ("B", 9.0)], months=[(1, 2.0), (2, -1.0)], hours=[(5, -4), (9, 3)], mean_min=1)
        return target.read_bytes()

    first = draw("first.png")

    assert first.startswith(PNG)
    assert draw("second.png") == first
