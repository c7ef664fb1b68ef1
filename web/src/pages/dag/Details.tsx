/** The settings of a DAG; the facts of a run. */
import type { components } from '../../api/schema'
import type { DagDetails, DagRun } from '../../api/types'
import { duration, moment } from '../../format'
import { Button, Copy, Time, Took } from '../../parts/basic'
import { CountLink } from '../../parts/CountLink'
import { History } from '../../parts/History'
import { Schedule } from '../../parts/Schedule'
import { State } from '../../parts/State'
import { href, to } from '../../shell/router'
import { t } from '../../strings'

/** Fields of the API that are shown under their own names, most of which are arguments of DAG. */
const SHOWN = ['description', 'timetable_description', 'relative_fileloc', 'catchup', 'max_active_runs', 'max_active_tasks', 'max_consecutive_failed_dag_runs', 'dag_run_timeout', 'start_date', 'end_date', 'timezone', 'last_parsed_time', 'last_parse_duration', 'active_runs_count', 'is_backfillable'] as const

export function DetailsTab({ dag }: { dag: DagDetails }) {
  return (
    <div class="card">
      <dl class="facts pad">
        {SHOWN.map((name) => {
          const value = dag[name]
          return value !== null && value !== undefined && value !== '' && (
            <>
              <dt key={name} class="mono">{name}</dt>
              <dd key={`${name}-v`}>{/_date$|_time$/.test(name) ? moment(String(value)) : name === 'last_parse_duration' ? duration(Number(value)) : name === 'timetable_description' ? <Schedule summary={String(value)} /> : name === 'active_runs_count' ? <CountLink value={Number(value)} link={href(`${to('dags', dag.dag_id, 'runs')}?state=running`)} label={t.dag.runningRuns(Number(value))} /> : String(value)}</dd>
            </>
          )
        })}
        <dt class="mono">params</dt>
        <dd>{Object.keys(dag.params ?? {}).length ? <pre tabIndex={0} class="code">{JSON.stringify(Object.fromEntries(Object.entries(dag.params ?? {}).map(([name, one]) => [name, (one as { value?: unknown }).value])), null, 2)}</pre> : <span class="dim">{t.none}</span>}</dd>
      </dl>
    </div>
  )
}

export function RunDetails({ run, why, onNote }: { run: DagRun; why: components['schemas']['Why'] | null; onNote: (() => void) | null }) {
  const json = JSON.stringify(run.conf ?? {}, null, 2)
  return (
    <div class="two">
      <div class="card">
        <dl class="facts pad">
          <dt>{t.run.state}</dt><dd><State state={run.state} /></dd>
          <dt>{t.run.type}</dt><dd>{t.run.types[run.run_type] ?? run.run_type}</dd>
          <dt>{t.run.by}</dt><dd>{[run.triggered_by, run.triggering_user_name].filter(Boolean).join(', ') || '–'}</dd>
          <dt>{t.run.logical}</dt><dd>{moment(run.logical_date)}</dd>
          <dt>{t.run.interval}</dt><dd>{moment(run.data_interval_start)} – {moment(run.data_interval_end)}</dd>
          <dt>{t.run.after}</dt><dd>{moment(run.run_after)}</dd>
          <dt>{t.run.queued}</dt><dd><Time at={run.queued_at} exact /></dd>
          <dt>{t.run.started}</dt><dd><Time at={run.start_date} exact /></dd>
          <dt>{t.run.ended}</dt><dd><Time at={run.end_date} exact /></dd>
          <dt>{t.run.duration}</dt><dd><Took start={run.start_date} end={run.end_date} /></dd>
          <dt>{t.run.versions}</dt><dd>{run.dag_versions.map((one, at) => <>{at > 0 && ', '}<a key={one.version_number} class="link" href={href(`${to('dags', run.dag_id, 'source')}?ran=${one.version_number}`)}>{one.version_number}</a></>)}</dd>
          <dt>{t.run.note}</dt>
          <dd class="row">{run.note ?? <span class="dim">{t.none}</span>}{onNote && <Button kind="plain" icon="edit" label={t.run.writeNote} onClick={onNote} />}</dd>
        </dl>
      </div>
      <div class="card">
        <header><h3>{t.run.conf}</h3><span class="end"><Copy text={json} /></span></header>
        <pre tabIndex={0} class="code" style={{ margin: '8px', maxHeight: '300px' }}>{json}</pre>
      </div>
      {why && <div class="card"><header><h3>{t.task.whyHistory}</h3></header><div class="pad"><History why={why} /></div></div>}
    </div>
  )
}
