"""The DAGs that must end in the same way with both stores of tries, see conformance.py."""

from .conformance import Case

# fmt: off
CASES = {
    "results": Case(
        """
        @task(multiple_outputs=True)
        def parts(): return {"a": 1, "b": [2]}
        @task
        def pushes(ti=None):
            ti.xcom_push("k", 1)
            ti.xcom_push("k", {"two": 2})
        @task(do_xcom_push=False)
        def quiet(): return 1
        @task
        def reads(a, ti=None):
            return [a, ti.xcom_pull("pushes", key="k"), ti.xcom_pull("quiet", default="none"), ti.xcom_pull("no")]
        ready = [pushes(), quiet()]
        ready >> reads(parts()["a"])
        BashOperator(task_id="shell", bash_command="echo {{ ds }} {{ dag_run.run_id }} {{ ti.try_number }}")
        BashOperator(task_id="left", bash_command="echo {{ task.retries }} {{ task.queue }} {{ task.retry_delay }}")
        BashOperator(task_id="set", bash_command="echo {{ task.retries }}", retries=2)
        """,
        dict.fromkeys(("parts", "pushes", "quiet", "reads", "shell", "left", "set"), "success"),
        {"parts": {"a": 1, "b": [2]}, "parts:a": 1, "parts:b": [2], "pushes:k": {"two": 2}, "reads": [1, {"two": 2}, "none",
           None], "shell": "2026-03-01 r1 1", "left": "0 default 0:05:00", "set": "2"},
    ),
    "states": Case(
        """
        lake, other = Asset("lake", "s3://lake"), Asset("other")
        @task(retries=1, retry_delay=0)
        def job(task_state_store, ti=None):
            if ti.try_number == 1:
                task_state_store.set("job", {"id": 7, "big": 12345678901234567890})
                task_state_store.set("gone", 1, retention=timedelta(microseconds=1))
                task_state_store.set("kept", 1, retention=NEVER_EXPIRE)
                for key in ("a", "b"): task_state_store.set(key, key)
                task_state_store.delete("a")
                raise ValueError("lost")
            found = [task_state_store.get(key) for key in ("job", "gone", "kept", "a", "b")]
            task_state_store.clear()
            return [*found, task_state_store.get("job", "none")]
        @task(inlets=[lake])
        def alone(asset_state_store, task_state_store):
            asset_state_store.set("mark", "2026-03-01")
            return [asset_state_store.get("mark"), task_state_store.get("job"), asset_state_store[lake].get("no", 1)]
        @task(inlets=[lake], outlets=[other])
        def both(asset_state_store):
            asset_state_store[other].set("x", 1)
            asset_state_store[other].set("y", 2)
            asset_state_store[lake].delete("nothing")
            asset_state_store[other].clear()
            return [asset_state_store[lake].get("mark"), asset_state_store[other].get("x")]
        @task(retries=3)
        def no_json(task_state_store): task_state_store.set("x", object())
        [job(), alone()] >> both()
        no_json()
        """,
        dict.fromkeys(("job", "alone", "both"), "success") | {"no_json": "failed"},
        {"job": [{"id": 7, "big": 12345678901234567890}, None, 1, None, "b", "none"], "alone": ["2026-03-01", None, 1],
           "both": ["2026-03-01", None]},
        {"job": 2},
        run="failed",
    ),
    "failure": Case(
        """
        @task
        def bad(ti=None):
            ti.xcom_push("kept", 1)
            raise ValueError("no such thing")
        @task(retries=3)
        def final(): raise FailTask("never again")
        @task
        def exits(): raise SystemExit(0)
        @task(retries=3)
        def no_json(): return object()
        @task(execution_timeout=timedelta(seconds=0.05))
        def slow(): time.sleep(60)
        after, done = EmptyOperator(task_id="after"), EmptyOperator(task_id="done", trigger_rule="all_done")
        [bad(), final(), exits(), no_json(), slow()] >> after
        after >> done
        """,
        dict.fromkeys(("bad", "final", "exits", "no_json", "slow"), "failed") | {"after": "upstream_failed", "done": "success"},
        {"bad:kept": 1},
        run="success",
    ),
    "retries": Case(
        """
        @task(retries=2, retry_delay=0)
        def flaky(ti=None):
            ti.xcom_push(f"try{ti.try_number}", ti.max_tries)
            if ti.try_number < 3: raise ValueError("not yet")
            return os.environ.pop("LEFT", None) or "clean"
        @task(retries=1, retry_delay=0)
        def lost():
            os.environ["LEFT"] = "behind"
            raise ValueError("always")
        lost() >> EmptyOperator(task_id="after")
        flaky()
        """,
        {"flaky": "success", "lost": "failed", "after": "upstream_failed"},
        {"flaky": "clean", "flaky:try3": 2},
        {"flaky": 3, "lost": 2},
        run="failed",
    ),
    "skips": Case(
        """
        @task(retries=3)
        def leave(ti=None):
            ti.xcom_push("kept", 1)
            raise SkipTask("not today")
        one, any_of = EmptyOperator(task_id="one"), EmptyOperator(task_id="any_of", trigger_rule="none_failed")
        leave() >> [one, any_of]
        """,
        {"leave": "skipped", "one": "skipped", "any_of": "success"},
        {"leave:kept": 1},
        {"one": 0},
    ),
    "branches": Case(
        """
        @task.branch
        def choose(): return ["left", "b"]
        with TaskGroup("left") as left: EmptyOperator(task_id="a")
        b, right = EmptyOperator(task_id="b"), EmptyOperator(task_id="right")
        join = EmptyOperator(task_id="join", trigger_rule="none_failed_min_one_success")
        choose() >> [left, b, right] >> join
        stop = ShortCircuitOperator(task_id="stop", python_callable=lambda: False)
        never, rarely = EmptyOperator(task_id="never"), EmptyOperator(task_id="rarely", trigger_rule="all_done")
        join >> stop >> never >> rarely
        near = ShortCircuitOperator(task_id="near", python_callable=lambda: 0, ignore_downstream_trigger_rules=False)
        near >> EmptyOperator(task_id="next") >> EmptyOperator(task_id="last", trigger_rule="all_done")
        every = BranchPythonOperator(task_id="every", python_callable=lambda: ["y", "x"])
        every >> [EmptyOperator(task_id="x"), EmptyOperator(task_id="y")]
        far = BranchPythonOperator(task_id="far", python_callable=lambda: ["deep", "end"])
        with TaskGroup("deep") as deep: EmptyOperator(task_id="a", trigger_rule="all_done")
        far >> EmptyOperator(task_id="direct") >> deep >> EmptyOperator(task_id="end")
        nothing = ShortCircuitOperator(task_id="nothing", python_callable=lambda: None)
        add.override(task_id="over").expand(x=nothing.output)
        """,
        dict.fromkeys(("choose", "left.a", "b", "join", "stop", "near", "last", "every", "x", "y", "far", "deep.a", "end",
           "nothing"), "success") | dict.fromkeys(("right", "never", "rarely", "next", "direct", "over"), "skipped"),
        # A task that skips others has no result.
        {"choose": ["left", "b"], "far": ["deep", "end"],
           "choose:skipmixin_key": {"followed": ["b", "left.a"]}, "stop:skipmixin_key": {"skipped": ["never", "rarely"]},
           "near:skipmixin_key": {"skipped": ["next"]}, "every": ["y", "x"], "every:skipmixin_key": {"followed": ["x", "y"]},
           "far:skipmixin_key": {"followed": []}, "nothing:skipmixin_key": {"skipped": ["over"]}},
        dict.fromkeys(("right", "never", "rarely", "next", "direct", "over"), 0),
    ),
    "mapping": Case(
        """
        numbers = give.override(task_id="numbers")([1, 2])
        pairs = give.override(task_id="pairs")({"k": 5})
        added = add.override(map_index_template="plus {{ task.op_kwargs['x'] }}").expand(x=numbers)
        @task
        def total(values, ti=None):
            several = ["numbers", "add", "gone"]
            flat = ti.xcom_pull(several)
            assert ti.xcom_pull(several, "mapping", include_prior_dates=True) == flat
            assert ti.xcom_pull("numbers", "another_dag", default="none") == "none"
            assert ti.xcom_pull(task_ids="add", map_indexes=[1, 0, 7], default=0) == [12, 11, 0]
            return [sum(values), list(values), ti.xcom_pull("add", map_indexes=1), flat]
        total(added)
        add.override(task_id="again").partial(y=0).expand(x=added)
        @task
        def each(pair, ti=None, expanded_ti_count=None): return [list(pair), ti.map_index, int(str(expanded_ti_count))]
        each.expand(pair=pairs)
        add.override(task_id="cross").expand(x=numbers, y=[0, 5])
        add.override(task_id="records").expand_kwargs([{"x": 1, "y": 1}, {"x": 2}])
        give.override(task_id="zipped").expand(value=numbers.zip(numbers.map(lambda n: -n)))
        @task
        def odd(x):
            if x % 2: raise SkipTask()
            return x
        give.override(task_id="rest", trigger_rule="all_done")(odd.expand(x=[1, 2, 3]))
        """,
        {"numbers": "success", "pairs": "success", "add[0]": "success", "add[1]": "success", "total": "success", "again[0]":
           "success", "again[1]": "success", "each[0]": "success", "cross[0]": "success", "cross[1]": "success", "cross[2]":
           "success", "cross[3]": "success", "records[0]": "success", "records[1]": "success", "zipped[0]": "success",
           "zipped[1]": "success", "odd[0]": "skipped", "odd[1]": "success", "odd[2]": "skipped", "rest": "success"},
        {"numbers": [1, 2], "pairs": {"k": 5}, "add[0]": 11, "add[1]": 12, "total": [23, [11, 12], 12, [[1, 2], 11, 12, None]],
           "again[0]": 11,
           "again[1]": 12, "each[0]": [["k", 5], 0, 1], "cross[0]": 1, "cross[1]": 6, "cross[2]": 2, "cross[3]": 7, "records[0]":
           2, "records[1]": 12, "zipped[0]": [1, -1], "zipped[1]": [2, -2], "odd[1]": 2, "rest": [2]},
        labels={"add[0]": "plus 1", "add[1]": "plus 2"},
    ),
    "nothing_to_map": Case(
        """
        none = give.override(task_id="none")([])
        add.override(task_id="literal").expand(x=[]) >> EmptyOperator(task_id="below")
        add.override(task_id="result").expand(x=none) >> EmptyOperator(task_id="always", trigger_rule="all_done")
        @task
        def skips(): raise SkipTask()
        add.override(task_id="skipped").expand(x=skips())
        wrong = give.override(task_id="wrong", retries=2)(3)
        add.override(task_id="not_listed").expand(x=wrong)
        @task
        def fails(): raise ValueError()
        add.override(task_id="of_failed").expand(x=fails())
        """,
        {"none": "success", "literal": "skipped", "below": "skipped", "result": "skipped", "always": "success", "skips":
           "skipped", "skipped": "skipped", "wrong": "failed", "not_listed": "upstream_failed", "fails": "failed", "of_failed":
           "upstream_failed"},
        {"none": []},
        {"literal": 0, "below": 0, "result": 0, "skipped": 0},
        run="failed",
    ),
    "mapped_groups": Case(
        """
        @task_group
        def steps(x):
            @task.branch
            def pick(x): return "steps.even" if x % 2 == 0 else "steps.odd"
            even, odd = (give.override(task_id=name)(x) for name in ("even", "odd"))
            pick(x) >> [even, odd]
            return add.override(trigger_rule="none_failed_min_one_success")(x) << [even, odd]
        steps.expand(x=give.override(task_id="numbers")([1, 2]))
        @task_group
        def chain_of(x): return add.override(task_id="second")(add.override(task_id="first")(x))
        give.override(task_id="all")(chain_of.expand(x=[1, 2]))
        """,
        {"numbers": "success", "steps.pick[0]": "success", "steps.pick[1]": "success", "steps.even[0]": "skipped",
           "steps.even[1]": "success", "steps.odd[0]": "success", "steps.odd[1]": "skipped", "steps.add[0]": "success",
           "steps.add[1]": "success", "chain_of.first[0]": "success", "chain_of.first[1]": "success", "chain_of.second[0]":
           "success", "chain_of.second[1]": "success", "all": "success"},
        {"numbers": [1, 2], "steps.pick[0]": "steps.odd", "steps.pick[1]": "steps.even", "steps.even[1]": 2, "steps.odd[0]": 1,
           "steps.add[0]": 11, "steps.add[1]": 12, "chain_of.first[0]": 11, "chain_of.first[1]": 12, "chain_of.second[0]": 21,
           "chain_of.second[1]": 22, "all": [21, 22], "steps.pick[0]:skipmixin_key": {"followed": ["steps.odd"]},
           "steps.pick[1]:skipmixin_key": {"followed": ["steps.even"]}},
        {"steps.even[0]": 0, "steps.odd[1]": 0},
    ),
    "deferrals": Case(
        """
        Defers(task_id="fires", trigger=lambda: TimeDeltaTrigger(timedelta(seconds=0.01)), retries=1)
        Defers(task_id="times_out", trigger=lambda: TimeDeltaTrigger(timedelta(hours=1)), timeout=timedelta(seconds=0.01))
        Defers(task_id="breaks", trigger=Broken)
        Defers(task_id="no_trigger", trigger=lambda: 3)
        """,
        {"fires": "success", "times_out": "failed", "breaks": "failed", "no_trigger": "failed"},
        {"fires": ["datetime", "then", 1, 1], "fires:before": 1, "times_out:before": 1, "breaks:before": 1, "no_trigger:before":
           1},
        run="failed",
    ),
    "sensors": Case(
        """
        @task.sensor(mode="reschedule", poke_interval=0.01, timeout=60)
        def third(ti=None):
            ti.xcom_push("pokes", (ti.xcom_pull(key="pokes") or 0) + 1)
            return PokeReturnValue(ti.xcom_pull(key="pokes") >= 3, ti.try_number)
        third()
        PythonSensor(task_id="told", python_callable=lambda: Variable.get("done", None), mode="reschedule", poke_interval=0.01)
        tells = PythonOperator(task_id="tells", python_callable=Variable.set, op_args=["done", "1"])
        waits = dict(python_callable=lambda: False, mode="reschedule", poke_interval=0.01)
        PythonSensor(task_id="never", timeout=0.03, retries=2, **waits)
        PythonSensor(task_id="soft", timeout=0, soft_fail=True, **waits)
        """,
        {"third": "success", "told": "success", "tells": "success", "never": "failed", "soft": "skipped"},
        {"third": 1, "third:pokes": 3},
        run="failed",
    ),
    "setups_and_teardowns": Case(
        """
        @setup
        def up(): return 1
        @teardown
        def down(): raise ValueError("left behind")
        @task
        def bad(): raise ValueError()
        with up() >> down():
            bad() >> EmptyOperator(task_id="after")
        @setup
        def broken(): raise ValueError()
        @teardown
        def never(): pass
        with broken() >> never():
            EmptyOperator(task_id="inside", trigger_rule="all_done")
        """,
        {"up": "success", "down": "failed", "bad": "failed", "after": "upstream_failed", "broken": "failed", "never":
           "upstream_failed", "inside": "success"},
        {"up": 1},
        run="failed",
    ),
    "trigger_rules": Case(
        """
        @task
        def good(): pass
        @task
        def bad(): raise ValueError()
        @task
        def skip(): raise SkipTask()
        above = [good(), bad(), skip()]
        for rule in ("all_success", "all_failed", "all_done", "all_skipped", "one_success", "one_failed", "one_done", "none_failed",
                     "none_skipped", "none_failed_min_one_success", "all_done_min_one_success", "always"):
            above >> EmptyOperator(task_id=rule, trigger_rule=rule)
        """,
        {"good": "success", "bad": "failed", "skip": "skipped"} | dict.fromkeys(("all_done", "one_success", "one_failed",
           "one_done", "always"), "success") | dict.fromkeys(("all_failed", "all_skipped", "none_skipped",
           "all_done_min_one_success"), "skipped") | dict.fromkeys(("all_success", "none_failed", "none_failed_min_one_success"),
           "upstream_failed"),
        tries=dict.fromkeys(("all_failed", "all_skipped", "none_skipped", "all_done_min_one_success"), 0),
        run="failed",
    ),
    "fail_fast": Case(
        """
        @task
        def bad(): raise ValueError()
        @teardown
        def down(): return "down"
        below = EmptyOperator(task_id="below")
        first = bad()
        beside = EmptyOperator(task_id="beside", trigger_rule="all_done")
        first >> [below, beside]
        beside >> EmptyOperator(task_id="further")
        first >> down().as_teardown(setups=[])
        """,
        {"bad": "failed", "below": "upstream_failed", "beside": "skipped", "further": "skipped", "down": "success"},
        {"down": "down"},
        {"further": 0},
        run="failed",
        options="fail_fast=True",
    ),
    "secrets": Case(
        """
        @task
        def sets():
            Variable.set("mark", {"a": 1}, serialize_json=True)
            Variable.set("gone", "1")
            Variable.delete("gone")
        @task
        def reads(var=None, conn=None):
            known = Connection.get("store")
            return [Variable.get("mark", deserialize_json=True), Variable.get("gone", "none"), known.host, known.password]
        @task
        def unknown(): return Variable.get("unknown")
        sets() >> [reads(), BashOperator(task_id="renders", bash_command="echo {{ var.json.mark.a }} {{ conn.store.login }}")]
        unknown()
        """,
        {"sets": "success", "reads": "success", "renders": "success", "unknown": "failed"},
        {"reads": [{"a": 1}, "none", "host", "password"], "renders": "1 me"},
        run="failed",
    ),
}
