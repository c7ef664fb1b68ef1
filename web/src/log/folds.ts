/** Groups of lines, and lines of progress that differ in their numbers only, which fold to one row. Pure. */
import { levelOf } from './levels'

export interface Fold {
  kind: 'group' | 'progress'
  /** The line that stays: the first of a group, the last of a progress. */
  head: number
  /** The lines that fold away: from the first until before the last. */
  from: number
  until: number
  name: string
  /** Whether it is open before the first click. */
  open: boolean
}

const MARK = /^(?:\d{4}-\d\d-\d\dT\S+Z [A-Z]+ (?:[\w.]+: )?)?::(end)?group::(.*)$/
const PROGRESS = /\d\s?%|\d\s?\/\s?\d|\d of \d/
const CHANGES = /[\d.,#=>█▏▎▍▌▋▊▉\s:-]+/g
const LEAST_PROGRESS = 4

/** The folds of numbered lines in their order, which may have gaps. */
export function findFolds(lines: Iterable<readonly [number, string]>): Fold[] {
  const found: Fold[] = []
  const open: { head: number; name: string; wrong: boolean }[] = []
  let run = null as { from: number; last: number; kind: string } | null
  let before = -1
  const endRun = () => {
    if (run && run.last - run.from + 1 >= LEAST_PROGRESS) found.push({ kind: 'progress', head: run.last, from: run.from, until: run.last, name: '', open: false })
    run = null
  }
  for (const [number, text] of lines) {
    if (number !== before + 1) {
      endRun()
      open.length = 0
    }
    before = number
    const mark = text.includes('group::') ? MARK.exec(text) : null
    if (mark && !mark[1]) open.push({ head: number, name: mark[2]!.trim(), wrong: false })
    else if (mark) {
      const group = open.pop()
      if (group) found.push({ kind: 'group', head: group.head, from: group.head + 1, until: number + 1, name: group.name, open: group.wrong })
    } else if (open.length && levelOf(text) === 'error') open.forEach((group) => (group.wrong = true))
    const kind: string | null = !mark && text.length < 400 && PROGRESS.test(text) && !/^(?:error|warning)$/.test(levelOf(text)) ? text.replace(CHANGES, '') : null
    if (kind !== null && run?.kind === kind) run.last = number
    else {
      endRun()
      if (kind !== null) run = { from: number, last: number, kind }
    }
  }
  endRun()
  return found.sort((a, b) => a.from - b.from)
}

/** The rows of a view: which line each shows. */
export interface Rows {
  count: number
  line(row: number): number
  /** The row of a line, or of the next one that is shown. */
  row(line: number): number
}

/** All lines but those that are folded away. */
export function unfolded(total: number, folds: readonly Fold[], isOpen: (fold: Fold) => boolean): Rows {
  // Ranges of hidden lines in order, with the number of lines shown before each.
  const hidden: { from: number; until: number; shown: number }[] = []
  let count = 0
  let end = 0
  for (const fold of folds) {
    if (isOpen(fold) || fold.from >= fold.until) continue
    const from = Math.max(fold.from, end)
    const until = Math.min(fold.until, total)
    if (from >= until) continue
    count += from - end
    hidden.push({ from, until, shown: count })
    end = until
  }
  count += Math.max(0, total - end)
  const last = <K extends 'from' | 'shown'>(key: K, value: number) => {
    let [low, high] = [0, hidden.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if (hidden[middle]![key] <= value) low = middle + 1
      else high = middle
    }
    return hidden[low - 1]
  }
  return {
    count,
    line: (row) => {
      const range = last('shown', row)
      return range ? range.until + row - range.shown : row
    },
    row: (line) => {
      const range = last('from', line)
      return range ? range.shown + Math.max(0, line - range.until) : line
    },
  }
}

/** The lines that a filter found, in order. */
export function chosen(lines: readonly number[]): Rows {
  return {
    count: lines.length,
    line: (row) => lines[row] ?? 0,
    row: (line) => {
      const at = lines.findIndex((one) => one >= line)
      return at < 0 ? lines.length - 1 : at
    },
  }
}
