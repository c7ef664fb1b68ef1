/** The lines that differ between two texts, by the longest common subsequence of what is between equal ends. Pure. */
export interface DiffLine {
  kind: ' ' | '+' | '-'
  text: string
  before: number | null
  after: number | null
}

export function diff(before: string, after: string): DiffLine[] {
  const a = before.split('\n')
  const b = after.split('\n')
  let head = 0
  while (head < a.length && head < b.length && a[head] === b[head]) head++
  let tail = 0
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++
  const left = a.slice(head, a.length - tail)
  const right = b.slice(head, b.length - tail)
  const found: DiffLine[] = []
  const push = (kind: ' ' | '+' | '-', text: string, i: number | null, j: number | null) => found.push({ kind, text, before: i === null ? null : i + 1, after: j === null ? null : j + 1 })
  for (let at = 0; at < head; at++) push(' ', a[at]!, at, at)
  // Too many lines for the table: all of one side, then all of the other.
  if (left.length * right.length > 4_000_000) {
    left.forEach((text, at) => push('-', text, head + at, null))
    right.forEach((text, at) => push('+', text, null, head + at))
  } else {
    const width = right.length + 1
    const table = new Uint32Array((left.length + 1) * width)
    for (let i = left.length - 1; i >= 0; i--) {
      for (let j = right.length - 1; j >= 0; j--) {
        table[i * width + j] = left[i] === right[j] ? table[(i + 1) * width + j + 1]! + 1 : Math.max(table[(i + 1) * width + j]!, table[i * width + j + 1]!)
      }
    }
    let [i, j] = [0, 0]
    while (i < left.length || j < right.length) {
      if (i < left.length && j < right.length && left[i] === right[j]) push(' ', left[i]!, head + i++, head + j++)
      else if (j >= right.length || (i < left.length && table[(i + 1) * width + j]! >= table[i * width + j + 1]!)) push('-', left[i]!, head + i++, null)
      else push('+', right[j]!, null, head + j++)
    }
  }
  for (let at = 0; at < tail; at++) push(' ', a[a.length - tail + at]!, a.length - tail + at, b.length - tail + at)
  return found
}

/** What changed with the lines around it; a number stands for so many lines in between. */
export function near(lines: readonly DiffLine[], around: number): (DiffLine | number)[] {
  const shown = new Set(lines.flatMap((line, at) => (line.kind === ' ' ? [] : Array.from({ length: 2 * around + 1 }, (_, by) => at + by - around))))
  const found: (DiffLine | number)[] = []
  lines.forEach((line, at) => {
    const last = found.at(-1)
    if (shown.has(at)) found.push(line)
    else if (typeof last === 'number') found[found.length - 1] = last + 1
    else found.push(1)
  })
  return found
}
