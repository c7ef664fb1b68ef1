import { describe, expect, it } from 'vitest'
import { chosenRuns, chosenTasks, sum } from './chosen'

describe('filters for a selection', () => {
  it('never select a run of the same ID of another DAG', () => {
    expect(chosenRuns([['a', 'r1'], ['b', 'r2'], ['a', 'r3']])).toEqual([{ dag_ids: ['a'], dag_run_ids: ['r1', 'r3'] }, { dag_ids: ['b'], dag_run_ids: ['r2'] }])
  })
  it('never select another instance of a mapped task', () => {
    expect(chosenTasks([['x', -1], ['m', 2], ['n', 0], ['m', 5], ['y', -1]])).toEqual([
      { task_ids: ['x', 'y'], map_index: [-1] }, { task_ids: ['m'], map_index: [2, 5] }, { task_ids: ['n'], map_index: [0] },
    ])
  })
})

describe('the sum of results', () => {
  const result = (dag_id: string, count: number, runs: number) => ({ dry_run: true, count, runs, changes: [{ state: 'failed', becomes: 'none', count }], dags: [{ dag_id, count, runs }], errors: [dag_id] })
  it('adds DAGs', () => {
    const found = sum([result('a', 2, 1), result('b', 3, 2)])
    expect([found.count, found.runs, found.changes, found.dags.length, found.errors]).toEqual([5, 3, [{ state: 'failed', becomes: 'none', count: 5 }], 2, ['a', 'b']])
  })
  it('counts a run of two filters once', () => expect(sum([result('a', 2, 1), result('a', 3, 1)])).toMatchObject({ count: 5, runs: 1, dags: [{ count: 5, runs: 1 }] }))
})
