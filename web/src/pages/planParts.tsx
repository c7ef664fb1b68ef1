/** What a version of a bundle would change: its DAGs with their runs, what is missing, and its files. */
import type { ComponentChildren } from 'preact'
import type { components } from '../api/schema'
import { moment } from '../format'
import { Note } from '../parts/basic'
import { href, to } from '../shell/router'
import { t } from '../strings'

type S = components['schemas']
/** The client reads a pair as a list. */
type Pairs = 'added_edges' | 'removed_edges'
type DagPlan = Omit<S['DagPlan'], 'difference'> & { difference?: Omit<S['DagDifference'], Pairs> & { [pair in Pairs]?: string[][] } }
export type Plan = Omit<S['StoredPlan'], 'dags'> & { dags: DagPlan[] }
type Change = Record<string, unknown>

const s = t.plan
/** The most names and dates in one line. */
const NAMED = 8

const some = (names: readonly string[]) => `${names.slice(0, NAMED).join(', ')}${names.length > NAMED ? s.more(names.length - NAMED) : ''}`
const dates = (of: readonly string[]) => `${of.length} (${of.slice(0, 3).map((date) => moment(date, false)).join(', ')}${of.length > 3 ? ', …' : ''})`
const value = (of: unknown) => (typeof of === 'string' ? of : JSON.stringify(of))
const change = (one: Change) => `${String(one['name'])}: ${value(one['before'])} → ${value(one['now'])}`

/** What changes in one DAG, a line each. */
function facts(dag: DagPlan, plan: Plan): string[] {
  const found = dag.difference
  const edges = (pairs: readonly string[][] | undefined) => some((pairs ?? []).map((pair) => pair.join(' → ')))
  const open = Object.entries(dag.open_runs ?? {})
  return [
    ...(found?.fields ?? []).map(change),
    found?.added_tasks?.length ? s.newTasks(some(found.added_tasks)) : '',
    found?.removed_tasks?.length ? s.removedTasks(some(found.removed_tasks)) : '',
    found?.added_edges?.length ? s.newEdges(edges(found.added_edges)) : '',
    found?.removed_edges?.length ? s.removedEdges(edges(found.removed_edges)) : '',
    found?.code?.length ? s.otherCode(some(found.code)) : '',
    ...Object.entries(found?.arguments ?? {}).flatMap(([task, changes]) => changes.map((one) => s.task(task, change(one)))),
    dag.is_paused ? s.paused : '',
    dag.created_runs?.length ? s.created(plan.days, dates(dag.created_runs)) : '',
    dag.dropped_runs?.length ? s.dropped(plan.days, dates(dag.dropped_runs)) : '',
    ...open.map(([version, runs]) => (dag.keeps_versions ? s.keeps(runs, version) : s.moves(runs))),
  ].filter(Boolean)
}

function missing(plan: Plan): string[] {
  const { pools, queues, connections } = plan.missing
  return [
    pools.length ? s.noPool(some(pools)) : '',
    queues.length ? s.noQueue(some(queues)) : '',
    connections.length ? s.noConnection(some(connections)) : '',
    plan.assets_without_producer.length ? s.noProducer(some(plan.assets_without_producer)) : '',
    plan.assets_without_consumer.length ? s.noConsumer(some(plan.assets_without_consumer)) : '',
  ].filter(Boolean)
}

const TAGS: Record<string, string> = { added: 'on', removed: 'bad' }

export function PlanShown({ plan }: { plan: Plan }) {
  const files = (['added', 'changed', 'removed'] as const).flatMap((how) => (plan.files[how] ?? []).map((path) => [how, path] as const))
  const file = (path: string) => `/bundles/${encodeURIComponent(plan.bundle)}?${new URLSearchParams({ version: String(plan.version_number), ...(plan.since ? { since: String(plan.since) } : {}), file: path })}`
  const listed = (title: string, rows: ComponentChildren[]) => (
    <div>
      <h3>{title}</h3>
      <ul class="rows" aria-label={title}>{rows.length ? rows : <li class="soft">{s.same}</li>}</ul>
    </div>
  )
  return (
    <div class="stack">
      {plan.problems.map((one, at) => <Note key={at} kind="bad"><strong class="mono">{one.file}{one.line ? `:${one.line}` : ''}</strong> {one.message}</Note>)}
      {missing(plan).map((text) => <Note key={text} kind="warn">{text}</Note>)}
      {plan.problems.length > 0 && <p class="soft small">{s.refused}</p>}
      {listed(t.bundles.dags, plan.dags.map((dag) => (
        <li key={dag.dag_id}>
          <span class={`tag ${TAGS[dag.change] ?? ''}`}>{t.bundles[dag.change as 'added']}</span>
          <span class="grow">
            <a class="link" href={href(to('dags', dag.dag_id))}>{dag.dag_id}</a> <span class="mono small dim">{dag.file}</span>
            {facts(dag, plan).map((text) => <span key={text} class="small" style={{ display: 'block' }}>{text}</span>)}
          </span>
        </li>
      )))}
      {listed(t.bundles.files, files.map(([how, path]) => (
        <li key={path}><span class={`tag ${TAGS[how] ?? ''}`}>{t.bundles[how]}</span><a class="link mono" href={href(file(path))}>{path}</a></li>
      )))}
    </div>
  )
}
