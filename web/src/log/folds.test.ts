import { describe, expect, it } from 'vitest'
import { chosen, findFolds, unfolded } from './folds'

const numbered = (lines: string[], from = 0) => lines.map((text, at) => [from + at, text] as const)

describe('findFolds', () => {
  it('folds a group, but not one with an error', () => {
    expect(findFolds(numbered(['::group::Setup', 'a', '::endgroup::', '::group::Work', 'ERROR b', '::endgroup::']))).toEqual([
      { kind: 'group', head: 0, from: 1, until: 3, name: 'Setup', open: false }, { kind: 'group', head: 3, from: 4, until: 6, name: 'Work', open: true },
    ])
  })
  it('folds lines of progress to the last', () => {
    expect(findFolds(numbered(['start', ...Array.from({ length: 9 }, (_, at) => `done ${at * 10} % [${'#'.repeat(at)}]`), 'end'], 7))).toEqual([{ kind: 'progress', head: 16, from: 8, until: 16, name: '', open: false }])
  })
  it('keeps numbers that are no progress, and warnings', () => expect(findFolds(numbered(['row 1', 'row 2', 'row 3', 'row 4', 'row 5', ...Array.from({ length: 5 }, (_, at) => `WARN ${at} %`)]))).toEqual([]))
  it('joins nothing over a gap', () => expect(findFolds([...numbered(['1/9', '2/9', '3/9']), ...numbered(['4/9', '5/9'], 50)])).toEqual([]))
})

describe('unfolded', () => {
  const folds = findFolds(numbered(['a', '::group::x', 'b', '::group::y', 'c', '::endgroup::', '::endgroup::', 'd']))
  it('leads from rows to lines and back', () => {
    const rows = unfolded(8, folds, (fold) => fold.open)
    expect(Array.from({ length: rows.count }, (_, at) => rows.line(at))).toEqual([0, 1, 7])
    expect([0, 1, 4, 7].map(rows.row)).toEqual([0, 1, 2, 2])
  })
  it('hides an inner group of an open one', () => {
    const rows = unfolded(8, folds, (fold) => fold.name === 'x')
    expect(Array.from({ length: rows.count }, (_, at) => rows.line(at))).toEqual([0, 1, 2, 3, 6, 7])
  })
})

describe('chosen', () => {
  it('leads to the next line that is shown', () => expect([0, 5, 6, 99].map(chosen([5, 9]).row)).toEqual([0, 0, 1, 1]))
})
