/** Data from the server that stays current: loaded by key, shown from memory first, loaded again on changes and on a timer. */
import { computed, signal, type ReadonlySignal, type Signal } from '@preact/signals'
import { useEffect, useMemo, useRef } from 'preact/hooks'
import { ApiError, isAway, message } from '../api/client'
import { onChange, type Topic } from './changes'

export interface Live<T> {
  readonly data: ReadonlySignal<T | undefined>
  readonly error: ReadonlySignal<string | null>
  readonly loading: ReadonlySignal<boolean>
  refresh(): Promise<void>
  /** Replace the data at once, before the server confirms it. */
  patch(change: (data: T) => T): void
}

interface Entry {
  data: Signal<unknown>
  error: Signal<string | null>
  loading: Signal<boolean>
  used: number
  /** When the data came. */
  at: number
}
const entries = new Map<string, Entry>()
const MOST_ENTRIES = 60
/** What was requested ahead, and is not shown so soon, is old. */
const UNUSED_MS = 3000

function entry(key: string): Entry {
  let found = entries.get(key)
  if (!found) {
    found = { data: signal(undefined), error: signal(null), loading: signal(false), used: 0, at: -Infinity }
    entries.set(key, found)
    if (entries.size > MOST_ENTRIES) {
      const oldest = [...entries].sort((a, b) => a[1].used - b[1].used)[0]
      if (oldest) entries.delete(oldest[0])
    }
  }
  found.used = performance.now()
  return found
}

/** Data that was requested before the part of a page that shows it is there. */
const begun = new Map<string, Promise<unknown>>()

/** Request what `useLive` is about to load by the same key and function. A failed request is left to it. */
export function begin<T>(key: string, load: () => Promise<T>): void {
  if (begun.has(key)) return
  const data = load()
  begun.set(key, data)
  const drop = () => begun.get(key) === data && begun.delete(key)
  data.then(() => setTimeout(drop, UNUSED_MS), drop)
}

function taken<T>(key: string): Promise<T> | undefined {
  const data = begun.get(key)
  begun.delete(key)
  return data as Promise<T> | undefined
}

export interface Options {
  /** Milliseconds between loads, also if nothing is known to have changed. 0: never. */
  every?: number
  /** Load again when one of these changes. */
  on?: Topic[]
  /** Show the data of the key before until that of this key arrives: for another page or filter of the same list. */
  keep?: boolean
  /** Milliseconds for which data that another page loaded needs no load. */
  fresh?: number
}

/** `key` names the data and its parameters; null loads nothing. */
export function useLive<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>, options: Options = {}): Live<T> {
  const { every = 30_000, on = [], keep = false, fresh = 0 } = options
  const before = useRef<T | undefined>(undefined)
  const live = useMemo(() => {
    const at = entry(key ?? '')
    let running: AbortController | null = null
    let again = false
    const refresh = async (): Promise<void> => {
      if (key === null) return
      if (running) {
        again = true
        return
      }
      running = new AbortController()
      at.loading.value = true
      try {
        at.data.value = await (taken<T>(key) ?? load(running.signal))
        at.at = performance.now()
        at.error.value = null
      } catch (error) {
        // What was received last stays as it is while the server is away, which the banner of all pages says.
        const stays = at.data.value !== undefined && error instanceof ApiError && isAway(error.status)
        if (!stays && !(error instanceof DOMException && error.name === 'AbortError')) at.error.value = message(error)
      } finally {
        running = null
        at.loading.value = false
      }
      if (again) {
        again = false
        await refresh()
      }
    }
    return {
      data: computed(() => {
        const data = at.data.value as T | undefined
        if (data !== undefined) before.current = data
        return data ?? (keep ? before.current : undefined)
      }),
      error: at.error,
      loading: at.loading,
      isFresh: () => performance.now() - at.at < fresh,
      refresh,
      patch: (change: (data: T) => T) => {
        if (at.data.value !== undefined) at.data.value = change(at.data.value as T)
      },
    }
  }, [key])
  useEffect(() => {
    if (key === null) return
    if (!live.isFresh()) void live.refresh()
    const timer = every ? setInterval(() => !document.hidden && void live.refresh(), every) : undefined
    const shown = () => !document.hidden && void live.refresh()
    document.addEventListener('visibilitychange', shown)
    const stop = on.length ? onChange(on, () => void live.refresh()) : undefined
    return () => {
      clearInterval(timer)
      document.removeEventListener('visibilitychange', shown)
      stop?.()
    }
  }, [key])
  return live
}

/** Data that came with other data: `useLive` with `fresh` does not load it. */
export function seed(key: string, data: unknown): void {
  const of = entry(key)
  of.data.value = data
  of.at = performance.now()
}

/** Forget what starts with this: it is loaded again when it is shown next. */
export function forget(prefix: string): void {
  for (const key of entries.keys()) if (key.startsWith(prefix)) entries.delete(key)
}
