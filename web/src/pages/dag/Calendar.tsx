/** Runs per day of the last year, and those that are planned. A day with a failure shows how much of it failed. */
import { useEffect, useRef } from 'preact/hooks'
import { api, ok } from '../../api/client'
import { count, day, moment, zoneName } from '../../format'
import { useLive } from '../../live/resource'
import { Note, Skeleton } from '../../parts/basic'
import { label } from '../../states'
import { t } from '../../strings'
import { href, to } from '../../shell/router'
import { byHour, weeks, type DayOf } from './calendar'

const WEEKS = 53

export default function Calendar({ dagId }: { dagId: string }) {
  const timezone = zoneName()
  const live = useLive(`calendar ${dagId} ${timezone}`, () => ok(api.GET('/api/v2/dags/{dag_id}/calendar', { params: { path: { dag_id: dagId }, query: { timezone, days: WEEKS * 7 } } })), { on: [`dag:${dagId}`], every: 60_000, keep: true })
  const data = live.data.value
  const box = useRef<HTMLDivElement>(null)
  // The newest week is on the right.
  useEffect(() => void (box.current && (box.current.scrollLeft = box.current.scrollWidth)), [data === undefined])
  if (live.error.value && !data) return <Note kind="bad">{live.error.value}</Note>
  if (!data) return <Skeleton rows={7} />
  const planned = new Map(data.planned.map((one) => [one.day, one.count]))
  const shown = weeks(data.days, data.planned.at(-1)?.day ?? day(Date.now()), WEEKS)
  const hours = byHour(data.hours)
  const mostHours = Math.max(1, ...hours.map((one) => one.total))
  const most = Math.max(1, ...shown.flat().map((one) => one.total))
  const text = (one: DayOf) => {
    const due = planned.get(one.day)
    const runs = Object.entries(one.counts).map(([state, number]) => `${count(number)} ${label(state)}`)
    if (due) runs.push(t.dag.planned(due, data.planned_more && one.day === data.planned.at(-1)!.day))
    return `${one.day}\n${runs.join(', ') || t.dag.noneThatDay}`
  }
  return (
    <div class="card calendar">
      <header><h3>{t.dag.byMonth}</h3><span class="end small soft"><Legend planned={planned.size > 0} /></span></header>
      <div class="calendar-body">
      <div class="calendar-names small dim" aria-hidden="true">{t.dag.weekdays.map((name) => <span key={name}>{name}</span>)}</div>
      <div ref={box} class="pad calendar-weeks" role="group" tabIndex={0} aria-label={t.dag.byMonth}>
        {shown.map((week) => (
          <div key={week[0]!.day} class="calendar-week">
            <span class="calendar-month">{week[0]!.day.slice(8) <= '07' ? week[0]!.day.slice(0, 7) : ''}</span>
            {week.map((one) => {
              const failed = (one.counts['failed'] ?? 0) / Math.max(1, one.total)
              const kind = `calendar-day ${planned.has(one.day) ? 'planned' : ''}`
              return (
                one.total > 0 ? (
                  <a key={one.day} class={kind} href={href(`${to('dags', dagId, 'runs')}?from=${one.day}&until=${one.day}`)} title={text(one)} aria-label={text(one)}>
                    <i class="ok" style={{ opacity: 0.35 + (0.65 * one.total) / most }} />
                    {failed > 0 && <i class="bad" style={{ height: `${Math.max(20, failed * 100)}%` }} />}
                  </a>
                ) : (
                  <span key={one.day} class={kind} role="img" title={text(one)} aria-label={text(one)} />
                )
              )
            })}
          </div>
        ))}
      </div>
      </div>
      <div class="pad">
        {data.next_run_after && <p class="small soft" style={{ marginBottom: '8px' }}>{t.dag.nextRun(moment(data.next_run_after, false), timezone)}</p>}
        <h3>{t.dag.byHour(timezone)}</h3>
        <div class="calendar-hours" role="img" aria-label={`${t.dag.byHour(timezone)}: ${hours.filter((one) => one.total).map((one) => `${one.hour}: ${count(one.total)}`).join(', ')}`}>
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

function Legend({ planned }: { planned: boolean }) {
  return (
    <span class="row" style={{ gap: '12px' }}>
      {(['ok', 'bad'] as const).map((kind) => <span key={kind} class="row" style={{ gap: '5px' }}><span class="calendar-day" aria-hidden="true"><i class={kind} style={kind === 'bad' ? { height: '50%' } : {}} /></span>{t.states[kind === 'ok' ? 'success' : 'failed']}</span>)}
      {planned && <span class="row" style={{ gap: '5px' }}><span class="calendar-day planned" aria-hidden="true" />{t.dag.plannedLegend}</span>}
    </span>
  )
}
