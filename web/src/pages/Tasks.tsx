/** Task instances of all DAGs: those that have not ended, or those in one state; by pool and queue. What counts of pages lead to. */
import { api, ok } from '../api/client'
import type { TaskInstance, TaskState } from '../api/types'
import { runName } from '../format'
import { useLive } from '../live/resource'
import { Button, Empty, Note, Search, Took, Time } from '../parts/basic'
import { NothingFits } from '../parts/NextStep'
import { Head } from '../parts/Head'
import { List, type Column } from '../parts/List'
import { State } from '../parts/State'
import { href, query, setQuery, to } from '../shell/router'
import { STATES, label } from '../states'
import { t } from '../strings'
import { taskHref, whyHref } from './dag/TasksTab'

const k = t.tasks
const SIZE = 100
/** Millions may have ended. */
const MOST_COUNTED = 10_000
const FILTERS = ['q', 'state', 'pool', 'queue', 'offset']
/** The states of what has not ended, of which each queue and pool has few: the server finds them by an index. */
const OPEN: TaskState[] = ['scheduled', 'queued', 'running', 'deferred', 'up_for_retry', 'up_for_reschedule', 'restarting']

export default function Tasks() {
  const q = query.value
  const order = q.get('order_by') ?? '-id'
  const offset = Number(q.get('offset') ?? 0) || 0
  const [dag, pool, queue] = [q.get('q'), q.get('pool'), q.get('queue')]
  const states = q.get('state')?.split(',') ?? null
  const filters = { state: states ?? OPEN, ...(dag ? { dag_id_pattern: `%${dag}%` } : {}), ...(pool ? { pool: [pool] } : {}), ...(queue ? { queue: [queue] } : {}) }
  const live = useLive(
    `tasks ${JSON.stringify([filters, order, offset])}`,
    () => ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances', { params: { path: { dag_id: '~', dag_run_id: '~' }, query: { ...filters, order_by: [order], limit: SIZE, offset, count_limit: MOST_COUNTED } as unknown as Record<string, never> } })),
    { on: ['runs'], keep: true },
  )
  const page = live.data.value
  const columns: Column<TaskInstance>[] = [
    { key: 'state', head: t.run.state, order: 'state', cell: (ti) => <State state={ti.state} /> },
    { key: 'task', head: t.dag.task, class: 'wide', cell: (ti) => <><a href={href(taskHref(ti))}><span class="soft">{ti.dag_id} / </span><strong>{ti.task_id}</strong>{ti.map_index >= 0 ? ` [${ti.rendered_map_index ?? ti.map_index}]` : ''}</a><a class="run-note small soft" href={href(to('dags', ti.dag_id, 'runs', ti.dag_run_id))} title={ti.dag_run_id}>{runName(ti.dag_run_id)}</a></> },
    { key: 'start', head: t.run.started, order: 'start_date', class: 'named', cell: (ti) => <Time at={ti.start_date} /> },
    { key: 'took', head: t.run.duration, right: true, class: 'named', cell: (ti) => <Took start={ti.start_date} end={ti.end_date} open={ti.state === 'running'} /> },
    { key: 'reason', head: t.task.error, class: 'wide reason hide-s', cell: (ti) => (['scheduled', 'queued'].includes(ti.state ?? '') ? <a class="small soft" href={href(whyHref(ti))}>{t.run.waits}</a> : ti.reason ? <span class={ti.state === 'failed' ? 'wrong' : 'soft small'} title={ti.reason}>{ti.reason}</span> : '') },
    { key: 'pool', head: t.task.pool, order: 'pool', class: 'hide-m', cell: (ti) => <span class="soft">{ti.pool}</span> },
    { key: 'queue', head: t.task.queue, order: 'queue', class: 'hide-m', cell: (ti) => <span class="soft">{ti.queue}</span> },
    { key: 'worker', head: t.task.worker, class: 'hide-m', cell: (ti) => <span class="soft">{ti.worker}</span> },
  ]
  const isFiltered = FILTERS.some((one) => q.has(one))
  return (
    <>
      <Head title={k.title} />
      <div class="filters">
        <Search value={dag ?? ''} placeholder={t.dags.search} onInput={(text) => setQuery({ q: text, offset: null })} />
        <select class="select" aria-label={t.run.state} value={states?.length === 1 ? states[0] : ''} onChange={(event) => setQuery({ state: event.currentTarget.value, offset: null })}>
          <option value="">{t.run.state}: {states && states.length > 1 ? states.map(label).join(', ') : k.open}</option>
          {STATES.filter((one) => one !== 'none').map((one) => <option key={one} value={one}>{t.run.state}: {label(one)}</option>)}
        </select>
        {([['pool', pool, t.task.pool], ['queue', queue, t.task.queue]] as const).map(([name, value, text]) => value && <Button key={name} icon="close" label={`${t.remove}: ${text} ${value}`} onClick={() => setQuery({ [name]: null, offset: null })}>{text}: {value}</Button>)}
      </div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      <List class="tasks-list" label={k.title} columns={columns} rows={page?.task_instances} failed={live.error.value !== null} rowKey={(ti) => ti.id} rowHref={taskHref} total={page?.total_entries} totalLimit={page?.total_entries_limit} size={SIZE} order={order}
        empty={isFiltered ? <NothingFits title={k.noneFits} filters={FILTERS} /> : <Empty title={k.none}><p>{k.noneText}</p><a class="button first" href={href('/dags')}>{t.tour.dags}</a></Empty>} />
    </>
  )
}
