/** Clear and mark a task instance: what to include, and exactly what would change. */
import { useEffect, useState } from 'preact/hooks'
import { api, message, ok } from '../../api/client'
import type { components } from '../../api/schema'
import { count, runName } from '../../format'
import { nudge } from '../../live/changes'
import { Button, Check, Skeleton } from '../../parts/basic'
import { Dialog, Menu, toast } from '../../parts/overlay'
import { Mark } from '../../parts/State'
import { t } from '../../strings'

type Kind = 'clear' | 'success' | 'failed' | 'skipped'
interface Props {
  dagId: string
  runId: string
  taskId: string
  /** null: all instances. */
  mapIndex: number | null
  onNote?: () => void
  onDone: () => void
}

export function Actions(props: Props) {
  const [kind, setKind] = useState<Kind | null>(null)
  return (
    <>
      <Button icon="clear" kind="first" onClick={() => setKind('clear')}>{t.task.clear}</Button>
      <Menu
        label={t.menu}
        items={[
          { text: t.task.markSuccess, icon: 'check', act: () => setKind('success') },
          { text: t.task.markFailed, icon: 'close', act: () => setKind('failed') },
          { text: t.task.markSkipped, icon: 'right', act: () => setKind('skipped') },
          props.onNote ? { text: t.run.writeNote, icon: 'edit', act: props.onNote } : null,
        ]}
      />
      {kind && <Change key={kind} {...props} kind={kind} onClose={() => setKind(null)} />}
    </>
  )
}

type Instance = components['schemas']['TaskInstance']
type Moved = components['schemas']['MovedRun']

function Change({ dagId, runId, taskId, mapIndex, kind, onClose, onDone }: Props & { kind: Kind; onClose: () => void }) {
  const [scope, setScope] = useState({ upstream: false, downstream: kind === 'clear', past: false, future: false, failed: false })
  // Which version a cleared run continues with: unless somebody chooses, the server decides, as its preview shows.
  const [latest, setLatest] = useState<boolean | null>(null)
  const [moved, setMoved] = useState<Moved[]>([])
  const [found, setFound] = useState<Instance[] | null>(null)
  const [wrong, setWrong] = useState<string | null>(null)
  const [busy, setBusy] = useState(false)
  const include = { include_upstream: scope.upstream, include_downstream: scope.downstream, include_past: scope.past, include_future: scope.future }

  const send = async (dryRun: boolean): Promise<Instance[]> => {
    if (kind === 'clear') {
      const body = { dry_run: dryRun, dag_run_id: runId, task_ids: [mapIndex === null ? taskId : [taskId, mapIndex]], only_failed: scope.failed, only_running: false, reset_dag_runs: true, prevent_running_task: false, run_on_latest_version: latest, ...include }
      const result = await ok(api.POST('/api/v2/dags/{dag_id}/clearTaskInstances', { params: { path: { dag_id: dagId } }, body }))
      if (dryRun) setMoved(result.moved)
      return result.task_instances as Instance[]
    }
    const body = { new_state: kind, ...include }
    const path = { dag_id: dagId, dag_run_id: runId, task_id: taskId }
    const page =
      mapIndex === null
        ? await ok(dryRun ? api.PATCH('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/dry_run', { params: { path }, body }) : api.PATCH('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}', { params: { path }, body }))
        : await ok(dryRun ? api.PATCH('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}/dry_run', { params: { path: { ...path, map_index: mapIndex } }, body }) : api.PATCH('/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}', { params: { path: { ...path, map_index: mapIndex } }, body }))
    return page.task_instances as Instance[]
  }
  useEffect(() => {
    let current = true
    setWrong(null)
    setFound(null)
    send(true).then(
      (list) => current && setFound(list),
      (error: unknown) => current && (setWrong(message(error)), setFound([])),
    )
    return () => void (current = false)
  }, [scope, latest])
  const act = async () => {
    setBusy(true)
    try {
      const done = await send(false)
      toast(kind === 'clear' ? t.task.cleared(done.length) : t.task.markedDone(done.length))
      nudge('runs', `dag:${dagId}`)
      onDone()
      onClose()
    } catch (error) {
      setWrong(message(error))
      setBusy(false)
    }
  }
  const title = kind === 'clear' ? t.task.clear : kind === 'success' ? t.task.markSuccess : kind === 'failed' ? t.task.markFailed : t.task.markSkipped
  const box = (name: keyof typeof scope, text: string) => <Check on={scope[name]} onChange={(on) => setScope({ ...scope, [name]: on })}>{text}</Check>
  return (
    <Dialog
      title={`${title}: ${taskId}${mapIndex === null ? '' : ` [${mapIndex}]`}`}
      wrong={wrong}
      onClose={onClose}
      onSubmit={() => void act()}
      footer={
        <>
          <Button onClick={onClose}>{t.cancel}</Button>
          <Button kind="first" type="submit" disabled={!found?.length || busy}>{title}{found ? ` (${count(found.length)})` : ''}</Button>
        </>
      }
    >
      <fieldset class="scope">
        <legend class="small dim">{t.task.scope}</legend>
        {box('upstream', t.task.upstream)}
        {box('downstream', t.task.downstream)}
        {box('past', t.task.past)}
        {box('future', t.task.future)}
        {kind === 'clear' && box('failed', t.task.onlyFailed)}
        {kind === 'clear' && <Check on={latest ?? moved.length > 0} onChange={setLatest}>{t.task.latest}</Check>}
      </fieldset>
      {found === null ? (
        <Skeleton rows={4} height={26} />
      ) : (
        <div style={{ minHeight: '150px' }}>
          <p><strong>{found.length ? (kind === 'clear' ? t.task.affected(found.length) : t.task.marked(found.length, t.states[kind])) : t.task.nothing}</strong></p>
          {moved.length > 0 && <p class="small">{t.task.moved(moved.length, moved[0]!.from_version, moved[0]!.to_version)}</p>}
          <ul class="preview" role="list" tabIndex={0} aria-label={t.task.preview}>
            {found.slice(0, 200).map((ti) => (
              <li key={`${ti.dag_run_id} ${ti.task_id} ${ti.map_index}`} class="row">
                <Mark state={ti.state} />
                <span class="clip">{ti.task_id}{ti.map_index >= 0 ? ` [${ti.map_index}]` : ''}</span>
                {ti.dag_run_id !== runId && <span class="dim small clip" title={ti.dag_run_id}>{runName(ti.dag_run_id)}</span>}
              </li>
            ))}
            {found.length > 200 && <li class="dim">{t.task.andMore(found.length - 200)}</li>}
          </ul>
        </div>
      )}
    </Dialog>
  )
}
