/** How long the runs of a DAG, or one of its tasks, took and waited, with the median. */
import { api, ok } from '../../api/client'
import { Chart } from '../../charts/Chart'
import { duration, elapsed } from '../../format'
import { useLive } from '../../live/resource'
import { Note, Skeleton } from '../../parts/basic'
import { NoRuns } from '../../parts/NextStep'
import { go, query, setQuery, to } from '../../shell/router'
import { t } from '../../strings'
import { median, rolling } from './durations'

interface Point {
  runId: string
  at: number
  took: number | null
  waited: number | null
  failed: boolean
}

export default function Durations({ dagId, onTrigger }: { dagId: string; onTrigger: (() => void) | null }) {
  const task = query.value.get('task') ?? ''
  const tasks = useLive(`tasks ${dagId}`, () => ok(api.GET('/api/v2/dags/{dag_id}/tasks', { params: { path: { dag_id: dagId } } })), { every: 0 })
  const live = useLive(`durations ${dagId} ${task}`, () => points(dagId, task), { on: [`dag:${dagId}`] })
  const data = live.data.value
  if (live.error.value && !data) return <Note kind="bad">{live.error.value}</Note>
  if (!data) return <Skeleton rows={8} />
  const took = data.map((point) => point.took)
  const done = took.filter((one): one is number => one !== null)
  const half = median(done)
  const times = data.map((point) => point.at)
  const pick = (at: number) => data[at] && go(task ? to('dags', dagId, 'runs', data[at].runId, 'tasks', task) : to('dags', dagId, 'runs', data[at].runId))
  return (
    <div class="stack" style={{ gap: '12px' }}>
      <div class="filters">
        <select class="select" aria-label={t.dag.task} value={task} onChange={(event) => setQuery({ task: event.currentTarget.value })}>
          <option value="">{t.dag.run}</option>
          {tasks.data.value?.tasks.map((one) => <option key={one.task_id} value={one.task_id}>{one.task_id}</option>)}
        </select>
        <span class="soft small num">{t.dag.median} {duration(half)}</span>
      </div>
      {data.length === 0 ? <NoRuns onTrigger={onTrigger} /> : (
        <>
          <div class="card">
            <header><h3>{t.dag.duration}</h3></header>
            <div class="pad">
              <Chart
                label={t.dag.duration}
                times={times}
                format={duration}
                onPick={pick}
                lines={[
                  { label: t.states.success, color: '--s-success', kind: 'bars', values: data.map((point) => (point.failed ? null : point.took)) },
                  { label: t.states.failed, color: '--s-failed', kind: 'bars', values: data.map((point) => (point.failed ? point.took : null)) },
                  { label: t.dag.median, color: '--accent', values: rolling(took, 20) },
                ]}
              />
            </div>
          </div>
          <div class="card">
            <header><h3>{t.dag.queuedFor}</h3></header>
            <div class="pad"><Chart label={t.dag.queuedFor} times={times} format={duration} height={150} onPick={pick} lines={[{ label: t.dag.queuedFor, color: '--s-queued', kind: 'bars', values: data.map((point) => point.waited) }]} /></div>
          </div>
        </>
      )}
    </div>
  )
}

async function points(dagId: string, task: string): Promise<Point[]> {
  const found = task
    ? (await ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances', { params: { path: { dag_id: dagId, dag_run_id: '~' }, query: { task_id: task, order_by: ['-run_after'], limit: 100 } as unknown as Record<string, never> } }))).task_instances
        .filter((ti) => ti.map_index < 1)
        .map((ti) => ({ runId: ti.dag_run_id, when: ti.run_after, start: ti.start_date, end: ti.end_date, from: ti.scheduled_when, state: ti.state }))
    : (await ok(api.GET('/api/v2/dags/{dag_id}/dagRuns', { params: { path: { dag_id: dagId }, query: { order_by: ['-run_after'], limit: 100 } } }))).dag_runs
        .map((run) => ({ runId: run.dag_run_id, when: run.run_after, start: run.start_date, end: run.end_date, from: run.queued_at, state: run.state }))
  const rows = found
    .map((one) => ({ runId: one.runId, at: Date.parse(one.when) / 1000, took: one.end ? elapsed(one.start, one.end) : null, waited: one.from && one.start ? elapsed(one.from, one.start) : null, failed: one.state === 'failed' }))
    .reverse()
  // A chart needs times that increase.
  let last = -Infinity
  return rows.map((row) => ({ ...row, at: (last = Math.max(row.at, last + 0.001)) }))
}
