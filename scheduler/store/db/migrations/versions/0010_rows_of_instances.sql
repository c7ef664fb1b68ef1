-- The rows of a deleted task instance go with one statement for each table. The foreign keys before ran one for each table and each
-- task instance: three quarters of what retention cost. See docs/adr/0098. `{schema}` is as in 0001.

-- The transaction that adds a row holds the lock of its task instance (docs/explanation/worker-writes.md). So a deletion waits for the row, or
-- the row finds no task instance. These statements come after the deletion has its locks, and see all rows from before.
create function forget_instances() returns trigger language plpgsql security definer
    set search_path = pg_catalog, {schema}, pg_temp as $$
declare
    ids bigint[] := array(select id from gone);
begin
    if cardinality(ids) > 0 then
        delete from task_try where task_instance_id = any(ids);
        delete from xcom where task_instance_id = any(ids);
        delete from task_state where task_instance_id = any(ids);
        delete from deferral where task_instance_id = any(ids);
        delete from external_job where task_instance_id = any(ids);
        delete from task_progress where task_instance_id = any(ids);
        delete from instance_note where task_instance_id = any(ids);
        delete from notice where task_instance_id = any(ids);
    end if;
    return null;
end $$;
revoke execute on function forget_instances() from public;

-- Reports lock task_instance first.
lock table task_instance in access exclusive mode;
alter table task_try drop constraint task_try_task_instance_id_fkey;
alter table xcom drop constraint xcom_task_instance_id_fkey;
alter table task_state drop constraint task_state_task_instance_id_fkey;
alter table deferral drop constraint deferral_task_instance_id_fkey;
alter table external_job drop constraint external_job_task_instance_id_fkey;
alter table task_progress drop constraint task_progress_task_instance_id_fkey;
alter table instance_note drop constraint instance_note_task_instance_id_fkey;
alter table notice drop constraint notice_task_instance_id_fkey;

create trigger task_instance_gone after delete on task_instance referencing old table as gone for each statement
    execute function forget_instances();
