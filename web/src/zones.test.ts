import { beforeAll, expect, test, vi } from 'vitest'

beforeAll(() => {
  vi.stubGlobal('localStorage', { getItem: () => null, setItem: () => undefined })
  vi.stubGlobal('document', { hidden: false, addEventListener: () => undefined })
})

test('times and the sentences of the server are in the chosen zone', async () => {
  const { inZone, moment, setZone } = await import('./format')
  setZone('Asia/Kolkata')
  expect(moment('2026-11-28T20:00:00Z')).toBe('2026-11-29 01:30:00')
  expect(inZone('Retries at 2026-11-28T20:00:00+00:00. It was due at 2026-11-28 10:00:00 UTC.')).toBe('Retries at 2026-11-29 01:30:00 Asia/Kolkata. It was due at 2026-11-28 15:30:00 Asia/Kolkata.')
  setZone('no/zone')
  expect(moment('2026-11-28T20:00:00Z')).toBe('2026-11-29 01:30:00')
  setZone('UTC')
  expect(inZone('at 2026-11-28T20:00:00+00:00')).toBe('at 2026-11-28 20:00:00 UTC')
})

test('a day and a time of day are those of the chosen zone, also when its clocks change', async () => {
  const { midnight, momentOf, setZone } = await import('./format')
  setZone('Asia/Tokyo')
  expect(midnight('2026-11-28')).toBe('2026-11-27T15:00:00.000Z')
  setZone('America/New_York')
  // They change on November 1 at 02:00, and on March 8.
  expect([midnight('2026-11-01'), midnight('2026-11-01', 1)]).toEqual(['2026-11-01T04:00:00.000Z', '2026-11-02T05:00:00.000Z'])
  expect(momentOf('2026-11-01T03:00')).toBe('2026-11-01T08:00:00.000Z')
  expect(momentOf('2026-03-08T23:30')).toBe('2026-03-09T03:30:00.000Z')
  setZone('UTC')
  expect(midnight('2026-12-31', 1)).toBe('2027-01-01T00:00:00.000Z')
  expect([midnight('soon'), momentOf('soon')]).toEqual([null, null])
})
