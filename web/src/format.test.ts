import { expect, it, vi } from 'vitest'

vi.stubGlobal('localStorage', { getItem: () => 'utc', setItem: () => undefined })
vi.stubGlobal('document', { hidden: true, addEventListener: () => undefined })
vi.useFakeTimers({ now: new Date('2026-11-28T10:00:00Z') })
const { elapsed, runName } = await import('./format')

it('names runs by their date and type', () => {
  expect(runName('scheduled__2026-11-27T03:00:00+00:00')).toBe('Nov 27, 03:00 · scheduled')
  expect(runName('manual__2026-11-27T03:00:07.123456+00:00')).toBe('Nov 27, 03:00:07 · manual')
  expect(runName('asset_triggered__2026-11-27T03:00:00+00:00')).toContain('by assets')
  expect(runName('backfill__2025-01-02T00:00:00+00:00')).toBe('Jan 2 2025, 00:00 · backfill')
  expect(runName('my_run__of_today')).toBe('my_run__of_today')
  expect(runName('reproduce__scheduled__2026-11-27T03:00:00+00:00__2')).toBe('Nov 27, 03:00 · scheduled · reproduction 2')
  expect(runName('scheduled__2026-99-99T03:00:00')).toBe('scheduled__2026-99-99T03:00:00')
})

it('lets no time elapse before a start', () => {
  expect(elapsed('2026-11-28T10:00:03Z', null)).toBe(0)
  expect(elapsed('2026-11-28T09:59:58Z', null)).toBe(2)
})
