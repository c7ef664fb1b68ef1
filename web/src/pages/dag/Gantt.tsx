/** The timeline of a run: for each try how long it waited, was queued and ran; the critical path stands out. */
import { useState } from 'preact/hooks'
import type { Timeline, TimelineBar } from '../../api/pictures'
import { clock, duration, now } from '../../format'
import type { Live } from '../../live/resource'
import { Check, Empty, Note, Search, Skeleton } from '../../parts/basic'
import { Mark } from '../../parts/State'
import { href, to } from '../../shell/router'
import { color, label } from '../../states'
import { t } from '../../strings'

interface Line {
  key: string
  taskId: string
  mapIndex: number
  name: string
  bars: TimelineBar[]
  critical: boolean
}

/** One line for each task instance, in the order of the server. */
export function lines(data: Timeline): Line[] {
  const critical = new Set(data.critical_path)
  const found = new Map<string, Line>()
  for (const bar of data.bars) {
    const key = `${bar.task_id} ${bar.map_index}`
    const line = found.get(key) ?? {
      key, taskId: bar.task_id, mapIndex: bar.map_index, name: bar.map_index >= 0 ? `${bar.task_id} [${bar.map_index}]` : bar.task_id, bars: [], critical: critical.has(bar.task_id),
    }
    line.bars.push(bar)
    found.set(key, line)
  }
  return [...found.values()]
}

/** The groups of a task: what comes before its own name. */
export const group = (name: string) => name.slice(0, name.lastIndexOf('.') + 1)

/** Round steps of the time axis, in seconds. */
export function ticks(seconds: number, most = 6): number[] {
  const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400]
  const step = steps.find((one) => seconds / one <= most) ?? 86_400 * Math.ceil(seconds / most / 86_400)
  return Array.from({ length: Math.floor(seconds / step) + 1 }, (_, at) => at * step)
}

export function GanttTab({ dagId, runId, live }: { dagId: string; runId: string; live: Live<Timeline> }) {
  const [filter, setFilter] = useState('')
  const [onlyCritical, setOnlyCritical] = useState(false)
  const data = live.data.value
  if (live.error.value && !data) return <Note kind="bad">{live.error.value}</Note>
  if (!data) return <Skeleton rows={12} height={26} />
  const all = lines(data)
  if (!all.length) return <Empty title={t.task.noMapped} />
  const shown = all.filter((line) => (!filter || line.name.toLowerCase().includes(filter.toLowerCase())) && (!onlyCritical || line.critical))
  // The clock of the server: that of the browser may be wrong.
  const going = data.state === 'running' || data.state === 'queued'
  const serverNow = Date.parse(data.now) + (going ? Math.max(0, now.value - Date.parse(data.now)) % 5000 : 0)
  const starts = all.flatMap((line) => line.bars.map((bar) => bar.scheduled_when ?? bar.queued_when ?? bar.start_date)).filter((one): one is string => one !== null).map((one) => Date.parse(one))
  const from = Math.min(...starts, data.start_date ? Date.parse(data.start_date) : serverNow)
  const until = Math.max(...all.flatMap((line) => line.bars.map((bar) => (bar.end_date ? Date.parse(bar.end_date) : bar.start_date || bar.queued_when ? serverNow : 0))), data.end_date ? Date.parse(data.end_date) : 0, from + 100)
  const length = (until - from) / 1000
  const at = (time: string | null, otherwise: number | null = null) => (time ? ((Date.parse(time) - from) / 1000 / length) * 100 : otherwise)
  const path = data.critical_path.length > 0 && data.end_date && data.start_date ? duration((Date.parse(data.end_date) - Date.parse(data.start_date)) / 1000) : null
  return (
    <div>
      <div class="filters">
        <Search value={filter} onInput={setFilter} placeholder={t.dag.filterTasks} />
        {data.critical_path.length > 0 && <Check on={onlyCritical} onChange={setOnlyCritical}><span class="crit-key" /> {t.dag.critical}</Check>}
        <span class="grow" />
        <span class="gantt-keys small soft">
          <span><i class="g-wait" />{t.dag.scheduledFor}</span>
          <span><i class="g-queue" />{t.dag.queuedIn}</span>
          <span><i class="g-run" />{t.dag.runningFor}</span>
        </span>
      </div>
      <div class="gantt" role="group" aria-label={t.dag.gantt}>
        <div class="gantt-row gantt-head">
          <span class="gantt-name small dim">{path ? t.dag.criticalText(path) : ''}</span>
          <span class="gantt-lane">
            {ticks(length).map((tick) => (
              <span key={tick} class="gantt-tick" style={{ left: `${(tick / length) * 100}%` }} title={clock(from + tick * 1000)}>{duration(tick).replace(/\.00? s/, ' s').replace(/(\.\d)0 s/, '$1 s')}</span>
            ))}
          </span>
          <span class="gantt-time" />
        </div>
        {shown.slice(0, 1000).map((line) => {
          const last = line.bars.at(-1)!
          const seconds = last.start_date ? ((last.end_date ? Date.parse(last.end_date) : serverNow) - Date.parse(last.start_date)) / 1000 : null
          return (
            <a key={line.key} class={`gantt-row ${line.critical ? 'critical' : ''}`} href={href(line.mapIndex >= 0 ? to('dags', dagId, 'runs', runId, 'tasks', line.taskId, line.mapIndex) : to('dags', dagId, 'runs', runId, 'tasks', line.taskId))}>
              <span class="gantt-name">
                <Mark state={last.state} />
                <span class="clip" title={line.name}><span class="gantt-group">{group(line.name)}</span>{line.name.slice(group(line.name).length)}</span>
                {last.instances > 1 && <span class="dim small">[{last.instances}]</span>}
              </span>
              <span class="gantt-lane">
                {line.bars.map((bar) => <Spans key={bar.try_number} bar={bar} at={at} />)}
              </span>
              <span class="gantt-time num small soft">{seconds === null ? '' : duration(seconds)}</span>
            </a>
          )
        })}
      </div>
    </div>
  )
}

function Spans({ bar, at }: { bar: TimelineBar; at: (time: string | null, otherwise?: number | null) => number | null }) {
  const scheduled = at(bar.scheduled_when)
  const queued = at(bar.queued_when)
  const start = at(bar.start_date)
  const end = at(bar.end_date, 100)!
  const piece = (kind: string, left: number | null, right: number | null, style = {}) =>
    left !== null && right !== null && right > left ? <i class={kind} style={{ left: `${left}%`, width: `${right - left}%`, ...style }} /> : null
  const title = `${label(bar.state)}${bar.worker ? `, ${bar.worker}` : ''}, ${t.task.try_} ${bar.try_number}`
  return (
    <span title={title}>
      {piece('g-wait', scheduled, queued ?? start ?? end)}
      {piece('g-queue', queued, start ?? end)}
      {start !== null && <i class={`g-run ${bar.end_date ? '' : 'open'}`} style={{ left: `${start}%`, width: `max(3px, ${Math.max(0, end - start)}%)`, background: color(bar.state) }} />}
    </span>
  )
}
