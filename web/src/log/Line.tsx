/** One row of a log: its number, which is a link, and its text in the color of its level. */
import { clock, day, moment, zoneName } from '../format'
import { Icon } from '../parts/icons'
import { t } from '../strings'
import { marked, spans } from './ansi'
import type { Fold } from './folds'
import { parts } from './levels'

export const LONGEST_LINE = 10_000

/** The time of a record in the zone of the pages, as exact as the log has it. */
function At({ stamp }: { stamp: string }) {
  return <time class="log-at num" dateTime={stamp} title={`${stamp} = ${moment(stamp)} ${zoneName()}`}><span class="log-day">{day(stamp)} </span>{clock(stamp)}{/\.\d+/.exec(stamp)?.[0]}</time>
}

export function Line({ text, search }: { text: string | undefined; search: string }) {
  if (text === undefined) return <span class="dim">…</span>
  const cut = text.length > LONGEST_LINE && !text.includes('\r')
  const line = parts(cut ? text.slice(0, LONGEST_LINE) : text)
  return (
    <span class={`log-text l-${line.level} ${line.text === '::endgroup::' ? 'dim' : ''}`}>
      {line.at && <><At stamp={line.at} /> <b class="log-level">{line.name}</b> </>}
      {marked(spans(line.text.slice(0, LONGEST_LINE)), search).map((part, at) => (part.hit ? <mark key={at}>{part.text}</mark> : part.style ? <span key={at} class={part.style}>{part.text}</span> : part.text))}
      {line.states > 0 && <span class="dim"> {t.log.states(line.states)}</span>}
      {cut && <span class="dim"> … {t.log.cut}</span>}
    </span>
  )
}

/** The row that stays of lines that fold. */
export function Head({ fold, open, text, search, onToggle }: { fold: Fold; open: boolean; text: string | undefined; search: string; onToggle: () => void }) {
  const toggle = (
    <button type="button" class="log-fold" aria-expanded={open} title={open ? t.log.fold : t.log.unfold} onClick={onToggle}>
      <Icon name={open ? 'down' : 'right'} />
      {fold.kind === 'group' ? <><b>{fold.name || t.log.group}</b><span class="dim">{t.log.lines(fold.until - fold.from - 1)}</span></> : <span class="dim">{t.log.progress(fold.until - fold.from)}</span>}
    </button>
  )
  if (fold.kind === 'group') return toggle
  return <><Line text={text} search={search} />{toggle}</>
}
