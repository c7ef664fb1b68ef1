/** The audit log in sentences. Pure. */
import type { EventLog } from '../api/types'
import { t } from '../strings'

/** Names in the path of a request or beside a command, and in the body of a request that creates something. */
const IN_PATH = ['pool_name', 'variable_key', 'connection_id', 'worker', 'asset_id', 'backfill_id', 'bundle_name', 'table', 'tables', 'name'] as const
const IN_BODY = ['name', 'key', 'connection_id', 'dag_id'] as const

export function subject(extra: string | null): string {
  const request = object(parsed(extra))
  const body = object(request['body'])
  const found = [...IN_PATH.map((name) => request[name]), ...IN_BODY.map((name) => body[name])].map((value) => (Array.isArray(value) ? value.join(', ') : value)).find((value) => typeof value === 'string' && value)
  return typeof found === 'string' ? found : ''
}

function parsed(text: string | null): unknown {
  try {
    return JSON.parse(text ?? '{}')
  } catch {
    return {}
  }
}

function object(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}
}

/** An entry, with those that the same account made just before with the same kind of request and result. */
export type Entry = EventLog & { others: EventLog[] }

/** Entries that follow each other and differ only in what they are about, as one. */
export function fold(entries: readonly EventLog[]): Entry[] {
  const found: Entry[] = []
  for (const one of entries) {
    const last = found.at(-1)
    if (last && last.owner === one.owner && last.status === one.status && verb(last) === verb(one)) last.others.push(one)
    else found.push({ ...one, others: [] })
  }
  return found
}

/** What the account did: "paused a DAG", "paused 15 DAGs", or "tried to pause a DAG, which was refused". */
export function sentence(entry: Entry): string {
  const { done, and, some, tried } = t.audit
  const number = entry.others.length + 1
  const failed = (entry.status ?? 0) >= 400
  const words = done[verb(entry)] ?? [entry.event.replaceAll(/[_.]/g, ' '), entry.event.replaceAll(/[_.]/g, ' ')]
  const [infinitive, past, thing, rest = ''] = words
  const text = failed ? infinitive : past
  const said = thing ? `${text} ${some(number, thing)}${rest}` : and(text, number)
  return failed ? tried(said, entry.status!) : said
}

/** The things that a folded entry is about. */
export function subjects(entry: Entry, most = 3): string {
  const names = [...new Set([entry, ...entry.others].map((one) => [one.dag_id, one.run_id, one.task_id].filter(Boolean).join(' / ') || subject(one.extra)))].filter(Boolean)
  return names.slice(0, most).join(', ') + (names.length > most ? ` ${t.task.andMore(names.length - most)}` : '')
}

/** The kind of request. A change of a DAG is named by what it sets. */
function verb(entry: EventLog): string {
  const body = object(object(parsed(entry.extra))['body'])
  if (entry.event === 'patch_dag' || entry.event === 'patch_dags') return body['is_paused'] === true ? 'pause' : body['is_paused'] === false ? 'unpause' : entry.event
  if (entry.event === 'update_dag_run_state' || entry.event === 'patch_dag_run') return body['state'] ? `mark_${String(body['state'])}` : 'note' in body ? 'note_run' : entry.event
  if (entry.event.startsWith('patch_task_instance') && 'note' in body && !body['new_state']) return 'note_task'
  return entry.event
}
