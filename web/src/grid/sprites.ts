/** The cells of all states, drawn once and copied for each cell. */
import type { TaskState } from '../api/types'
import { resolved } from '../shell/theme'
import { STATES } from '../states'

export const CELL = 14

export interface Sprites {
  image: HTMLCanvasElement
  at: Record<string, number>
  scale: number
  line: string
  strong: string
  hover: string
  accent: string
  text: string
  states: Record<string, string>
}

export function sprites(scale: number): Sprites {
  const colors = resolved(...STATES.map((state) => `--s-${state}`), '--surface', '--line', '--line-strong', '--hover', '--accent', '--text-3')
  const image = document.createElement('canvas')
  image.width = CELL * STATES.length * scale
  image.height = CELL * scale
  const ctx = image.getContext('2d')!
  ctx.scale(scale, scale)
  const surface = colors[STATES.length]!
  const at: Record<string, number> = {}
  STATES.forEach((state, index) => {
    at[state] = index * CELL * scale
    ctx.save()
    ctx.translate(index * CELL, 0)
    draw(ctx, state, colors[index]!, surface)
    ctx.restore()
  })
  const rest = colors.slice(STATES.length)
  return {
    image, at, scale, line: rest[1]!, strong: rest[2]!, hover: rest[3]!, accent: rest[4]!, text: rest[5]!,
    states: Object.fromEntries(STATES.map((state, index) => [state, colors[index]!])),
  }
}

/** Filled with a sign for what has ended, outlined for what has not. */
function draw(ctx: CanvasRenderingContext2D, state: TaskState, color: string, ink: string): void {
  const box = (inset: number) => {
    ctx.beginPath()
    ctx.roundRect(inset, inset, CELL - 2 * inset, CELL - 2 * inset, 3)
  }
  const path = (...points: number[]) => {
    ctx.beginPath()
    for (let at = 0; at < points.length; at += 2) ctx.lineTo(points[at]!, points[at + 1]!)
  }
  ctx.lineCap = 'round'
  ctx.lineJoin = 'round'
  ctx.fillStyle = color
  ctx.strokeStyle = color
  ctx.lineWidth = 1.5
  const outlined = ['running', 'queued', 'scheduled', 'none', 'removed', 'up_for_reschedule', 'up_for_retry'].includes(state)
  if (!outlined) {
    box(0.5)
    ctx.fill()
    ctx.strokeStyle = ink
    ctx.fillStyle = ink
    ctx.lineWidth = 1.6
  } else if (state === 'scheduled') {
    ctx.setLineDash([2, 2])
    box(1.25)
    ctx.stroke()
    ctx.setLineDash([])
  } else if (state !== 'removed' && state !== 'none') {
    box(1.25)
    ctx.stroke()
  }
  switch (state) {
    case 'failed':
      path(4.6, 4.6, 9.4, 9.4); ctx.stroke(); path(9.4, 4.6, 4.6, 9.4); ctx.stroke(); break
    case 'upstream_failed':
      path(7, 3.6, 7, 7.8); ctx.stroke(); path(7, 10.3, 7, 10.4); ctx.stroke(); break
    case 'skipped':
      path(4.6, 9.4, 9.4, 4.6); ctx.stroke(); break
    case 'deferred':
      path(5.3, 4.6, 5.3, 9.4); ctx.stroke(); path(8.7, 4.6, 8.7, 9.4); ctx.stroke(); break
    case 'restarting':
      ctx.fillRect(5, 5, 4, 4); break
    case 'running':
      ctx.beginPath(); ctx.roundRect(3.6, 3.6, 6.8, 6.8, 2); ctx.fill(); break
    case 'queued':
      ctx.beginPath(); ctx.arc(7, 7, 1.7, 0, 7); ctx.fill(); break
    case 'up_for_retry':
      ctx.beginPath(); ctx.arc(7, 7, 2.8, 0.6, 5.4); ctx.stroke(); path(9.4, 3.4, 9.3, 5.4, 7.4, 5.1); ctx.stroke(); break
    case 'up_for_reschedule':
      path(7, 4.4, 7, 7.2, 9, 8.4); ctx.stroke(); break
    case 'none':
      ctx.lineWidth = 1.5; ctx.beginPath(); ctx.arc(7, 7, 1.8, 0, 7); ctx.stroke(); break
    case 'removed':
      path(4, 7, 10, 7); ctx.stroke(); break
  }
}
