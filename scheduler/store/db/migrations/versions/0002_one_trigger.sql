-- One trigger for each changed row of task_instance, in place of a CHECK and three triggers with conditions: PostgreSQL parses the
-- stored text of each of these again in every statement that changes a row. See docs/adr/0053. `{schema}` is as in 0001.

-- Both functions act as the owner for every role that changes a task instance, with the search_path of its session, since
-- `set search_path` would cost each call. So no name is looked up there: names of types, functions and operators have a schema.
-- That excludes `in`, `like`, `nullif`, `case x when`, `is distinct from` and ||, which look for an operator.

-- As before, with one query for a role that may not write events.
create or replace function event_actor() returns pg_catalog.text language plpgsql as $$
declare
    named pg_catalog.text := coalesce(pg_catalog.current_setting('paceline.actor', true), '');
begin
    if pg_catalog.has_table_privilege(session_user, '{schema}.event'::pg_catalog.regclass, 'insert') then
        return case when coalesce(pg_catalog.current_setting('paceline.events', true), '') operator(pg_catalog.=) 'off' then null
                    when named operator(pg_catalog.=) '' then pg_catalog.concat('sql:', session_user)
                    else named end;
    end if;
    return (select case when case when pg_catalog.left(named, 4) operator(pg_catalog.=) 'api:'
                                  then exists (select from {schema}.web_role w where w.name operator(pg_catalog.=) session_user)
                                  else exists (select from {schema}.process p
                                                where p.id operator(pg_catalog.=) named
                                                  and coalesce(p.db_role, session_user) operator(pg_catalog.=) session_user
                                                  and p.kind operator(pg_catalog.=) any (array['worker', 'waiter'])) end
                        then named else pg_catalog.concat('sql:', session_user) end
              from {schema}.paceline_schema s where s.record_events);
end $$;

-- Raises an error unless a task instance has what its state needs.
create function refuse_incomplete(one {schema}.task_instance) returns pg_catalog.void language plpgsql as $$
declare
    missing pg_catalog.text;
begin
    missing := case
        when one.pool_slots operator(pg_catalog.<) 1 then pg_catalog.concat('pool_slots is ', one.pool_slots)
        when one.requested_state operator(pg_catalog.<>) all (array['none', 'success', 'failed', 'skipped']) then
            pg_catalog.concat('requested_state is ', one.requested_state)
        when one.state is null then null
        when one.state operator(pg_catalog.=) 'running' then
            case when one.started_at is null then 'no started_at' when one.dispatch_id is null then 'no dispatch_id'
                 when one.worker is null then 'no worker' end
        when one.state operator(pg_catalog.=) 'success' then case when one.ended_at is null then 'no ended_at' end
        when one.state operator(pg_catalog.=) 'queued' then
            case when one.queued_at is null then 'no queued_at' when one.dispatch_id is null then 'no dispatch_id'
                 when one.queued_by is null then 'no queued_by' end
        when one.state operator(pg_catalog.=) 'scheduled' then case when one.scheduled_at is null then 'no scheduled_at' end
        when one.state operator(pg_catalog.=) 'failed' then case when one.ended_at is null then 'no ended_at' end
        when one.state operator(pg_catalog.=) 'skipped' then case when one.ended_at is null then 'no ended_at' end
        when one.state operator(pg_catalog.=) 'upstream_failed' then case when one.ended_at is null then 'no ended_at' end
        when one.state operator(pg_catalog.=) 'up_for_retry' then case when one.due_at is null then 'no due_at' end
        when one.state operator(pg_catalog.=) 'up_for_reschedule' then case when one.due_at is null then 'no due_at' end
        when one.state operator(pg_catalog.=) 'deferred' then
            case when one.dispatch_id is null then 'no dispatch_id' when one.resume is null then 'no resume' end
        when one.state operator(pg_catalog.=) 'shutdown' then
            case when one.started_at is null then 'no started_at' when one.dispatch_id is null then 'no dispatch_id'
                 when one.worker is null then 'no worker' when one.requested_state is null then 'no requested_state' end
        when one.state operator(pg_catalog.=) 'removed' then null
        else 'no such state'
    end;
    if missing is not null then
        raise check_violation using constraint = 'task_instance_complete', table = 'task_instance',
            message = pg_catalog.concat('task instance ', one.id, ' cannot be ', coalesce(one.state, 'without a state'), ': ',
                                        missing, ' (task_instance_complete)');
    end if;
end $$;

-- Checks the row, writes the event of a change of its state, and the notices that the task asks for.
create function task_instance_changed() returns pg_catalog.trigger language plpgsql security definer as $$
declare
    named pg_catalog.text;
    what pg_catalog.text;
begin
    -- The frequent states here, which is what refuse_incomplete finds too, and all others there.
    if (tg_op operator(pg_catalog.=) 'UPDATE' and new.requested_state is null and new.pool_slots operator(pg_catalog.>=) 1 and case
        when new.state operator(pg_catalog.=) 'running' then
            new.started_at is not null and new.dispatch_id is not null and new.worker is not null
        when new.state operator(pg_catalog.=) 'success' then new.ended_at is not null
        when new.state operator(pg_catalog.=) 'queued' then
            new.queued_at is not null and new.dispatch_id is not null and new.queued_by is not null
        when new.state operator(pg_catalog.=) 'scheduled' then new.scheduled_at is not null
        end) is not true then
        perform {schema}.refuse_incomplete(new);
        if tg_op operator(pg_catalog.=) 'INSERT' then
            return null;
        end if;
    end if;

    -- The role of workers cannot claim that a process of another role queued or ran a task, because events take these columns over.
    if ((new.worker is not null and (old.worker is null or new.worker operator(pg_catalog.<>) old.worker))
        or (new.queued_by is not null and (old.queued_by is null or new.queued_by operator(pg_catalog.<>) old.queued_by)))
       and not pg_catalog.has_table_privilege(session_user, '{schema}.event'::pg_catalog.regclass, 'insert') then
        foreach named in array
            case when new.worker operator(pg_catalog.=) new.queued_by then array[new.worker] else
                array[case when old.worker is null or new.worker operator(pg_catalog.<>) old.worker then new.worker end,
                      case when old.queued_by is null or new.queued_by operator(pg_catalog.<>) old.queued_by then new.queued_by end]
            end
        loop
            if named is not null and not exists (
                select from {schema}.process p
                 where p.id operator(pg_catalog.=) named
                   and coalesce(p.db_role, session_user) operator(pg_catalog.=) session_user
                   and p.kind operator(pg_catalog.=) any (array['worker', 'waiter'])
            ) then
                raise insufficient_privilege using message = pg_catalog.concat(named, ' is no process of the role ', session_user);
            end if;
        end loop;
    end if;

    -- The way scheduled -> queued -> running writes no event, also if a worker continues in place and skips "queued": the event at
    -- the end of a try has these times. A resumed try writes one when it runs.
    if (case when coalesce(new.state, '') operator(pg_catalog.=) coalesce(old.state, '') then false
             when new.state operator(pg_catalog.=) 'running' then
                  new.resume is not null or old.state operator(pg_catalog.<>) all (array['queued', 'scheduled'])
             when new.state operator(pg_catalog.=) 'queued' then old.state operator(pg_catalog.<>) 'scheduled'
             else true end) then
        named := {schema}.event_actor();
        if named is null then  -- events are off
        elsif old.state operator(pg_catalog.=) 'queued' or (old.state operator(pg_catalog.=) 'running' and old.resume is null) then
            insert into {schema}.event (dag_run_id, task_instance_id, try_number, from_state, to_state, actor, reason,
                                        queued_at, queued_by, started_at, worker)
            values (new.dag_run_id, new.id, old.try_number, old.state, new.state, named, new.reason,
                    old.queued_at, old.queued_by,
                    case when old.state operator(pg_catalog.=) 'running' then old.started_at end,
                    case when old.state operator(pg_catalog.=) 'running' then old.worker end);
        else
            insert into {schema}.event (dag_run_id, task_instance_id, try_number, from_state, to_state, actor, reason)
            values (new.dag_run_id, new.id, new.try_number, old.state, new.state, named, new.reason);
        end if;
    end if;

    if new.notify is not null and coalesce(new.state, '') operator(pg_catalog.<>) coalesce(old.state, '') then
        what := case
            when new.state operator(pg_catalog.=) 'running' then case when new.resume is null then 'execute' end
            when new.state operator(pg_catalog.=) 'up_for_retry' then 'retry'
            when old.state operator(pg_catalog.=) 'running' and new.state operator(pg_catalog.=) 'skipped' then 'skipped'
            when old.state operator(pg_catalog.=) any (array['running', 'shutdown']) then
                case when new.state operator(pg_catalog.=) 'success' then 'success'
                     when new.state operator(pg_catalog.=) 'failed' then 'failure' end
        end;
        if what is not null then
            foreach named in array new.notify loop
                if named operator(pg_catalog.=) any (array[pg_catalog.concat('on_', what), pg_catalog.concat('email_', what)])
                   or (named operator(pg_catalog.=) 'asset' and what operator(pg_catalog.=) 'success') then
                    insert into {schema}.notice (kind, dag_run_id, task_instance_id, try_number, state, reason)
                    values (named, new.dag_run_id, new.id, new.try_number, new.state, new.reason);
                end if;
            end loop;
        end if;
    end if;
    return null;
end $$;
-- As in 0001: whoever may execute the function of a trigger could make it a trigger of another table.
revoke execute on function task_instance_changed(), refuse_incomplete(task_instance) from public;

drop trigger task_instance_event on task_instance;
drop trigger task_instance_notice on task_instance;
drop trigger task_instance_process on task_instance;
alter table task_instance drop constraint task_instance_complete;
drop function log_task(), note_task(), refuse_foreign_process(), task_instance_logged(text, text, jsonb),
    task_instance_complete(text, text, int, timestamptz, timestamptz, text, uuid, text, timestamptz, timestamptz, timestamptz, jsonb);

-- The columns are all that the function checks. It runs after the change: before it, it would cost each row one more lock.
create trigger task_instance_changed after update of state, requested_state, pool_slots, scheduled_at, queued_at, queued_by,
        dispatch_id, worker, started_at, due_at, ended_at, resume
    on task_instance for each row execute function task_instance_changed();
-- New rows have no state: the condition, parsed once for all rows of a statement, spares 10,000 of them a call each.
create trigger task_instance_made after insert on task_instance for each row
    when (new.state is not null or new.requested_state is not null or new.pool_slots < 1) execute function task_instance_changed();

-- The statement that needs each partial index.
comment on index task_instance_unfinished is 'store/moves/report.sql: whether a task of the run waits or runs, without its ended ones';
comment on index task_instance_waiting is 'store/moves/report.sql, store/queueing/capacity.py: the first in line of a pool';
comment on index task_instance_holding is 'store/queueing/capacity.py: the slots that are taken, by pool, queue and run';
comment on index task_instance_due is 'store/moves/due.py: retries, pokes and triggers that are due';
comment on index task_instance_deferred is 'store/queueing/capacity.py: the slots of deferred tasks, without reading their rows';
comment on index task_instance_limited is 'store/queueing/capacity.py: tasks that count towards a limit of their own';
comment on index task_instance_ended is 'store/runs/runs.py: the runs in which a task instance ended lately';
comment on index task_instance_failed is 'store/read/instances.py: the last task instances that failed, of all runs';
