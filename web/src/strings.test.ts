import { expect, it } from 'vitest'
import { t } from './strings'

/** Parameters that are numbers of things. */
const COUNTS = new Set(['count', 'n', 'runs', 'rows', 'used', 'slots', 'from', 'to', 'total'])

/** Every text that takes values, called with 1 of each thing. */
function ofOne(value: unknown, path: string): [string, string][] {
  if (typeof value === 'function') {
    try {
      const names = /^\(?([^)=]*)/.exec(value.toString())![1]!.split(',').map((one) => one.trim())
      const text: unknown = (value as (...given: unknown[]) => unknown)(...names.map((name) => (COUNTS.has(name) ? 1 : 'x')))
      return typeof text === 'string' ? [[path, text]] : []
    } catch {
      return [] // a parameter is neither a number nor a text
    }
  }
  return value && typeof value === 'object' ? Object.entries(value).flatMap(([name, one]) => ofOne(one, `${path}.${name}`)) : []
}

/** One thing in the plural, or with the verb of several: "1 rows", "All 1", "1 DAG are". */
const WRONG = /\ball 1\b|\b1 [a-z]+(?<![sui])s\b|\b1 [a-z]+( [a-z]+)? (are|have|were|need|wait|match)\b/i

it('counts one thing in the singular', () => {
  const texts = ofOne(t, 't')
  expect(texts.length).toBeGreaterThan(100)
  expect(texts.filter(([, text]) => WRONG.test(text))).toEqual([])
  for (const wrong of ['1 rows selected', 'All 1 that match are selected', '1 of 1 slot are in use']) expect(wrong).toMatch(WRONG)
})
