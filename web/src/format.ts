/** Times, durations and numbers as text. */
import { computed, signal } from '@preact/signals'
import { t } from './strings'

/** The browser's clock, each second while the page is visible. */
export const now = signal(Date.now())
setInterval(() => {
  if (!document.hidden) now.value = Date.now()
}, 1000)
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) now.value = Date.now()
})
export const minute = computed(() => Math.floor(now.value / 10_000) * 10_000)

/** "local", "utc", or the name of a zone such as Europe/Berlin. */
export const zone = signal(stored())
zone.subscribe((value) => localStorage.setItem('paceline.zone', value))

function stored(): string {
  const found = localStorage.getItem('paceline.zone') ?? 'local'
  return found === 'local' || found === 'utc' || isZone(found) ? found : 'local'
}

export function isZone(name: string): boolean {
  try {
    return Boolean(new Intl.DateTimeFormat('en-US', { timeZone: name }))
  } catch {
    return false
  }
}

export function setZone(name: string): void {
  if (name === 'local' || name === 'utc' || isZone(name)) zone.value = name === 'UTC' ? 'utc' : name
}

/** The zone of this machine: looking it up takes a millisecond, and each line of a log names it. */
let own = ''

/** The zone of the pages by its name. */
export function zoneName(): string {
  return zone.value === 'utc' ? 'UTC' : zone.value === 'local' ? (own ||= Intl.DateTimeFormat().resolvedOptions().timeZone) : zone.value
}

const pad = (value: number, length = 2) => String(value).padStart(length, '0')
/** Making a formatter takes longer than all else here. */
const formatters = new Map<string, Intl.DateTimeFormat>()

/** Parts of a moment in the zone of the pages. */
function parts(at: Date): [number, number, number, number, number, number] {
  if (zone.value === 'utc') return [at.getUTCFullYear(), at.getUTCMonth() + 1, at.getUTCDate(), at.getUTCHours(), at.getUTCMinutes(), at.getUTCSeconds()]
  if (zone.value === 'local') return [at.getFullYear(), at.getMonth() + 1, at.getDate(), at.getHours(), at.getMinutes(), at.getSeconds()]
  let formatter = formatters.get(zone.value)
  if (!formatter) formatters.set(zone.value, (formatter = new Intl.DateTimeFormat('en-US', { timeZone: zone.value, hourCycle: 'h23', year: 'numeric', month: 'numeric', day: 'numeric', hour: 'numeric', minute: 'numeric', second: 'numeric' })))
  const found = Object.fromEntries(formatter.formatToParts(at).map((part) => [part.type, Number(part.value)]))
  return [found['year']!, found['month']!, found['day']!, found['hour']!, found['minute']!, found['second']!]
}

const MOMENT = /\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00| UTC)/g

/** A sentence of the server with its times in the zone of the pages, which it names. */
export function inZone(text: string): string {
  const name = zoneName()
  return text.replace(MOMENT, (found) => `${moment(found.replace(' UTC', 'Z').replace(' ', 'T'))} ${name}`)
}

export function day(at: string | number | Date): string {
  const [y, m, d] = parts(new Date(at))
  return `${y}-${pad(m)}-${pad(d)}`
}

export function clock(at: string | number | Date, seconds = true): string {
  const [, , , h, m, s] = parts(new Date(at))
  return seconds ? `${pad(h)}:${pad(m)}:${pad(s)}` : `${pad(h)}:${pad(m)}`
}

export function moment(at: string | number | Date | null | undefined, seconds = true): string {
  return at === null || at === undefined ? '–' : `${day(at)} ${clock(at, seconds)}`
}

/** "3 m ago", "in 2 h". */
export function relative(at: string | number, from = minute.value): string {
  const seconds = (from - new Date(at).getTime()) / 1000
  const size = Math.abs(seconds)
  if (size < 10) return t.justNow
  const text = span(size)
  return seconds > 0 ? t.ago(text) : t.inFuture(text)
}

/** A duration with one unit: 42 s, 3 min, 5 h, 12 d. */
export function span(seconds: number): string {
  if (seconds < 60) return `${Math.floor(seconds)} ${t.units.s}`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} ${t.units.min}`
  if (seconds < 86_400 * 2) return `${Math.floor(seconds / 3600)} ${t.units.h}`
  return `${Math.floor(seconds / 86_400)} ${t.units.d}`
}

/** A duration exactly enough to compare: 0.42 s, 42.1 s, 3:07, 1:02:03, 2 d 03:04. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return '–'
  const s = Math.max(0, seconds)
  if (s < 10) return `${s.toFixed(2)} ${t.units.s}`
  if (s < 60) return `${s.toFixed(1)} ${t.units.s}`
  const whole = Math.round(s)
  const h = Math.floor(whole / 3600)
  const m = Math.floor((whole % 3600) / 60)
  if (h >= 48) return `${Math.floor(h / 24)} ${t.units.d} ${pad(h % 24)}:${pad(m)}`
  return h ? `${h}:${pad(m)}:${pad(whole % 60)}` : `${m}:${pad(whole % 60)}`
}

/** Seconds between two moments; an open end is now. */
export function elapsed(start: string | null | undefined, end: string | null | undefined): number | null {
  if (!start) return null
  // Never negative: `now` moves once a second, and a run may have started since.
  return Math.max(0, (end ? new Date(end).getTime() : now.value) - new Date(start).getTime()) / 1000
}

const numbers = new Intl.NumberFormat(t.locale)
const compacts = new Intl.NumberFormat(t.locale, { notation: 'compact', maximumFractionDigits: 1 })
export const count = (value: number) => numbers.format(value)
export const compact = (value: number) => (value < 10_000 ? numbers.format(value) : compacts.format(value))

export function bytes(value: number): string {
  const units = ['B', 'kB', 'MB', 'GB']
  let at = 0
  while (value >= 1000 && at < units.length - 1) {
    value /= 1000
    at++
  }
  return `${at && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[at]}`
}

const MONTHS = new Intl.DateTimeFormat(t.locale, { month: 'short', timeZone: 'UTC' })
/** "Nov 27, 03:00", with the year if it is not this one. */
export function shortMoment(at: string | number | Date, seconds = false): string {
  const [y, m, d] = parts(new Date(at))
  return `${MONTHS.format(Date.UTC(2000, m - 1))} ${d}${y === parts(new Date())[0] ? '' : ` ${y}`}, ${clock(at, seconds)}`
}

/** A run as people speak of it: "Nov 27, 03:00 · scheduled". A run whose ID a person chose is called by its ID. */
export function runName(runId: string): string {
  const found = /^(scheduled|manual|backfill|asset_triggered)__(\d{4}-\d\d-\d\dT\d\d:\d\d:(\d\d)\S*)$/.exec(runId)
  const again = /^reproduce__(.+)__(\d+)$/.exec(runId)
  if (again) return t.reproduction.name(runName(again[1]!), again[2]!)
  return found && !Number.isNaN(Date.parse(found[2]!)) ? `${shortMoment(found[2]!, found[3] !== '00')} · ${t.run.types[found[1]!]}` : runId
}

/** The start of a day in the zone of the pages, `later` days after it; null if the text is no day. */
export function midnight(day: string, later = 0): string | null {
  const [, y, m, d] = /^(\d{4})-(\d\d)-(\d\d)$/.exec(day) ?? []
  return y ? fromClock(Date.UTC(Number(y), Number(m) - 1, Number(d) + later)) : null
}

/** The moment at which clocks in the zone of the pages show "2026-11-28T03:00"; null if the text is no such time. */
export function momentOf(text: string): string | null {
  const at = /^\d{4}-\d\d-\d\dT\d\d:\d\d$/.test(text) ? Date.parse(`${text}Z`) : NaN
  return Number.isNaN(at) ? null : fromClock(at)
}

/** The moment at which clocks in the zone of the pages show what those in UTC show at `shown`. */
function fromClock(shown: number): string {
  const ahead = (at: number) => {
    const [y, m, d, h, min, s] = parts(new Date(at))
    return Date.UTC(y, m - 1, d, h, min, s) - at
  }
  // On a day on which the clocks change, the first guess has the offset of the other side.
  const guess = shown - ahead(shown)
  return new Date(shown - ahead(guess)).toISOString()
}
