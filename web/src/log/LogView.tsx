/** A window on a log: rows of one height, so that each of ten million lines has its scroll position. The server searches. */
import { useSignal, useSignalEffect } from '@preact/signals'
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { message } from '../api/client'
import type { LogLines } from '../api/types'
import { bytes } from '../format'
import { onChange, type Topic } from '../live/changes'
import { Button, Check, Empty, Note, Search, Skeleton } from '../parts/basic'
import { plainKey } from '../parts/List'
import { attempt } from '../parts/overlay'
import { t } from '../strings'
import { useHeight } from '../pages/dag/useHeight'
import { marked, spans } from './ansi'
import { LogSource, type LogPath } from './source'

const ROW = 19
/** Browsers cannot show elements that are much higher; a longer log scrolls in proportion. */
const TALLEST = 6_000_000
const FOLLOW_MS = 1000
const LONGEST_LINE = 10_000
const MOST_MATCHES = 10_000

export function LogView({ path, mapIndex, topic, known }: { path: LogPath; mapIndex: number; topic: Topic; known: LogLines | null }) {
  const source = useMemo(() => new LogSource(path, mapIndex, known), [])
  const [following, setFollowing] = useState(true)
  const top = useSignal(0)
  const box = useRef<HTMLDivElement>(null)
  const own = useRef(false)
  const [holder, height] = useHeight(88, 240)
  const [text, setText] = useState('')
  const matches = useSignal<number[]>([])
  const current = useSignal(-1)
  const complete = useSignal(true)
  const searching = useSignal(false)
  const [wrong, setWrong] = useState<string | null>(null)

  useEffect(() => {
    void source.follow()
    const timer = setInterval(() => !document.hidden && void source.follow(), FOLLOW_MS)
    const stop = onChange([topic], () => void source.follow())
    return () => {
      clearInterval(timer)
      stop()
    }
  }, [])

  const total = source.total.value
  const rows = Math.max(1, Math.floor(height / ROW))
  const tall = total * ROW
  const virtual = Math.min(tall, TALLEST)
  const last = Math.max(0, total - height / ROW)
  /** Move so that a line (which may be a fraction) is the first one shown. */
  const move = (line: number) => {
    const to = Math.max(0, Math.min(last, line))
    top.value = to
    const view = box.current
    if (!view) return
    own.current = true
    view.scrollTop = last ? (to / last) * Math.max(0, virtual - height) : 0
  }
  useEffect(() => {
    if (following) move(last)
  }, [total, height, following])
  useSignalEffect(() => {
    void source.version.value
    source.need(Math.floor(top.value), Math.min(source.total.value - 1, Math.ceil(top.value) + rows))
  })

  useEffect(() => {
    matches.value = []
    current.value = -1
    complete.value = true
    setWrong(null)
    if (!text) return
    let live = true
    searching.value = true
    const run = async () => {
      let at = { offset: 0, line: 0 }
      for (;;) {
        const found = await source.search(text, at)
        if (!live) return
        const before = matches.value.length
        matches.value = [...matches.value, ...found.matches.map((one) => one.line)]
        if (!before && matches.value.length) show(0)
        complete.value = found.is_complete
        if (found.is_complete || matches.value.length >= MOST_MATCHES) return
        at = { offset: found.next_offset, line: found.next_line }
      }
    }
    run()
      .catch((error: unknown) => live && setWrong(message(error)))
      .finally(() => live && (searching.value = false))
    return () => void (live = false)
  }, [text])

  const show = (at: number) => {
    const line = matches.value[at]
    if (line === undefined) return
    setFollowing(false)
    current.value = at
    if (line < top.value + 1 || line > top.value + rows - 3) move(line - rows / 2)
  }
  const step = (by: number) => matches.value.length && show((current.value + by + matches.value.length) % matches.value.length)
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (plainKey(event) && (event.key === 'n' || event.key === 'N')) step(event.key === 'n' ? 1 : -1)
    }
    document.addEventListener('keydown', press)
    return () => document.removeEventListener('keydown', press)
  })
  useEffect(() => {
    const view = box.current
    if (!view) return
    const wheel = (event: WheelEvent) => {
      if (event.deltaY < 0) setFollowing(false)
      if (tall <= TALLEST || !event.deltaY) return
      event.preventDefault()
      move(top.value + event.deltaY / ROW)
    }
    view.addEventListener('wheel', wheel, { passive: false })
    return () => view.removeEventListener('wheel', wheel)
  })

  const press = (event: KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: rows - 2, PageUp: 2 - rows, Home: -Infinity, End: Infinity }[event.key]
    if (by === undefined) return
    event.preventDefault()
    setFollowing(event.key === 'End')
    move(by === -Infinity ? 0 : by === Infinity ? last : top.value + by)
  }
  const download = () =>
    attempt(async () => {
      const link = document.createElement('a')
      link.href = URL.createObjectURL(await source.download())
      link.download = `${[path.dag_id, path.dag_run_id, path.task_id, ...(mapIndex >= 0 ? [mapIndex] : []), path.try_number].join('_').replace(/[^\w.-]/g, '_')}.log`
      link.click()
      setTimeout(() => URL.revokeObjectURL(link.href), 1000)
    })

  if (!source.loaded.value) return source.error.value ? <Empty title={source.error.value} /> : <Skeleton rows={12} height={24} />
  void source.version.value
  const first = Math.floor(top.value)
  const shown = Array.from({ length: Math.min(rows + 2, Math.max(0, total - first)) }, (_, at) => first + at)
  const hits = text ? new Set(matches.value) : null
  const at = matches.value[current.value]
  const shift = (box.current?.scrollTop ?? 0) - (top.value - first) * ROW
  return (
    <div class="log">
      <div class="log-bar">
        <Search value={text} onInput={setText} placeholder={t.log.search} width={260} />
        {text && (
          <>
            <span class="small num dim nowrap" role="status">
              {matches.value.length ? `${current.value + 1} / ${t.log.matches(matches.value.length, !complete.value)}` : searching.value ? t.log.searching : t.log.none}
            </span>
            <Button icon="up" label={t.log.previous} disabled={!matches.value.length} onClick={() => step(-1)} />
            <Button icon="down" label={t.log.next} disabled={!matches.value.length} onClick={() => step(1)} />
          </>
        )}
        <span class="grow" />
        {!source.final.value && <Check on={following} onChange={setFollowing}>{t.log.follow}</Check>}
        <Button icon="download" kind="plain" label={t.log.download} onClick={() => void download()} />
      </div>
      {wrong && <Note kind="bad">{wrong}</Note>}
      <div ref={holder}>
        <div
          ref={box}
          class="log-box"
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
            top.value = tall > TALLEST ? (view.scrollTop / room) * last : view.scrollTop / ROW
            const atEnd = view.scrollTop >= room - 2
            if (atEnd !== following && !source.final.value) setFollowing(atEnd)
          }}
        >
          {total === 0 ? (
            <div class="empty">{source.final.value ? t.log.empty : t.log.waiting}</div>
          ) : (
            <div style={{ height: `${Math.max(virtual, height)}px`, width: `calc(${Math.min(LONGEST_LINE, source.longest)}ch + 90px)`, minWidth: '100%' }}>
              {shown.map((number) => (
                <div key={number} class={`log-line ${hits?.has(number) ? 'match' : ''} ${number === at ? 'current' : ''}`} style={{ transform: `translateY(${shift + (number - first) * ROW}px)` }}>
                  <span class="log-no num">{number + 1}</span>
                  <Line text={source.line(number)} search={hits?.has(number) ? text : ''} />
                </div>
              ))}
            </div>
          )}
        </div>
      </div>
      <div class="log-foot">
        {source.final.value ? <span>{t.log.ended}</span> : <span class="log-live">{t.log.live}</span>}
        <span class="num">{t.log.lines(total)}</span>
        <span class="num">{bytes(source.size.value)}</span>
        {source.error.value && <span class="wrong">{source.error.value}</span>}
      </div>
    </div>
  )
}

function Line({ text, search }: { text: string | undefined; search: string }) {
  if (text === undefined) return <span class="dim">…</span>
  const cut = text.length > LONGEST_LINE
  const parts = marked(spans(cut ? text.slice(0, LONGEST_LINE) : text), search)
  return (
    <span>
      {parts.map((part, at) => (part.hit ? <mark key={at}>{part.text}</mark> : part.style ? <span key={at} class={part.style}>{part.text}</span> : part.text))}
      {cut && <span class="dim"> … {t.log.cut}</span>}
    </span>
  )
}
