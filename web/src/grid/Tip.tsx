/** What the grid says about the cell under the mouse or the keys: state, duration, start and reason. */
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import { duration, elapsed, moment, now, runName } from '../format'
import { label } from '../states'
import { t } from '../strings'
import { countsAt, lengthOf, stateAt, type GridData, type GridRun, type Row } from './model'

/** A cell that the mouse only crosses is not looked up. */
const REST_MS = 120

interface Facts {
  start_date: string | null
  end_date: string | null
  reason: string | null
}

interface Props {
  dagId: string
  data: GridData
  run: GridRun
  row: Row | undefined
  x: number
  y: number
  shown: boolean
}

export function Tip({ dagId, data, run, row, x, y, shown }: Props) {
  const box = useRef<HTMLDivElement>(null)
  const state = row ? stateAt(run, row, data.codes) : run.state
  const counts = row ? countsAt(run, row, data.codes) : {}
  const tries = row && row.task >= 0 ? (run.tries[row.task] ?? 1) : 1
  const single = row && row.task >= 0 && state && !Object.keys(counts).length
  const facts = useFacts(single ? [dagId, run.dag_run_id, row.id, state, String(tries)] : null)
  const lines = [
    row ? row.id : runName(run.dag_run_id),
    row && state ? label(state) + (facts?.start_date ? `, ${duration(elapsed(facts.start_date, facts.end_date))}` : '') : row ? t.states.removed : `${label(run.state)}, ${duration(lengthOf(run, now.peek()))}`,
    ...(facts?.start_date ? [t.overview.started(moment(facts.start_date))] : []),
    ...(facts?.reason ? [facts.reason] : []),
    ...(tries > 1 ? [`${t.task.try_} ${tries}`] : []),
    ...(Object.keys(counts).length ? [Object.entries(counts).map(([name, number]) => `${number} ${label(name)}`).join(', ')] : []),
    row ? runName(run.dag_run_id) : `${t.run.types[run.run_type] ?? run.run_type}, ${moment(run.start_date ?? run.run_after)}`,
  ]
  // Its size decides on which side of the mouse it fits.
  useLayoutEffect(() => {
    const tip = box.current
    if (!tip || !shown) return
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8))}px`
    tip.style.top = `${y + 14 + tip.offsetHeight > innerHeight - 8 ? Math.max(4, y - tip.offsetHeight - 10) : y + 14}px`
  })
  return (
    <div ref={box} class={shown ? 'tip' : 'visually-hidden'} role="status">
      {lines.join('\n')}
    </div>
  )
}

/** Start, end and reason of a task instance, once the mouse rests on its cell. The state and the try are part of the key, as both change them. */
const known = new Map<string, Facts>()
const MOST = 500

function useFacts(of: [dagId: string, runId: string, taskId: string, state: string, tries: string] | null): Facts | null {
  const key = of ? JSON.stringify(of) : ''
  const [, drawn] = useState(0)
  useEffect(() => {
    if (!of || known.has(key)) return
    const [dag_id, dag_run_id, task_id] = of
    const timer = setTimeout(() => {
      ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}', { params: { path: { dag_id, dag_run_id, task_id } } })).then(
        (found) => {
          known.set(key, { start_date: found.start_date ?? null, end_date: found.end_date ?? null, reason: found.reason ?? null })
          if (known.size > MOST) known.delete(known.keys().next().value!)
          drawn((before) => before + 1)
        },
        () => undefined,
      )
    }, REST_MS)
    return () => clearTimeout(timer)
  }, [key])
  return known.get(key) ?? null
}
