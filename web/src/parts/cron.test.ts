import { expect, test } from 'vitest'
import { inWords } from './cron'

test('cron is said in words, and what is no cron stays', () => {
  expect(inWords('*/30 * * * *')).toBe('every 30 minutes')
  expect(inWords('0 6 * * 1-5')).toBe('at 06:00, Monday through Friday')
  expect(inWords('0 3 * * *')).toBe('every day at 03:00')
  expect(inWords('a b c d e')).toBe('a b c d e')
})
