/** The graph of a DAG version with the states of a run: groups fold, wheel and drag move, a search finds a task. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { Button, Search, Segments } from '../parts/basic'
import { Mark } from '../parts/State'
import { go, href, to } from '../shell/router'
import { color, FAILURES, label, worst } from '../states'
import { t } from '../strings'
import type { TaskState } from '../api/types'
import { Minimap } from './Minimap'
import { cached, layout, layoutKey } from './layouts'
import { curve, initiallyFolded, visible, type Box, type GraphData, type Placed } from './model'

interface Props {
  data: GraphData
  /** The state of a task by its index; null without a run. */
  stateOf: (task: number) => TaskState | null
  countsOf: (task: number) => Record<string, number>
  runId: string | null
  height: number
}
interface View {
  x: number
  y: number
  scale: number
}

export function Graph({ data, stateOf, countsOf, runId, height }: Props) {
  const [folded, setFolded] = useState<ReadonlySet<string>>(() => initiallyFolded(data))
  const [direction, setDirection] = useState<'LR' | 'TB'>(() => (innerWidth < 860 ? 'TB' : 'LR'))
  const [placed, setPlaced] = useState<Placed | null>(null)
  const [view, setView] = useState<View>({ x: 0, y: 0, scale: 1 })
  const [search, setSearch] = useState('')
  const box = useRef<HTMLDivElement>(null)
  const drag = useRef<{ x: number; y: number; moved: boolean } | null>(null)
  const shown = useMemo(() => visible(data, folded), [data.content_hash, folded])
  const key = layoutKey(data, folded, direction)

  useEffect(() => {
    let current = true
    const found = cached(key)
    const use = (layout: Placed) => {
      if (!current) return
      setPlaced(layout)
      fit(layout)
    }
    if (found) use(found)
    else void layout(key, shown, direction).then(use)
    return () => void (current = false)
  }, [key])

  /** All of it, or as much as is legible: the minimap shows the rest. */
  const fit = (layout: Placed, least = 0.45) => {
    const room = box.current!
    const scale = Math.min(1, room.clientWidth / layout.width, height / layout.height)
    const used = Math.max(scale, least)
    setView({ scale: used, x: Math.max(0, (room.clientWidth - layout.width * used) / 2), y: Math.max(0, (height - layout.height * used) / 2) })
  }
  const zoom = (factor: number, x = (box.current?.clientWidth ?? 0) / 2, y = height / 2) =>
    setView((old) => {
      const scale = Math.min(2, Math.max(0.1, old.scale * factor))
      return { scale, x: x - ((x - old.x) * scale) / old.scale, y: y - ((y - old.y) * scale) / old.scale }
    })
  useEffect(() => {
    const room = box.current!
    const wheel = (event: WheelEvent) => {
      event.preventDefault()
      const bounds = room.getBoundingClientRect()
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY / 120), event.clientX - bounds.left, event.clientY - bounds.top)
      else setView((old) => ({ ...old, x: old.x - event.deltaX, y: old.y - event.deltaY }))
    }
    room.addEventListener('wheel', wheel, { passive: false })
    return () => room.removeEventListener('wheel', wheel)
  }, [])
  const found = search ? shown.boxes.filter((one) => one.members.some((member) => data.nodes[member]!.task_id.toLowerCase().includes(search.toLowerCase()))) : []
  useEffect(() => {
    const at = found[0] && placed?.boxes[found[0].id]
    if (at) setView((old) => ({ ...old, x: box.current!.clientWidth / 2 - (at.x + 60) * old.scale, y: height / 2 - at.y * old.scale }))
  }, [search])

  const fold = (id: string) => setFolded((old) => {
    const next = new Set(old)
    if (!next.delete(id)) next.add(id)
    return next
  })
  const stateOfBox = new Map(shown.boxes.map((one) => [one.id, worstOf(one, stateOf)]))
  const isFailed = (edge: { from: string; to: string }) => FAILURES.has(stateOfBox.get(edge.from) ?? 'none') && stateOfBox.get(edge.to) === 'upstream_failed'
  const visibleBox = (one: Box) => {
    const at = placed?.boxes[one.id]
    if (!at) return false
    const x = at.x * view.scale + view.x
    const y = at.y * view.scale + view.y
    return x > -300 && y > -80 && x < (box.current?.clientWidth ?? 0) + 40 && y < height + 40
  }

  return (
    <div>
      <div class="filters">
        <Search value={search} onInput={setSearch} placeholder={t.dag.search} />
        {search && <span class="small dim">{found.length}</span>}
        <span class="grow" />
        {data.groups.length > 0 && <Button kind="plain" onClick={() => setFolded(folded.size ? new Set() : new Set(data.groups.map((group) => group.group_id)))}>{folded.size ? t.dag.expand : t.dag.fold}</Button>}
        <Segments label={t.dag.direction} value={direction} options={[['LR', '→'], ['TB', '↓']]} onChange={setDirection} />
        <Button onClick={() => placed && fit(placed)}>{t.dag.fit}</Button>
        <Button label={t.dag.zoomOut} onClick={() => zoom(0.8)}>−</Button>
        <Button label={t.dag.zoomIn} onClick={() => zoom(1.25)}>+</Button>
      </div>
      <div
        ref={box}
        class="graph"
        style={{ height: `${height}px` }}
        onPointerDown={(event) => {
          if (event.button === 0) drag.current = { x: event.clientX, y: event.clientY, moved: false }
        }}
        onPointerMove={(event) => {
          const from = drag.current
          if (!from || event.buttons !== 1) return
          const [dx, dy] = [event.clientX - from.x, event.clientY - from.y]
          if (!from.moved && Math.hypot(dx, dy) < 4) return
          if (!from.moved) event.currentTarget.setPointerCapture(event.pointerId)
          drag.current = { x: event.clientX, y: event.clientY, moved: true }
          setView((old) => ({ ...old, x: old.x + dx, y: old.y + dy }))
        }}
        onPointerUp={() => setTimeout(() => (drag.current = null))}
        onClickCapture={(event) => {
          if (drag.current?.moved) {
            event.preventDefault()
            event.stopPropagation()
          }
        }}
      >
        {!placed && <div class="empty dim" role="status" aria-busy="true">{t.dag.layout}</div>}
        {placed && (
          <div class="graph-plane" style={{ transform: `translate(${view.x}px, ${view.y}px) scale(${view.scale})`, width: `${placed.width}px`, height: `${placed.height}px` }}>
            {shown.frames.map((frame) => {
              const at = placed.frames[frame.id]
              return at && (
                <div key={frame.id} class="graph-frame" style={{ left: `${at.x}px`, top: `${at.y}px`, width: `${at.width}px`, height: `${at.height}px` }}>
                  <button type="button" onClick={() => fold(frame.id)} aria-expanded="true">{frame.label}</button>
                </div>
              )
            })}
            <svg width={placed.width} height={placed.height} aria-hidden="true">
              <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="graph-arrow" d="M0,0.5L7.5,4L0,7.5z" /></marker>
              <marker id="arrow-failed" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto"><path class="graph-arrow failed" d="M0,0.5L7.5,4L0,7.5z" /></marker>
              {placed.edges.map((edge) => <path key={`${edge.from}\n${edge.to}`} class={isFailed(edge) ? 'failed' : undefined} d={curve(edge.points, direction)} marker-end={isFailed(edge) ? 'url(#arrow-failed)' : 'url(#arrow)'} />)}
            </svg>
            {shown.boxes.filter((one) => shown.boxes.length < 300 || visibleBox(one)).map((one) => {
              const at = placed.boxes[one.id]
              return at && <NodeBox key={one.id} box={one} x={at.x} y={at.y} dagId={data.dag_id} runId={runId} stateOf={stateOf} countsOf={countsOf} taskId={one.task >= 0 ? data.nodes[one.task]!.task_id : ''} found={found.includes(one)} onFold={fold} scale={view.scale} />
            })}
          </div>
        )}
        {placed && <Minimap placed={placed} boxes={shown.boxes} stateOf={stateOfBox} view={view} room={{ width: box.current?.clientWidth ?? 0, height }} onMove={(x, y) => setView((old) => ({ ...old, x, y }))} />}
      </div>
    </div>
  )
}

interface NodeProps {
  box: Box
  x: number
  y: number
  dagId: string
  runId: string | null
  taskId: string
  found: boolean
  stateOf: (task: number) => TaskState | null
  countsOf: (task: number) => Record<string, number>
  onFold: (id: string) => void
  scale: number
}

function worstOf(box: Box, stateOf: (task: number) => TaskState | null): TaskState | null {
  const states = box.members.map(stateOf).filter((state): state is TaskState => state !== null)
  return states.length ? worst(states) : null
}

/** The size on the screen below which names grow, and the most that the box of a name has room for. */
const LEGIBLE_PX = 12
const MOST_PX = 24
/** The width of a character, as a part of its size. */
const CHARACTER = 0.56

function NodeBox({ box, x, y, dagId, runId, taskId, found, stateOf, countsOf, onFold, scale }: NodeProps) {
  const state = worstOf(box, stateOf)
  const far = scale < 0.8
  const counts = box.task >= 0 ? Object.values(countsOf(box.task)).reduce((sum, one) => sum + one, 0) : box.members.length
  const style = { left: `${x}px`, top: `${y}px`, width: `${box.width}px`, height: `${box.height}px`, '--c': state ? color(state) : 'var(--line-strong)', ...(far ? { fontSize: `${Math.max(LEGIBLE_PX, Math.min(LEGIBLE_PX / scale, MOST_PX, (box.width - 12) / (box.label.length * CHARACTER)))}px`, padding: '0 4px' } : {}) }
  const content = far ? (
    <span class="grow clip">{box.label}</span>
  ) : (
    <>
      {state ? <Mark state={state} /> : <span class="graph-dot" />}
      <span class="grow stack" style={{ gap: 0 }}>
        <span class="clip">{box.label}</span>
        <span class="clip graph-kind">{box.task < 0 ? t.dag.tasks(box.members.length) : box.operator}{box.mapped ? ` [${counts || ''}]` : ''}</span>
      </span>
    </>
  )
  const name = `${box.label}${state ? `: ${label(state)}` : ''}`
  if (box.task < 0) return <button type="button" class={`graph-node folded s-${state ?? 'none'} ${found ? 'found' : ''}`} style={style} aria-expanded="false" aria-label={name} onClick={() => onFold(box.id.slice(2))}>{content}</button>
  if (!runId) return <div class={`graph-node ${found ? 'found' : ''}`} style={style} title={taskId}>{content}</div>
  const path = to('dags', dagId, 'runs', runId, 'tasks', taskId)
  return (
    <a class={`graph-node s-${state ?? 'none'} ${found ? 'found' : ''}`} style={style} href={href(path)} aria-label={name} title={name} onKeyDown={(event) => event.key === ' ' && go(path)} draggable={false}>
      {content}
    </a>
  )
}
