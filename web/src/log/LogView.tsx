/** The log of a try: search, levels, folds, the way to its errors, and a link to each line. The server searches. */
import { useSignal } from '@preact/signals'
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import type { LogLines } from '../api/types'
import { bytes } from '../format'
import { onChange, type Topic } from '../live/changes'
import { Button, Check, Empty, Note, Search, Segments, Skeleton } from '../parts/basic'
import { plainKey } from '../parts/List'
import { attempt, toast } from '../parts/overlay'
import { query, setQuery } from '../shell/router'
import { t } from '../strings'
import { chosen, findFolds, unfolded, type Fold } from './folds'
import { errorStarts, type Level } from './levels'
import { Head, Line } from './Line'
import { LogWindow } from './LogWindow'
import { LogSource, type LogPath } from './source'
import { useMatches } from './useMatches'

const FOLLOW_MS = 1000
const WRAP = 'paceline.log.wrap'

/** Whether lines wrap: as chosen last, or on a narrow screen. */
const wraps = () => (localStorage.getItem(WRAP) ?? (matchMedia('(max-width: 560px)').matches ? '1' : '')) === '1'
const keyOf = (fold: Fold) => `${fold.kind} ${fold.from}`

export function LogView({ path, mapIndex, topic, known }: { path: LogPath; mapIndex: number; topic: Topic; known: LogLines | null }) {
  const source = useMemo(() => new LogSource(path, mapIndex, known), [])
  /** The line that the address names; lines count from 0, and their numbers from 1. */
  const linked = Number(query.value.get('line')) - 1
  const [following, setFollowing] = useState(() => linked < 0)
  const [wrap, setWrap] = useState(wraps)
  const [text, setText] = useState('')
  const [level, setLevel] = useState<Level>('')
  const clicked = useSignal<Record<string, boolean>>({})
  const wanted = useSignal(-1)
  const reveal = useRef<(line: number) => void>(() => undefined)
  const current = useSignal(-1)
  const error = useRef({ starts: [] as number[], at: 0, size: -1 })
  const { lines: matches, complete, searching, wrong } = useMatches(source, text, level)

  useEffect(() => {
    if (!source.loaded.peek()) void source.follow()
    const timer = setInterval(() => !document.hidden && void source.follow(), FOLLOW_MS)
    const stop = onChange([topic], () => void source.follow())
    return () => {
      clearInterval(timer)
      stop()
    }
  }, [])

  const version = source.version.value
  const folds = useMemo(() => findFolds(source.all()), [version])
  const hides = (fold: Fold, line: number) => fold.from <= line && line < fold.until
  // The lines around one that somebody looks for may be loaded, and fold, later than it.
  const isOpen = (fold: Fold) => clicked.value[keyOf(fold)] ?? (fold.open || hides(fold, wanted.value))
  const rows = useMemo(
    () => (level ? chosen(matches.value.map((one) => one.line)) : unfolded(source.total.value, folds, isOpen)),
    level ? [level, matches.value] : [level, source.total.value, folds, clicked.value, wanted.value],
  )
  const texts = useMemo(() => (level ? new Map(matches.value.map((one) => [one.line, one.text])) : null), [level, matches.value])
  const heads = new Map(folds.map((fold) => [fold.head, fold]))
  const toggle = (fold: Fold, to = !isOpen(fold)) => {
    setFollowing(false)
    clicked.value = { ...clicked.value, [keyOf(fold)]: to }
  }
  /** Bring a line into view, also if it is folded away. */
  const show = (line: number) => {
    setFollowing(false)
    wanted.value = line
    folds.filter((fold) => hides(fold, line) && !isOpen(fold)).forEach((fold) => toggle(fold, true))
    requestAnimationFrame(() => reveal.current(line))
  }
  const link = (line: number | null) => setQuery({ line: line === null ? null : String(line + 1), ...(line === null ? {} : { try: String(path.try_number) }) })
  const open = (line: number) => {
    setLevel('')
    link(line)
  }
  useEffect(() => {
    if (linked >= 0 && source.loaded.value) show(linked)
  }, [linked, source.loaded.value, level])

  const pick = (at: number) => {
    const match = matches.value[at]
    if (!match) return
    current.value = at
    show(match.line)
  }
  const step = (by: number) => matches.value.length && pick((current.value + by + matches.value.length) % matches.value.length)
  useEffect(() => void (current.value = -1), [text, level])
  useEffect(() => {
    if (text && matches.value.length && current.value < 0) pick(0)
  }, [matches.value])

  /** To the last error, and then to each one before it. */
  const toError = () =>
    attempt(async () => {
      if (error.current.size !== source.size.value) {
        const starts = errorStarts(await source.errors())
        error.current = { starts, at: starts.length, size: source.size.value }
      }
      const { starts } = error.current
      if (!starts.length) return void toast(t.log.noError)
      error.current.at = (error.current.at || starts.length) - 1
      const line = starts[error.current.at]!
      // The address may name it already.
      if (line === linked && !level) show(line)
      else open(line)
    })
  const setWrapped = (on: boolean) => {
    localStorage.setItem(WRAP, on ? '1' : '')
    setWrap(on)
  }
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (!plainKey(event)) return
      const act = { n: () => step(1), N: () => step(-1), e: () => void toError(), w: () => setWrapped(!wrap) }[event.key]
      act?.()
    }
    document.addEventListener('keydown', press)
    return () => document.removeEventListener('keydown', press)
  })
  const download = () =>
    attempt(async () => {
      const link = document.createElement('a')
      link.href = URL.createObjectURL(await source.download())
      link.download = `${[path.dag_id, path.dag_run_id, path.task_id, ...(mapIndex >= 0 ? [mapIndex] : []), path.try_number].join('_').replace(/[^\w.-]/g, '_')}.log`
      link.click()
      setTimeout(() => URL.revokeObjectURL(link.href), 1000)
    })

  if (!source.loaded.value) return source.error.value ? <Empty title={source.error.value} /> : <Skeleton rows={12} height={24} />
  const hits = text ? new Set(matches.value.map((one) => one.line)) : null
  const now = matches.value[current.value]?.line
  const address = (line: number) => {
    const next = new URLSearchParams(query.value)
    next.set('try', String(path.try_number))
    next.set('line', String(line + 1))
    return `?${next}`
  }
  return (
    <div class="log">
      <div class="log-bar">
        <Search value={text} onInput={setText} placeholder={t.log.search} width={260} />
        {(text || level) && (
          <span class="small num dim nowrap" role="status">
            {matches.value.length ? `${text && !level ? `${current.value + 1} / ` : ''}${(level ? t.log.linesOf : t.log.matches)(matches.value.length, !complete.value)}` : searching.value ? t.log.searching : t.log.none}
          </span>
        )}
        {text && (
          <>
            <Button icon="up" label={t.log.previous} disabled={!matches.value.length} onClick={() => step(-1)} />
            <Button icon="down" label={t.log.next} disabled={!matches.value.length} onClick={() => step(1)} />
          </>
        )}
        <Segments label={t.log.level} value={level} options={[['', t.log.levels.all], ['warning', t.log.levels.warning], ['error', t.log.levels.error]] as const} onChange={(next) => setLevel(next as Level)} />
        <Button icon="imports" onClick={() => void toError()}>{t.log.toError}</Button>
        <span class="grow" />
        {!source.final.value && !level && <Check on={following} onChange={setFollowing}>{t.log.follow}</Check>}
        <Check on={wrap} onChange={setWrapped}>{t.log.wrap}</Check>
        <Button icon="download" kind="plain" label={t.log.download} onClick={() => void download()} />
      </div>
      {wrong.value && <Note kind="bad">{wrong.value}</Note>}
      <LogWindow source={source} rows={rows} wrap={wrap} following={following && !level} setFollowing={setFollowing} reveal={reveal} found={level !== ''}>
        {(line) => {
          const fold = level ? undefined : heads.get(line)
          const given = texts ? texts.get(line) : source.line(line)
          const search = hits?.has(line) ? text : ''
          return {
            class: `${hits?.has(line) && !level ? 'match' : ''} ${line === now && text ? 'current' : ''} ${line === linked ? 'linked' : ''}`,
            content: (
              <>
                <a class="log-no num" href={address(line)} tabIndex={-1} title={level ? t.log.inLog : t.log.link} onClick={(event) => { event.preventDefault(); open(line); if (!level) void navigator.clipboard?.writeText(location.href).then(() => toast(t.log.linkCopied(line + 1)), () => undefined) }}>{line + 1}</a>
                {fold ? <Head fold={fold} open={isOpen(fold)} text={given} search={search} onToggle={() => toggle(fold)} /> : <Line text={given} search={search} />}
              </>
            ),
          }
        }}
      </LogWindow>
      <div class="log-foot">
        {source.final.value ? <span>{t.log.ended}</span> : <span class="log-live">{t.log.live}</span>}
        <span class="num">{t.log.lines(source.total.value)}</span>
        <span class="num">{bytes(source.size.value)}</span>
        {source.error.value && <span class="wrong">{source.error.value}</span>}
      </div>
    </div>
  )
}
