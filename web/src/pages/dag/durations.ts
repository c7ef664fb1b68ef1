/** Durations of runs as lines of a chart. Pure. */
export function median(values: readonly number[]): number | null {
  if (!values.length) return null
  const sorted = [...values].sort((a, b) => a - b)
  const at = sorted.length >> 1
  return sorted.length % 2 ? sorted[at]! : (sorted[at - 1]! + sorted[at]!) / 2
}

/** For each value the median of it and those before, at most `size`. */
export function rolling(values: readonly (number | null)[], size: number): (number | null)[] {
  return values.map((_, at) => median(values.slice(Math.max(0, at + 1 - size), at + 1).filter((one): one is number => one !== null)))
}
