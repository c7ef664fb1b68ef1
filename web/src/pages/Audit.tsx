/** Every change through pages or API: who, when, from where, what, and whether it was allowed. */
import { useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import type { EventLog } from '../api/types'
import { moment } from '../format'
import { useLive } from '../live/resource'
import { Empty, Note, Search } from '../parts/basic'
import { Head } from '../parts/Head'
import { List, type Column } from '../parts/List'
import { Dialog } from '../parts/overlay'
import { href, query, setQuery, to } from '../shell/router'
import { t } from '../strings'

const a = t.audit
const SIZE = 50

export default function Audit() {
  const [shown, show] = useState<EventLog | null>(null)
  const q = query.value
  const order = q.get('order_by') ?? '-when'
  const offset = Number(q.get('offset') ?? 0) || 0
  const given = { ...(q.get('owner') ? { owner_pattern: `%${q.get('owner')}%` } : {}), ...(q.get('event') ? { event_pattern: `%${q.get('event')}%` } : {}), ...(q.get('dag') ? { dag_id_pattern: `%${q.get('dag')}%` } : {}) }
  const live = useLive(`audit ${JSON.stringify([given, order, offset])}`, () => ok(api.GET('/api/v2/eventLogs', { params: { query: { limit: SIZE, offset, order_by: [order], ...given } } })), { every: 10_000, keep: true })
  const page = live.data.value
  const columns: Column<EventLog>[] = [
    { key: 'when', head: a.when, order: 'when', cell: (one) => <span class="num nowrap">{moment(one.when)}</span> },
    { key: 'who', head: a.who, order: 'owner', cell: (one) => one.owner },
    { key: 'event', head: a.event, order: 'event', cell: (one) => <button type="button" class="as-link mono" onClick={() => show(one)}>{one.event}</button> },
    { key: 'subject', head: a.subject, class: 'wide', cell: (one) => one.dag_id && <a href={href(one.run_id ? to('dags', one.dag_id, 'runs', one.run_id) : to('dags', one.dag_id))}>{[one.dag_id, one.run_id, one.task_id].filter(Boolean).join(' / ')}</a> },
    { key: 'status', head: a.status, right: true, cell: (one) => <span class={(one.status ?? 0) >= 400 ? 'tag bad' : 'soft'}>{one.status ?? '–'}</span> },
    { key: 'address', head: a.address, class: 'hide-s', cell: (one) => <span class="soft mono">{one.address}</span> },
  ]
  return (
    <>
      <Head title={a.title} />
      <div class="filters">
        <Search value={q.get('owner') ?? ''} placeholder={a.user} width={170} onInput={(owner) => setQuery({ owner, offset: null })} />
        <Search value={q.get('event') ?? ''} placeholder={a.event} width={170} hint={false} onInput={(event) => setQuery({ event, offset: null })} />
        <Search value={q.get('dag') ?? ''} placeholder={a.dag} width={170} hint={false} onInput={(dag) => setQuery({ dag, offset: null })} />
      </div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      <List label={a.title} columns={columns} rows={page?.event_logs} rowKey={(one) => String(one.event_log_id)} total={page?.total_entries} size={SIZE} order={order} empty={<Empty title={a.none}><p>{a.noneText}</p></Empty>} />
      {shown && (
        <Dialog wide title={`${shown.event}, ${moment(shown.when)}`} onClose={() => show(null)}>
          <dl class="facts">
            <dt>{a.who}</dt><dd>{shown.owner ?? '–'}</dd>
            <dt>{a.address}</dt><dd class="mono">{shown.address ?? '–'}</dd>
            <dt>{a.status}</dt><dd>{shown.status ?? '–'}</dd>
          </dl>
          <pre tabIndex={0} class="code">{pretty(shown.extra)}</pre>
        </Dialog>
      )}
    </>
  )
}

function pretty(text: string | null): string {
  try {
    return text ? JSON.stringify(JSON.parse(text), null, 2) : '–'
  } catch {
    return text ?? ''
  }
}
