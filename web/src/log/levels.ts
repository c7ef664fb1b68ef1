/** The level and the time of a line of a log. scheduler/api/logs.py has the same rules. Pure. */
export type Level = 'error' | 'warning' | 'info' | 'debug' | ''

const NAMES: Record<string, Level> = { TRACE: 'debug', DEBUG: 'debug', INFO: 'info', WARN: 'warning', WARNING: 'warning', ERROR: 'error', CRITICAL: 'error', FATAL: 'error' }
// eslint-disable-next-line no-control-regex
const COLOR = /\x1b\[[\d;]*m/g
/** A time and a level, or the level alone, as in `WARNING:root:` and `[ERROR]`. */
const START = /^(?:[[(]?\d{2,4}[-/:].{0,80}?[^\w.])?[[<]?(TRACE|DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)(?![\w.])/
const JSON_LEVEL = /^\{.{0,200}?"level": ?"(\w+)"/
/** The first and the last line of a traceback, and those of Java. */
const TRACE = /^(?:Traceback \(most recent call last\):|Caused by: |Exception in thread |(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::|\s*$))/
const PYTHON_WARNING = /^\S+:\d+: \w*Warning: /
/** How Paceline's own records begin. */
const STAMP = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z) ([A-Z]+) /

export function levelOf(line: string): Level {
  const start = line.slice(0, 300).replace(COLOR, '')
  const found = START.exec(start) ?? JSON_LEVEL.exec(start)
  if (found) return NAMES[found[1]!.toUpperCase()] ?? ''
  return TRACE.test(start) ? 'error' : PYTHON_WARNING.test(start) ? 'warning' : ''
}

export interface Parts {
  /** The time and the name of the level of a record of Paceline. */
  at: string | null
  name: string
  level: Level
  text: string
  /** States that a bar of progress had before the one in `text`. */
  states: number
}

export function parts(line: string): Parts {
  const level = levelOf(line)
  const stamp = STAMP.exec(line)
  const rest = stamp ? line.slice(stamp[0].length) : line
  // A carriage return writes over what the line had before.
  const states = rest.includes('\r') ? rest.split('\r').filter((one) => one.trim()) : []
  return { at: stamp?.[1] ?? null, name: stamp?.[2] ?? '', level, text: states.at(-1) ?? rest, states: Math.max(0, states.length - 1) }
}

export interface Found {
  line: number
  text: string
}

const LONGEST_TRACE = 200
/** The first line of each error among the lines of level error: that of its traceback if it has one. */
export function errorStarts(lines: readonly Found[]): number[] {
  const starts: number[] = []
  let trace = -1
  let end = -1
  for (const { line, text } of lines) {
    const opens = text.startsWith('Traceback (')
    // The end of a traceback, causes of an exception of Java, and the line of Paceline with the same reason belong to the start.
    if (!opens && trace >= 0 && (end < 0 ? line - trace <= LONGEST_TRACE : line - end <= 2)) end = line
    else {
      // logging.exception() writes its message before the traceback.
      if (!opens || starts.at(-1) !== line - 1) starts.push(line)
      ;[trace, end] = [opens ? line : -1, -1]
    }
  }
  return starts
}
