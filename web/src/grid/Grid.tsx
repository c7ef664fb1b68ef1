/** Tasks x runs on one canvas. Labels are elements, but only those in view; all follow the same scroll position in one frame. */
import { useSignal, useSignalEffect } from '@preact/signals'
import { useLayoutEffect, useMemo, useRef } from 'preact/hooks'
import { duration, moment, now } from '../format'
import { Icon } from '../parts/icons'
import { go, href, to } from '../shell/router'
import { palette } from '../shell/theme'
import type { TaskState } from '../api/types'
import { t } from '../strings'
import { plainKey } from '../parts/List'
import { lengthOf, stateAt, type GridData, type GridRun, type Row } from './model'
import { CELL, sprites, type Sprites } from './sprites'
import { Tip } from './Tip'

const ROW = 24
const COLUMN = 18
/** Height of the bars of runs above the cells. */
const HEAD = 74
const BAR = 46

interface Props {
  dagId: string
  data: GridData
  rows: Row[]
  onFold: (group: string) => void
  height: number
  labelWidth: number
  /** The cell whose details are beside the grid. */
  selected: { runId: string; taskId: string } | null
  onOpen: (runId: string, taskId: string) => void
}

export function Grid({ dagId, data, rows, onFold, height, labelWidth, selected, onOpen }: Props) {
  const box = useRef<HTMLDivElement>(null)
  const canvas = useRef<HTMLCanvasElement>(null)
  const labels = useRef<HTMLDivElement>(null)
  const range = useSignal<[number, number]>([0, 60])
  const at = useSignal<{ row: number; run: number; x: number; y: number; mouse: boolean } | null>(null)
  // The oldest run is on the left, as time goes.
  const runs = useMemo(() => [...data.runs].reverse(), [data.runs])
  // The states of a row are found when it is drawn first: those of a group look at all its tasks.
  const lines = useMemo(() => new Map<number, (TaskState | null)[]>(), [data, rows])
  const line = (row: number) => {
    let found = lines.get(row)
    if (!found) lines.set(row, (found = runs.map((run) => stateAt(run, rows[row]!, data.codes))))
    return found
  }
  const chosen = selected && { row: rows.findIndex((row) => row.id === selected.taskId), run: runs.findIndex((run) => run.dag_run_id === selected.runId) }
  const state = useRef({ data, rows, runs, line, chosen, sprites: null as Sprites | null, frame: 0, drawn: [0, 0, 0, 0] })
  Object.assign(state.current, { data, rows, runs, line, chosen })

  const draw = () => {
    const { rows, runs, line, chosen } = state.current
    cancelAnimationFrame(state.current.frame)
    const view = box.current
    const image = canvas.current
    if (!view || !image) return
    const scale = devicePixelRatio || 1
    const art = state.current.sprites?.scale === scale ? state.current.sprites : (state.current.sprites = sprites(scale))
    const width = view.clientWidth - labelWidth
    const tall = view.clientHeight
    if (image.width !== Math.round(width * scale) || image.height !== Math.round(tall * scale)) {
      image.width = Math.round(width * scale)
      image.height = Math.round(tall * scale)
      image.style.width = `${width}px`
      image.style.height = `${tall}px`
    }
    const top = view.scrollTop
    const left = view.scrollLeft
    state.current.drawn = [top, left, view.clientWidth, view.clientHeight]
    const first = Math.floor(top / ROW)
    const last = Math.min(rows.length, Math.ceil((top + tall - HEAD) / ROW) + 1)
    if (range.value[0] !== first || range.value[1] !== last) range.value = [first, last]
    if (labels.current) labels.current.style.transform = `translateY(${first * ROW - top}px)`
    const ctx = image.getContext('2d')!
    ctx.setTransform(scale, 0, 0, scale, 0, 0)
    ctx.clearRect(0, 0, width, tall)
    const from = Math.floor(left / COLUMN)
    const until = Math.min(runs.length, Math.ceil((left + width) / COLUMN))
    const hover = at.value
    ctx.save()
    ctx.beginPath()
    ctx.rect(0, HEAD, width, tall - HEAD)
    ctx.clip()
    if (hover && hover.row >= 0) {
      ctx.fillStyle = art.hover
      ctx.fillRect(0, HEAD + hover.row * ROW - top, width, ROW)
    }
    if (hover) {
      ctx.fillStyle = art.hover
      ctx.fillRect(hover.run * COLUMN - left, HEAD, COLUMN, Math.min(tall, rows.length * ROW))
    }
    for (let row = first; row < last; row++) {
      const y = HEAD + row * ROW - top + (ROW - CELL) / 2
      const states = line(row)
      for (let run = from; run < until; run++) {
        const found = states[run]
        if (!found) continue
        const x = run * COLUMN - left + (COLUMN - CELL) / 2
        ctx.drawImage(art.image, art.at[found]!, 0, CELL * scale, CELL * scale, x, y, CELL, CELL)
        if ((runs[run]!.tries[rows[row]!.task] ?? 1) > 1) {
          ctx.fillStyle = art.states['up_for_retry']!
          ctx.beginPath()
          ctx.arc(x + CELL - 1, y + 1, 2.4, 0, 7)
          ctx.fill()
        }
      }
    }
    for (const framed of [chosen, hover && !hover.mouse ? hover : null]) {
      if (!framed || framed.row < 0 || framed.run < 0) continue
      ctx.strokeStyle = art.accent
      ctx.lineWidth = 2
      ctx.strokeRect(framed.run * COLUMN - left + 1, HEAD + framed.row * ROW - top + 4, COLUMN - 2, ROW - 8)
    }
    ctx.restore()
    drawRuns(ctx, art, runs.slice(from, until), from * COLUMN - left, width, hover ? hover.run - from : -1)
  }

  const plan = () => {
    cancelAnimationFrame(state.current.frame)
    state.current.frame = requestAnimationFrame(draw)
  }

  /** Draw, unless what the box shows and its size are as drawn last: an event of either comes also after `draw` has seen to it. */
  const follow = () => {
    const [view, [top, left, width, tall]] = [box.current!, state.current.drawn]
    // The panel takes a part of the width: the cell that it is about stays in view.
    if (view.clientWidth !== width && state.current.chosen) reveal(state.current.chosen.row, state.current.chosen.run)
    if (view.scrollTop !== top || view.scrollLeft !== left || view.clientWidth !== width || view.clientHeight !== tall) draw()
  }

  useLayoutEffect(() => {
    const view = box.current!
    view.scrollLeft = view.scrollWidth
    const sizes = new ResizeObserver(follow)
    sizes.observe(view)
    return () => {
      sizes.disconnect()
      cancelAnimationFrame(state.current.frame)
    }
  }, [])
  useLayoutEffect(() => {
    if (chosen) reveal(chosen.row, chosen.run)
  }, [chosen?.row, chosen?.run])
  useLayoutEffect(draw, [data, rows, height, labelWidth, chosen?.row, chosen?.run])
  useSignalEffect(() => {
    void palette.value
    state.current.sprites = null
    plan()
  })
  useSignalEffect(() => {
    void at.value
    plan()
  })

  const place = (event: MouseEvent): { row: number; run: number } | null => {
    const view = box.current!
    const bounds = canvas.current!.getBoundingClientRect()
    const x = event.clientX - bounds.left
    const y = event.clientY - bounds.top
    const run = Math.floor((x + view.scrollLeft) / COLUMN)
    const row = y < HEAD ? -1 : Math.floor((y - HEAD + view.scrollTop) / ROW)
    return x >= 0 && run < runs.length && row < rows.length ? { row, run } : null
  }
  const open = (row: number, run: number) => {
    const of = runs[run]
    const shown = rows[row]
    if (!of) return
    if (!shown) go(to('dags', dagId, 'runs', of.dag_run_id))
    else if (shown.task < 0) onFold(shown.id)
    else if (stateAt(of, shown, data.codes)) {
      // The details say more than the tip, which would ask for its facts.
      if (at.value?.mouse) at.value = null
      onOpen(of.dag_run_id, shown.id)
    }
  }
  const press = (event: KeyboardEvent) => {
    if (!plainKey(event)) return
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key]
    const before = chosen && chosen.run >= 0 ? chosen : (at.value ?? { row: -1, run: runs.length - 1 })
    if (move) {
      event.preventDefault()
      const row = Math.max(-1, Math.min(rows.length - 1, before.row + move[0]!))
      const run = Math.max(0, Math.min(runs.length - 1, before.run + move[1]!))
      reveal(row, run)
      at.value = { row, run, x: 0, y: 0, mouse: false }
      // Details beside the grid follow the cursor.
      if (chosen && rows[row] && rows[row].task >= 0) open(row, run)
    } else if (event.key === 'Enter' && at.value) {
      event.preventDefault()
      open(at.value.row, at.value.run)
    }
  }
  const reveal = (row: number, run: number) => {
    const view = box.current!
    if (run < 0) return
    const roomDown = view.clientHeight - HEAD
    const roomAcross = view.clientWidth - labelWidth
    if (row >= 0) view.scrollTop = Math.min(row * ROW, Math.max(view.scrollTop, (row + 1) * ROW - roomDown))
    view.scrollLeft = Math.min(run * COLUMN, Math.max(view.scrollLeft, (run + 1) * COLUMN - roomAcross))
  }

  const hover = at.value
  const [first, last] = range.value
  return (
    <>
    <div
      ref={box}
      class="grid-box"
      style={{ height: `${Math.min(height, HEAD + rows.length * ROW + 14)}px` }}
      onScroll={follow}
      tabIndex={0}
      role="application"
      aria-label={`${t.dag.grid}: ${t.keys.grid}`}
      onKeyDown={press}
      onBlur={() => (at.value = null)}
    >
      <div class="grid-layer" style={{ height: 0 }}>
        <canvas
          ref={canvas}
          style={{ left: `${labelWidth}px` }}
          class={hover?.mouse ? 'at' : ''}
          onMouseMove={(event) => {
            const found = place(event)
            at.value = found && { ...found, x: event.clientX, y: event.clientY, mouse: true }
          }}
          onMouseLeave={() => (at.value = null)}
          onClick={(event) => {
            const found = place(event)
            if (found) open(found.row, found.run)
          }}
        />
        <div class="grid-labels" style={{ width: `${labelWidth}px`, top: `${HEAD}px`, height: `${Math.max(0, Math.min(height, HEAD + rows.length * ROW + 14) - HEAD)}px` }}>
          <div ref={labels}>
            {rows.slice(first, last).map((row, index) => (
              <Label key={row.id} row={row} dagId={dagId} newest={runs.at(-1)} onFold={onFold} at={hover?.row === first + index} />
            ))}
          </div>
        </div>
        <div class="grid-corner small dim" style={{ width: `${labelWidth}px`, height: `${HEAD}px` }}>
          <span>{duration(Math.max(0, ...runs.map((run) => lengthOf(run, now.peek()))))}</span>
          <span style={{ marginTop: '18px' }}>0</span>
        </div>
      </div>
      <div style={{ width: `${labelWidth + runs.length * COLUMN + 8}px`, height: `${HEAD + rows.length * ROW}px` }} />
    </div>
    {/* Beside the box: its containment would place and clip what is fixed in it. */}
    {hover && runs[hover.run] && <Tip dagId={dagId} data={data} run={runs[hover.run]!} row={rows[hover.row]} x={hover.x} y={hover.y} shown={hover.mouse} />}
    </>
  )
}

function drawRuns(ctx: CanvasRenderingContext2D, art: Sprites, runs: GridRun[], x0: number, width: number, at: number): void {
  const longest = Math.max(0.001, ...runs.map((run) => lengthOf(run, now.peek())))
  let before = ''
  ctx.font = '11px Inter, system-ui, sans-serif'
  ctx.strokeStyle = art.line
  ctx.lineWidth = 1
  ctx.beginPath()
  ctx.moveTo(0, HEAD - 24.5)
  ctx.lineTo(width, HEAD - 24.5)
  ctx.stroke()
  let free = -100
  runs.forEach((run, index) => {
    const x = x0 + index * COLUMN
    if (index === at) {
      ctx.fillStyle = art.hover
      ctx.fillRect(x, 0, COLUMN, HEAD)
    }
    const tall = run.start_date ? 3 + (BAR - 5) * (lengthOf(run, now.peek()) / longest) : 3
    const color = art.states[run.state] ?? art.line
    ctx.fillStyle = color
    const top = HEAD - 25 - tall
    if (run.state === 'running' || run.state === 'queued') {
      ctx.strokeStyle = color
      ctx.lineWidth = 1.5
      ctx.beginPath()
      ctx.roundRect(x + 4.75, top + 0.75, COLUMN - 9.5, tall - 0.75, 2)
      ctx.stroke()
    } else {
      ctx.beginPath()
      ctx.roundRect(x + 4, top, COLUMN - 8, tall - (run.state === 'failed' ? 4 : 0), 2)
      ctx.fill()
      if (run.state === 'failed') ctx.fillRect(x + 4, HEAD - 28, COLUMN - 8, 3)
    }
    const day = moment(run.logical_date ?? run.run_after).slice(5, 10)
    if (day !== before && x > free) {
      ctx.fillStyle = art.text
      ctx.fillText(day, Math.min(Math.max(0, x) + 3, width - 34), HEAD - 9)
      free = x + 38
    }
    before = day
  })
}

function Label({ row, dagId, newest, onFold, at }: { row: Row; dagId: string; newest: GridRun | undefined; onFold: (group: string) => void; at: boolean }) {
  const style = { paddingLeft: `${6 + row.depth * 14}px`, height: `${ROW}px` }
  if (row.task < 0) {
    return (
      <button type="button" class={`grid-label group ${at ? 'at' : ''}`} style={style} tabIndex={-1} aria-expanded={!row.folded} onClick={() => onFold(row.id)} title={row.id}>
        <Icon name={row.folded ? 'right' : 'down'} />
        <span class="clip">{row.name}</span>
        <span class="dim num">{row.members.length}</span>
      </button>
    )
  }
  const text = <><span class="clip">{row.name}</span>{row.mapped && <span class="dim">[ ]</span>}</>
  return newest ? (
    <a class={`grid-label ${at ? 'at' : ''}`} style={style} tabIndex={-1} href={href(to('dags', dagId, 'runs', newest.dag_run_id, 'tasks', row.id))} title={row.id}>{text}</a>
  ) : (
    <span class="grid-label" style={style}>{text}</span>
  )
}
