/** The lines of one log by number: loaded in chunks around what is shown, and followed while the try runs. */
import { signal } from '@preact/signals'
import { api, message, ok } from '../api/client'
import type { LogLines } from '../api/types'
import type { Found, Level } from './levels'

export interface LogPath {
  dag_id: string
  dag_run_id: string
  task_id: string
  try_number: number
}
const CHUNK = 500
const MOST_CHUNKS = 60
const MOST_ERRORS = 20_000
/** Characters of a line that are shown. */
const LONGEST = 10_000

export class LogSource {
  readonly total = signal(0)
  readonly size = signal(0)
  readonly final = signal(false)
  readonly error = signal<string | null>(null)
  readonly loaded = signal(false)
  /** Counts changes of lines that are in memory. */
  readonly version = signal(0)
  longest = 80
  private readonly chunks = new Map<number, (string | undefined)[]>()
  private readonly asked = new Set<number>()
  private end = 0
  private busy = false

  constructor(
    private readonly path: LogPath,
    private readonly mapIndex: number,
    /** The end of the log, if it came with the page. */
    private readonly first: LogLines | null = null,
  ) {
    if (first && first.total_lines !== null) this.begin(first)
  }

  private begin(part: LogLines): void {
    this.put(part.first_line ?? 0, part.lines)
    this.total.value = part.total_lines ?? part.lines.length
    this.at(part)
    this.loaded.value = true
  }

  /** Load the last lines, or what was written since. */
  async follow(): Promise<void> {
    if (this.busy || this.final.value) return
    this.busy = true
    try {
      if (!this.loaded.value) {
        let part = this.first ?? (await this.lines({ limit: 1000 }))
        // The lines of a huge log are counted at the first request for a line by its number.
        if (part.total_lines === null) part = await this.lines({ line: 0, limit: 1 }).then((first) => ({ ...part, total_lines: first.total_lines, first_line: (first.total_lines ?? 0) - part.lines.length }))
        this.begin(part)
      } else {
        let more = true
        while (more) {
          const part = await this.lines({ offset: this.end, limit: 5000 })
          this.put(this.total.value, part.lines)
          this.total.value += part.lines.length
          more = part.lines.length > 0 && part.next_offset < part.size
          this.at(part)
        }
      }
      this.error.value = null
    } catch (error) {
      this.error.value = message(error)
    } finally {
      this.busy = false
    }
  }

  private at(part: { next_offset: number; size: number; is_final: boolean }): void {
    this.end = part.next_offset
    this.size.value = part.size
    this.final.value = part.is_final && part.next_offset >= part.size
  }

  line(number: number): string | undefined {
    return this.chunks.get(Math.floor(number / CHUNK))?.[number % CHUNK]
  }

  /** Load the chunks of a range of lines if they are missing. */
  need(first: number, last: number): void {
    for (let chunk = Math.floor(first / CHUNK); chunk <= Math.floor(last / CHUNK); chunk++) {
      const from = chunk * CHUNK
      const until = Math.min(this.total.value, from + CHUNK)
      const has = this.chunks.get(chunk)
      const missing = !has || Array.from({ length: until - from }, (_, at) => has[at]).some((one) => one === undefined)
      if (!missing || this.asked.has(chunk) || from >= this.total.value) continue
      this.asked.add(chunk)
      this.lines({ line: from, limit: CHUNK })
        .then((part) => this.put(from, part.lines.slice(0, this.total.value - from)))
        .catch((error: unknown) => (this.error.value = message(error)))
        .finally(() => this.asked.delete(chunk))
    }
  }

  /** The lines in memory with their numbers, in order. */
  *all(): Iterable<readonly [number, string]> {
    for (const chunk of [...this.chunks.keys()].sort((a, b) => a - b)) {
      for (const [at, line] of this.chunks.get(chunk)!.entries()) if (line !== undefined) yield [chunk * CHUNK + at, line]
    }
  }

  /** How many rows of so many columns a line takes on average. */
  meanRows(columns: number): number {
    let [rows, lines] = [0, 0]
    for (const [, line] of this.all()) {
      rows += Math.max(1, Math.ceil(Math.min(line.length, LONGEST) / columns))
      lines++
    }
    return lines ? rows / lines : 1
  }

  /** All lines of level error. */
  async errors(): Promise<Found[]> {
    const found: Found[] = []
    for (let place = { offset: 0, line: 0 }; ; ) {
      const part = await this.search('', 'error', place)
      found.push(...part.matches)
      if (part.is_complete || found.length >= MOST_ERRORS) return found
      place = { offset: part.next_offset, line: part.next_line }
    }
  }

  async search(text: string, level: Level, more: { offset: number; line: number }) {
    return ok(
      api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/logs/{try_number}/search', {
        params: { path: this.path, query: { ...(text ? { text } : {}), ...(level === 'warning' || level === 'error' ? { level } : {}), map_index: this.mapIndex, limit: 2000, ...more } },
      }),
    )
  }

  /** The whole log as a file. */
  async download(): Promise<Blob> {
    const parts: string[] = []
    for (let offset = 0; ; ) {
      const part = await this.lines({ offset, limit: 5000 })
      parts.push(...part.lines.map((line) => `${line}\n`))
      offset = part.next_offset
      if (!part.lines.length || offset >= part.size) return new Blob(parts, { type: 'text/plain' })
    }
  }

  private lines(query: { line?: number; offset?: number; limit: number }) {
    return ok(
      api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/logs/{try_number}/lines', {
        params: { path: this.path, query: { ...query, map_index: this.mapIndex } },
      }),
    )
  }

  private put(first: number, lines: readonly string[]): void {
    lines.forEach((line, at) => {
      const number = first + at
      const chunk = Math.floor(number / CHUNK)
      let of = this.chunks.get(chunk)
      if (!of) this.chunks.set(chunk, (of = []))
      of[number % CHUNK] = line
      if (line.length > this.longest) this.longest = Math.min(line.length, LONGEST)
    })
    for (const old of this.chunks.keys()) {
      if (this.chunks.size <= MOST_CHUNKS) break
      this.chunks.delete(old)
    }
    if (lines.length) this.version.value++
  }
}
