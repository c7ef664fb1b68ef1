import { expect, test } from 'vitest'
import { inWords } from './cron'

test('cron is said in words, and what is no cron stays', () => {
  expect(inWords('*/30 * * * *')).toBe('every 30 minutes')
  expect(inWords('0 6 * * 1-5')).toBe('at 06:00, Monday through Friday')
  expect(inWords('0 6 * * MON')).toBe('at 06:00, only on Monday')
  expect(inWords('0 3 * * *')).toBe('every day at 03:00')
  for (const other of ['a b c d e', '99 * * * *', 'every hour', '14 events from 2026-01-01 to 2026-12-24', 'on s3://shop/reports', 'never, only by hand']) expect(inWords(other)).toBe(other)
})

test('cron is said in words beside a zone, data intervals, other expressions and assets', () => {
  expect(inWords('0 3 * * * Asia/Kolkata')).toBe('every day at 03:00 Asia/Kolkata')
  expect(inWords('0 0 * * * Europe/Berlin, data intervals')).toBe('every day at 00:00 Europe/Berlin, data intervals')
  expect(inWords('0 3 * * *, 0,30 15 * * *')).toBe('every day at 03:00, at 0 and 30 minutes past the hour, at 15:00')
  expect(inWords('0 3 * * *, and on s3://shop/reports')).toBe('every day at 03:00, and on s3://shop/reports')
})
