/** A table: how fresh it is, its rows and columns over time, and its versions with the runs that published them. */
import { api, ok } from '../api/client'
import type { components } from '../api/schema'
import { count, now, runName, span } from '../format'
import { useLive } from '../live/resource'
import { Copy, Empty, Note, Skeleton, Time } from '../parts/basic'
import { Head } from '../parts/Head'
import { Lazy } from '../parts/Lazy'
import { List, type Column } from '../parts/List'
import { href, to } from '../shell/router'
import { t } from '../strings'
import { usualGap } from './lineage'
import { By } from './tableParts'
import { changes } from './tableChanges'

const b = t.tables
type Version = components['schemas']['TableVersion']

export default function Table({ params }: { params: Record<string, string> }) {
  const name = params['table']!
  const live = useLive(`table ${name}`, () => ok(api.GET('/api/v2/tables/{table_name}', { params: { path: { table_name: name } } })), { on: ['runs'] })
  const crumbs = [{ text: t.assets.title, href: href('/assets') }, { text: b.title, href: href('/tables') }]
  const data = live.data.value
  if (!data) return <><Head title={name} crumbs={crumbs} />{live.error.value ? <Empty title={live.error.value} /> : <Skeleton rows={10} />}</>
  const [newest] = data.versions
  const current = data.versions.find((one) => one.columns)?.columns
  const columns: Column<Version>[] = [
    { key: 'when', head: b.published, cell: (one) => <Time at={one.published_at} exact /> },
    { key: 'by', head: b.by, class: 'wide named', cell: (one) => <><By of={one} />{one.run_id && <a class="run-note small soft" href={href(to('dags', one.dag_id!, 'runs', one.run_id))} title={one.run_id}>{runName(one.run_id)}</a>}</> },
    { key: 'operation', head: b.operation, class: 'named', cell: (one) => (one.is_dropped ? <span class="tag bad">{b.dropped}</span> : <span class="soft">{one.operation ?? b.noSnapshot}</span>) },
    { key: 'added', head: b.added, right: true, class: 'named', cell: (one) => (one.added_rows ? <span class="num">+{count(one.added_rows)}</span> : '') },
    { key: 'deleted', head: b.deleted, right: true, class: 'named', cell: (one) => (one.deleted_rows ? <span class="num wrong">−{count(one.deleted_rows)}</span> : '') },
    { key: 'rows', head: b.rows, right: true, class: 'named', cell: (one) => (one.rows === null ? '–' : <span class="num">{count(one.rows)}</span>) },
    { key: 'snapshot', head: b.snapshot, class: 'hide-m', cell: (one) => one.snapshot_id && <span class="row nowrap" style={{ gap: '2px' }}><span class="mono small soft">{one.snapshot_id}</span><Copy text={one.snapshot_id} /></span> },
  ]
  return (
    <>
      <Head title={name} crumbs={crumbs}>{data.asset_id !== null && <a class="button" href={href(to('asset', data.asset_id))}>{b.asset}</a>}</Head>
      <p class="dag-facts soft small">
        <span class="mono">{data.catalog}.{name}<Copy text={`${data.catalog}.${name}`} /></span>
        {newest?.is_dropped ? <span class="tag bad">{b.dropped}</span> : <Freshness versions={data.versions} />}
        {!newest?.is_dropped && newest?.rows != null && <span>{b.rowCount(newest.rows)}</span>}
      </p>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      <div class="two" style={{ marginBottom: '12px' }}>
        <section class="card">
          <header><h2>{b.rowsOverTime}</h2></header>
          <div class="pad">{data.versions.filter((one) => one.rows !== null).length > 1 ? <Lazy load={() => import('./TableRows')} props={{ versions: data.versions }} /> : <p class="soft">{b.fewVersions}</p>}</div>
        </section>
        <section class="card" aria-label={b.schema}>
          <header><h2>{b.schema}</h2></header>
          {!current ? <p class="pad soft">{b.noSchema}</p> : <dl class="facts pad">{Object.entries(current).map(([column, type]) => <><dt key={column} class="mono">{column}</dt><dd key={`${column}-t`} class="mono soft">{type}</dd></>)}</dl>}
          {changes(data.versions).map((one) => (
            <div key={one.publication} class="pad small">
              <Time at={one.at} exact /> <By of={one.version} />
              <ul>
                {one.added.map((text) => <li key={`+${text}`}><code class="mono added">+ {text}</code></li>)}
                {one.removed.map((text) => <li key={`-${text}`}><code class="mono removed">− {text}</code></li>)}
              </ul>
            </div>
          ))}
        </section>
      </div>
      <List label={b.versions} columns={columns} rows={data.versions} rowKey={(one) => String(one.publication)} empty={null} />
    </>
  )
}

/** How long ago the newest version was, and whether that is longer than usual. */
function Freshness({ versions }: { versions: readonly Version[] }) {
  const times = versions.flatMap((one) => (one.published_at ? [one.published_at] : []))
  if (!times.length) return null
  const usual = usualGap(times)
  const isLate = usual !== null && (now.value - Date.parse(times[0]!)) / 1000 > 2 * usual
  return (
    <>
      <span>{t.assets.updated} <Time at={times[0]} /></span>
      {usual !== null && <span class={isLate ? 'tag warn' : ''}>{isLate ? t.assets.late(span(usual)) : t.assets.usual(span(usual))}</span>}
    </>
  )
}
