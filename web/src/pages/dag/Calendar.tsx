/** Runs per day of the last year. A day with a failure shows how much of it failed. */
import { useEffect, useRef } from 'preact/hooks'
import { api, ok } from '../../api/client'
import { clock, count, day, moment } from '../../format'
import { useLive } from '../../live/resource'
import { Note, Skeleton } from '../../parts/basic'
import { label } from '../../states'
import { t } from '../../strings'
import { href, to } from '../../shell/router'
import { byHour, weeks } from './calendar'

const WEEKS = 53
const PAGES = 5

export default function Calendar({ dagId }: { dagId: string }) {
  const live = useLive(`calendar ${dagId}`, () => runs(dagId), { on: [`dag:${dagId}`], every: 60_000 })
  const dag = useLive(`dag ${dagId}`, () => ok(api.GET('/api/v2/dags/{dag_id}/details', { params: { path: { dag_id: dagId } } })), { fresh: 10_000 })
  const data = live.data.value
  const box = useRef<HTMLDivElement>(null)
  // The newest week is on the right.
  useEffect(() => void (box.current && (box.current.scrollLeft = box.current.scrollWidth)), [data === undefined])
  if (live.error.value && !data) return <Note kind="bad">{live.error.value}</Note>
  if (!data) return <Skeleton rows={7} />
  const shown = weeks(data, day, due_(dag.data.value?.next_dagrun_run_after), WEEKS)
  const due = dag.data.value && !dag.data.value.is_paused ? dag.data.value.next_dagrun_run_after : null
  const next = due ? day(due) : null
  const hours = byHour(data, hour)
  const mostHours = Math.max(1, ...hours.map((one) => one.total))
  const most = Math.max(1, ...shown.flat().map((one) => one.total))
  return (
    <div class="card calendar">
      <header><h3>{t.dag.byMonth}</h3><span class="end small soft"><Legend /></span></header>
      <div class="calendar-body">
      <div class="calendar-names small dim" aria-hidden="true">{t.dag.weekdays.map((name) => <span key={name}>{name}</span>)}</div>
      <div ref={box} class="pad calendar-weeks" role="group" tabIndex={0} aria-label={t.dag.byMonth}>
        {shown.map((week) => (
          <div key={week[0]!.day} class="calendar-week">
            <span class="calendar-month">{week[0]!.day.slice(8) <= '07' ? week[0]!.day.slice(0, 7) : ''}</span>
            {week.map((one) => {
              const failed = (one.counts['failed'] ?? 0) / Math.max(1, one.total)
              const text = `${one.day}\n${one.day === next ? `${t.dag.planned(moment(due!, false))}\n` : ''}${one.total ? Object.entries(one.counts).map(([state, number]) => `${count(number)} ${label(state)}`).join(', ') : t.dag.noneThatDay}`
              return (
                one.total > 0 ? (
                  <a key={one.day} class={`calendar-day ${one.day === next ? 'planned' : ''}`} href={href(`${to('dags', dagId, 'runs')}?from=${one.day}&until=${one.day}`)} title={text} aria-label={text}>
                    <i class="ok" style={{ opacity: 0.35 + (0.65 * one.total) / most }} />
                    {failed > 0 && <i class="bad" style={{ height: `${Math.max(20, failed * 100)}%` }} />}
                  </a>
                ) : (
                  <span key={one.day} class={`calendar-day ${one.day === next ? 'planned' : ''}`} role="img" title={text} aria-label={text} />
                )
              )
            })}
          </div>
        ))}
      </div>
      </div>
      <div class="pad">
        <h3>{t.dag.byHour}</h3>
        <div class="calendar-hours" role="img" aria-label={`${t.dag.byHour}: ${hours.filter((one) => one.total).map((one) => `${one.hour}: ${count(one.total)}`).join(', ')}`}>
          {hours.map((one) => (
            <span key={one.hour} title={`${String(one.hour).padStart(2, '0')}:00\n${count(one.total - one.failed)} ${t.states.success}, ${count(one.failed)} ${t.states.failed}`}>
              <span class="calendar-hour"><i class="ok" style={{ height: `${((one.total - one.failed) / mostHours) * 100}%` }} /><i class="bad" style={{ height: `${(one.failed / mostHours) * 100}%` }} /></span>
              <small class="dim">{one.hour % 3 === 0 ? one.hour : ''}</small>
            </span>
          ))}
        </div>
      </div>
    </div>
  )
}

/** The week of a planned run is shown if it is the present or the next one. */
function due_(planned: string | null | undefined): string {
  const today = day(new Date())
  const until = planned ? day(planned) : today
  return until > today && Date.parse(until) - Date.parse(today) < 7 * 86_400_000 ? until : today
}

const hour = (at: string) => Number(clock(at, false).slice(0, 2))

function Legend() {
  return (
    <span class="row" style={{ gap: '12px' }}>
      {(['ok', 'bad'] as const).map((kind) => <span key={kind} class="row" style={{ gap: '5px' }}><span class="calendar-day" aria-hidden="true"><i class={kind} style={kind === 'bad' ? { height: '50%' } : {}} /></span>{t.states[kind === 'ok' ? 'success' : 'failed']}</span>)}
    </span>
  )
}

async function runs(dagId: string): Promise<{ at: string; state: string }[]> {
  const found: { at: string; state: string }[] = []
  const since = new Date(Date.now() - WEEKS * 7 * 86_400_000).toISOString()
  for (let page = 0; page < PAGES; page++) {
    const got = await ok(api.GET('/api/v2/dags/{dag_id}/dagRuns', { params: { path: { dag_id: dagId }, query: { order_by: ['-run_after'], limit: 1000, offset: page * 1000, run_after_gte: since } } }))
    found.push(...got.dag_runs.map((run) => ({ at: run.logical_date ?? run.run_after, state: run.state })))
    if (got.dag_runs.length < 1000) break
  }
  return found
}
