/** A list of runs: of one DAG or of all, with filters in the address and changes to one, some, or all that match. */
import { useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import type { ListedRun } from '../api/types'
import { mayChange } from '../shell/session'
import { elapsed, midnight, moment, runName, shortMoment } from '../format'
import { nudge } from '../live/changes'
import { useLive } from '../live/resource'
import { Button, Empty, Note, Search, Took, Time } from '../parts/basic'
import { Bulk, List, NOTHING, type Column, type Selection } from '../parts/List'
import { ByFilter, type Wanted } from '../parts/ByFilter'
import { NothingFits } from '../parts/NextStep'
import { chosenRuns } from '../parts/chosen'
import { attempt, confirm, toast } from '../parts/overlay'
import { State } from '../parts/State'
import { Trigger } from '../parts/Trigger'
import { href, query, setQuery, to } from '../shell/router'
import { RUN_STATES, color, label } from '../states'
import { t } from '../strings'

const SIZE = 50
/** What narrows the list, in the address. */
const FILTERS = ['q', 'state', 'type', 'from', 'until', 'ended_from', 'ended_until', 'bundle', 'code', 'offset']
const TYPES = ['scheduled', 'manual', 'backfill', 'asset_triggered', 'reproduction']
/** Runs that one change can have. */
const MOST_RUNS = 10_000
/** Runs that one request marks. */
const AT_ONCE = 100

/** Runs that were due from the start of one day to the end of another, which the address names: as days, or as moments. */
function bounds(from: string | null, until: string | null): { run_after_gte?: string; run_after_lt?: string } {
  const first = from ? midnight(from) : null
  const end = until ? midnight(until, 1) : null
  return { ...(first ? { run_after_gte: first } : {}), ...(end ? { run_after_lt: end } : {}) }
}

/** `operator`: whether the account may change the runs. */
export function RunList({ dagId, operator }: { dagId: string | null; operator: boolean }) {
  const [selection, select] = useState<Selection>(NOTHING)
  const [wanted, want] = useState<Wanted | null>(null)
  const [triggered, trigger] = useState(false)
  const q = query.value
  const order = q.get('order_by') ?? '-run_after'
  const offset = Number(q.get('offset') ?? 0) || 0
  const [name, state, type, from, until] = [q.get('q'), q.get('state'), q.get('type'), q.get('from'), q.get('until')]
  const [endedFrom, endedUntil] = [q.get('ended_from'), q.get('ended_until')]
  const states = state?.split(',') ?? []
  const [bundle, code] = [q.get('bundle'), q.get('code')]
  const given = {
    ...(bundle ? { bundle_name: bundle } : {}),
    ...(code ? { bundle_version: code } : {}),
    ...(name ? (dagId ? { run_id_pattern: `%${name}%` } : { dag_id_pattern: `%${name}%` }) : {}),
    ...(states.length ? { state: states } : {}),
    ...(type ? { run_type: [type] } : {}),
    ...bounds(from, until),
    ...(endedFrom ? { end_date_gte: endedFrom } : {}),
    ...(endedUntil ? { end_date_lt: endedUntil } : {}),
  }
  const isFiltered = FILTERS.some((one) => q.has(one))
  const live = useLive(
    `runs ${dagId} ${JSON.stringify([given, order, offset])}`,
    () => ok(api.GET('/api/v2/dags/{dag_id}/runList', { params: { path: { dag_id: dagId ?? '~' }, query: { ...given, order_by: [order], limit: SIZE, offset } } })),
    { on: dagId ? [`dag:${dagId}`] : ['runs'], keep: true },
  )
  const key = (run: ListedRun) => JSON.stringify([run.dag_id, run.dag_run_id])
  const page = live.data.value
  /** The selected runs, each as its DAG and its ID. */
  const pairs = async (): Promise<[string, string][]> => {
    if (!selection.all) return [...selection.keys].map((one) => JSON.parse(one) as [string, string])
    const found: [string, string][] = []
    for (let from = 0; from < MOST_RUNS; from += 1000) {
      const part = await ok(api.GET('/api/v2/dags/{dag_id}/dagRuns', { params: { path: { dag_id: dagId ?? '~' }, query: { ...given, order_by: ['id'], limit: 1000, offset: from } } }))
      found.push(...part.dag_runs.filter((run) => dagId || mayChange(run.dag_id)).map((run): [string, string] => [run.dag_id, run.dag_run_id]))
      if (part.dag_runs.length < 1000) break
    }
    return found
  }
  const ask = (kind: 'clear' | 'delete', title: string, states?: string[]) =>
    attempt(async () => {
      const runs = chosenRuns(await pairs())
      want(kind === 'delete' ? { kind, title, filters: runs } : { kind, title, filters: runs.map((one) => ({ ...one, ...(states ? { state: states } : {}) })) })
    })

  const mark = (state: 'success' | 'failed', title: string) =>
    attempt(async () => {
      const chosen = (await pairs()).map(([dag_id, dag_run_id]) => ({ dag_id, dag_run_id, state }))
      if (!(await confirm(title, t.runsList.markText(chosen.length, state), title, state === 'success' ? 'first' : 'bad'))) return
      const errors: string[] = []
      for (let at = 0; at < chosen.length; at += AT_ONCE) {
        const done = await ok(api.PATCH('/api/v2/dags/{dag_id}/dagRuns', { params: { path: { dag_id: '~' } }, body: { actions: [{ action: 'update', entities: chosen.slice(at, at + AT_ONCE), action_on_non_existence: 'skip' }] } }))
        errors.push(...(done.update?.errors ?? []).map((one) => String((one as { error?: unknown }).error)))
      }
      toast(t.runsList.marked(chosen.length - errors.length))
      select(NOTHING)
      nudge('runs')
      await live.refresh()
      if (errors.length) throw new Error(errors[0])
    })

  const longest = Math.max(1, ...(page?.dag_runs ?? []).map((run) => (run.start_date ? elapsed(run.start_date, run.end_date) ?? 0 : 0)))
  const columns: Column<ListedRun>[] = [
    { key: 'state', head: t.runsList.state, order: 'state', cell: (run) => <State state={run.state} /> },
    ...(dagId ? [] : [{ key: 'dag', head: t.runsList.dag, order: 'dag_id', class: 'wide', cell: (run: ListedRun) => <a href={href(to('dags', run.dag_id))}>{run.dag_id}</a> }]),
    { key: 'run', head: t.runsList.run, order: 'run_id', class: 'wide', cell: (run) => <><a href={href(to('dags', run.dag_id, 'runs', run.dag_run_id))} title={run.dag_run_id}>{runName(run.dag_run_id)}</a>{run.note && <span class="run-note small soft" title={run.note}>{run.note}</span>}</> },
    { key: 'failed', head: t.runsList.failedTask, class: 'wide', cell: (run) => run.failed_task_id && <a class="wrong" href={href(to('dags', run.dag_id, 'runs', run.dag_run_id, 'tasks', run.failed_task_id, ...((run.failed_map_index ?? -1) >= 0 ? [run.failed_map_index!] : [])))} title={run.failed_reason ?? ''}>{run.failed_task_id}{(run.failed_map_index ?? -1) >= 0 ? ` [${run.failed_map_index}]` : ''}</a> },
    { key: 'type', head: t.runsList.type, class: 'hide-m', cell: (run) => (run.reproduction_of ? <a class="soft" href={href(to('dags', run.dag_id, 'runs', run.reproduction_of))} title={t.reproduction.of + run.reproduction_of}>{t.run.types[run.run_type]}</a> : <span class="soft">{t.run.types[run.run_type] ?? run.run_type}</span>) },
    { key: 'started', head: t.runsList.started, order: 'start_date', cell: (run) => <Time at={run.start_date} /> },
    { key: 'length', head: t.runsList.length, order: 'duration', right: true, cell: (run) => <span class="row took"><span class="meter hide-s"><i style={{ width: `${run.start_date ? ((elapsed(run.start_date, run.end_date) ?? 0) / longest) * 100 : 0}%`, background: color(run.state) }} /></span><Took start={run.start_date} end={run.end_date} /></span> },
    { key: 'version', head: t.run.versions, right: true, class: 'hide-m', cell: (run) => run.dag_versions.slice(-1).map((one) => <a key={one.version_number} class="soft num" href={href(`${to('dags', run.dag_id, 'source')}?ran=${one.version_number}`)}>{one.version_number}</a>) },
    { key: 'after', head: t.run.logical, order: 'logical_date', class: 'hide-m', cell: (run) => <span class="soft num nowrap">{moment(run.logical_date, false)}</span> },
  ]
  return (
    <>
      <div class="filters">
        <Search value={name ?? ''} placeholder={dagId ? t.runsList.run : t.dags.search} onInput={(text) => setQuery({ q: text, offset: null })} />
        <select class="select" aria-label={t.runsList.state} value={states.length === 1 ? states[0] : ''} onChange={(event) => setQuery({ state: event.currentTarget.value, offset: null })}>
          <option value="">{t.runsList.state}: {states.length > 1 ? states.map((one) => label(one)).join(', ') : t.any}</option>
          {RUN_STATES.map((one) => <option key={one} value={one}>{t.runsList.state}: {label(one)}</option>)}
        </select>
        <select class="select" aria-label={t.runsList.type} value={type ?? ''} onChange={(event) => setQuery({ type: event.currentTarget.value, offset: null })}>
          <option value="">{t.runsList.type}: {t.any}</option>
          {TYPES.map((one) => <option key={one} value={one}>{t.runsList.type}: {t.run.types[one]}</option>)}
        </select>
        <label class="row small"><span class="dim">{t.runsList.from}</span><input class="input" {...{ type: 'date' as 'text' }} value={from ?? ''} onChange={(event) => setQuery({ from: event.currentTarget.value, offset: null })} /></label>
        <label class="row small"><span class="dim">{t.runsList.until}</span><input class="input" {...{ type: 'date' as 'text' }} value={until ?? ''} onChange={(event) => setQuery({ until: event.currentTarget.value, offset: null })} /></label>
        {bundle && <Button icon="close" label={`${t.remove}: ${t.bundles.of(bundle, code)}`} onClick={() => setQuery({ bundle: null, code: null, offset: null })}>{t.bundles.of(bundle, code)}</Button>}
        {endedFrom && <Button icon="close" onClick={() => setQuery({ ended_from: null, ended_until: null, offset: null })}>{t.runsList.ended(shortMoment(endedFrom), endedUntil && shortMoment(endedUntil))}</Button>}
      </div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {operator && (
        <Bulk selection={selection} total={page?.total_entries} onSelect={select}>
          <Button icon="clear" onClick={() => void ask('clear', t.run.clearFailed, ['failed', 'upstream_failed'])}>{t.run.clearFailed}</Button>
          <Button icon="clear" onClick={() => void ask('clear', t.run.clear)}>{t.run.clear}</Button>
          <Button icon="check" onClick={() => void mark('success', t.run.markSuccess)}>{t.run.markSuccess}</Button>
          <Button icon="close" onClick={() => void mark('failed', t.run.markFailed)}>{t.run.markFailed}</Button>
          <Button icon="trash" onClick={() => void ask('delete', t.run.delete)}>{t.run.delete}</Button>
        </Bulk>
      )}
      <List
        class={`runs-list ${dagId ? 'one-dag' : ''}`}
        label={t.runsList.title}
        columns={columns}
        rows={page?.dag_runs}
        failed={live.error.value !== null}
        rowKey={key}
        rowHref={(run) => to('dags', run.dag_id, 'runs', run.dag_run_id)}
        total={page?.total_entries}
        size={SIZE}
        order={order}
        {...(operator ? { selection, onSelect: select, ...(dagId ? {} : { selectable: (run: ListedRun) => mayChange(run.dag_id) }) } : {})}
        empty={
          isFiltered ? (
            <NothingFits title={t.runsList.none} filters={FILTERS} />
          ) : (
            <Empty title={t.runsList.noRuns}>
              <p>{t.runsList.noneText}</p>
              {dagId ? operator && <Button kind="first" icon="play" onClick={() => trigger(true)}>{t.dags.trigger}</Button> : <a class="button" href={href('/dags')}>{t.tour.dags}</a>}
            </Empty>
          )
        }
      />
      {triggered && dagId && <Trigger dagId={dagId} onClose={() => trigger(false)} onDone={() => void live.refresh()} />}
      {wanted && (
        <ByFilter
          wanted={wanted}
          onClose={() => want(null)}
          onDone={() => {
            select(NOTHING)
            nudge('runs')
            void live.refresh()
          }}
        />
      )}
    </>
  )
}
