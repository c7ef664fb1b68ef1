import { expect, test } from 'vitest'
import { spans } from './frames'
import type { Box, Shown } from './model'

const box = (id: string, parent: string): Box => ({ id, parent, label: id, task: 0, members: [0], width: 134, height: 36, operator: '', mapped: false })
const shown = (frames: [string, string | null][], boxes: [string, string][]): Shown => ({
  frames: frames.map(([id, parent]) => ({ id, label: id, parent })),
  boxes: boxes.map(([id, parent]) => box(id, parent)),
  edges: [],
})

test('neighbors that dagre places above each other leave room for the name of the lower one', () => {
  const found = spans(shown([['upper', null], ['lower', null]], [['a', 'upper'], ['b', 'lower']]), { a: 116, b: 208 })

  expect(found.upper!.bottom).toBeLessThan(found.lower!.top)
  expect(208 - found.lower!.top).toBeGreaterThanOrEqual(20)
})

test('a group spans all its tasks and inner groups, with room for both names', () => {
  const found = spans(shown([['outer', null], ['inner', 'outer']], [['a', 'inner'], ['b', 'inner'], ['c', 'outer']]), { a: 100, b: 200, c: 20 })

  expect(found.inner).toEqual({ top: 78, bottom: 246 })
  expect(found.outer!.top).toBeLessThan(20)
  expect(found.outer!.bottom).toBeGreaterThan(found.inner!.bottom)
  expect(spans(shown([['outer', null], ['inner', 'outer']], [['a', 'inner']]), { a: 100 }).outer!.top).toBeLessThanOrEqual(100 - 22 - 16)
})
