/** Queues and what waits in them, workers and what they run, and the other processes. */
import { useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import type { components } from '../api/schema'
import { duration, elapsed, relative } from '../format'
import { useLive } from '../live/resource'
import { Button, Empty, Note, Segments, Skeleton, Took } from '../parts/basic'
import { Example } from '../parts/NextStep'
import { Head } from '../parts/Head'
import { CountLink } from '../parts/CountLink'
import { Icon } from '../parts/icons'
import { Lazy } from '../parts/Lazy'
import { List, type Column } from '../parts/List'
import { attempt, confirm } from '../parts/overlay'
import { Mark } from '../parts/State'
import { ViewOnly } from '../parts/ViewOnly'
import { href, query, setQuery } from '../shell/router'
import { account, may } from '../shell/session'
import { t } from '../strings'
import { taskHref } from './dag/TasksTab'
import { tasksHref } from './taskList'

type S = components['schemas']
type Queue = S['Queue']
type Worker = S['Worker']
const u = t.queues
const WORKER = 'paceline worker'
/** Tasks of a queue in a state, as a link to them. */
const tasks = (of: Queue, value: number, state: string, what: string) => <CountLink value={value} link={tasksHref({ state, queue: of.queue })} label={t.tasks.of(value, what, of.queue)} strong={state === 'scheduled'} />

export default function Queues() {
  const queues = useLive('queues', () => ok(api.GET('/api/v2/queues')), { on: ['runs'], every: 5000 })
  const workers = useLive('workers', () => ok(api.GET('/api/v2/workers')), { on: ['runs'], every: 5000 })
  const others = useLive('processes', () => ok(api.GET('/api/v2/processes')), { every: 10_000 })
  const [drained, drain] = useState<ReadonlySet<string>>(new Set())
  const flower = account.value?.links?.flower
  const hours = Number(query.value.get('hours') ?? 1) || 1
  const stop = async (worker: Worker) => {
    if (!(await confirm(`${u.drain}: ${worker.name}`, u.drainText(worker.name), u.drain))) return
    if (await attempt(() => ok(api.POST('/api/v2/workers/{worker}/drain', { params: { path: { worker: worker.id } } })))) drain(new Set([...drained, worker.id]))
    await workers.refresh()
  }
  const columns: Column<Queue>[] = [
    { key: 'queue', head: u.queue, cell: (one) => <strong>{one.queue}</strong> },
    { key: 'waiting', head: u.waiting, right: true, cell: (one) => tasks(one, one.waiting_in_postgresql, 'scheduled', u.waiting.toLowerCase()) },
    { key: 'redis', head: u.inRedis, right: true, cell: (one) => (one.waiting_in_redis === null ? '–' : tasks(one, one.waiting_in_redis, 'queued', t.states.queued)) },
    { key: 'running', head: u.running, right: true, cell: (one) => tasks(one, one.running, 'running', t.states.running) },
    { key: 'use', head: u.slots, cell: (one) => <span class="row"><span class="use"><i style={{ width: `${Math.min(100, (one.running / Math.max(1, one.places)) * 100)}%`, background: 'var(--s-running)' }} /></span><span class="small num soft">{one.running} / {one.places}</span></span> },
    { key: 'oldest', head: u.oldest, right: true, cell: (one) => (one.oldest_waiting_at ? duration(elapsed(one.oldest_waiting_at, null)) : '–') },
    { key: 'workers', head: u.workersOf, class: 'hide-s', cell: (one) => (one.workers.length ? <span class="soft">{one.workers.join(', ')}</span> : one.waiting_in_postgresql + one.queued > 0 ? <span class="tag bad">{u.nobody}</span> : <span class="dim">{t.none}</span>) },
  ]
  const rest = others.data.value?.processes.filter((one) => one.kind !== 'worker')
  return (
    <>
      <Head title={u.title}>{!may('operator') && <ViewOnly text={t.rights.lookWhole('operator')} />}{flower && <a class="button" href={flower} target="_blank" rel="noreferrer"><Icon name="flower" />{u.flower}</a>}</Head>
      {(queues.error.value ?? workers.error.value) && <Note kind="bad">{queues.error.value ?? workers.error.value}</Note>}
      {queues.data.value?.redis_error && <Note kind="warn">{queues.data.value.redis_error}</Note>}
      <div class="stack" style={{ gap: '20px' }}>
        <section>
          <List label={u.queues} columns={columns} rows={queues.data.value?.queues} failed={queues.error.value !== null} rowKey={(one) => one.queue} skeleton={3} empty={<Empty title={u.noQueues}><p>{u.noQueuesText}</p><Example text={WORKER} /></Empty>} />
        </section>
        <section class="card">
          <header><h2>{u.depth}</h2><span class="end"><Segments label={u.depth} value={String(hours)} options={[['1', `1 ${t.units.h}`], ['6', `6 ${t.units.h}`], ['24', `24 ${t.units.h}`], ['168', `7 ${t.units.d}`]]} onChange={(value) => setQuery({ hours: value === '1' ? null : value })} /></span></header>
          <div class="pad"><Lazy key={hours} load={() => import('./Depth')} props={{ hours }} /></div>
        </section>
        <section>
          <h2 style={{ marginBottom: '8px' }}>{u.workers}</h2>
          {!workers.data.value ? <Skeleton rows={3} /> : workers.data.value.workers.length === 0 ? (
            <div class="card"><Empty title={u.noWorkers}><p>{u.noWorkersText}</p><Example text={WORKER} /></Empty></div>
          ) : (
            <div class="workers">
              {workers.data.value.workers.map((worker) => (
                <section key={worker.id} class="card">
                  <header>
                    <Mark state={worker.state === 'alive' ? (worker.running ? 'running' : 'success') : 'failed'} />
                    <h3 class="clip" title={worker.id}>{worker.name}</h3>
                    {(worker.drain_at || drained.has(worker.id)) && <span class="tag warn">{u.draining}</span>}
                    {worker.state !== 'alive' && <span class="tag bad">{u.silent}</span>}
                    <span class="end small num soft">{worker.running} / {worker.concurrency}</span>
                    {may('operator') && !worker.drain_at && <Button kind="plain" onClick={() => void stop(worker)}>{u.drain}</Button>}
                  </header>
                  <p class="small soft worker-facts">{worker.queues.join(', ')}<span class="dim">{worker.host}, {worker.pid}</span><span class="dim">{t.overview.started(relative(worker.started_at))}</span></p>
                  <ul class="rows">
                    {worker.tasks.length === 0 && <li class="dim">{u.idle}</li>}
                    {worker.tasks.slice(0, 12).map((ti, at) => (
                      <li key={at}>
                        <Mark state={ti.state} />
                        <a class="grow clip" href={href(taskHref(ti))} title={ti.dag_run_id}><strong>{ti.dag_id}</strong> {ti.task_id}{ti.map_index >= 0 ? ` [${ti.map_index}]` : ''}</a>
                        <span class="small soft"><Took start={ti.start_date} end={null} /></span>
                      </li>
                    ))}
                    {worker.tasks.length > 12 && <li><a class="soft" href={tasksHref({ state: 'running' })}>{t.task.andMore(worker.tasks.length - 12)}</a></li>}
                  </ul>
                </section>
              ))}
            </div>
          )}
        </section>
        {rest && rest.length > 0 && (
          <section class="card">
            <header><h2>{u.schedulers}</h2></header>
            <ul class="rows">
              {rest.map((one) => (
                <li key={one.id}>
                  <Mark state={one.state === 'alive' ? 'success' : 'failed'} />
                  <span class="grow clip"><strong>{one.kind}</strong> <span class="soft">{one.name}</span></span>
                  <span class="small dim hide-s">{one.host}, {one.pid}</span>
                  <span class="small dim" style={{ minWidth: '130px', textAlign: 'right' }}>{t.overview.heartbeat(relative(one.heartbeat_at))}</span>
                </li>
              ))}
            </ul>
          </section>
        )}
      </div>
    </>
  )
}
