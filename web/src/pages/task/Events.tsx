/** What people and clients asked for: requests about a task instance, or about its whole run. */
import { api, ok } from '../../api/client'
import type { EventLog } from '../../api/types'
import { useLive } from '../../live/resource'
import { Empty, Note } from '../../parts/basic'
import { t } from '../../strings'
import { AuditEntries } from '../AuditEntries'

export function Events({ path, index }: { path: { dag_id: string; dag_run_id: string; task_id: string }; index: number }) {
  const query = { dag_id: path.dag_id, run_id: path.dag_run_id, order_by: ['-when'], limit: 200 }
  const live = useLive(`events ${path.dag_id} ${path.dag_run_id}`, () => ok(api.GET('/api/v2/eventLogs', { params: { query } })), { on: [`dag:${path.dag_id}`] })
  const ofTask = (one: EventLog) => one.task_id === null || (one.task_id === path.task_id && (one.map_index === null || one.map_index === index))
  // The preview of a change is in the audit log, too.
  const about = live.data.value?.event_logs.filter((one) => ofTask(one) && !one.extra?.includes('"dry_run": true'))
  return (
    <>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      <AuditEntries label={t.task.events} rows={about} failed={live.error.value !== null} empty={<Empty title={t.task.eventsNone}><p>{t.task.eventsNoneText}</p></Empty>} />
    </>
  )
}
