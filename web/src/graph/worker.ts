/** Calculates the layout of a graph, away from the thread that draws. */
import { Graph, layout } from '@dagrejs/dagre'
import { spans } from './frames'
import { apart, crossings } from './order'
import type { Placed, Shown } from './model'

export interface Job {
  id: number
  shown: Shown
  direction: 'LR' | 'TB'
}

onmessage = (event: MessageEvent<Job>) => {
  const { id, shown, direction } = event.data
  postMessage({ id, placed: best(shown, direction) })
}

/** Graphs with more edges keep the order that crosses least without a look at that of the file. */
const MOST_EDGES = 250

/** In the order of definition, unless fewer edges cross in another order. */
function best(shown: Shown, direction: 'LR' | 'TB'): Placed {
  const least = place(shown, direction, false)
  if (shown.edges.length > MOST_EDGES) return least
  const defined = place(shown, direction, true)
  return apart(shown, defined) && crossings(defined.edges) <= crossings(least.edges) ? defined : least
}

function place(shown: Shown, direction: 'LR' | 'TB', asDefined: boolean): Placed {
  const graph = new Graph({ compound: true, multigraph: false })
  graph.setGraph({ rankdir: direction, nodesep: shown.frames.length ? 40 : 14, ranksep: 44, edgesep: 8, marginx: 16, marginy: 24, ranker: shown.boxes.length > 400 ? 'longest-path' : 'network-simplex' })
  graph.setDefaultEdgeLabel(() => ({}))
  for (const frame of shown.frames) graph.setNode(`f:${frame.id}`, {})
  for (const frame of shown.frames) if (frame.parent) graph.setParent(`f:${frame.id}`, `f:${frame.parent}`)
  for (const box of shown.boxes) {
    graph.setNode(box.id, { width: box.width, height: box.height })
    if (box.parent) graph.setParent(box.id, `f:${box.parent}`)
  }
  for (const [from, to] of shown.edges) graph.setEdge(from, to)
  layout(graph, { disableOptimalOrderHeuristic: asDefined })
  const size = graph.graph() as { width?: number; height?: number }
  const node = (name: string) => graph.node(name) as { x: number; y: number; width: number; height: number }
  const boxes = Object.fromEntries(shown.boxes.map((box) => [box.id, { x: node(box.id).x - box.width / 2, y: node(box.id).y - box.height / 2 }]))
  const heights = spans(shown, Object.fromEntries(Object.entries(boxes).map(([id, at]) => [id, at.y])))
  return {
    width: size.width ?? 0,
    height: size.height ?? 0,
    boxes,
    frames: Object.fromEntries(
      shown.frames.map((frame) => {
        const at = node(`f:${frame.id}`)
        const { top, bottom } = heights[frame.id] ?? { top: at.y - at.height / 2, bottom: at.y + at.height / 2 }
        return [frame.id, { x: at.x - at.width / 2, y: top, width: at.width, height: bottom - top }]
      }),
    ),
    edges: graph.edges().map((edge: { v: string; w: string }) => ({ from: edge.v, to: edge.w, points: joined(graph.edge(edge) as { points: Point[] }, node(edge.v), node(edge.w), direction) })),
  }
}

interface Point {
  x: number
  y: number
}

/** The points of an edge, from the middle of one side to the middle of the other. */
function joined(edge: { points: Point[] }, from: Point & { width: number; height: number }, to: Point & { width: number; height: number }, direction: 'LR' | 'TB'): Point[] {
  const start = direction === 'LR' ? { x: from.x + from.width / 2, y: from.y } : { x: from.x, y: from.y + from.height / 2 }
  const end = direction === 'LR' ? { x: to.x - to.width / 2, y: to.y } : { x: to.x, y: to.y - to.height / 2 }
  return [start, ...edge.points.slice(1, -1), end]
}
