/** A run beside another one, by default the last success before it: state, duration, code, parameters, tasks and XComs that differ. */
import { useState } from 'preact/hooks'
import { api, ok } from '../../api/client'
import type { components } from '../../api/schema'
import type { DagRun } from '../../api/types'
import { duration, elapsed, moment, runName } from '../../format'
import { useLive } from '../../live/resource'
import { Check, Empty, Note, Skeleton } from '../../parts/basic'
import { List, type Column } from '../../parts/List'
import { Mark, State } from '../../parts/State'
import { href, query, setQuery, to } from '../../shell/router'
import { label } from '../../states'
import { t } from '../../strings'
import { lines, type Line } from './compare'
import { Difference } from './Difference'

const c = t.compare
type Comparison = components['schemas']['Comparison']
const MOST_XCOMS = 200

export default function Compare({ dagId, runId }: { dagId: string; runId: string }) {
  const chosen = query.value.get('with')
  const live = useLive(`compare ${dagId} ${runId} ${chosen}`, () => ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/comparison', { params: { path: { dag_id: dagId, dag_run_id: runId }, query: chosen ? { other_run_id: chosen } : {} } })), { on: [`dag:${dagId}`], keep: true })
  const data = live.data.value
  if (live.error.value && !data) return <Note kind="bad">{live.error.value}</Note>
  if (!data) return <Skeleton rows={12} />
  return (
    <div class="stack" style={{ gap: '12px' }}>
      <div class="filters" style={{ marginBottom: 0 }}>
        <span class="soft">{c.with}</span>
        <select class="select" aria-label={c.with} style={{ maxWidth: '100%' }} value={chosen ?? ''} onChange={(event) => setQuery({ with: event.currentTarget.value })}>
          <option value="">{c.lastSuccess}</option>
          {data.others.map((one) => <option key={one.dag_run_id} value={one.dag_run_id}>{moment(one.run_after, false)}, {t.run.types[one.run_type] ?? one.run_type}, {label(one.state)}</option>)}
        </select>
        {data.other && <a class="link" href={href(to('dags', dagId, 'runs', data.other.dag_run_id))} title={data.other.dag_run_id}>{runName(data.other.dag_run_id)}</a>}
      </div>
      {data.other ? <Differences data={data} other={data.other} /> : <div class="card"><Empty title={c.none}><p>{c.noneText}</p></Empty></div>}
    </div>
  )
}

function Differences({ data, other }: { data: Comparison; other: DagRun }) {
  const { run } = data
  const [only, setOnly] = useState(true)
  const all = lines(data.tasks)
  const shown = only ? all.filter((line) => line.differs) : all
  const took = (one: DagRun) => elapsed(one.start_date, one.end_date)
  const version = (one: DagRun) => one.dag_versions.at(-1)?.version_number ?? 0
  const [now, before] = [version(run), version(other)]
  const sourceOf = (number: number) => <a href={href(`${to('dags', run.dag_id, 'source')}?ran=${number}`)}>{number}</a>
  const columns: Column<Line>[] = [
    { key: 'task', head: c.task, class: 'wide', cell: (line) => <a href={href(to('dags', run.dag_id, 'runs', (line.task.now ? run : other).dag_run_id, 'tasks', line.task.task_id))}>{line.task.task_id}</a> },
    { key: 'state', head: c.state, cell: (line) => <Change line={line} /> },
    { key: 'before', head: c.before, right: true, cell: (line) => <span class="num">{duration(line.task.before?.seconds)}</span> },
    { key: 'now', head: c.now, right: true, cell: (line) => <span class="num">{duration(line.task.now?.seconds)}</span> },
    { key: 'change', head: c.change, cell: (line) => <Slower line={line} /> },
  ]
  const values = (
    <div class="card">
      <header><h3>{c.params}</h3></header>
      {data.params.length === 0 ? <p class="pad soft">{c.nothing}</p> : <Values rows={data.params.map((one) => ({ name: one.name, before: text(one.before), now: text(one.now) }))} />}
    </div>
  )
  return (
    <>
      <div class="card compare-facts">
        <span />
        <strong>{c.before}</strong>
        <strong>{c.now}</strong>
        <span class="soft">{t.run.state}</span>
        <State state={other.state} />
        <State state={run.state} />
        <span class="soft">{t.run.duration}</span>
        <span class="num">{duration(took(other))}</span>
        <span class="num">{duration(took(run))}</span>
        <span class="soft">{t.run.started}</span>
        <span class="num">{moment(other.start_date)}</span>
        <span class="num">{moment(run.start_date)}</span>
        <span class="soft">{t.run.versions}</span>
        <span class="num">{sourceOf(before)}</span>
        <span class="num">{now === before ? sourceOf(now) : <><strong>{sourceOf(now)}</strong> {!data.code && <a class="link" href={href(`${to('dags', run.dag_id, 'source')}?version=${now}&compare=${before}`)}>{c.code}</a>}</>}</span>
        <Bundles of={data} other={other} />
      </div>
      {data.params.length > 0 && values}
      {data.code && (
        <div class="card">
          <header><h3>{c.source}</h3><span class="end small"><a class="link" href={href(`${to('dags', run.dag_id, 'source')}?version=${now}&compare=${before}`)}>{c.code}</a></span></header>
          <div class="source compare-code" tabIndex={0} role="region" aria-label={c.source}><Difference before={data.code.before} after={data.code.now} around={3} /></div>
        </div>
      )}
      <section>
        <div class="row" style={{ marginBottom: '8px' }}><h3>{c.tasks}</h3><span class="grow" /><Check on={only} onChange={setOnly}>{c.only}</Check></div>
        <List label={c.tasks} columns={columns} rows={shown} rowKey={(line) => line.task.task_id} empty={<Empty title={c.noTasks} />} />
      </section>
      {data.params.length === 0 && values}
      <div class="card">
        <header><h3>{c.xcoms}</h3>{data.xcoms.length >= MOST_XCOMS && <span class="end small soft">{c.mostXcoms}</span>}</header>
        {data.xcoms.length === 0 ? <p class="pad soft">{c.noXcoms}</p> : <Values rows={data.xcoms.map((one) => ({ name: `${one.task_id}${one.map_index >= 0 ? ` [${one.map_index}]` : ''}${one.key === 'return_value' ? '' : `: ${one.key}`}`, before: one.before, now: one.now }))} />}
      </div>
    </>
  )
}

/** The versions of the bundle that the two runs executed. */
function Bundles({ of, other }: { of: Comparison; other: DagRun }) {
  const [now, before] = [of.run.bundle_version, other.bundle_version]
  if (!now && !before) return null
  const link = (one: DagRun) => (one.bundle_version ? <a class="link" href={href(`${to('bundles', one.dag_versions.at(-1)?.bundle_name ?? '')}?version=${one.bundle_version}`)}>{t.bundles.of(one.dag_versions.at(-1)?.bundle_name ?? '', one.bundle_version)}</a> : <span class="dim">{t.none}</span>)
  return <><span class="soft">{t.bundles.title}</span><span>{link(other)}</span>{now === before ? <span>{link(of.run)}</span> : <strong>{link(of.run)}</strong>}</>
}

function Change({ line }: { line: Line }) {
  if (line.now === line.before) return <State state={line.now} />
  return <span class="row wrap" style={{ gap: '2px 6px' }}>{line.before ? <State state={line.before} /> : <span class="dim">{c.missing}</span>}→{line.now ? <strong class="state"><Mark state={line.now} />{label(line.now)}</strong> : <span class="dim">{c.missing}</span>}</span>
}

function Slower({ line }: { line: Line }) {
  const tries = line.task.now?.tries && line.task.before && line.task.now.tries !== line.task.before.tries ? c.tries(line.task.now.tries) : null
  if (line.slower === null || !line.longer) return <span class="dim">{tries ?? (line.differs ? '–' : c.same)}</span>
  const size = duration(Math.abs(line.slower))
  return <span class={line.slower > 0 ? 'wrong' : 'soft'}>{line.slower > 0 ? c.slower(size) : c.faster(size)}{tries && `, ${tries}`}</span>
}

function Values({ rows }: { rows: { name: string; before: string | null; now: string | null }[] }) {
  return (
    <div class="compare-values" role="region" tabIndex={0} aria-label={c.differ}>
      <span class="small dim">{c.key}</span><span class="small dim">{c.before}</span><span class="small dim">{c.now}</span>
      {rows.map((one) => (
        <>
          <span key={one.name} class="mono">{one.name}</span>
          <span class="mono removed">{one.before ?? <span class="dim">{c.missing}</span>}</span>
          <span class="mono added">{one.now ?? <span class="dim">{c.missing}</span>}</span>
        </>
      ))}
    </div>
  )
}

const text = (value: unknown): string | null => (value === null || value === undefined ? null : JSON.stringify(value))
