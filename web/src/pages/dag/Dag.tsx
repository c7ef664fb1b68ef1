/** The page of a DAG, and of one of its runs: head, tabs, and the tab of the address. */
import { useEffect, useState } from 'preact/hooks'
import { api, ok } from '../../api/client'
import type { DagDetails, DagRun } from '../../api/types'
import { inZone, relative, runName, setZone, zone, zoneName } from '../../format'
import { Callbacks } from '../../log/Callbacks'
import { nudge } from '../../live/changes'
import { useLive } from '../../live/resource'
import { Button, Copy, currentInView, Empty, Note, Switch, Time, Took } from '../../parts/basic'
import { Head } from '../../parts/Head'
import { NoteForm } from '../../parts/NoteForm'
import { ViewOnly } from '../../parts/ViewOnly'
import { attempt, confirm, Menu, toast } from '../../parts/overlay'
import { Mark, State } from '../../parts/State'
import { Schedule } from '../../parts/Schedule'
import { Trigger } from '../../parts/Trigger'
import { go, href, query, setQuery, to } from '../../shell/router'
import { may } from '../../shell/session'
import { t } from '../../strings'
import { ClearRun } from './ClearRun'
import { Failure } from './Failure'
import { beginDag, details, timelineOf } from './data'
import { DetailsTab, RunDetails } from './Details'
import { GanttTab } from './Gantt'
import { GraphTab } from './GraphTab'
import { GridTab } from './GridTab'
import { Lazy } from '../../parts/Lazy'
import { RunList } from '../runList'
import { TasksTab } from './TasksTab'

const TABS = ['grid', 'graph', 'runs', 'durations', 'calendar', 'source', 'docs', 'details'] as const
const RUN_TABS = { gantt: t.dag.gantt, graph: t.dag.graph, tasks: t.run.tasks, compare: t.compare.title, reproductions: t.reproduction.title, callbacks: t.task.callbacks, details: t.dag.details }

export const begin = (params: Record<string, string>) => beginDag(params['dag']!, params['run'], params['tab'])

export default function Dag({ params }: { params: Record<string, string> }) {
  const dagId = params['dag']!
  const runId = params['run']
  const live = useLive(...details(dagId), { on: [`dag:${dagId}`], fresh: 10_000 })
  const [triggering, setTriggering] = useState<{ conf?: Record<string, unknown> } | null>(null)
  // The dialog "Go to" leads here to do something.
  const asked = query.value.get('do')
  useEffect(() => {
    if (asked !== 'trigger') return
    setTriggering({})
    setQuery({ do: null })
  }, [asked])
  const dag = live.data.value
  const crumbs = [{ text: t.dags.title, href: href('/dags') }]
  if (!dag) return live.error.value ? <><Head title={dagId} crumbs={crumbs} /><Empty title={live.error.value} /></> : <Head title={dagId} crumbs={crumbs} />
  const operator = may('operator', dag.tags.map((tag) => tag.name))
  const dialog = triggering && operator && <Trigger dagId={dagId} initial={triggering.conf} onClose={() => setTriggering(null)} onDone={(id) => runId && go(to('dags', dagId, 'runs', id))} />
  if (runId !== undefined) return <>{<Run key={runId} dag={dag} runId={runId} tab={params['tab']} onTrigger={setTriggering} />}{dialog}</>

  const tab = params['tab'] ?? 'grid'
  const onTrigger = operator ? () => setTriggering({}) : null
  const pause = (paused: boolean) => {
    live.patch((old) => ({ ...old, is_paused: paused }))
    return attempt(() => ok(api.PATCH('/api/v2/dags/{dag_id}', { params: { path: { dag_id: dagId } }, body: { is_paused: paused } }))).finally(() => void live.refresh())
  }
  const remove = async () => {
    if (!(await confirm(`${t.dag.delete}: ${dagId}`, t.dag.deleteText, t.remove))) return
    if (await attempt(() => ok(api.DELETE('/api/v2/dags/{dag_id}', { params: { path: { dag_id: dagId } } })))) go('/dags')
  }
  const reparse = () =>
    attempt(async () => {
      await ok(api.PUT('/api/v2/parseDagFile/{file_token}', { params: { path: { file_token: dag.file_token } } }))
      toast(t.dag.reparsed)
    })
  return (
    <>
      <Head title={dagId} crumbs={crumbs} before={<Switch on={!dag.is_paused} label={t.dags.pause(dagId)} disabled={!operator} onChange={(on) => void pause(!on)} />}>
        {!operator && <ViewOnly />}
        {operator && <Button icon="play" kind="first" onClick={() => setTriggering({})}>{t.dags.trigger}</Button>}
        {operator && dag.is_backfillable && <Button icon="backfills" onClick={() => go(`/backfills?new=${encodeURIComponent(dagId)}`)}>{t.dag.backfill}</Button>}
        {operator && (
          <Menu
            label={t.menu}
            items={[
              { text: t.dag.reparse, icon: 'clear', act: () => void reparse() },
              may('admin', dag.tags.map((tag) => tag.name)) && { text: t.dag.delete, icon: 'trash', bad: true, act: () => void remove() },
            ]}
          />
        )}
      </Head>
      <Facts dag={dag} />
      {dag.has_import_errors && <Note kind="bad">{t.dags.importError}: <a class="link" href={href('/imports')}>{t.imports.title}</a></Note>}
      <Warnings dagId={dagId} />
      <nav class="tabs" ref={currentInView} aria-label={dagId}>
        {TABS.map((name) => (
          <a key={name} href={href(name === 'grid' ? to('dags', dagId) : to('dags', dagId, name))} aria-current={tab === name ? 'page' : undefined}>{t.dag[name]}</a>
        ))}
      </nav>
      {tab === 'grid' && <GridTab key={dagId} dagId={dagId} onTrigger={onTrigger} />}
      {tab === 'graph' && <GraphTab key={dagId} dagId={dagId} runId={null} />}
      {tab === 'runs' && <RunList dagId={dagId} operator={operator} />}
      {tab === 'durations' && <Lazy key={`d${dagId}`} load={() => import('./Durations')} props={{ dagId, onTrigger }} />}
      {tab === 'calendar' && <Lazy key={`c${dagId}`} load={() => import('./Calendar')} props={{ dagId }} />}
      {tab === 'source' && <Lazy key={`s${dagId}`} load={() => import('./Source')} props={{ dagId }} />}
      {tab === 'docs' && <Lazy key={`o${dagId}`} load={() => import('./Docs')} props={{ dagId, text: dag.doc_md ?? null }} />}
      {tab === 'details' && <DetailsTab dag={dag} />}
      {dialog}
    </>
  )
}

/** Names of pools and queues that are probably typos. */
function Warnings({ dagId }: { dagId: string }) {
  const live = useLive(`warnings ${dagId}`, () => ok(api.GET('/api/v2/dagWarnings', { params: { query: { dag_id: dagId } } })), { on: [`dag:${dagId}`], fresh: 10_000 })
  return <>{live.data.value?.dag_warnings.map((one) => <Note key={one.message} kind="warn">{one.message}</Note>)}</>
}

function Facts({ dag }: { dag: DagDetails }) {
  return (
    <p class="dag-facts soft small">
      {dag.description && <span class="dag-about">{dag.description}</span>}
      <span><Schedule summary={dag.timetable_summary} /></span>
      <OwnZone zone={dag.timezone} />
      {!dag.is_paused && dag.next_dagrun_run_after && <span>{t.dags.next} {relative(dag.next_dagrun_run_after)}</span>}
      {dag.is_paused && <span class="tag warn">{t.dags.paused_}</span>}
      {dag.latest_dag_version && <a href={href(to('dags', dag.dag_id, 'source'))}>{t.dag.version(dag.latest_dag_version.version_number)}</a>}
      {dag.tags.map((tag) => <a key={tag.name} class="tag" href={href(`/dags?tag=${encodeURIComponent(tag.name)}`)}>{tag.name}</a>)}
    </p>
  )
}

function Run({ dag, runId, tab: given, onTrigger }: { dag: DagDetails; runId: string; tab: string | undefined; onTrigger: (with_: { conf: Record<string, unknown> }) => void }) {
  const dagId = dag.dag_id
  const params = { params: { path: { dag_id: dagId, dag_run_id: runId } } }
  const tab = given ?? 'gantt'
  const isGantt = tab === 'gantt'
  const [pictureKey, loadPicture] = timelineOf(dagId, runId)
  const picture = useLive(isGantt ? pictureKey : null, loadPicture, { on: [`dag:${dagId}`] })
  const alone = useLive(isGantt ? null : `run ${dagId} ${runId}`, () => ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}', params)), { on: [`dag:${dagId}`], fresh: 2000 })
  const live = isGantt ? picture : alone
  const run = isGantt ? picture.data.value?.run : alone.data.value
  const explained = run && (tab === 'details' || ['queued', 'running'].includes(run.state))
  const why = useLive(explained ? `runwhy ${dagId} ${runId}` : null, () => ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/why', params)), { on: [`dag:${dagId}`] })
  const [clearing, setClearing] = useState<{ onlyFailed: boolean } | null>(null)
  const [noting, setNoting] = useState(false)
  const asked = query.value.get('do')
  useEffect(() => {
    if (asked !== 'clear-failed') return
    setClearing({ onlyFailed: true })
    setQuery({ do: null })
  }, [asked])
  const crumbs = [{ text: t.dags.title, href: href('/dags') }, { text: dagId, href: href(to('dags', dagId)) }]
  if (!run) return <><Head title={runName(runId)} crumbs={crumbs} />{live.error.value && <Empty title={live.error.value} />}</>
  const operator = may('operator', dag.tags.map((tag) => tag.name))
  const mark = (state: 'success' | 'failed') =>
    attempt(() => ok(api.PATCH('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}', { ...params, body: { state } }))).finally(() => {
      nudge('runs', `dag:${dagId}`)
      void live.refresh()
    })
  const ended = run.state === 'success' || run.state === 'failed'
  const reproducible = ended && run.run_type !== 'reproduction'
  const note = (text: string | null) => ok(api.PATCH('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}', { ...params, body: { note: text } })).then(live.refresh)
  const remove = async () => {
    if (!(await confirm(`${t.run.delete}: ${runName(runId)}`, t.run.deleteText, t.remove))) return
    if (await attempt(() => ok(api.DELETE('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}', params)))) go(to('dags', dagId))
  }
  return (
    <>
      <Head title={runName(runId)} crumbs={crumbs} before={<Mark state={run.state} size={18} />}>
        {!operator && <ViewOnly />}
        {operator && (
          <>
            <Button icon="clear" onClick={() => setClearing({ onlyFailed: run.state === 'failed' })}>{t.run.clear}</Button>
            <Menu
              label={t.menu}
              items={[
                { text: t.run.markSuccess, icon: 'check', act: () => void mark('success') },
                { text: t.run.markFailed, icon: 'close', act: () => void mark('failed') },
                { text: t.run.writeNote, icon: 'edit', act: () => setNoting(true) },
                reproducible && { text: t.reproduction.start, icon: 'copy', href: href(`${to('dags', dagId, 'runs', runId, 'reproductions')}?do=reproduce`) },
                { text: t.run.rerun, icon: 'play', act: () => onTrigger({ conf: run.conf ?? {} }) },
                { text: t.run.delete, icon: 'trash', bad: true, act: () => void remove() },
              ]}
            />
          </>
        )}
      </Head>
      <RunFacts run={run} />
      {run.scheduling_error && <Note kind="bad">{run.scheduling_error}</Note>}
      {(run.state === 'queued' || run.requested_state) && (why.data.value?.waiting_for.length ?? 0) > 0 && <Note kind="warn">{inZone(why.data.value!.waiting_for.join(' '))}</Note>}
      <nav class="tabs" ref={currentInView} aria-label={t.run.title}>
        {Object.entries(RUN_TABS).map(([name, title]) => (
          <a key={name} href={href(name === 'gantt' ? to('dags', dagId, 'runs', runId) : to('dags', dagId, 'runs', runId, name))} aria-current={tab === name ? 'page' : undefined}>
            {title}
          </a>
        ))}
      </nav>
      {isGantt && picture.data.value?.failure && <Failure dagId={dagId} runId={runId} failure={picture.data.value.failure} onClear={operator ? () => setClearing({ onlyFailed: true }) : null} />}
      {tab === 'gantt' && <GanttTab dagId={dagId} runId={runId} live={picture} />}
      {tab === 'graph' && <GraphTab dagId={dagId} runId={runId} version={run.dag_versions.at(-1)?.version_number} />}
      {tab === 'tasks' && <TasksTab dagId={dagId} runId={runId} operator={operator} />}
      {tab === 'compare' && <Lazy load={() => import('./Compare')} props={{ dagId, runId }} />}
      {tab === 'reproductions' && <Lazy load={() => import('./Reproductions')} props={{ run, may: operator && reproducible }} />}
      {tab === 'callbacks' && <Callbacks of={`${dagId} ${runId}`} topic={`dag:${dagId}`} read={() => api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/callbackLog', { params: { path: params.params.path, query: { limit: 5000 } } })} />}
      {tab === 'details' && <RunDetails run={run} why={why.data.value ?? null} onNote={operator ? () => setNoting(true) : null} />}
      {noting && <NoteForm note={run.note} save={note} onClose={() => setNoting(false)} />}
      {clearing && operator && <ClearRun dagId={dagId} runId={runId} onlyFailed={clearing.onlyFailed} onClose={() => setClearing(null)} onDone={() => void live.refresh()} />}
    </>
  )
}

/** The zone of the schedule, if times are shown in another one. */
function OwnZone({ zone: own }: { zone: string | null }) {
  if (!own || zoneName() === own || (own === 'UTC' && zone.value === 'utc')) return null
  return <button type="button" class="as-link link" title={t.zone.switch(own)} onClick={() => setZone(own)}>{own}</button>
}

function RunFacts({ run }: { run: DagRun }) {
  return (
    <p class="dag-facts soft small">
      <State state={run.state} />
      <Took start={run.start_date} end={run.end_date} />
      {run.reproduction_of && <span>{t.reproduction.of}<a class="link" href={href(to('dags', run.dag_id, 'runs', run.reproduction_of))} title={run.reproduction_of}>{runName(run.reproduction_of)}</a></span>}
      {runName(run.dag_run_id) === run.dag_run_id && <span>{t.run.types[run.run_type] ?? run.run_type}</span>}
      <span><Time at={run.start_date ?? run.queued_at} /></span>
      {run.logical_date && <span>{t.run.logical} <Time at={run.logical_date} exact /></span>}
      {run.dag_versions.length > 0 && <a class="link" href={href(`${to('dags', run.dag_id, 'source')}?ran=${run.dag_versions.at(-1)!.version_number}`)}>{t.dag.version(run.dag_versions.at(-1)!.version_number)}</a>}
      {run.triggering_user_name && <span>{t.run.by} {run.triggering_user_name}</span>}
      <span class="run-id mono" title={t.trigger.id}>{run.dag_run_id}<Copy text={run.dag_run_id} /></span>
      {run.note && <span class="dag-about">{run.note}</span>}
    </p>
  )
}
