/** The task instances of a run as a list, with filters and changes to all that match. */
import { useState } from 'preact/hooks'
import { api, ok } from '../../api/client'
import type { TaskInstance } from '../../api/types'
import { useLive } from '../../live/resource'
import { Button, Empty, Note, Search, Took, Time } from '../../parts/basic'
import { ByFilter, type Wanted } from '../../parts/ByFilter'
import { chosenTasks } from '../../parts/chosen'
import { NothingFits } from '../../parts/NextStep'
import { Bulk, List, NOTHING, type Column, type Selection } from '../../parts/List'
import { State } from '../../parts/State'
import { href, query, setQuery, to } from '../../shell/router'
import { STATES, label } from '../../states'
import { t } from '../../strings'
import { nudge } from '../../live/changes'

const SIZE = 100

export function taskHref(ti: { dag_id: string; dag_run_id: string; task_id: string; map_index: number }): string {
  const path = to('dags', ti.dag_id, 'runs', ti.dag_run_id, 'tasks', ti.task_id)
  return ti.map_index >= 0 ? `${path}/${ti.map_index}` : path
}

/** What a task instance waits for: its stored reason is from the moment at which the wait began. */
export const whyHref = (ti: Parameters<typeof taskHref>[0]) => `${taskHref({ ...ti, map_index: -1 })}/${ti.map_index >= 0 ? ti.map_index : '-'}/why`

export function TasksTab({ dagId, runId, taskId, operator }: { dagId: string; runId: string; taskId?: string; operator: boolean }) {
  const [selection, select] = useState<Selection>(NOTHING)
  const [wanted, want] = useState<Wanted | null>(null)
  const q = query.value
  const order = q.get('order_by') ?? (taskId ? 'map_index' : 'task_no')
  const offset = Number(q.get('offset') ?? 0) || 0
  const [name, state] = [q.get('q'), q.get('state')]
  const live = useLive(
    `tis ${dagId} ${runId} ${JSON.stringify([taskId, name, state, order, offset])}`,
    () =>
      ok(
        api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances', {
          params: {
            path: { dag_id: dagId, dag_run_id: runId },
            query: { order_by: [order], limit: SIZE, offset, ...(taskId ? { task_id: taskId } : name ? { task_display_name_pattern: `%${name}%` } : {}), ...(state ? { state: [state] } : {}) } as unknown as Record<string, never>,
          },
        }),
      ),
    { on: [`dag:${dagId}`], keep: true },
  )
  const page = live.data.value
  const key = (ti: TaskInstance) => JSON.stringify([ti.task_id, ti.map_index])
  const filters = () => {
    const base = { dag_ids: [dagId], dag_run_ids: [runId] }
    if (selection.all) return [{ ...base, ...(taskId ? { task_ids: [taskId] } : name ? { task_id_pattern: `%${name}%` } : {}), ...(state ? { state: [state] } : {}) }]
    return chosenTasks([...selection.keys].map((one) => JSON.parse(one) as [string, number])).map((one) => ({ ...base, ...one }))
  }
  const columns: Column<TaskInstance>[] = [
    { key: 'state', head: t.run.state, order: 'state', cell: (ti) => <State state={ti.state} /> },
    { key: 'task', head: t.dag.task, order: taskId ? 'map_index' : 'task_id', class: 'wide', cell: (ti) => <a href={href(taskHref(ti))}>{ti.task_id}{ti.map_index >= 0 ? ` [${ti.rendered_map_index ?? ti.map_index}]` : ''}</a> },
    { key: 'try', head: t.task.try_, order: 'try_number', right: true, cell: (ti) => ti.try_number },
    { key: 'start', head: t.run.started, order: 'start_date', cell: (ti) => <Time at={ti.start_date} /> },
    { key: 'took', head: t.run.duration, order: 'duration', right: true, cell: (ti) => <Took start={ti.start_date} end={ti.end_date} open={ti.state === 'running'} /> },
    { key: 'reason', head: t.task.error, class: 'wide reason', cell: (ti) => (['scheduled', 'queued'].includes(ti.state ?? '') ? <a class="small soft" href={href(whyHref(ti))}>{t.run.waits}</a> : ti.reason ? <span class={ti.state === 'failed' ? 'wrong' : 'soft small'} title={ti.reason}>{ti.reason}</span> : '') },
    { key: 'pool', head: t.task.pool, order: 'pool', class: 'hide-m', cell: (ti) => <span class="soft">{ti.pool}</span> },
    { key: 'queue', head: t.task.queue, order: 'queue', class: 'hide-m', cell: (ti) => <span class="soft">{ti.queue}</span> },
    { key: 'worker', head: t.task.worker, class: 'hide-m', cell: (ti) => <span class="soft">{ti.worker}</span> },
  ]
  return (
    <>
      <div class="filters">
        {!taskId && <Search value={name ?? ''} placeholder={t.dag.filterTasks} onInput={(text) => setQuery({ q: text, offset: null })} />}
        <select class="select" aria-label={t.run.state} value={state ?? ''} onChange={(event) => setQuery({ state: event.currentTarget.value, offset: null })}>
          <option value="">{t.run.state}: {t.any}</option>
          {STATES.filter((one) => one !== 'none').map((one) => <option key={one} value={one}>{t.run.state}: {label(one)}</option>)}
        </select>
      </div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {operator && (
        <Bulk selection={selection} total={page?.total_entries} onSelect={select}>
          <Button icon="clear" onClick={() => want({ kind: 'clear', filters: filters(), title: t.task.clear })}>{t.task.clear}</Button>
          <Button icon="check" onClick={() => want({ kind: 'mark', state: 'success', filters: filters(), title: t.task.markSuccess })}>{t.task.markSuccess}</Button>
          <Button icon="close" onClick={() => want({ kind: 'mark', state: 'failed', filters: filters(), title: t.task.markFailed })}>{t.task.markFailed}</Button>
        </Bulk>
      )}
      <List label={t.run.tasks} columns={columns} rows={page?.task_instances} failed={live.error.value !== null} rowKey={key} rowHref={taskHref} total={page?.total_entries} size={SIZE} order={order} empty={name || state ? <NothingFits filters={['q', 'state']} /> : <Empty title={t.task.noMapped} />} {...(operator ? { selection, onSelect: select } : {})} />
      {wanted && <ByFilter wanted={wanted} onClose={() => want(null)} onDone={() => { select(NOTHING); nudge(`dag:${dagId}`); void live.refresh() }} />}
    </>
  )
}
