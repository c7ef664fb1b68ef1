/** Whether one layout of a graph is as good as another. Pure. */
import type { Placed, Shown } from './model'

interface Point {
  x: number
  y: number
}

/** How often the edges cross. */
export function crossings(edges: Placed['edges']): number {
  const parts = edges.flatMap((edge) => edge.points.slice(1).map((to, at) => ({ from: edge.points[at]!, to, edge })))
  let found = 0
  for (let a = 0; a < parts.length; a++) {
    for (let b = a + 1; b < parts.length; b++) {
      const [one, other] = [parts[a]!, parts[b]!]
      if (one.edge !== other.edge && cross(one.from, one.to, other.from, other.to)) found++
    }
  }
  return found
}

function cross(a: Point, b: Point, c: Point, d: Point): boolean {
  const side = (p: Point, q: Point, r: Point) => Math.sign((q.x - p.x) * (r.y - p.y) - (q.y - p.y) * (r.x - p.x))
  return side(a, b, c) * side(a, b, d) < 0 && side(c, d, a) * side(c, d, b) < 0
}

/** Whether open groups are apart from each other, and from the tasks that are not in them. */
export function apart(shown: Shown, placed: Placed): boolean {
  const parents = new Map(shown.frames.map((frame) => [frame.id, frame.parent]))
  const around = (parent: string | null): string[] => (parent === null ? [] : [parent, ...around(parents.get(parent) ?? null)])
  const things = [
    ...shown.boxes.map((box) => ({ within: around(box.parent), at: { ...placed.boxes[box.id]!, width: box.width, height: box.height } })),
    ...shown.frames.map((frame) => ({ within: [frame.id, ...around(frame.parent)], at: placed.frames[frame.id]! })),
  ]
  return shown.frames.every((frame) => {
    const own = placed.frames[frame.id]!
    const outer = around(frame.parent)
    return things.every(({ within, at }) => within.includes(frame.id) || isOuter(within, outer) || !overlap(own, at))
  })
}

/** Whether a frame is one of those around another one. */
const isOuter = (within: readonly string[], outer: readonly string[]) => within.length > 0 && within.length <= outer.length && within.every((id) => outer.includes(id)) && outer.includes(within[0]!)

type Box = Point & { width: number; height: number }
const overlap = (a: Box, b: Box) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height
