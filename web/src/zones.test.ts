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
  expect(inZone('at 2026-11-28T20:00:00+00:00')).toBe('at 2026-11-28T20:00:00+00:00')
})
