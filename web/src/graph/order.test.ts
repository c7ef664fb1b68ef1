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

test('groups fold from the inside, and no more of them than is needed', () => {
  const node = (task_id: string, group: string | null) => ({ task_id, group, operator: 'X', is_mapped: false, is_setup: false, is_teardown: false, trigger_rule: 'all_success', queue: null, pool: 'p' })
  for (let seed = 1; seed <= 60; seed++) {
    let state = seed
    const below = (most: number) => (state = (state * 48271) % 2147483647) % most
    const groups = Array.from({ length: 1 + below(20) }, (_, at) => ({ group_id: `g${at}`, parent: at > 0 && below(2) ? `g${below(at)}` : null }))
    const nodes = Array.from({ length: 10 + below(150) }, (_, at) => node(`t${at}`, below(5) ? `g${below(groups.length)}` : null))
    const data: GraphData = { dag_id: 'd', version_number: 1, content_hash: 'h', edges: [], nodes, groups }
    const folded = [...initiallyFolded(data)]
    const boxes = folded.map((_, count) => visible(data, new Set(folded.slice(0, count))).boxes.length)
    expect(boxes.every((count) => count > 40)).toBe(true)
    const rest = new Set(nodes.map((one) => one.group).filter((group) => group !== null && !folded.includes(group)))
    expect(visible(data, new Set(folded)).boxes.length <= 40 || rest.size === 0).toBe(true)
  }
})
