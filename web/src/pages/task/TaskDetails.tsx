/** Facts of a try, settings of the task, and the progress of a Spark task. */
import { api, ok } from '../../api/client'
import type { TaskInstance, TaskTry } from '../../api/types'
import { bytes, count } from '../../format'
import { useLive } from '../../live/resource'
import { Time, Took } from '../../parts/basic'
import { Lazy } from '../../parts/Lazy'
import { State } from '../../parts/State'
import { href, to } from '../../shell/router'
import { t } from '../../strings'

interface Props {
  ti: TaskInstance
  of: TaskTry | null
  path: { dag_id: string; dag_run_id: string; task_id: string }
  index: number
}

/** "rows_read" as "Rows read". */
const words = (name: string) => (name.charAt(0).toUpperCase() + name.slice(1)).replaceAll('_', ' ')

function measured(name: string, value: unknown): string {
  if (typeof value === 'number') return name.startsWith('bytes') ? bytes(value) : count(value)
  return typeof value === 'string' ? value : JSON.stringify(value)
}

export function TaskDetails({ ti, of, path, index }: Props) {
  const shown = of ?? ti
  const task = useLive(`task ${path.dag_id} ${path.task_id}`, () => ok(api.GET('/api/v2/dags/{dag_id}/tasks/{task_id}', { params: { path: { dag_id: path.dag_id, task_id: path.task_id } } })), { every: 0 })
  const spark = useLive(`spark ${Object.values(path).join(' ')} ${index}`, () => ok(api.GET('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/progress', { params: { path, query: { map_index: index } } })), { on: [`dag:${path.dag_id}`] })
  const about = task.data.value
  const links = (ids: string[]) => (ids.length ? ids.map((id, at) => <>{at > 0 && ', '}<a key={id} class="link" href={href(to('dags', path.dag_id, 'runs', path.dag_run_id, 'tasks', id))}>{id}</a></>) : <span class="dim">{t.none}</span>)
  const progress = spark.data.value?.progress
  return (
    <div class="two">
      <div class="card">
        <header><h3>{t.task.try_} {shown.try_number}</h3></header>
        <dl class="facts pad">
          <dt>{t.run.state}</dt><dd><State state={shown.state} /></dd>
          {shown.reason && <><dt>{t.task.reason}</dt><dd>{shown.reason}</dd></>}
          <dt>{t.task.scheduled}</dt><dd><Time at={shown.scheduled_when} exact /></dd>
          <dt>{t.run.queued}</dt><dd><Time at={shown.queued_when} exact /></dd>
          <dt>{t.run.started}</dt><dd><Time at={shown.start_date} exact /></dd>
          <dt>{t.run.ended}</dt><dd><Time at={shown.end_date} exact /></dd>
          <dt>{t.run.duration}</dt><dd><Took start={shown.start_date} end={shown.end_date} open={shown.state === 'running'} /></dd>
          {shown.start_date && shown.dag_version && <><dt>{t.run.versions}</dt><dd><a class="link" href={href(`${to('dags', ti.dag_id, 'source')}?ran=${shown.dag_version.version_number}`)}>{t.dag.version(shown.dag_version.version_number)}</a></dd></>}
          {ti.due_at && <><dt>{t.task.due}</dt><dd><Time at={ti.due_at} /></dd></>}
          <dt>{t.task.pool}</dt><dd><a class="link" href={href('/pools')}>{shown.pool}</a> ({t.task.slots(shown.pool_slots)})</dd>
          <dt>{t.task.queue}</dt><dd>{shown.queue ?? '–'}</dd>
          <dt>{t.task.priority}</dt><dd>{shown.priority_weight}</dd>
          <dt>{t.task.worker}</dt><dd>{shown.worker ?? '–'}</dd>
          <dt>{t.task.host}</dt><dd>{shown.hostname ?? '–'}</dd>
          <dt>{t.task.queuedBy}</dt><dd>{shown.queued_by ?? '–'}</dd>
        </dl>
      </div>
      {about && (
        <div class="card">
          <header><h3>{t.dag.task}</h3></header>
          <dl class="facts pad">
            <dt>{t.task.operator}</dt><dd>{about.operator_name}</dd>
            <dt>{t.task.upstreamTasks}</dt><dd>{links(about.upstream_task_ids)}</dd>
            <dt>{t.task.downstreamTasks}</dt><dd>{links(about.downstream_task_ids)}</dd>
            <dt>{t.task.rule}</dt><dd class="mono">{about.trigger_rule}</dd>
            <dt>{t.task.retries}</dt><dd>{about.retries}</dd>
          </dl>
        </div>
      )}
      {about?.doc_md?.trim() && (
        <div class="card">
          <header><h3>{t.dag.docs}</h3></header>
          <div class="pad"><Lazy load={() => import('../../parts/Markdown')} props={{ text: about.doc_md }} /></div>
        </div>
      )}
      {Object.keys(ti.rendered_fields ?? {}).length > 0 && (
        <div class="card">
          <header><h3>{t.task.rendered}</h3></header>
          <dl class="facts pad">{Object.entries(ti.rendered_fields ?? {}).map(([name, value]) => <><dt key={name} class="mono">{name}</dt><dd key={`${name}v`}><pre tabIndex={0} class="code">{typeof value === 'string' ? value : JSON.stringify(value, null, 2)}</pre></dd></>)}</dl>
        </div>
      )}
      {progress && (
        <div class="card">
          <header><h3>{t.task.progress}</h3></header>
          <dl class="facts pad">{Object.entries(progress).filter(([, value]) => value !== null && JSON.stringify(value) !== '[]').map(([name, value]) => <><dt key={name}>{words(name)}</dt><dd key={`${name}v`}>{measured(name, value)}</dd></>)}</dl>
        </div>
      )}
      {(spark.data.value?.applications.length ?? 0) > 0 && (
        <div class="card">
          <header><h3>{t.task.spark}</h3></header>
          <ul class="pad stack">
            {spark.data.value!.applications.map((one) => (
              <li key={`${one.try_number} ${one.submitted_at}`}>
                <strong class="mono">{one.application_id ?? one.driver_id ?? one.kind}</strong> <span class="soft">{one.state}, {one.master}</span>
                {one.ui_url && /^https?:/.test(one.ui_url) && <> <a class="link" href={one.ui_url} target="_blank" rel="noreferrer">{one.ui_url}</a></>}
                {one.detail && <p class="small soft">{one.detail}</p>}
              </li>
            ))}
          </ul>
        </div>
      )}
    </div>
  )
}
