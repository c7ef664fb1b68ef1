/** What a request in the audit log was about, when it was about no DAG. */

/** Names in the path of a request or beside a command, and in the body of a request that creates something. */
const IN_PATH = ['pool_name', 'variable_key', 'connection_id', 'worker', 'asset_id', 'backfill_id', 'name'] as const
const IN_BODY = ['name', 'key', 'connection_id', 'dag_id'] as const

export function subject(extra: string | null): string {
  const request = object(parsed(extra))
  const body = object(request['body'])
  const found = [...IN_PATH.map((name) => request[name]), ...IN_BODY.map((name) => body[name])].find((value) => typeof value === 'string' && value)
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
