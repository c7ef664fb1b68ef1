/** The tops and bottoms of open groups around their tasks. Pure. */
import type { Shown } from './model'

/** Room between an open group and its tasks, with its name above them; above an inner group; and below. dagre leaves too little for a name. */
const ABOVE_BOX = 22
const ABOVE_FRAME = 18
const BELOW = 10

export interface Span {
  top: number
  bottom: number
}

/** The span of each open group, by its ID. `tops` has the top of each box. */
export function spans(shown: Shown, tops: Record<string, number>): Record<string, Span> {
  const found: Record<string, Span> = {}
  const widen = (id: string, top: number, bottom: number): void => {
    const at = (found[id] ??= { top, bottom })
    at.top = Math.min(at.top, top)
    at.bottom = Math.max(at.bottom, bottom)
  }
  const parents = new Map(shown.frames.map((frame) => [frame.id, frame.parent]))
  for (const box of shown.boxes) {
    let top = (tops[box.id] ?? 0) - ABOVE_BOX
    let bottom = (tops[box.id] ?? 0) + box.height + BELOW
    for (let id = box.parent; id; id = parents.get(id) ?? null) {
      widen(id, top, bottom)
      top -= ABOVE_FRAME
      bottom += BELOW
    }
  }
  return found
}
