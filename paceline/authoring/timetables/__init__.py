"""The kinds of timetables; `authoring/timetable` creates one from the schedule of a DAG, or from its stored spec."""
