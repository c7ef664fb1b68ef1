import { describe, expect, it } from 'vitest'
import { countsAt, initiallyFolded, lengthOf, rows, stateAt, type GridRun } from './model'

const data = {
  tasks: [
    { task_id: 'start', group: null, is_mapped: false },
    { task_id: 'load.a', group: 'load', is_mapped: false },
    { task_id: 'load.inner.b', group: 'load.inner', is_mapped: true },
    { task_id: 'end', group: null, is_mapped: false },
  ],
  groups: [{ group_id: 'load', parent: null }, { group_id: 'load.inner', parent: 'load' }],
}
const codes = { s: 'success', f: 'failed', r: 'running' }
const run = (states: string): GridRun => ({ dag_run_id: 'r', run_type: 'manual', state: 'running', logical_date: null, run_after: '', start_date: null, end_date: null, version_number: 1, states, tries: {}, mapped: { 2: { success: 3, failed: 1 } } })

describe('rows', () => {
  it('shows groups around their tasks, with names that leave out the group', () => {
    expect(rows(data, new Set()).map((row) => [row.name, row.depth])).toEqual([['start', 0], ['load', 0], ['a', 1], ['inner', 1], ['b', 2], ['end', 0]])
  })
  it('hides what is in a folded group, and keeps its members', () => {
    const found = rows(data, new Set(['load']))
    expect(found.map((row) => row.name)).toEqual(['start', 'load', 'end'])
    expect(found[1]!.members).toEqual([1, 2])
  })
  it('shows tasks that fit a filter with their groups, also folded ones', () => {
    expect(rows(data, new Set(['load']), 'B').map((row) => row.name)).toEqual(['load', 'inner', 'b'])
  })
})

describe('states', () => {
  const [start, load] = rows(data, new Set())
  it('is that of the task', () => expect(stateAt(run('srfs'), start!, codes)).toBe('success'))
  it('is that of the member of a group that needs most attention', () => expect(stateAt(run('srfs'), load!, codes)).toBe('failed'))
  it('is none for a task that the run does not have', () => expect(stateAt(run(' rfs'), start!, codes)).toBeNull())
  it('is none for an unknown code', () => expect(stateAt(run('?rfs'), start!, codes)).toBe('none'))
  it('counts the tasks of a group and the instances of a mapped task', () => {
    expect(countsAt(run('srfs'), load!, codes)).toEqual({ running: 1, failed: 1 })
    expect(countsAt(run('srfs'), rows(data, new Set())[4]!, codes)).toEqual({ success: 3, failed: 1 })
  })
})

it('folds the groups of a large DAG only', () => {
  expect(initiallyFolded(data).size).toBe(0)
  expect(initiallyFolded(data, 3).size).toBe(2)
})

it('measures a run until now, or until its end', () => {
  expect(lengthOf({ start_date: '2026-01-01T00:00:00Z', end_date: null }, Date.parse('2026-01-01T00:00:05Z'))).toBe(5)
  expect(lengthOf({ start_date: null, end_date: null }, 0)).toBe(0)
})
