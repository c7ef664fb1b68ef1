/** The lines that contain a text or have a level, found by the server in the whole log, also in what is written later. */
import { useSignal, useSignalEffect } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { message } from '../api/client'
import type { Found, Level } from './levels'
import type { LogSource } from './source'

const MOST_MATCHES = 10_000
const LONGEST_TEXT = 10_000

export function useMatches(source: LogSource, text: string, level: Level) {
  const lines = useSignal<Found[]>([])
  const complete = useSignal(true)
  const searching = useSignal(false)
  const wrong = useSignal<string | null>(null)
  const place = useRef<{ offset: number; line: number } | null>(null)
  const search = useRef(0)

  const go = async () => {
    const mine = search.current
    searching.value = true
    try {
      while (place.current && lines.value.length < MOST_MATCHES) {
        const found = await source.search(text, level, place.current)
        if (mine !== search.current) return
        const known = lines.value.at(-1)?.line ?? -1
        const fresh = found.matches.filter((one) => one.line > known).map((one) => ({ line: one.line, text: one.text.slice(0, LONGEST_TEXT) }))
        if (fresh.length) lines.value = [...lines.value, ...fresh]
        complete.value = found.is_complete
        place.current = { offset: found.next_offset, line: found.next_line }
        if (found.is_complete) break
      }
    } catch (error) {
      if (mine === search.current) wrong.value = message(error)
    } finally {
      if (mine === search.current) searching.value = false
    }
  }
  useEffect(() => {
    search.current++
    lines.value = []
    complete.value = true
    wrong.value = null
    searching.value = false
    place.current = text || level ? { offset: 0, line: 0 } : null
    void go()
    return () => void search.current++
  }, [text, level])
  useSignalEffect(() => {
    // What was written since the last search is searched, too.
    const size = source.size.value
    if (place.current && !searching.peek() && complete.peek() && size > place.current.offset) void go()
  })
  return { lines, complete, searching, wrong }
}
