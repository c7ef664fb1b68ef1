/** The whole graph in a corner, with the part that is shown; a click or drag moves it. Only if the graph does not fit. */
import { color } from '../states'
import { t } from '../strings'
import type { TaskState } from '../api/types'
import type { Box, Placed } from './model'

const WIDTH = 180
const HEIGHT = 110

interface Props {
  placed: Placed
  boxes: readonly Box[]
  stateOf: ReadonlyMap<string, TaskState | null>
  view: { x: number; y: number; scale: number }
  room: { width: number; height: number }
  onMove: (x: number, y: number) => void
}

export function Minimap({ placed, boxes, stateOf, view, room, onMove }: Props) {
  const fits = view.x >= -1 && view.y >= -1 && view.x + placed.width * view.scale <= room.width + 1 && view.y + placed.height * view.scale <= room.height + 1
  if (fits || !room.width || room.width < 560) return null
  const scale = Math.min(WIDTH / placed.width, HEIGHT / placed.height)
  const move = (event: PointerEvent) => {
    if (event.type === 'pointermove' && event.buttons !== 1) return
    event.stopPropagation()
    const bounds = (event.currentTarget as Element).getBoundingClientRect()
    const [x, y] = [(event.clientX - bounds.left) / scale, (event.clientY - bounds.top) / scale]
    onMove(room.width / 2 - x * view.scale, room.height / 2 - y * view.scale)
  }
  return (
    <svg class="graph-map" width={placed.width * scale} height={placed.height * scale} viewBox={`0 0 ${placed.width} ${placed.height}`} role="img" aria-label={t.dag.minimap} onPointerDown={move} onPointerMove={move}>
      {boxes.map((box) => {
        const at = placed.boxes[box.id]
        const state = stateOf.get(box.id)
        return at && <rect key={box.id} x={at.x} y={at.y} width={box.width} height={box.height} style={{ fill: state ? color(state) : 'var(--line-strong)' }} />
      })}
      <rect class="graph-map-view" x={-view.x / view.scale} y={-view.y / view.scale} width={room.width / view.scale} height={room.height / view.scale} />
    </svg>
  )
}
