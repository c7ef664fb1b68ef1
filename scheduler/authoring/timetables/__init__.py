"""The kinds of timetables; `authoring/timetable` makes one of them from a DAG's schedule, or from its stored spec."""
