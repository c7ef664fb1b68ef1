/** The list of DAGs: recent runs, schedules, filters in the address, and actions on one or on all that match. */
import { useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import type { Dag } from '../api/types'
import { count, relative } from '../format'
import { nudge } from '../live/changes'
import { useLive } from '../live/resource'
import { Bars } from '../parts/Bars'
import { Button, Empty, Note, Search, Segments, Switch, Time } from '../parts/basic'
import { Head } from '../parts/Head'
import { Bulk, List, NOTHING, type Column, type Selection } from '../parts/List'
import { Menu, attempt, toast } from '../parts/overlay'
import { Mark } from '../parts/State'
import { Trigger } from '../parts/Trigger'
import { ViewOnly } from '../parts/ViewOnly'
import { go, href, query, setQuery, to } from '../shell/router'
import { may, mayAnywhere, rights } from '../shell/session'
import { RUN_STATES, label } from '../states'
import { Schedule } from '../parts/Schedule'
import { t } from '../strings'
import { Example, NothingFits } from '../parts/NextStep'
import { EXAMPLE } from './example'
import { importCount } from './requests'
import { counts, recentRuns, type Counts, type Recent } from './recent'

const SIZE = 50
/** What narrows the list, in the address. */
const FILTERS = ['q', 'paused', 'state', 'tag', 'bundle', 'fav']

/** The filters of the address as parameters of the list. */
function filters() {
  const q = query.value
  const paused = q.get('paused')
  return {
    ...(q.get('q') ? { dag_id_pattern: `%${q.get('q')}%` } : {}),
    ...(paused ? { paused: paused === 'yes' } : {}),
    ...(q.get('state') ? { last_dag_run_state: q.get('state')! } : {}),
    ...(q.getAll('tag').length ? { tags: q.getAll('tag') } : {}),
    ...(q.get('bundle') ? { bundle_name: q.get('bundle')! } : {}),
    ...(q.get('fav') ? { is_favorite: true } : {}),
  }
}

interface Data {
  dags: Dag[]
  total: number
  recent: Recent
  counts: Counts
}

export default function Dags() {
  const [selection, select] = useState<Selection>(NOTHING)
  const [triggered, trigger] = useState<Dag | null>(null)
  const order = query.value.get('order_by') ?? 'dag_id'
  const offset = Number(query.value.get('offset') ?? 0) || 0
  const given = filters()
  const live = useLive<Data>(
    `dags ${JSON.stringify([given, order, offset])}`,
    async () => {
      const page = await ok(api.GET('/api/v2/dags', { params: { query: { ...given, order_by: [order], limit: SIZE, offset } } }))
      const ids = page.dags.map((dag) => dag.dag_id)
      const [recent, numbers] = await Promise.all([recentRuns(ids), counts(ids)])
      return { dags: page.dags, total: page.total_entries, recent, counts: numbers }
    },
    { on: ['runs'], keep: true },
  )
  const tags = useLive('dagTags', () => ok(api.GET('/api/v2/dagTags', { params: { query: { limit: 1000 } } })))
  const data = live.data.value
  const filtered = Object.keys(given).length > 0

  const pause = async (dag: Dag, paused: boolean) => {
    const set = (value: boolean) => live.patch((old) => ({ ...old, dags: old.dags.map((one) => (one.dag_id === dag.dag_id ? { ...one, is_paused: value } : one)) }))
    set(paused)
    const done = await attempt(() => ok(api.PATCH('/api/v2/dags/{dag_id}', { params: { path: { dag_id: dag.dag_id } }, body: { is_paused: paused } })))
    if (!done) set(!paused)
    nudge('runs')
  }
  const star = async (dag: Dag) => {
    const params = { params: { path: { dag_id: dag.dag_id } } }
    await attempt(() => ok(dag.is_favorite ? api.POST('/api/v2/dags/{dag_id}/unfavorite', params) : api.POST('/api/v2/dags/{dag_id}/favorite', params)))
    await live.refresh()
  }
  const pauseAll = async (paused: boolean) => {
    const body = { is_paused: paused }
    let changed = 0
    const done = await attempt(async () => {
      if (selection.all) {
        for (let from = 0; from < (data?.total ?? 0); from += 1000) {
          const page = await ok(api.PATCH('/api/v2/dags', { params: { query: { ...given, limit: 1000, offset: from, order_by: ['dag_id'] } }, body }))
          changed += page.dags.length
        }
      } else {
        for (const dag_id of selection.keys) {
          await ok(api.PATCH('/api/v2/dags/{dag_id}', { params: { path: { dag_id } }, body }))
          changed++
        }
      }
    })
    if (done) toast(paused ? t.dags.pausedMany(changed) : t.dags.unpausedMany(changed))
    select(NOTHING)
    await live.refresh()
  }

  const d = t.dags
  const columns: Column<Dag>[] = [
    {
      key: 'star',
      head: <span class="visually-hidden">{d.favorites}</span>,
      class: 'tick',
      cell: (dag) => (
        <button type="button" class={`star ${dag.is_favorite ? 'on' : ''}`} aria-pressed={dag.is_favorite} aria-label={d.favorite(dag.dag_id)} title={d.favorite(dag.dag_id)} onClick={() => void star(dag)}>
          <StarIcon />
        </button>
      ),
    },
    {
      key: 'paused',
      head: <span class="visually-hidden">{d.active}</span>,
      class: 'tick',
      cell: (dag) => <Switch on={!dag.is_paused} label={d.pause(dag.dag_id)} disabled={!may('operator', dag.tags.map((tag) => tag.name))} onChange={(on) => void pause(dag, !on)} />,
    },
    {
      key: 'dag',
      head: d.name,
      order: 'dag_id',
      class: 'dag',
      cell: (dag) => (
        <div class="row wrap" style={{ gap: '3px 8px' }}>
          <a class="name" href={href(to('dags', dag.dag_id))}>{dag.dag_id}</a>
          {dag.has_import_errors && <a class="tag bad" href={href('/imports')}>{d.importError}</a>}
          {dag.tags.map((tag) => (
            <button key={tag.name} type="button" class={`tag ${query.value.getAll('tag').includes(tag.name) ? 'on' : ''}`} onClick={() => toggleTag(tag.name)}>{tag.name}</button>
          ))}
        </div>
      ),
    },
    { key: 'recent', head: d.recent, class: 'recent', cell: (dag) => <Bars dagId={dag.dag_id} runs={data ? (data.recent.get(dag.dag_id) ?? []) : undefined} /> },
    {
      key: 'last',
      head: d.last,
      order: 'last_run_start_date',
      class: 'last',
      cell: (dag) => {
        const run = data?.recent.get(dag.dag_id)?.at(-1)
        return run ? (
          <a class="row nowrap" style={{ gap: '6px' }} href={href(to('dags', dag.dag_id, 'runs', run.dag_run_id))} title={label(run.state)}>
            <Mark state={run.state} /> {relative(run.start_date ?? run.run_after)}
          </a>
        ) : <span class="dim">–</span>
      },
    },
    { key: 'counts', head: d.counts, class: 'hide-m', cell: (dag) => <RunCounts dag={dag.dag_id} counts={data?.counts.get(dag.dag_id)} /> },
    { key: 'schedule', head: d.schedule, class: 'hide-m', cell: (dag) => <span class="soft clip" style={{ display: 'block', maxWidth: '180px' }} title={dag.timetable_description ?? undefined}><Schedule summary={dag.timetable_summary} /></span> },
    { key: 'owner', head: d.owner, class: 'hide-m', cell: (dag) => <span class="soft">{(dag.owners ?? []).join(', ')}</span> },
    { key: 'next', head: d.next, order: 'next_dagrun', class: 'hide-s', cell: (dag) => dag.is_paused ? <span class="dim">{d.paused_}</span> : <Time at={dag.next_dagrun_run_after} /> },
    { key: 'act', head: '', right: true, cell: (dag) => may('operator', dag.tags.map((tag) => tag.name)) && <Button icon="play" kind="plain" label={`${d.trigger}: ${dag.dag_id}`} onClick={() => trigger(dag)} /> },
  ]

  return (
    <>
      <Head title={d.title}>{!mayAnywhere('operator') && <ViewOnly text={t.rights.lookAny} />}</Head>
      <div class="filters">
        <Search value={query.value.get('q') ?? ''} placeholder={d.search} onInput={(q) => setQuery({ q, offset: null })} />
        <Segments
          label={d.active}
          value={query.value.get('paused') ?? ''}
          options={[['', t.all], ['no', d.active], ['yes', d.paused]]}
          onChange={(paused) => setQuery({ paused, offset: null })}
        />
        <select class="select" aria-label={d.state} value={query.value.get('state') ?? ''} onChange={(event) => setQuery({ state: event.currentTarget.value, offset: null })}>
          <option value="">{d.state}: {t.any}</option>
          {RUN_STATES.map((state) => <option key={state} value={state}>{d.state}: {label(state)}</option>)}
        </select>
        {(tags.data.value?.tags.length ?? 0) > 0 && (
          <Menu label={d.tags} items={tags.data.value!.tags.map((tag) => ({ text: tag, icon: query.value.getAll('tag').includes(tag) ? 'check' as const : 'plus' as const, act: () => toggleTag(tag) }))}>
            {d.tags}{query.value.getAll('tag').length ? `: ${query.value.getAll('tag').join(', ')}` : ''}
          </Menu>
        )}
        <Button pressed={query.value.get('fav') === '1'} icon="star" onClick={() => setQuery({ fav: query.value.get('fav') ? null : '1', offset: null })}>{d.favorites}</Button>
        {query.value.get('bundle') && <span class="tag on">{t.bundles.of(query.value.get('bundle')!, null)}</span>}
        {filtered && <Button kind="plain" icon="close" onClick={() => go('/dags')}>{t.removeFilters}</Button>}
      </div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {mayAnywhere('operator') && (
        <Bulk selection={selection} total={data?.total} onSelect={select}>
          <Button icon="play" onClick={() => void pauseAll(false)}>{d.unpauseAll}</Button>
          <Button icon="pause" onClick={() => void pauseAll(true)}>{d.pauseAll}</Button>
        </Bulk>
      )}
      <List
        label={d.title}
        columns={columns}
        rows={data?.dags}
        failed={live.error.value !== null}
        rowKey={(dag) => dag.dag_id}
        rowHref={(dag) => to('dags', dag.dag_id)}
        total={data?.total}
        size={SIZE}
        order={order}
        skeleton={12}
        {...(mayAnywhere('operator') ? { selection, onSelect: select, selectable: (dag: Dag) => may('operator', dag.tags.map((tag) => tag.name)) } : {})}
        empty={
          filtered ? (
            <NothingFits title={d.noneFits} filters={FILTERS} />
          ) : (
            may('operator') ? <Empty title={d.emptyTitle}><First /></Empty> : may('viewer') ? <Empty title={d.emptyTitle} /> : <Empty title={t.rights.noDags}><p>{t.rights.noDagsText}</p><p>{rights()}</p></Empty>
          )
        }
      />
      {triggered && <Trigger dagId={triggered.dag_id} onClose={() => trigger(null)} onDone={() => void live.refresh()} />}
    </>
  )
}

/** What to do while there is no DAG: repair the files that cannot be read, or begin with an example. */
function First() {
  const broken = useLive('imports count', importCount, { every: 5000 }).data.value
  return (
    <>
      {broken ? <p><a class="button first" href={href('/imports')}>{t.dags.brokenFiles(broken)}</a></p> : null}
      <p>{t.dags.empty}</p>
      <Example text={EXAMPLE} />
    </>
  )
}

function toggleTag(tag: string): void {
  const chosen = query.value.getAll('tag')
  setQuery({ tag: chosen.includes(tag) ? chosen.filter((one) => one !== tag) : [...chosen, tag], offset: null })
}

function StarIcon() {
  return (
    <svg viewBox="0 0 16 16" width="15" height="15" aria-hidden="true" stroke="currentColor" stroke-width="1.3" stroke-linejoin="round">
      <path d="M8 2.6l1.7 3.5 3.8.5-2.8 2.7.7 3.8L8 11.3l-3.4 1.8.7-3.8L2.5 6.6l3.8-.5z" />
    </svg>
  )
}

function RunCounts({ dag, counts }: { dag: string; counts: Record<string, number> | undefined }) {
  if (!counts) return <span class="dim">–</span>
  return (
    <span class="row" style={{ gap: '10px' }}>
      {RUN_STATES.filter((state) => counts[state]).map((state) => (
        <a key={state} class="row" style={{ gap: '4px' }} href={href(`${to('dags', dag, 'runs')}?state=${state}`)} title={label(state)}>
          <Mark state={state} size={12} />
          <span class="num">{count(counts[state]!)}</span>
        </a>
      ))}
    </span>
  )
}
