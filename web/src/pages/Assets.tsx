/** Assets: what updates them, what they start, and their updates. */
import { useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import type { Asset } from '../api/types'
import { useLive } from '../live/resource'
import { Button, Empty, Note, Search, Time } from '../parts/basic'
import { Example, NothingFits } from '../parts/NextStep'
import { Head } from '../parts/Head'
import { Bulk, List, NOTHING, type Column, type Selection } from '../parts/List'
import { attempt, toast } from '../parts/overlay'
import { ViewOnly } from '../parts/ViewOnly'
import { href, query, setQuery, to } from '../shell/router'
import { may } from '../shell/session'
import { t } from '../strings'
import { ASSET } from './example'
import { AssetTabs } from './tableParts'

const s = t.assets
const SIZE = 50

export default function Assets() {
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
    { key: 'name', head: s.name, order: 'name', class: 'wide', cell: (one) => <a class="mono" href={href(to('asset', one.id))}>{one.uri}</a> },
    { key: 'by', head: s.producers, class: 'wide named', cell: (one) => dags([...new Set(one.producing_tasks.map((task) => task.dag_id))]) },
    { key: 'starts', head: s.consumers, class: 'wide named', cell: (one) => dags(one.scheduled_dags.map((dag) => dag.dag_id)) },
    { key: 'last', head: s.last, class: 'named', cell: (one) => <Time at={one.last_asset_event?.timestamp} /> },
  ]
  return (
    <>
      <Head title={s.title}>{!operator && <ViewOnly text={t.rights.lookWhole('operator')} />}</Head>
      <AssetTabs current="/assets" />
      <div class="filters"><Search value={name ?? ''} placeholder={s.name} onInput={(text) => setQuery({ q: text, offset: null })} /></div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {operator && <Bulk selection={selection} total={selection.keys.size} onSelect={select}><Button icon="plus" onClick={() => void update([...selection.keys].map(Number))}>{s.create}</Button></Bulk>}
      <List label={s.title} columns={columns} rows={page?.assets} failed={live.error.value !== null} rowKey={(one) => String(one.id)} rowHref={(one) => to('asset', one.id)} total={page?.total_entries} size={SIZE} order={order} empty={name ? <NothingFits filters={['q']} /> : <Empty title={s.none}><p>{s.noneText}</p><Example text={ASSET} /></Empty>} {...(operator ? { selection, onSelect: select } : {})} />
    </>
  )
}
