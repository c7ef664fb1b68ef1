/** How runs ended: bars of 24 hours, 7 or 30 days, each of which leads to its runs, and the success of each tag. */
import { api, ok } from '../api/client'
import type { components } from '../api/schema'
import { clock, day, midnight, shortMoment } from '../format'
import { useLive } from '../live/resource'
import { Segments } from '../parts/basic'
import { Mark } from '../parts/State'
import { href, query, setQuery } from '../shell/router'
import { t } from '../strings'

type Ended = Pick<components['schemas']['TrendBar'], 'start' | 'success' | 'failed'>
const o = t.overview
const HOUR = 3_600_000
/** Hours of a bar, and the bars of each range. */
const RANGES = { '24h': [1, 24], '7d': [6, 28], '30d': [24, 30] } as const
export type Range = keyof typeof RANGES

export function chosenRange(): Range {
  const given = query.value.get('range')
  return given === '7d' || given === '30d' ? given : '24h'
}

/** When the first bar begins: at a full hour, or at midnight in the zone of the pages. */
function beginning(range: Range, now: string): number {
  const [hours, bars] = RANGES[range]
  if (range === '24h') return (Math.floor(Date.parse(now) / HOUR) - bars + 1) * HOUR
  const today = Date.parse(midnight(day(now)) ?? now)
  return today - ((hours * bars) / 24 - 1) * 24 * HOUR
}

interface Column extends Ended {
  end: string
}

function columns(range: Range, first: number, bars: readonly Ended[]): Column[] {
  const [hours, many] = RANGES[range]
  const at = new Map(bars.map((bar) => [Math.floor((Date.parse(bar.start) - first) / (hours * HOUR)), bar]))
  return Array.from({ length: many }, (_, index) => ({
    success: at.get(index)?.success ?? 0,
    failed: at.get(index)?.failed ?? 0,
    start: new Date(first + index * hours * HOUR).toISOString(),
    end: new Date(first + (index + 1) * hours * HOUR).toISOString(),
  }))
}

const runsOf = (one: Column, state?: string) => href(`/runs?${new URLSearchParams({ ended_from: one.start, ended_until: one.end, ...(state ? { state } : {}) })}`)

/** The runs that ended within a range, as an address of the list of runs. */
export const endedSince = (range: Range, now: string, state?: string) => {
  const first = beginning(range, now)
  return `/runs?${new URLSearchParams({ ended_from: new Date(first).toISOString(), ...(state ? { state } : {}) })}`
}

export function useTrend(range: Range, now: string | undefined) {
  const [bar_hours, bars] = RANGES[range]
  const since = now ? new Date(beginning(range, now)).toISOString() : null
  return useLive(since && `trend ${range} ${since}`, () => ok(api.GET('/api/v2/home/trend', { params: { query: { since: since!, bar_hours, bars } } })), { every: 60_000, fresh: 30_000, keep: true })
}

export function Past({ range, now, bars, busy }: { range: Range; now: string; bars: readonly Ended[] | undefined; busy: boolean }) {
  return (
    <section class="card past" aria-busy={busy || undefined}>
      <header>
        <h2>{o.past}</h2>
        <Segments label={o.range} value={range} options={(Object.keys(RANGES) as Range[]).map((one) => [one, o.ranges[one]] as const)} onChange={(next) => setQuery({ range: next === '24h' ? null : next })} />
        <span class="end small soft hide-s"><Legend /></span>
      </header>
      <Columns shown={columns(range, beginning(range, now), bars ?? [])} range={range} />
    </section>
  )
}

function Legend() {
  return <span class="row" style={{ gap: '12px' }}><span class="row" style={{ gap: '4px' }}><Mark state="success" size={12} />{t.states.success}</span><span class="row" style={{ gap: '4px' }}><Mark state="failed" size={12} />{t.states.failed}</span></span>
}

const label = (range: Range, start: string) => (range === '24h' ? clock(start, false) : shortMoment(start).replace(/, .*/, ''))

/** Failures hang below the line, so that they are seen without their color. */
function Columns({ shown, range }: { shown: Column[]; range: Range }) {
  const up = Math.max(1, ...shown.map((one) => one.success))
  const down = Math.max(0, ...shown.map((one) => one.failed))
  const below = down ? Math.max(14, Math.min(36, (down / up) * 80)) : 2
  const named = range === '30d' ? 5 : 4
  return (
    <div class="hours" role="group" aria-label={`${o.past}, ${o.ranges[range]}`}>
      {shown.map((one, index) => {
        const text = o.ended(shortMoment(one.start), one.success, one.failed)
        const bars = (
          <>
            <span class="hours-up"><i style={{ height: `${one.success ? Math.max(3, (one.success / up) * 100) : 0}%`, background: 'var(--s-success)' }} /></span>
            <span class="hours-down" style={{ height: `${below}px` }}><i style={{ height: `${one.failed ? Math.max(20, (one.failed / down) * 100) : 0}%`, background: 'var(--s-failed)' }} /></span>
          </>
        )
        return (
          <div key={one.start}>
            {one.success + one.failed ? <a href={runsOf(one, one.success ? undefined : 'failed')} aria-label={text} title={text}>{bars}</a> : <span title={text}>{bars}</span>}
            <span class="hours-time">{(range === '24h' ? index % named === 3 : index % named === 0) ? label(range, one.start) : ''}</span>
          </div>
        )
      })}
    </div>
  )
}

const percent = (success: number, failed: number) => (success / Math.max(1, success + failed)) * 100
const sum = (bars: readonly Ended[]) => bars.reduce((all, one) => ({ success: all.success + one.success, failed: all.failed + one.failed }), { success: 0, failed: 0 })

/** For each tag: a column for each bar, how many of the runs succeeded, and how that changed within the range. */
export function Tags({ range, now, tags }: { range: Range; now: string; tags: readonly { tag: string; bars: Ended[] }[] }) {
  if (!tags.length) return null
  const first = beginning(range, now)
  return (
    <section class="card">
      <header><h2>{o.tags}</h2><span class="end small soft">{o.ranges[range]}</span></header>
      <ul class="rows">
        {tags.map(({ tag, bars }) => {
          const shown = columns(range, first, bars)
          const most = Math.max(1, ...shown.map((one) => one.success + one.failed))
          const all = sum(shown)
          const [before, after] = [sum(shown.slice(0, shown.length / 2)), sum(shown.slice(shown.length / 2))]
          const change = before.success + before.failed && after.success + after.failed ? Math.round(percent(after.success, after.failed) - percent(before.success, before.failed)) : 0
          return (
            <li key={tag}>
              <a class="grow clip" href={href(`/dags?tag=${encodeURIComponent(tag)}`)}>{tag}</a>
              <span class="tag-trend" aria-hidden="true">
                {shown.map((one) => {
                  const total = one.success + one.failed
                  return <i key={one.start}>{total > 0 && <><b style={{ height: `${(one.success / most) * 100}%`, background: 'var(--s-success)' }} /><b style={{ height: `${(one.failed / most) * 100}%`, background: 'var(--s-failed)' }} /></>}</i>
                })}
              </span>
              <span class={`small num nowrap ${change < 0 ? 'wrong' : 'soft'}`} style={{ minWidth: '44px', textAlign: 'right' }} title={o.change}>{change ? `${change > 0 ? '+' : '−'}${Math.abs(change)}` : ''}</span>
              <strong class="num" style={{ minWidth: '48px', textAlign: 'right' }} title={o.ended('', all.success, all.failed)}>{all.failed ? Math.min(99, Math.round(percent(all.success, all.failed))) : 100} %</strong>
            </li>
          )
        })}
      </ul>
    </section>
  )
}
