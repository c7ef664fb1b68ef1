import { describe, expect, it } from 'vitest'
import { curve, visible, type GraphData } from './model'

const node = (task_id: string, group: string | null) => ({ task_id, group, operator: 'X', is_mapped: false, is_setup: false, is_teardown: false, trigger_rule: 'all_success', queue: null, pool: 'p' })
const data: GraphData = {
  dag_id: 'd', version_number: 1, content_hash: 'h',
  nodes: [node('a', null), node('g.b', 'g'), node('g.h.c', 'g.h'), node('d', null)],
  groups: [{ group_id: 'g', parent: null }, { group_id: 'g.h', parent: 'g' }],
  edges: [[0, 1], [1, 2], [2, 3], [0, 3]],
}

describe('visible', () => {
  it('shows tasks, and frames for open groups', () => {
    const shown = visible(data, new Set())
    expect(shown.boxes.map((box) => [box.label, box.parent])).toEqual([['a', null], ['b', 'g'], ['c', 'g.h'], ['d', null]])
    expect(shown.frames.map((frame) => frame.label)).toEqual(['g', 'h'])
  })
  it('shows a folded group as one box, without the edges inside it', () => {
    const shown = visible(data, new Set(['g']))
    expect(shown.boxes.map((box) => box.label)).toEqual(['a', 'g', 'd'])
    expect(shown.edges).toEqual([['t:a', 'g:g'], ['g:g', 't:d'], ['t:a', 't:d']])
  })
  it('shows the outermost of two folded groups', () => expect(visible(data, new Set(['g', 'g.h'])).boxes.map((box) => box.label)).toEqual(['a', 'g', 'd']))
  it('keeps an inner group folded in an open one', () => expect(visible(data, new Set(['g.h'])).frames.map((frame) => frame.id)).toEqual(['g']))
  it('has no two equal edges', () => expect(visible({ ...data, edges: [[0, 1], [0, 2]] }, new Set(['g'])).edges).toHaveLength(1))
})

it('draws a path through all points', () => {
  expect(curve([{ x: 0, y: 0 }, { x: 10, y: 4 }])).toBe('M0,0C5,0 5,4 10,4')
  expect(curve([{ x: 0, y: 0 }])).toBe('')
})
