import { expect, test } from 'vitest'
import { initiallyFolded, visible, type Box, type GraphData, type Placed, type Shown } from './model'
import { apart, crossings } from './order'

const edge = (from: string, to: string, ...points: [number, number][]) => ({ from, to, points: points.map(([x, y]) => ({ x, y })) })

test('edges that cross are counted, edges that meet are not', () => {
  expect(crossings([edge('a', 'd', [0, 0], [10, 10]), edge('b', 'c', [0, 10], [10, 0])])).toBe(1)
  expect(crossings([edge('a', 'c', [0, 0], [10, 5]), edge('b', 'c', [0, 10], [10, 5])])).toBe(0)
})

test('a group must not overlap a neighbor or a task outside, but its own groups and tasks are in it', () => {
  const box = (id: string, parent: string | null): Box => ({ id, parent, label: id, task: 0, members: [0], width: 10, height: 10, operator: '', mapped: false })
  const shown: Shown = { boxes: [box('a', 'in'), box('b', null)], frames: [{ id: 'out', label: 'out', parent: null }, { id: 'in', label: 'in', parent: 'out' }, { id: 'other', label: 'other', parent: null }], edges: [] }
  const placed = (b: number, other: number): Placed => ({
    width: 500, height: 500, edges: [], boxes: { a: { x: 20, y: 20 }, b: { x: b, y: 20 } },
    frames: { out: { x: 0, y: 0, width: 60, height: 60 }, in: { x: 10, y: 10, width: 40, height: 40 }, other: { x: other, y: 0, width: 60, height: 60 } },
  })

  expect(apart(shown, placed(200, 100))).toBe(true)
  expect(apart(shown, placed(55, 100))).toBe(false)
  expect(apart(shown, placed(200, 50))).toBe(false)
})

test('large groups fold until a page holds the rest; a small graph stays open', () => {
  const node = (task_id: string, group: string | null) => ({ task_id, group, operator: 'X', is_mapped: false, is_setup: false, is_teardown: false, trigger_rule: 'all_success', queue: null, pool: 'p' })
  const data = (sizes: number[]): GraphData => ({
    dag_id: 'd', version_number: 1, content_hash: 'h', edges: [],
    nodes: sizes.flatMap((size, group) => Array.from({ length: size }, (_, at) => node(`g${group}.t${at}`, `g${group}`))),
    groups: sizes.map((_, group) => ({ group_id: `g${group}`, parent: null })),
  })

  expect(initiallyFolded(data([5, 5])).size).toBe(0)
  expect([...initiallyFolded(data([5, 40, 15]))]).toEqual(['g1'])
  expect(visible(data([30, 30, 30]), initiallyFolded(data([30, 30, 30]))).boxes.length).toBeLessThanOrEqual(40)
})
