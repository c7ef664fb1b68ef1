/** Colors and styles of terminal output as spans. Other control sequences are removed. Pure. */
export interface Span {
  text: string
  /** Classes, separated by spaces. */
  style: string
}

// A sequence of colors; any other control sequence; an operating system command; other control characters but tabs.
// eslint-disable-next-line no-control-regex
const SEQUENCE = /\x1b\[([\d;]*)m|\x1b\[[\d;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]/g

/** `style` is what an earlier line left on. */
export function spans(line: string): Span[] {
  const found: Span[] = []
  let state: { color: string; flags: Set<string> } = { color: '', flags: new Set() }
  let from = 0
  const push = (text: string) => {
    if (text) found.push({ text, style: [...state.flags, state.color].filter(Boolean).join(' ') })
  }
  for (const match of line.matchAll(SEQUENCE)) {
    push(line.slice(from, match.index))
    from = match.index + match[0].length
    if (match[1] !== undefined) state = applied(state, match[1])
  }
  push(line.slice(from))
  return found
}

const FLAGS: Record<number, string> = { 1: 'a-b', 2: 'a-d', 3: 'a-i', 4: 'a-u' }

function applied(state: { color: string; flags: Set<string> }, codes: string): { color: string; flags: Set<string> } {
  let { color } = state
  const flags = new Set(state.flags)
  const numbers = codes === '' ? [0] : codes.split(';').map(Number)
  for (let at = 0; at < numbers.length; at++) {
    const code = numbers[at]!
    if (code === 0) {
      color = ''
      flags.clear()
    } else if (FLAGS[code]) flags.add(FLAGS[code])
    else if (code === 22) ['a-b', 'a-d'].forEach((one) => flags.delete(one))
    else if (code === 23) flags.delete('a-i')
    else if (code === 24) flags.delete('a-u')
    else if (code === 39) color = ''
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) color = `a-${code}`
    else if (code === 38 || code === 48) {
      // The 256 colors come down to the 16 of the theme; exact colors are not legible in both themes.
      const mode = numbers[at + 1]
      if (mode === 5) {
        const value = numbers[at + 2] ?? 0
        if (code === 38 && value < 16) color = `a-${value < 8 ? 30 + value : 82 + value}`
        at += 2
      } else if (mode === 2) at += 4
    }
  }
  return { color, flags }
}

/** The spans with each occurrence of a text marked. Upper and lower case are the same. */
export function marked(line: Span[], text: string): (Span & { hit: boolean })[] {
  if (!text) return line.map((span) => ({ ...span, hit: false }))
  const whole = line.map((span) => span.text).join('').toLowerCase()
  const wanted = text.toLowerCase()
  const hits: [number, number][] = []
  for (let at = whole.indexOf(wanted); at >= 0; at = whole.indexOf(wanted, at + wanted.length)) hits.push([at, at + wanted.length])
  const found: (Span & { hit: boolean })[] = []
  let offset = 0
  for (const span of line) {
    const cuts = [0, ...hits.flat().map((cut) => cut - offset).filter((cut) => cut > 0 && cut < span.text.length), span.text.length]
    for (let at = 0; at < cuts.length - 1; at++) {
      const [from, to] = [cuts[at]!, cuts[at + 1]!]
      if (from === to) continue
      found.push({ text: span.text.slice(from, to), style: span.style, hit: hits.some(([first, end]) => offset + from >= first && offset + from < end) })
    }
    offset += span.text.length
  }
  return found
}
