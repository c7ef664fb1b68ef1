/** The page of a task instance: log, why, XComs, events, details, with its tries and what can be done. */
import type { ComponentChildren } from 'preact'
import { useRef, useState } from 'preact/hooks'
import { api, ok } from '../../api/client'
import { inZone } from '../../format'
import type { LogLines, TaskInstanceView } from '../../api/types'
import { runName } from '../../format'
import { useLive } from '../../live/resource'
import { Button, currentInView, Empty, Note, Segments, Skeleton, Time, Took } from '../../parts/basic'
import { Head } from '../../parts/Head'
import { History } from '../../parts/History'
import { Mark, State } from '../../parts/State'
import { NoteForm } from '../../parts/NoteForm'
import { ViewOnly } from '../../parts/ViewOnly'
import { go, href, query, setQuery, to } from '../../shell/router'
import { may } from '../../shell/session'
import { t } from '../../strings'
import { TasksTab } from '../dag/TasksTab'
import { asks } from '../requests'
import { Respond } from '../Respond'
import { Callbacks } from '../../log/Callbacks'
import { LogView } from '../../log/LogView'
import { Actions } from './Actions'
import { Events } from './Events'
import { MappedSummary } from './MappedSummary'
import { TaskDetails } from './TaskDetails'
import { beginTask, indexOf, keyOf, pathOf, view, whyKey, type Path } from './view'
import { XComs } from './XComs'

const TABS = ['log', 'callbacks', 'why', 'xcoms', 'events', 'details'] as const
type Tab = (typeof TABS)[number]
/** No other task instance. */
const ALONE = { include_upstream: false, include_downstream: false, include_future: false, include_past: false }

interface Props {
  dagId: string
  runId: string
  taskId: string
  index: number
  tab: string | null
  /** The address of a tab. */
  tabHref: (tab: Tab) => string
  /** Beside the grid, whose filters are in the address: the list of mapped instances has its own page then. */
  inPanel?: boolean
  /** The head of the view with its actions: that of a page, or that of a panel beside the grid. */
  head: (parts: { name: string; state: string | null | undefined; actions: ComponentChildren }) => ComponentChildren
}

export const begin = (params: Record<string, string>) => beginTask(pathOf(params), indexOf(params))

export default function Task({ params }: { params: Record<string, string> }) {
  const { dag_id: dagId, dag_run_id: runId, task_id: taskId } = pathOf(params)
  const index = indexOf(params)
  const base = to('dags', dagId, 'runs', runId, 'tasks', taskId, index >= 0 ? String(index) : '-')
  const crumbs = [
    { text: t.dags.title, href: href('/dags') },
    { text: dagId, href: href(to('dags', dagId)) },
    { text: runName(runId), href: href(to('dags', dagId, 'runs', runId)) },
    ...(index >= 0 ? [{ text: taskId, href: href(to('dags', dagId, 'runs', runId, 'tasks', taskId)) }] : []),
  ]
  return (
    <TaskView
      {...{ dagId, runId, taskId, index }}
      tab={params['tab'] ?? null}
      tabHref={(tab) => `${base}/${tab}${location.search}`}
      head={({ name, state, actions }) => <Head title={name} crumbs={crumbs} before={state !== undefined && <Mark state={state} size={18} />}>{actions}</Head>}
    />
  )
}

export function TaskView({ dagId, runId, taskId, index, tab: given, tabHref, inPanel = false, head }: Props) {
  const path = { dag_id: dagId, dag_run_id: runId, task_id: taskId }
  const key = keyOf(path, index)
  const dag = useLive(`dag ${dagId}`, () => ok(api.GET('/api/v2/dags/{dag_id}/details', { params: { path: { dag_id: dagId } } })), { fresh: 10_000 })
  const [noting, setNoting] = useState(false)
  const logs = useRef<{ of: string; first: LogLines } | null>(null)
  const live = useLive<TaskInstanceView>(
    `ti ${key}`,
    () => view(path, index, logs.current?.of.startsWith(`${key} `) ?? false),
    { on: [`dag:${dagId}`] },
  )
  const name = index >= 0 ? `${taskId} [${live.data.value?.task_instance?.rendered_map_index ?? index}]` : taskId
  const data = live.data.value
  if (data?.log) logs.current = { of: `${key} ${data.log_try_number}`, first: data.log }
  if (!data) return <>{head({ name, state: undefined, actions: null })}{live.error.value ? <Empty title={live.error.value} /> : <Skeleton rows={10} />}</>
  const operator = may('operator', dag.data.value?.tags.map((tag) => tag.name) ?? [])
  const { task_instance: ti, tries } = data
  const note = (text: string | null) =>
    ok(api.PATCH('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}', { params: { path: { ...path, map_index: index } }, body: { note: text, ...ALONE } })).then(live.refresh)
  if (!ti) {
    return (
      <>
        {head({ name, state: undefined, actions: operator && <Actions dagId={dagId} runId={runId} taskId={taskId} mapIndex={null} onDone={() => void live.refresh()} /> })}
        <MappedSummary {...{ dagId, runId, taskId }} of={data} />
        {inPanel ? <a class="button" href={href(to('dags', dagId, 'runs', runId, 'tasks', taskId))}>{t.task.allInstances}</a> : <TasksTab dagId={dagId} runId={runId} taskId={taskId} operator={operator} />}
      </>
    )
  }
  // What waits has no log yet.
  const waits = !ti.start_date && ['scheduled', 'queued'].includes(ti.state ?? '')
  const tab = (given ?? (!waits && (ti.try_number > 0 || ti.state === 'running') ? 'log' : 'why')) as Tab
  const chosen = Number(query.value.get('try')) || ti.try_number
  const numbers = [...new Set([...tries.map((one) => one.try_number), ...(ti.try_number ? [ti.try_number] : [])])].sort((a, b) => a - b)
  const shown = tries.findLast((one) => one.try_number === chosen)
  const executed = (shown ?? ti).start_date ? (shown ?? ti).dag_version : null
  return (
    <>
      {head({ name, state: ti.state, actions: operator ? <Actions dagId={dagId} runId={runId} taskId={taskId} mapIndex={index >= 0 ? index : null} onNote={() => setNoting(true)} onDone={() => void live.refresh()} /> : dag.data.value && <ViewOnly /> })}
      <p class="dag-facts soft small">
        <State state={ti.state} />
        {ti.start_date && <Took start={ti.start_date} end={ti.end_date} open={ti.state === 'running'} />}
        {ti.start_date && <span><Time at={ti.start_date} /></span>}
        {ti.operator && <span>{ti.operator}</span>}
        {executed && <a class="link" href={href(`${to('dags', dagId, 'source')}?ran=${executed.version_number}`)}>{t.dag.version(executed.version_number)}</a>}
        {ti.worker && <a href={href('/queues')}>{ti.worker}</a>}
        {/* What a scheduled task waits for now is on the tab "Why"; its reason is from the moment when it was scheduled. */}
        {ti.reason && ti.state !== 'scheduled' && <span class={ti.state === 'failed' ? 'wrong' : ''}>{ti.reason}</span>}
        {ti.note && <span class="dag-about">{ti.note}</span>}
      </p>
      {asks(ti.operator_name ?? ti.operator) && ['running', 'up_for_reschedule', 'scheduled', 'queued'].includes(ti.state ?? '') && <Request path={path} index={index} />}
      <div class="task-bar">
        <nav class="tabs grow" ref={currentInView} aria-label={name}>
          {TABS.map((one) => (
            <a key={one} href={href(tabHref(one))} aria-current={tab === one ? 'page' : undefined} onClick={(event) => { event.preventDefault(); go(tabHref(one), { replace: true, keepScroll: true }) }}>{t.task[one]}</a>
          ))}
        </nav>
        {numbers.length > 1 && (
          <span class="row small" style={{ paddingBottom: '12px' }}>
            <span class="dim">{t.task.try_}</span>
            {numbers.length > 8 ? (
              <select class="select" aria-label={t.task.try_} value={String(chosen)} onChange={(event) => setQuery({ try: event.currentTarget.value, line: null })}>{numbers.map((one) => <option key={one} value={String(one)}>{one}</option>)}</select>
            ) : (
              <Segments label={t.task.try_} value={String(chosen)} options={numbers.map((one) => [String(one), <>{one} <Mark size={12} state={tries.findLast((of) => of.try_number === one)?.state ?? ti.state} /></>] as const)} onChange={(next) => setQuery({ try: next === String(ti.try_number) ? null : next, line: null })} />
            )}
          </span>
        )}
      </div>
      {tab === 'log' && (chosen > 0 && !(waits && chosen === ti.try_number) ? <LogView key={`${key} ${chosen}`} path={{ ...path, try_number: chosen }} mapIndex={index} topic={`dag:${dagId}`} known={logs.current?.of === `${key} ${chosen}` ? logs.current.first : null} /> : <Empty title={t.log.waiting}><a class="button" href={href(tabHref('why'))}>{t.run.waits}</a></Empty>)}
      {tab === 'callbacks' && <Callbacks of={key} topic={`dag:${dagId}`} read={() => api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/callbackLog', { params: { path, query: { map_index: index, limit: 5000 } } })} />}
      {tab === 'why' && <WhyTab path={path} index={index} dagId={dagId} />}
      {tab === 'xcoms' && <XComs path={path} index={index} operator={operator} />}
      {tab === 'events' && <Events path={path} index={index} />}
      {tab === 'details' && <TaskDetails ti={ti} of={shown ?? null} path={path} index={index} />}
      {noting && <NoteForm note={ti.note} save={note} onClose={() => setNoting(false)} />}
    </>
  )
}

/** The question of the task, while it has no answer. */
function Request({ path, index }: { path: { dag_id: string; dag_run_id: string; task_id: string }; index: number }) {
  const [opened, open] = useState(false)
  const live = useLive(`request ${Object.values(path).join(' ')} ${index}`, () => ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}/hitlDetails', { params: { path: { ...path, map_index: index } } })), { on: [`dag:${path.dag_id}`] })
  const asked = live.data.value
  if (!asked || asked.response_received) return null
  return (
    <div style={{ marginBottom: '10px' }}>
      <Note kind="warn"><span class="row wrap"><span class="grow">{t.actions.taskWaits} {asked.subject}</span><Button onClick={() => open(true)}>{t.actions.respond}</Button></span></Note>
      {opened && <Respond asked={asked} onClose={() => open(false)} onDone={() => void live.refresh()} />}
    </div>
  )
}

function WhyTab({ path, index, dagId }: { path: Path; index: number; dagId: string }) {
  const live = useLive(whyKey(path, index), () => ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/why', { params: { path, query: { map_index: index } } })), { on: [`dag:${dagId}`], fresh: 2000 })
  const why = live.data.value
  if (live.error.value && !why) return <Note kind="bad">{live.error.value}</Note>
  if (!why) return <Skeleton rows={5} />
  return (
    <div class="stack" style={{ maxWidth: '860px', gap: '12px' }}>
      <div class="card">
        <header><h3>{t.task.whyNow}</h3></header>
        <ul class="pad stack">
          {why.waiting_for.length === 0 && <li class="soft">{t.task.whyNothing}</li>}
          {why.waiting_for.map((text) => <li key={text} class="row" style={{ alignItems: 'flex-start' }}><Mark state={why.state} /><span class="grow">{inZone(text)}</span></li>)}
        </ul>
      </div>
      {why.history.length > 0 && (
        <div class="card">
          <header><h3>{t.task.whyHistory}</h3></header>
          <div class="pad"><History why={{ ...why, waiting_for: [] }} /></div>
        </div>
      )}
    </div>
  )
}
