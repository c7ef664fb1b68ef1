/** The overview: running, failed and waiting tasks, with reasons; the last 24 hours; deadlines; the parts of the installation. */
import { useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import type { components } from '../api/schema'
import { count, relative, runName, shortMoment } from '../format'
import { begin as beginLoad, useLive } from '../live/resource'
import { Note, Skeleton, Time, Took } from '../parts/basic'
import { Head } from '../parts/Head'
import { Icon } from '../parts/icons'
import { Mark } from '../parts/State'
import { Use } from '../parts/Use'
import { Lazy } from '../parts/Lazy'
import { href, to } from '../shell/router'
import { may } from '../shell/session'
import { t } from '../strings'
import { tasksHref } from './taskList'
import { chosenRange, endedSince, Past, Tags, useTrend } from './HomePast'

type Data = components['schemas']['Home']
const o = t.overview
const TOUR = 'paceline.tour'
/** Whether this looks like a first day: with fewer runs in 24 hours, the tour is offered. */
const FEW_RUNS = 25
const isQuiet = (data: Data) => data.hours.reduce((sum, hour) => sum + hour.success + hour.failed, data.running.length) < FEW_RUNS
const run = (one: { dag_id: string; dag_run_id: string }) => href(to('dags', one.dag_id, 'runs', one.dag_run_id))

const load = () => ok(api.GET('/api/v2/home')) as Promise<Data>
export const begin = () => beginLoad('home', load)

export default function Home() {
  const live = useLive<Data>('home', load, { on: ['runs'], every: 15_000 })
  const data = live.data.value
  const [toured, tour] = useState(() => localStorage.getItem(TOUR) !== null)
  const range = chosenRange()
  const trend = useTrend(range, data?.now).data.value
  if (!data) return <><Head title={t.home} />{live.error.value ? <Note kind="bad">{live.error.value}</Note> : <Skeleton rows={14} />}</>
  const at = (state: string) => (data.task_instances as Record<string, number>)[state] ?? 0
  // The first request brings the last 24 hours; longer ranges come by themselves.
  const bars = range === '24h' ? data.hours.map((hour) => ({ start: hour.hour, success: hour.success, failed: hour.failed })) : trend?.bars
  const failed = bars?.reduce((sum, bar) => sum + bar.failed, 0)
  const done = bars?.reduce((sum, bar) => sum + bar.failed + bar.success, 0)
  return (
    <>
      <Head title={t.home} />
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {!toured && may('operator') && isQuiet(data) && <Lazy load={() => import('./Tour')} props={{ onClose: () => { localStorage.setItem(TOUR, '1'); tour(true) } }} />}
      <div class="tiles">
        <Tile state="running" text={o.runs} value={((data.runs as Record<string, number>)['running'] ?? 0) + ((data.runs as Record<string, number>)['queued'] ?? 0)} link="/runs?state=queued,running" />
        <Tile state="running" text={o.running} value={at('running')} link="/tasks?state=running" />
        <Tile state="queued" text={o.queued} value={at('queued')} link="/tasks?state=queued" />
        <Tile state="scheduled" text={o.scheduled} value={at('scheduled')} link="/tasks?state=scheduled" />
        <Tile state="failed" text={o.failed(o.ranges[range])} value={failed} link={endedSince(range, data.now, 'failed')} bad={Boolean(failed)} />
        <Tile state="success" text={o.done(o.ranges[range])} value={done} link={endedSince(range, data.now)} />
      </div>
      <Past range={range} now={data.now} bars={bars} busy={!trend} />
      <div class="home">
        <div class="stack">
        <section class="card">
          <header><h2>{o.recentFailures}</h2></header>
          {data.failed.length === 0 ? <p class="pad soft">{o.noFailures}</p> : (
            <ul class="rows">
              {grouped(data.failed).slice(0, 8).map(({ one, times }) => (
                <li key={`${one.dag_id} ${one.dag_run_id}`}>
                  <Mark state="failed" />
                  <a class="grow" href={one.task_id ? href(to('dags', one.dag_id, 'runs', one.dag_run_id, 'tasks', one.task_id, ...((one.map_index ?? -1) >= 0 ? [one.map_index!] : []))) : run(one)}>
                    <span class="row" style={{ gap: '5px' }}><strong class="clip">{one.dag_id}</strong>{one.task_id && <span class="clip soft">{one.task_id}</span>}<span class="clip dim hide-s" title={one.dag_run_id}>{runName(one.dag_run_id)}</span></span>
                    {one.reason && <span class="clip small soft" style={{ display: 'block' }} title={one.reason}>{one.reason}</span>}
                  </a>
                  {times > 1 && <a class="tag bad" href={href(`${to('dags', one.dag_id, 'runs')}?state=failed`)}>× {times}</a>}
                  <span class="small dim"><Time at={one.end_date} /></span>
                </li>
              ))}
            </ul>
          )}
        </section>
        <Tags range={range} now={data.now} tags={trend?.tags ?? []} />
        {may('viewer') && <Capacity />}
        </div>
        <div class="stack">
        {data.deadlines.length > 0 && <Deadlines data={data} />}
        {data.questions.length > 0 && <Questions data={data} />}
        <section class="card">
          <header><h2>{o.activeRuns}</h2></header>
          {data.running.length === 0 ? <p class="pad soft">{o.noRuns}</p> : (
            <ul class="rows">
              {data.running.slice(0, 8).map((one) => (
                <li key={`${one.dag_id} ${one.dag_run_id}`}>
                  <Mark state="running" />
                  <a class="grow clip" href={run(one)} title={one.dag_run_id}><strong>{one.dag_id}</strong> <span class="soft">{runName(one.dag_run_id)}</span></a>
                  <span class="meter" title={`${one.ended} / ${one.total}`}><i style={{ width: `${(one.ended / Math.max(1, one.total)) * 100}%` }} /></span>
                  <a class="small num soft" style={{ minWidth: '58px', textAlign: 'right' }} href={`${run(one)}/tasks`} aria-label={o.endedOf(one.ended, one.total)}>{one.ended} / {one.total}</a>
                  <span class="small soft" style={{ minWidth: '56px', textAlign: 'right' }}><Took start={one.start_date} end={null} /></span>
                </li>
              ))}
            </ul>
          )}
        </section>
        <section class="card">
          <header><h2>{o.waiting}</h2></header>
          <WaitingList data={data} />
        </section>
        <section class="card">
          <header><h2>{o.next}</h2></header>
          {data.next_runs.length === 0 ? <p class="pad soft">{o.noNext}</p> : (
            <ul class="rows">
              {data.next_runs.slice(0, 6).map((one) => (
                <li key={one.dag_id}><Icon name="clock" /><a class="grow clip" href={href(to('dags', one.dag_id))}><strong>{one.dag_id}</strong></a><span class="small soft nowrap">{shortMoment(one.run_after)}</span><span class="small dim nowrap" style={{ minWidth: '70px', textAlign: 'right' }}>{relative(one.run_after)}</span></li>
              ))}
            </ul>
          )}
        </section>
        <section class="card">
          <header><h2>{o.parts}</h2></header>
          <Parts data={data} />
        </section>
        </div>
      </div>
    </>
  )
}

/** Task instances, runs and questions that wait, the oldest first. What nothing but a person can end is red. */
function WaitingList({ data }: { data: Data }) {
  const asked = data.questions[0]
  const all = [
    ...data.waiting.map((one) => ({ count: one.count, at: one.oldest_at, text: one.reason, dag: one.dag_id, link: one.dag_id ? to('dags', one.dag_id) : one.needs === 'worker' ? '/queues' : one.needs === 'pool' ? '/pools' : waitingTasks(one), bad: Boolean(one.needs) })),
    ...(asked ? [{ count: data.question_count, at: asked.asked_at, text: o.questions(data.question_count), dag: null, link: '/actions', bad: false }] : []),
  ].sort((a, b) => Date.parse(a.at ?? data.now) - Date.parse(b.at ?? data.now))
  if (!all.length) return <p class="pad soft">{o.noWaiting}</p>
  return (
    <ul class="rows">
      {all.slice(0, 8).map((one, index) => (
        <li key={index} class={one.bad ? 'wrong' : ''}>
          <a class="grow row" href={href(one.link)}><strong class="num" style={{ minWidth: '34px', textAlign: 'right' }}>{count(one.count)}</strong><span>{one.dag && <strong>{one.dag}: </strong>}{one.text}</span></a>
          <span class={`small nowrap ${one.bad ? '' : 'dim'}`}>{one.at && relative(one.at)}</span>
        </li>
      ))}
      {all.length > 8 && <li><a class="soft" href={tasksHref({ state: 'scheduled,queued' })}>{t.task.andMore(all.length - 8)}</a></li>}
    </ul>
  )
}

/** The list of the task instances that wait for the same thing. */
const waitingTasks = (of: Data['waiting'][number]) => `/tasks?${new URLSearchParams(Object.entries({ state: of.state, pool: of.pool, queue: of.queue }).filter((pair): pair is [string, string] => Boolean(pair[1])))}`

/** How full queues and pools are. */
function Capacity() {
  const queues = useLive('queues', () => ok(api.GET('/api/v2/queues')), { every: 15_000 }).data.value?.queues ?? []
  const pools = useLive('home pools', () => ok(api.GET('/api/v2/pools', { params: { query: { limit: 8, order_by: ['-slots'] } } })), { every: 15_000 }).data.value?.pools ?? []
  return (
    <>
      {queues.length > 0 && (
        <section class="card">
          <header><h2>{t.queues.queues}</h2></header>
          <ul class="rows">
            {[...queues].sort((a, b) => Number(a.workers.length > 0) - Number(b.workers.length > 0)).slice(0, 8).map((one) => one.workers.length === 0 ? (
              <li key={one.queue} class="wrong">
                <a class="grow clip" href={href('/queues')}>{one.queue}</a>
                <WaitingIn count={one.waiting_in_postgresql + one.queued} of={{ state: 'scheduled,queued', queue: one.queue }} />
                <strong>{t.queues.nobody}</strong>
              </li>
            ) : (
              <li key={one.queue}>
                <a class="grow clip" href={href('/queues')}>{one.queue}</a>
                <WaitingIn count={one.waiting_in_postgresql + one.queued} of={{ state: 'scheduled,queued', queue: one.queue }} />
                <span class="use"><i style={{ width: `${Math.min(100, (one.running / Math.max(1, one.places)) * 100)}%`, background: 'var(--s-running)' }} /></span>
                <a class="small num soft" style={{ minWidth: '58px', textAlign: 'right' }} href={tasksHref({ state: 'running', queue: one.queue })} aria-label={t.tasks.of(one.running, t.states.running, one.queue)}>{one.running} / {one.places}</a>
              </li>
            ))}
          </ul>
        </section>
      )}
      {pools.length > 0 && (
        <section class="card">
          <header><h2>{o.pools}</h2></header>
          <ul class="rows">
            {pools.map((one) => (
              <li key={one.name}>
                <a class="grow clip" href={href('/pools')}>{one.name}</a>
                <WaitingIn count={one.scheduled_slots} of={{ state: 'scheduled', pool: one.name }} />
                <Use pool={one} />
                <a class="small num soft" style={{ minWidth: '58px', textAlign: 'right' }} href={tasksHref({ state: one.include_deferred ? 'running,queued,deferred' : 'running,queued', pool: one.name })} aria-label={`${t.pools.use}: ${one.name}`}>{one.slots < 0 ? count(one.occupied_slots) : `${count(one.occupied_slots)} / ${count(one.slots)}`}</a>
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  )
}

/** How many tasks wait in a queue or for a pool, as a link to them. */
function WaitingIn({ count: waiting, of }: { count: number; of: Parameters<typeof tasksHref>[0] }) {
  return waiting > 0 ? <a class="small" href={tasksHref(of)}>{o.waitingIn(waiting)}</a> : null
}

/** What tasks ask, with the way to the answer. */
function Questions({ data }: { data: Data }) {
  return (
    <section class="card">
      <header><h2>{o.asked}</h2></header>
      <ul class="rows">
        {data.questions.slice(0, 5).map((one) => (
          <li key={`${one.dag_id} ${one.dag_run_id} ${one.task_id} ${one.map_index}`}>
            <Icon name="answer" />
            <a class="grow" href={href(to('dags', one.dag_id, 'runs', one.dag_run_id, 'tasks', one.task_id, ...(one.map_index >= 0 ? [one.map_index] : [])))}><span class="clip" style={{ display: 'block' }}>{one.subject ?? one.task_id}</span><span class="small soft">{one.dag_id}</span></a>
            <span class="small dim"><Time at={one.asked_at} /></span>
          </li>
        ))}
        {data.question_count > 5 && <li class="dim"><a href={href('/actions')}>{t.task.andMore(data.question_count - 5)}</a></li>}
      </ul>
    </section>
  )
}

function Deadlines({ data }: { data: Data }) {
  return (
    <section class="card">
      <header><h2>{o.atRisk}</h2></header>
      <ul class="rows">
        {data.deadlines.map((one, index) => (
          <li key={index}><Icon name="clock" /><a class="grow clip" href={run(one)}><strong>{one.dag_id}</strong> {one.task_id}</a><span class={`small ${one.missed_at ? 'wrong' : 'soft'}`}>{relative(one.due_at)}</span></li>
        ))}
      </ul>
    </section>
  )
}

/** The newest failure of each task, with how often it failed. */
function grouped(failed: Data['failed']): { one: Data['failed'][number]; times: number }[] {
  const found = new Map<string, { one: Data['failed'][number]; times: number }>()
  for (const one of failed) {
    const key = `${one.dag_id} ${one.task_id}`
    const before = found.get(key)
    if (before) before.times++
    else found.set(key, { one, times: 1 })
  }
  return [...found.values()]
}

function Tile({ state, text, value, link, bad = false }: { state: string; text: string; value: number | undefined; link: string; bad?: boolean }) {
  return (
    <a class={`tile ${bad ? 'bad' : ''} ${value === 0 ? 'zero' : ''}`} href={href(link)}>
      <span class="num">{value === undefined ? '–' : count(value)}</span>
      <span class="row small soft" style={{ gap: '5px' }}><Mark state={state} size={12} />{text}</span>
    </a>
  )
}

function Parts({ data }: { data: Data }) {
  const kinds = ['scheduler', 'worker', 'waiter']
  return (
    <ul class="rows">
      {kinds.map((kind) => {
        const all = data.processes.filter((one) => one.kind === kind)
        const alive = all.filter((one) => one.state === 'alive')
        const newest = alive.map((one) => one.heartbeat_at).sort().at(-1) ?? all.map((one) => one.heartbeat_at).sort().at(-1)
        return (
          <li key={kind}>
            <Mark state={alive.length ? 'success' : all.length || kind === 'scheduler' ? 'failed' : 'none'} />
            <a class="grow" href={href('/queues')}>{o.parts_[kind]}</a>
            <a class="num soft small" href={href('/queues')} aria-label={`${o.parts_[kind]}: ${alive.length}`}>{alive.length}{all.length > alive.length ? ` / ${all.length}` : ''}</a>
            <span class="small dim" style={{ minWidth: '130px', textAlign: 'right' }}>{newest ? o.heartbeat(relative(newest)) : o.unused}</span>
          </li>
        )
      })}
      <li>
        <Mark state={data.import_errors ? 'failed' : 'success'} />
        <a class="grow" href={href('/imports')}>{data.import_errors ? o.importErrors(data.import_errors) : t.imports.none}</a>
      </li>
    </ul>
  )
}

