/** Iceberg tables: rows, who published last, and when. */
import { api, ok } from '../api/client'
import type { components } from '../api/schema'
import { count } from '../format'
import { useLive } from '../live/resource'
import { Empty, Note, Search, Time } from '../parts/basic'
import { Example, NothingFits } from '../parts/NextStep'
import { Head } from '../parts/Head'
import { List, type Column } from '../parts/List'
import { href, query, setQuery, to } from '../shell/router'
import { t } from '../strings'
import { AssetTabs, By } from './tableParts'

const b = t.tables
const SIZE = 50
type Table = components['schemas']['Table']
const SETTING = '[tables]\nwarehouse = "/srv/warehouse"'

export default function Tables() {
  const offset = Number(query.value.get('offset') ?? 0) || 0
  const name = query.value.get('q')
  const live = useLive(`tables ${name} ${offset}`, () => ok(api.GET('/api/v2/tables', { params: { query: { limit: SIZE, offset, ...(name ? { name_pattern: name } : {}) } } })), { on: ['runs'], keep: true })
  const page = live.data.value
  const columns: Column<Table>[] = [
    { key: 'name', head: b.name, class: 'wide', cell: (one) => <a class="mono" href={href(to('tables', one.name))}>{one.name}</a> },
    { key: 'rows', head: b.rows, right: true, class: 'named', cell: (one) => (one.rows === null ? <span class="dim">–</span> : <span class="num">{count(one.rows)}</span>) },
    { key: 'when', head: b.published, class: 'named', cell: (one) => <Time at={one.published_at} /> },
    { key: 'by', head: b.by, class: 'wide named', cell: (one) => <By of={one} /> },
  ]
  return (
    <>
      <Head title={t.assets.title} />
      <AssetTabs current="/tables" />
      <div class="filters"><Search value={name ?? ''} placeholder={b.filter} onInput={(text) => setQuery({ q: text, offset: null })} /></div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      <List label={b.title} columns={columns} rows={page?.tables} failed={live.error.value !== null} rowKey={(one) => one.name} rowHref={(one) => to('tables', one.name)} total={page?.total_entries} size={SIZE}
        empty={name ? <NothingFits title={b.noneFits} filters={['q']} /> : page?.is_on ? <Empty title={b.none}><p>{b.noneText}</p></Empty> : <Empty title={b.off}><p>{b.offText}</p><Example text={SETTING} /></Empty>} />
    </>
  )
}
