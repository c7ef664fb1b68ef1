/** Whether the server answers: it failed to, or a request has waited for longer than SLOW_MS. */
import { computed, signal } from '@preact/signals'

const SLOW_MS = 3000
/** The web process ends each of its requests within a minute, so a longer one waits for a connection that is dead. */
const DEAD_MS = 75_000
/** Whether the server answered the newest request. */
export const answered = signal(true)
const slow = signal(0)
/** Whether pages are up to date: the server answers, and soon. */
export const reachable = computed(() => answered.value && slow.value === 0)

/** Do something that waits for the server. While it takes long, `reachable` is false. */
export async function awaited<T>(work: () => Promise<T>): Promise<T> {
  let counted = false
  const timer = setTimeout(() => {
    counted = true
    slow.value++
  }, SLOW_MS)
  try {
    return await work()
  } finally {
    clearTimeout(timer)
    if (counted) slow.value--
  }
}

/** `fetch` with a limit of time. What changes something has none: its answer says whether it was done. */
export function fetched(input: RequestInfo | URL, init: RequestInit = {}): Promise<Response> {
  const request = new Request(input, init)
  const limited = request.method === 'GET' ? new Request(request, { signal: AbortSignal.any([request.signal, AbortSignal.timeout(DEAD_MS)]) }) : request
  return awaited(() => fetch(limited))
}
