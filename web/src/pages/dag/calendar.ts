/** Days with their runs by state. Pure. */
import type { components } from '../../api/schema'

type Schema = components['schemas']
export interface DayOf {
  day: string
  counts: Record<string, number>
  total: number
}

/** The weeks that end with that of `until`, each with seven days from Monday; the outer ones have all days too. */
export function weeks(days: readonly Schema['DayOfRuns'][], until: string, count: number): DayOf[][] {
  const found = new Map<string, Record<string, number>>()
  for (const one of days) found.set(one.day, { ...found.get(one.day), [one.state]: one.count })
  const end = new Date(`${until}T00:00:00Z`)
  const monday = end.getTime() - ((end.getUTCDay() + 6) % 7) * 86_400_000
  return Array.from({ length: count }, (_, week) =>
    Array.from({ length: 7 }, (_, at) => {
      const day = new Date(monday - (count - 1 - week) * 7 * 86_400_000 + at * 86_400_000).toISOString().slice(0, 10)
      const counts = found.get(day) ?? {}
      return { day, counts, total: Object.values(counts).reduce((sum, one) => sum + one, 0) }
    }),
  )
}

export interface HourOf {
  hour: number
  total: number
  failed: number
}

/** How many runs each hour of the day had, and how many of them failed. */
export function byHour(hours: readonly Schema['HourOfRuns'][]): HourOf[] {
  const found = Array.from({ length: 24 }, (_, hour): HourOf => ({ hour, total: 0, failed: 0 }))
  for (const one of hours) {
    found[one.hour]!.total += one.count
    if (one.state === 'failed') found[one.hour]!.failed += one.count
  }
  return found
}
