/** What changed on the server: one event stream for the page, closed while it is hidden; a timer stands in for it while it is down. */
import { base, loggedIn } from '../api/client'
import { answered } from '../api/waits'

/** "runs": runs and tasks of any DAG, and the DAGs themselves. "dag:<id>": those of one DAG. */
export type Topic = 'runs' | `dag:${string}`
/** `since`: when it began to listen, and its page to load. */
type Listener = { topics: readonly Topic[]; call: () => void; waiting: boolean; last: number; since: number }

const listeners = new Set<Listener>()
/** A page loads its data again at most this often. */
const SLOWEST_MS = 400
const POLL_MS = 4000
/** After the first stream is there, until the page loads again what it loaded before. */
const FIRST_MS = 1500

export function onChange(topics: readonly Topic[], call: () => void): () => void {
  const listener: Listener = { topics, call, waiting: false, last: 0, since: performance.now() }
  listeners.add(listener)
  connect()
  return () => listeners.delete(listener)
}

/** Tell the pages, or those that loaded before a moment, that something changed; each loads at once, but at most once in SLOWEST_MS. */
export function changed(topics: ReadonlySet<Topic> | 'all', before = Infinity): void {
  for (const listener of listeners) {
    if (listener.waiting || listener.since > before || (topics !== 'all' && !listener.topics.some((one) => topics.has(one)))) continue
    listener.waiting = true
    setTimeout(
      () => {
        listener.waiting = false
        listener.last = performance.now()
        if (!document.hidden && listeners.has(listener)) listener.call()
      },
      Math.max(0, SLOWEST_MS - (performance.now() - listener.last)),
    )
  }
}

/** After a change of this page's own, without waiting for the server to tell. */
export function nudge(...topics: Topic[]): void {
  changed(new Set(topics))
}

interface Changes {
  runs: { dag_id: string; dag_run_id: string; state: string }[]
  more: boolean
  dags: boolean
}

let source: EventSource | null = null
let streaming = false
let streamed = false

function connect(): void {
  if (source || document.hidden || !loggedIn.value) return
  const opened = new EventSource(`${base}/api/v2/events`)
  source = opened
  opened.addEventListener('ready', () => {
    streaming = true
    answered.value = true
    // What changed while there was no stream is unknown. At first that is little, and the page still draws what it has loaded.
    if (streamed) changed('all')
    else setTimeout(changed, FIRST_MS, 'all', performance.now())
    streamed = true
  })
  opened.addEventListener('changes', (event) => {
    const data = JSON.parse((event as MessageEvent<string>).data) as Changes
    if (data.more) changed('all')
    else changed(new Set<Topic>(['runs', ...data.runs.map((run): Topic => `dag:${run.dag_id}`)]))
  })
  opened.addEventListener('reset', () => {
    answered.value = true
    changed('all')
  })
  opened.addEventListener('away', () => (answered.value = false))
  opened.addEventListener('error', () => {
    streaming = false
    // After an answer that is no stream, such as 401 or 503, the browser does not try again.
    if (opened.readyState === EventSource.CLOSED) {
      source = null
      setTimeout(connect, POLL_MS)
    }
  })
}

document.addEventListener('visibilitychange', () => {
  if (document.hidden) {
    source?.close()
    source = null
    streaming = false
  } else if (listeners.size) connect()
})
setInterval(() => {
  if (!streaming && !document.hidden && loggedIn.value) changed('all')
}, POLL_MS)
