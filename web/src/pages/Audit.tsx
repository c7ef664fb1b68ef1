/** Every change through pages or API: who, when, from where, what, and whether it was allowed. */
import { api, ok } from '../api/client'
import { midnight } from '../format'
import { useLive } from '../live/resource'
import { Empty, Note, Search } from '../parts/basic'
import { Head } from '../parts/Head'
import { NothingFits } from '../parts/NextStep'
import { query, setQuery } from '../shell/router'
import { t } from '../strings'
import { AuditEntries } from './AuditEntries'

const a = t.audit
const SIZE = 50
const FILTERS = ['owner', 'event', 'dag', 'from', 'until']

export default function Audit() {
  const q = query.value
  const order = q.get('order_by') ?? '-when'
  const offset = Number(q.get('offset') ?? 0) || 0
  const [after, before] = [midnight(q.get('from') ?? ''), midnight(q.get('until') ?? '', 1)]
  const given = { ...(q.get('owner') ? { owner_pattern: `%${q.get('owner')}%` } : {}), ...(q.get('event') ? { event_pattern: `%${q.get('event')}%` } : {}), ...(after ? { after } : {}), ...(before ? { before } : {}), ...(q.get('dag') ? { dag_id_pattern: `%${q.get('dag')}%` } : {}) }
  const live = useLive(`audit ${JSON.stringify([given, order, offset])}`, () => ok(api.GET('/api/v2/eventLogs', { params: { query: { limit: SIZE, offset, order_by: [order], ...given } } })), { every: 10_000, keep: true })
  const page = live.data.value
  return (
    <>
      <Head title={a.title} />
      <div class="filters">
        <Search value={q.get('owner') ?? ''} placeholder={a.user} width={170} onInput={(owner) => setQuery({ owner, offset: null })} />
        <Search value={q.get('event') ?? ''} placeholder={a.event} width={170} hint={false} onInput={(event) => setQuery({ event, offset: null })} />
        <Search value={q.get('dag') ?? ''} placeholder={a.dag} width={170} hint={false} onInput={(dag) => setQuery({ dag, offset: null })} />
        <label class="row small soft">{a.from} <input class="input" type="date" value={q.get('from') ?? ''} onInput={(event) => setQuery({ from: event.currentTarget.value, offset: null })} /></label>
        <label class="row small soft">{a.until} <input class="input" type="date" value={q.get('until') ?? ''} onInput={(event) => setQuery({ until: event.currentTarget.value, offset: null })} /></label>
      </div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      <AuditEntries label={a.title} rows={page?.event_logs} failed={live.error.value !== null} empty={FILTERS.some((one) => q.has(one)) ? <NothingFits title={a.none} filters={FILTERS} /> : <Empty title={a.noneYet}><p>{a.noneText}</p></Empty>} total={page?.total_entries} size={SIZE} order={order} />
    </>
  )
}
