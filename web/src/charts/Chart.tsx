/** A chart over time by uPlot, in the colors of the theme, as wide as its place. */
import { useEffect, useRef } from 'preact/hooks'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { palette, resolved } from '../shell/theme'
import { clock, day, moment, zone } from '../format'
import { t } from '../strings'

export interface Line {
  label: string
  /** The name of a color variable. */
  color: string
  values: (number | null)[]
  dash?: number[]
  /** Bars or points instead of a line. */
  kind?: 'line' | 'bars' | 'points' | 'step'
  fill?: boolean
}

interface Props {
  /** Seconds since 1970. */
  times: number[]
  lines: Line[]
  height?: number
  format: (value: number) => string
  label: string
  onPick?: (index: number) => void
}

export function Chart({ times, lines, height = 220, format, label, onPick }: Props) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | null>(null)
  const dark = palette.value
  useEffect(() => {
    const node = box.current!
    const [text, grid, ...colors] = resolved('--text-3', '--line', ...lines.map((line) => line.color))
    const axis = { stroke: text!, grid: { stroke: grid!, width: 1 }, ticks: { show: false }, font: '11px Inter, system-ui, sans-serif' }
    const made = new uPlot(
      {
        width: node.clientWidth || 600,
        height,
        tzDate: (seconds) => (zone.value === 'local' ? new Date(seconds * 1000) : uPlot.tzDate(new Date(seconds * 1000), zone.value === 'utc' ? 'Etc/UTC' : zone.value)),
        cursor: { y: false, points: { size: 6 } },
        legend: { live: true },
        scales: { x: { range: (_, least, most) => { const room = Math.max(30, (most - least) / Math.max(2, times.length) / 1.8); return [least - room, most + room] } }, y: { range: (_, __, most) => [0, Math.max(most * 1.08, 1e-3)] } },
        axes: [{ ...axis, values: (_, ticks) => ticks.map((one, at) => tickText(one, at ? ticks[at - 1]! : null, (ticks[1] ?? 0) - (ticks[0] ?? 0) < 60)) }, { ...axis, size: 62, values: (_, ticks) => ticks.map((one) => (one === null ? '' : format(one))) }],
        series: [
          { label: t.task.at, value: (_: uPlot, value: number | null) => (value === null ? '–' : moment(value * 1000)) },
          ...lines.map((line, at) => ({
            label: line.label,
            stroke: colors[at]!,
            width: line.kind === 'points' ? 0 : line.kind === 'bars' ? 0 : 1.6,
            ...(line.dash ? { dash: line.dash } : {}),
            ...(line.fill || line.kind === 'bars' ? { fill: line.kind === 'bars' ? colors[at]! : colors[at]!.replace('rgb(', 'rgba(').replace(')', ', 0.14)') } : {}),
            ...(line.kind === 'bars' ? { paths: uPlot.paths.bars!({ size: [0.7, 18] }) } : line.kind === 'step' ? { paths: uPlot.paths.stepped!({ align: 1 }) } : {}),
            points: { show: line.kind === 'points', size: 7, fill: colors[at]! },
            value: (_: uPlot, value: number | null) => (value === null ? '–' : format(value)),
          })),
        ],
      },
      [times, ...lines.map((line) => line.values)] as uPlot.AlignedData,
      node,
    )
    plot.current = made
    const sizes = new ResizeObserver(() => node.clientWidth && made.setSize({ width: node.clientWidth, height }))
    sizes.observe(node)
    return () => {
      sizes.disconnect()
      made.destroy()
      plot.current = null
    }
    // Lines that only have other values are set below.
  }, [dark, height, lines.map((line) => line.label).join('\n'), zone.value])
  useEffect(() => plot.current?.setData([times, ...lines.map((line) => line.values)] as uPlot.AlignedData), [times, lines])
  return <div ref={box} class="chart" role="img" aria-label={label} style={{ minHeight: `${height + 30}px`, cursor: onPick ? 'pointer' : undefined }} onClick={() => { const at = plot.current?.cursor.idx; if (at !== null && at !== undefined) onPick?.(at) }} />
}

/** The time of a tick, with its day where the day changes. */
function tickText(seconds: number, before: number | null, exact: boolean): string {
  const date = day(seconds * 1000)
  const time = clock(seconds * 1000, exact)
  if (before !== null && day(before * 1000) === date) return time
  return time === '00:00' && before !== null ? date.slice(5) : `${time}\n${date.slice(5)}`
}
