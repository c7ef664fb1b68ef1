/** An asset: what leads to it and what it starts, how fresh it is, and its updates with their runs. */
import { useEffect, useMemo, useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import { now, runName, span } from '../format'
import { curve, type Placed } from '../graph/model'
import { layout } from '../graph/layouts'
import { useLive } from '../live/resource'
import { Button, Copy, Empty, Note, Skeleton, Time } from '../parts/basic'
import { Head } from '../parts/Head'
import { Icon } from '../parts/icons'
import { List, type Column } from '../parts/List'
import { attempt, toast } from '../parts/overlay'
import { State } from '../parts/State'
import { ViewOnly } from '../parts/ViewOnly'
import { href, to } from '../shell/router'
import { may } from '../shell/session'
import { t } from '../strings'
import type { Asset as AssetOf, AssetEvent } from '../api/types'
import { lineage, usualGap } from './lineage'

const s = t.assets
const MOST_EVENTS = 100

export default function Asset({ params }: { params: Record<string, string> }) {
  const id = Number(params['asset'])
  const all = useLive('assets all', () => ok(api.GET('/api/v2/assets', { params: { query: { limit: 1000 } } })), { on: ['runs'], fresh: 10_000 })
  const events = useLive(`assetevents ${id}`, () => ok(api.GET('/api/v2/assets/events', { params: { query: { asset_id: id, limit: MOST_EVENTS, order_by: ['-timestamp'] } } })), { on: ['runs'] })
  const crumbs = [{ text: s.title, href: href('/assets') }]
  const asset = all.data.value?.assets.find((one) => one.id === id)
  if (!asset) return <><Head title={s.name} crumbs={crumbs} />{all.error.value ? <Note kind="bad">{all.error.value}</Note> : all.data.value ? <Empty title={t.notFound}><p>{t.notFoundText}</p></Empty> : <Skeleton rows={10} />}</>
  const operator = may('operator')
  const update = () =>
    attempt(async () => {
      await ok(api.POST('/api/v2/assets/events', { body: { asset_id: id } }))
      toast(s.created)
    }).then(() => void events.refresh())
  const materialize = () =>
    attempt(async () => {
      const run = await ok(api.POST('/api/v2/assets/{asset_id}/materialize', { params: { path: { asset_id: id } } }))
      toast(t.trigger.started(runName(run.dag_run_id)), { link: { text: t.trigger.open, href: href(to('dags', run.dag_id, 'runs', run.dag_run_id)) } })
    })
  const list = events.data.value?.asset_events
  return (
    <>
      <Head title={<span class="run-title">{asset.name}<Copy text={asset.uri} /></span>} crumbs={crumbs}>
        {asset.uri.startsWith('table:') && <a class="button" href={href(to('tables', asset.uri.slice('table:'.length)))}><Icon name="tables" />{t.tables.open}</a>}
        {operator && asset.producing_tasks.length > 0 && <Button icon="play" onClick={() => void materialize()}>{s.materialize}</Button>}
        {!operator && <ViewOnly text={t.rights.lookWhole('operator')} />}
        {operator && <Button icon="plus" onClick={() => void update()}>{s.create}</Button>}
      </Head>
      <p class="dag-facts soft small"><span class="mono">{asset.uri}</span><Freshness events={list} /></p>
      {events.error.value && <Note kind="bad">{events.error.value}</Note>}
      <section class="card" style={{ marginBottom: '12px' }}>
        <header><h2>{s.lineage}</h2></header>
        <Lineage assets={all.data.value!.assets} id={id} />
      </section>
      <List label={s.events} columns={columns(list ?? [])} rows={list} failed={events.error.value !== null} rowKey={(one) => String(one.id)} empty={<Empty title={s.noEvents} />} />
    </>
  )
}

function columns(events: readonly AssetEvent[]): Column<AssetEvent>[] {
  const place = new Map(events.map((event, at) => [event.id, at]))
  const before = (event: AssetEvent) => events[(place.get(event.id) ?? 0) + 1]
  return [
    { key: 'when', head: s.last, cell: (one) => <Time at={one.timestamp} exact /> },
    { key: 'since', head: s.since, right: true, class: 'named', cell: (one) => { const last = before(one); return last ? <span class="num">{span((Date.parse(one.timestamp) - Date.parse(last.timestamp)) / 1000)}</span> : <span class="dim">–</span> } },
    { key: 'by', head: s.producers, class: 'wide named', cell: (one) => (one.source_dag_id && one.source_run_id ? <a href={href(to('dags', one.source_dag_id, 'runs', one.source_run_id, ...(one.source_task_id ? ['tasks', one.source_task_id] : [])))}>{one.source_dag_id} {one.source_task_id}</a> : <span class="soft">{s.byHand}</span>) },
    { key: 'runs', head: s.runs, class: 'wide named', cell: (one) => (one.created_dagruns.length ? one.created_dagruns.map((run) => <a key={run.run_id} class="row" style={{ gap: '5px' }} href={href(to('dags', run.dag_id, 'runs', run.run_id))}><State state={run.state} />{run.dag_id}</a>) : <span class="dim">–</span>) },
    { key: 'extra', head: s.extra, class: 'wide', cell: (one) => (Object.keys(one.extra ?? {}).length ? <code>{JSON.stringify(one.extra)}</code> : '') },
  ]
}

/** How long ago the newest update was, and whether that is longer than usual. */
function Freshness({ events }: { events: readonly AssetEvent[] | undefined }) {
  if (!events?.length) return null
  const usual = usualGap(events.map((one) => one.timestamp))
  const age = (now.value - Date.parse(events[0]!.timestamp)) / 1000
  return (
    <>
      <span>{s.updated} <Time at={events[0]!.timestamp} /></span>
      {usual !== null && <span class={age > 2 * usual ? 'tag warn' : ''}>{age > 2 * usual ? s.late(span(usual)) : s.usual(span(usual))}</span>}
    </>
  )
}

function Lineage({ assets, id }: { assets: readonly AssetOf[]; id: number }) {
  const shown = useMemo(() => lineage(assets, id), [assets, id])
  const key = `lineage ${JSON.stringify([shown.boxes.map((box) => box.id), shown.edges])}`
  const [placed, setPlaced] = useState<Placed | null>(null)
  useEffect(() => {
    let current = true
    void layout(key, shown, 'LR').then((found) => current && setPlaced(found))
    return () => void (current = false)
  }, [key])
  if (!placed) return <Skeleton rows={4} />
  return (
    <div class="lineage" role="region" tabIndex={0} aria-label={s.lineage}>
      <div class="graph-plane" style={{ position: 'relative', width: `${placed.width}px`, height: `${placed.height}px` }}>
        <svg width={placed.width} height={placed.height} aria-hidden="true">
          <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="graph-arrow" d="M0,0.5L7.5,4L0,7.5z" /></marker>
          {placed.edges.map((edge) => <path key={`${edge.from}\n${edge.to}`} d={curve(edge.points)} marker-end="url(#arrow)" />)}
        </svg>
        {shown.boxes.map((box) => {
          const at = placed.boxes[box.id]
          const isAsset = box.id.startsWith('a:')
          return at && (
            <a key={box.id} class={`graph-node ${box.id === `a:${id}` ? 'found' : ''}`} href={href(isAsset ? to('asset', box.id.slice(2)) : to('dags', box.label))} style={{ left: `${at.x}px`, top: `${at.y}px`, width: `${box.width}px`, height: `${box.height}px`, '--c': isAsset ? 'var(--accent)' : 'var(--line-strong)' }} title={box.label}>
              <Icon name={isAsset ? 'assets' : 'dags'} />
              <span class="clip">{box.label}</span>
            </a>
          )
        })}
      </div>
    </div>
  )
}
