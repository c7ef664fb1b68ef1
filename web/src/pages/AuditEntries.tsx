/** Entries of the audit log as a list; each opens with its request. */
import type { ComponentChildren } from 'preact'
import { useState } from 'preact/hooks'
import type { EventLog } from '../api/types'
import { moment, runName } from '../format'
import { List, type Column } from '../parts/List'
import { Dialog } from '../parts/overlay'
import { href, to } from '../shell/router'
import { t } from '../strings'
import { fold, sentence, subject, subjects, type Entry } from './audited'

const a = t.audit

interface Props {
  label: string
  rows: readonly EventLog[] | undefined
  /** They could not be loaded. */
  failed: boolean
  empty: ComponentChildren
  total?: number | undefined
  /** Entries that a page has, for a list with pages whose columns sort. */
  size?: number
  order?: string
}

export function AuditEntries({ label, rows, failed, empty, total, size = 0, order }: Props) {
  const [shown, show] = useState<Entry | null>(null)
  const sorts = (name: string) => (order === undefined ? {} : { order: name })
  const folded = rows && fold(rows)
  const columns: Column<Entry>[] = [
    { key: 'when', head: a.when, ...sorts('when'), cell: (one) => <span class="num nowrap">{moment(one.when)}</span> },
    { key: 'who', head: a.who, ...sorts('owner'), cell: (one) => one.owner },
    { key: 'event', head: a.event, ...sorts('event'), class: 'wide', cell: (one) => <button type="button" class={`as-link ${(one.status ?? 0) >= 400 ? 'wrong' : ''}`} title={one.event} onClick={() => show(one)}>{sentence(one)}</button> },
    { key: 'subject', head: a.subject, class: 'wide', cell: (one) => (one.others.length > 0 && subjects(one) ? <button type="button" class="as-link soft" onClick={() => show(one)}>{subjects(one)}</button> : <About entry={one} />) },
    { key: 'status', head: a.status, right: true, cell: (one) => <span class={(one.status ?? 0) >= 400 ? 'tag bad' : 'soft'}>{one.status ?? '–'}</span> },
    { key: 'address', head: a.address, class: 'hide-s', cell: (one) => <span class="soft mono">{one.address}</span> },
  ]
  return (
    <>
      <List label={label} columns={columns} rows={folded} entries={rows?.length} failed={failed} rowKey={(one) => String(one.event_log_id)} total={total} size={size} {...(order === undefined ? {} : { order })} empty={empty} />
      {shown && (
        <Dialog wide title={`${sentence(shown)}, ${moment(shown.when)}`} onClose={() => show(null)}>
          <dl class="facts">
            <dt>{a.who}</dt><dd>{shown.owner ?? '–'}</dd>
            <dt>{a.address}</dt><dd class="mono">{shown.address ?? '–'}</dd>
            <dt>{a.status}</dt><dd>{shown.status ?? '–'}</dd>
          </dl>
          {shown.others.length > 0 && (
            <ul class="preview" role="list" tabIndex={0} aria-label={sentence(shown)}>
              {[shown, ...shown.others].map((one) => <li key={one.event_log_id} class="row"><span class="num small dim nowrap">{moment(one.when)}</span><About entry={one} /></li>)}
            </ul>
          )}
          <pre tabIndex={0} class="code">{pretty(shown.extra)}</pre>
        </Dialog>
      )}
    </>
  )
}

/** What an entry is about. */
function About({ entry }: { entry: EventLog }) {
  if (!entry.dag_id) return <span class="mono">{subject(entry.extra)}</span>
  return <a href={href(entry.run_id ? to('dags', entry.dag_id, 'runs', entry.run_id) : to('dags', entry.dag_id))} title={entry.run_id ?? undefined}>{[entry.dag_id, entry.run_id && runName(entry.run_id), entry.task_id].filter(Boolean).join(' / ')}</a>
}

function pretty(text: string | null): string {
  try {
    return text ? JSON.stringify(JSON.parse(text), null, 2) : '–'
  } catch {
    return text ?? ''
  }
}
