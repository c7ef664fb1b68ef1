/** Assets: what updates them, what they start, and their updates. */
import { useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import type { Asset } from '../api/types'
import { useLive } from '../live/resource'
import { Button, Empty, Note, Search, Skeleton, Time } from '../parts/basic'
import { Head } from '../parts/Head'
import { Bulk, List, NOTHING, type Column, type Selection } from '../parts/List'
import { attempt, Dialog, toast } from '../parts/overlay'
import { href, query, setQuery, to } from '../shell/router'
import { may } from '../shell/session'
import { t } from '../strings'

const s = t.assets
const SIZE = 50

export default function Assets() {
  const [shown, show] = useState<Asset | null>(null)
  const [selection, select] = useState<Selection>(NOTHING)
  const q = query.value
  const order = q.get('order_by') ?? 'name'
  const offset = Number(q.get('offset') ?? 0) || 0
  const name = q.get('q')
  const live = useLive(`assets ${name} ${order} ${offset}`, () => ok(api.GET('/api/v2/assets', { params: { query: { limit: SIZE, offset, order_by: [order], ...(name ? { uri_pattern: `%${name}%` } : {}) } } })), { on: ['runs'], keep: true })
  const page = live.data.value
  const operator = may('operator')
  const update = async (ids: number[]) => {
    if (await attempt(async () => { for (const id of ids) await ok(api.POST('/api/v2/assets/events', { body: { asset_id: id } })) })) toast(s.created)
    select(NOTHING)
    await live.refresh()
  }
  const dags = (ids: string[]) => (ids.length ? ids.map((id, at) => <>{at > 0 && ', '}<a key={id} class="link" href={href(to('dags', id))}>{id}</a></>) : <span class="dim">–</span>)
  const columns: Column<Asset>[] = [
    { key: 'name', head: s.name, order: 'name', class: 'wide', cell: (one) => <button type="button" class="as-link mono" onClick={() => show(one)}>{one.uri}</button> },
    { key: 'by', head: s.producers, class: 'wide named', cell: (one) => dags([...new Set(one.producing_tasks.map((task) => task.dag_id))]) },
    { key: 'starts', head: s.consumers, class: 'wide named', cell: (one) => dags(one.scheduled_dags.map((dag) => dag.dag_id)) },
    { key: 'last', head: s.last, class: 'named', cell: (one) => <Time at={one.last_asset_event?.timestamp} /> },
  ]
  return (
    <>
      <Head title={s.title} />
      <div class="filters"><Search value={name ?? ''} placeholder={s.name} onInput={(text) => setQuery({ q: text, offset: null })} /></div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {operator && <Bulk selection={selection} total={selection.keys.size} onSelect={select}><Button icon="plus" onClick={() => void update([...selection.keys].map(Number))}>{s.create}</Button></Bulk>}
      <List label={s.title} columns={columns} rows={page?.assets} failed={live.error.value !== null} rowKey={(one) => String(one.id)} total={page?.total_entries} size={SIZE} order={order} empty={<Empty title={s.none}><p>{s.noneText}</p></Empty>} {...(operator ? { selection, onSelect: select } : {})} />
      {shown && <Events asset={shown} operator={operator} onClose={() => show(null)} onUpdate={() => void update([shown.id])} />}
    </>
  )
}

function Events({ asset, operator, onClose, onUpdate }: { asset: Asset; operator: boolean; onClose: () => void; onUpdate: () => void }) {
  const live = useLive(`assetevents ${asset.id}`, () => ok(api.GET('/api/v2/assets/events', { params: { query: { asset_id: asset.id, limit: 50, order_by: ['-timestamp'] } } })), { on: ['runs'] })
  const page = live.data.value
  const materialize = () =>
    attempt(async () => {
      const run = await ok(api.POST('/api/v2/assets/{asset_id}/materialize', { params: { path: { asset_id: asset.id } } }))
      toast(t.trigger.started(run.dag_run_id), { link: { text: t.trigger.open, href: href(to('dags', run.dag_id, 'runs', run.dag_run_id)) } })
      onClose()
    })
  return (
    <Dialog wide title={asset.uri} onClose={onClose} footer={operator && <>{asset.producing_tasks.length > 0 && <Button icon="play" onClick={() => void materialize()}>{s.materialize}</Button>}<Button icon="plus" onClick={onUpdate}>{s.create}</Button></>}>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {!page ? <Skeleton rows={4} /> : page.asset_events.length === 0 ? <Empty title={s.noEvents} /> : (
        <ul class="rows">
          {page.asset_events.map((event) => (
            <li key={event.id}>
              <Time at={event.timestamp} exact />
              <span class="grow">{event.source_dag_id && event.source_run_id ? <a class="link" href={href(to('dags', event.source_dag_id, 'runs', event.source_run_id))}>{event.source_dag_id} {event.source_task_id}</a> : <span class="dim">–</span>}</span>
              <span class="small">{event.created_dagruns.map((run) => <a key={run.run_id} class="link" href={href(to('dags', run.dag_id, 'runs', run.run_id))}>→ {run.dag_id} </a>)}</span>
            </li>
          ))}
        </ul>
      )}
    </Dialog>
  )
}
