/** A window on a log, so that each of ten million lines has its scroll position. Rows have one height, or wrap. */
import { useSignal, useSignalEffect } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks'
import { t } from '../strings'
import { useHeight } from '../pages/dag/useHeight'
import type { Rows } from './folds'
import { LONGEST_LINE } from './Line'
import type { LogSource } from './source'

const ROW = 19
/** What the number and the edges of a line take. */
const BESIDE = 90
/** Browsers cannot show elements that are much higher; a longer log scrolls in proportion. */
const TALLEST = 6_000_000

interface Props {
  source: LogSource
  rows: Rows
  wrap: boolean
  following: boolean
  setFollowing: (on: boolean) => void
  /** Receives what brings a line into view. */
  reveal: { current: (line: number) => void }
  /** Whether the rows come without the lines of the source. */
  found: boolean
  children: (line: number) => { class: string; content: ComponentChildren }
}

export function LogWindow({ source, rows, wrap, following, setFollowing, reveal, found, children }: Props) {
  const box = useRef<HTMLDivElement>(null)
  const block = useRef<HTMLDivElement>(null)
  const ruler = useRef<HTMLDivElement>(null)
  const own = useRef(false)
  const [holder, height] = useHeight(88, 240)
  const fit = Math.max(1, Math.floor(height / ROW))
  const top = useSignal(following ? Math.max(0, rows.count - fit) : 0)
  void source.version.value

  // Wrapped lines break at the edge, so their mean height follows from their lengths.
  const columns = Math.max(20, Math.floor(((box.current?.clientWidth ?? 900) - BESIDE) / ((ruler.current?.offsetWidth ?? 720) / 100)))
  const unit = wrap ? ROW * source.meanRows(columns) : ROW
  const count = rows.count
  const tall = count * unit
  const virtual = Math.min(tall, TALLEST)
  const last = Math.max(0, count - height / unit)
  /** Move so that a row (which may be a fraction) is the first one shown. */
  const move = (row: number) => {
    const to = Math.max(0, Math.min(last, row))
    top.value = to
    const view = box.current
    if (!view) return
    const goal = last ? (to / last) * Math.max(0, virtual - height) : 0
    own.current = Math.abs(view.scrollTop - goal) >= 1
    view.scrollTop = goal
  }
  useEffect(() => {
    if (following) move(last)
  }, [last, height, following])
  // Lines that fold or unfold, or wrap, above those that are shown do not move them.
  const before = useRef({ rows, unit })
  useLayoutEffect(() => {
    const old = before.current
    before.current = { rows, unit }
    if ((old.rows !== rows || old.unit !== unit) && !following) move(rows.row(old.rows.line(Math.floor(top.peek()))) + (top.peek() % 1))
  }, [rows, unit])
  reveal.current = (line) => {
    const row = rows.row(line)
    if (wrap) move(((row + 0.5) / Math.max(1, count)) * last)
    else if (row < top.peek() + 1 || row > top.peek() + fit - 3) move(row - fit / 2)
  }

  // In proportion: what is at the same share of the log as of the window does not move when lines around it wrap.
  const share = last ? top.value / last : 0
  const pin = wrap ? Math.min(count, share * count) : top.value
  const at = Math.max(0, Math.min(count - 1, Math.floor(pin)))
  const first = wrap ? Math.max(0, at - Math.ceil(share * fit) - 1) : at
  const end = wrap ? Math.min(count, at + Math.ceil((1 - share) * fit) + 2) : Math.min(count, at + fit + 2)
  useSignalEffect(() => {
    void source.version.value
    const from = Math.floor(top.value)
    if (!found) source.need(rows.line(Math.max(0, from - fit)), Math.min(source.total.value - 1, rows.line(Math.min(count - 1, from + 2 * fit))))
  })
  useLayoutEffect(() => {
    const [view, shown] = [box.current, block.current]
    const row = shown?.children[at - first] as HTMLElement | undefined
    if (!view || !shown || !row) return
    const offset = row.offsetTop + (pin - at) * row.offsetHeight
    shown.style.transform = `translateY(${view.scrollTop + (wrap ? share * height : 0) - offset}px)`
  })
  useEffect(() => {
    const view = box.current
    if (!view) return
    const wheel = (event: WheelEvent) => {
      if (event.deltaY < 0) setFollowing(false)
      if (tall <= TALLEST || !event.deltaY) return
      event.preventDefault()
      move(top.value + event.deltaY / unit)
    }
    view.addEventListener('wheel', wheel, { passive: false })
    return () => view.removeEventListener('wheel', wheel)
  })
  const press = (event: KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: fit - 2, PageUp: 2 - fit, Home: -Infinity, End: Infinity }[event.key]
    if (by === undefined) return
    event.preventDefault()
    setFollowing(event.key === 'End')
    move(by === -Infinity ? 0 : by === Infinity ? last : top.value + by)
  }

  return (
    <div ref={holder}>
      <div
        ref={box}
        class={`log-box ${wrap ? 'wrap' : ''}`}
        style={{ height: `${height}px` }}
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label={t.task.log}
        onKeyDown={press}
        onScroll={(event) => {
          if (own.current) {
            own.current = false
            return
          }
          const view = event.currentTarget
          const room = Math.max(1, view.scrollHeight - view.clientHeight)
          top.value = wrap || tall > TALLEST ? (view.scrollTop / room) * last : view.scrollTop / ROW
          const atEnd = view.scrollTop >= room - 2
          if (atEnd !== following && !source.final.value) setFollowing(atEnd)
        }}
      >
        <div ref={ruler} class="log-ruler" aria-hidden="true" />
        {count === 0 ? (
          <div class="empty">{found ? t.log.noneOf : source.final.value ? t.log.empty : t.log.waiting}</div>
        ) : (
          <div style={{ height: `${Math.max(virtual, height)}px`, width: wrap ? undefined : `calc(${Math.min(LONGEST_LINE, source.longest)}ch + ${BESIDE}px)`, minWidth: '100%' }}>
            <div ref={block} class="log-block">
              {Array.from({ length: Math.max(0, end - first) }, (_, index) => {
                const line = rows.line(first + index)
                const row = children(line)
                return <div key={line} class={`log-line ${row.class}`}>{row.content}</div>
              })}
            </div>
          </div>
        )}
      </div>
    </div>
  )
}
