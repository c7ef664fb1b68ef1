import { describe, expect, it } from 'vitest'
import { weeks } from './calendar'
import { diff, near } from './diff'
import { median, rolling } from './durations'
import { highlighted } from './python'

describe('diff', () => {
  const text = (found: ReturnType<typeof diff>) => found.map((line) => `${line.kind}${line.text}`)
  it('shows what was added, removed and kept', () => expect(text(diff('a\nb\nc', 'a\nx\nc\nd'))).toEqual([' a', '-b', '+x', ' c', '+d']))
  it('keeps equal texts', () => expect(diff('a\nb', 'a\nb').every((line) => line.kind === ' ')).toBe(true))
  it('numbers the lines of both', () => expect(diff('a', 'b\na').map((line) => [line.before, line.after])).toEqual([[null, 1], [1, 2]]))
  it('leaves out what is far from a change', () => {
    const found = near(diff('a\nb\nc\nd\ne\nf', 'a\nb\nx\nd\ne\nf'), 1)
    expect(found.map((line) => (typeof line === 'number' ? line : `${line.kind}${line.text}`))).toEqual([1, ' b', '-c', '+x', ' d', 2])
  })
  it('shows texts that have too many different lines as removed and added', () => {
    const [before, after] = ['a', 'b'].map((one) => Array.from({ length: 3000 }, (_, at) => `${one}${at}`).join('\n'))
    expect(diff(before!, after!)).toHaveLength(6000)
  })
})

describe('highlighted', () => {
  const kinds = (source: string) => highlighted(source).map((line) => line.filter((piece) => piece.kind).map((piece) => [piece.kind, piece.text]))
  it('finds keywords, strings, numbers and comments', () => expect(kinds('return "a", 1 # x')).toEqual([[['keyword', 'return'], ['string', '"a"'], ['number', '1'], ['comment', '# x']]]))
  it('carries on strings of several lines', () => expect(kinds('"""a\nif b\n"""')).toEqual([[['string', '"""'], ['string', 'a']], [['string', 'if b']], [['string', '"""']]]))
  it('loses no text', () => {
    const source = "@task\ndef f(x='\\''):\n    return x # '\"\n"
    expect(highlighted(source).map((line) => line.map((piece) => piece.text).join('')).join('\n')).toBe(source)
  })
})

it('finds medians', () => {
  expect([median([]), median([3, 1, 2]), median([4, 1])]).toEqual([null, 2, 2.5])
  expect(rolling([1, null, 3, 100], 2)).toEqual([1, 1, 3, 51.5])
})

it('fills the weeks of a calendar from Monday', () => {
  const found = weeks([{ day: '2026-11-22', state: 'failed', count: 1 }, { day: '2026-11-22', state: 'success', count: 1 }, { day: '2020-01-01', state: 'success', count: 1 }], '2026-11-22', 2)
  expect(found.map((week) => [week[0]!.day, week[6]!.day])).toEqual([['2026-11-09', '2026-11-15'], ['2026-11-16', '2026-11-22']])
  expect(found[1]![6]).toEqual({ day: '2026-11-22', counts: { failed: 1, success: 1 }, total: 2 })
})
