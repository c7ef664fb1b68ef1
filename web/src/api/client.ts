/** Typed requests to the REST API. Errors of the server become ApiError; a lost session shows the login. */
import createClient, { type Middleware } from 'openapi-fetch'
import { signal } from '@preact/signals'
import { t } from '../strings'
import type { paths } from './schema'
import { answered, fetched } from './waits'

/** The path prefix under which the pages are served, without a slash at the end. */
export const base = new URL(document.baseURI).pathname.replace(/\/$/, '')
/** Whether the browser has a valid session. */
export const loggedIn = signal(true)

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message)
  }
}

export const api = createClient<paths>({ baseUrl: location.origin + base, headers: { Accept: 'application/json' }, fetch: fetched })

/** A cookie that pages may read. */
function cookie(name: string): string {
  const found = document.cookie.split('; ').find((one) => one.startsWith(`${name}=`))
  return found ? decodeURIComponent(found.slice(name.length + 1)) : ''
}

export function csrf(): Record<string, string> {
  return { 'X-CSRF-Token': cookie('paceline_csrf') }
}

const guard: Middleware = {
  onRequest({ request }) {
    if (request.method !== 'GET') request.headers.set('X-CSRF-Token', cookie('paceline_csrf'))
    return request
  },
  onResponse({ response }) {
    note(response.status)
  },
}
api.use(guard)

/** Whether this is the status of a server that works on nothing: its database, or a process behind a proxy, is away. */
export const isAway = (status: number) => [0, 502, 503, 504].includes(status)

function note(status: number): void {
  answered.value = !isAway(status)
  if (status === 401) loggedIn.value = false
}

/** The data of a response, or ApiError. */
export async function ok<T>(call: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  let answer
  try {
    answer = await call
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error
    answered.value = false
    throw new ApiError(0, t.noAnswer)
  }
  if (!answer.response.ok) throw new ApiError(answer.response.status, detail(answer.error, answer.response.status))
  return answer.data as T
}

/**
 * Change what is still as it was shown; otherwise ApiError 412.
 *
 * The ETag of the comparison goes along as If-Match, so no change fits in between. An ETag also covers what people do not
 * edit, such as the used slots of a pool: if only that has changed, read again.
 */
export async function changeIfSame<T extends object>(shown: T, fields: readonly (keyof T)[], read: () => Promise<{ data?: T; error?: unknown; response: Response }>, change: (headers: Record<string, string>) => Promise<{ data?: unknown; error?: unknown; response: Response }>): Promise<void> {
  for (let left = 3; left > 0; left--) {
    const answer = await read()
    const now = await ok(Promise.resolve(answer))
    if (fields.some((field) => JSON.stringify(now[field]) !== JSON.stringify(shown[field]))) break
    const changed = await change({ 'If-Match': answer.response.headers.get('ETag') ?? '*' })
    if (changed.response.status === 412) continue
    await ok(Promise.resolve(changed))
    return
  }
  throw new ApiError(412, t.changed)
}

/** A request to a path whose shape the API does not describe. */
export async function request<T>(path: string, init: RequestInit = {}): Promise<T> {
  const headers = new Headers(init.headers)
  headers.set('Accept', 'application/json')
  if (init.body) headers.set('Content-Type', 'application/json')
  if (init.method && init.method !== 'GET') headers.set('X-CSRF-Token', cookie('paceline_csrf'))
  return ok(
    fetched(base + path, { ...init, headers }).then(async (response) => {
      note(response.status)
      const text = await response.text()
      const json = (response.headers.get('content-type') ?? '').includes('json') && text ? (JSON.parse(text) as unknown) : text
      return response.ok ? { data: json as T, response } : { error: json, response }
    }),
  )
}

/** The message of an error response: FastAPI's list of problems, or a sentence. */
export function detail(error: unknown, status: number): string {
  const found = (error as { detail?: unknown } | undefined)?.detail
  if (typeof found === 'string') return found
  if (Array.isArray(found)) {
    return found
      .map((one: { loc?: unknown[]; msg?: string }) => `${(one.loc ?? []).filter((part) => part !== 'body').join('.')}: ${one.msg ?? ''}`)
      .join('; ')
  }
  return t.status(status)
}

export function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
