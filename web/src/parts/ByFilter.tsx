/** A change of all that a filter selects: exact counts first, then the change, only if the counts still hold. */
import { useEffect, useState } from 'preact/hooks'
import { api, message, ok } from '../api/client'
import type { components } from '../api/schema'
import { count } from '../format'
import { label } from '../states'
import { t } from '../strings'
import { Button, Note, Skeleton } from './basic'
import { sum } from './chosen'
import { Dialog, toast } from './overlay'
import { Mark } from './State'
import { Icon } from './icons'

type S = components['schemas']
type Result = S['ByFilter']
/** Several filters, since one filter cannot name pairs: run a of DAG x and run b of DAG y, but not run b of x. */
export type Wanted = { title: string } & (
  | { kind: 'clear'; filters: S['InstanceFilter'][] }
  | { kind: 'mark'; filters: S['InstanceFilter'][]; state: 'success' | 'failed' | 'skipped' }
  | { kind: 'delete'; filters: S['RunFilter'][] }
)

/** One result for all filters. `expected` has the counts of the preview. */
async function send(wanted: Wanted, expected: readonly number[] | null): Promise<{ whole: Result; counts: number[] }> {
  const results: Result[] = []
  for (let at = 0; at < wanted.filters.length; at++) results.push(await one(wanted, at, expected?.[at] ?? null))
  return { whole: sum(results), counts: results.map((result) => result.count) }
}

function one(wanted: Wanted, at: number, expected: number | null): Promise<Result> {
  const how = expected === null ? { dry_run: true } : { dry_run: false, expected }
  switch (wanted.kind) {
    case 'clear':
      return ok(api.POST('/api/v2/clearByFilter', { body: { filter: wanted.filters[at]!, ...how } }))
    case 'mark':
      return ok(api.POST('/api/v2/markByFilter', { body: { filter: wanted.filters[at]!, new_state: wanted.state, ...how } }))
    case 'delete':
      return ok(api.POST('/api/v2/deleteByFilter', { body: { filter: wanted.filters[at]!, ...how } }))
  }
}

export function ByFilter({ wanted, onClose, onDone }: { wanted: Wanted; onClose: () => void; onDone: () => void }) {
  const [found, setFound] = useState<{ whole: Result; counts: number[] } | null>(null)
  const preview = found?.whole ?? null
  const [wrong, setWrong] = useState<string | null>(null)
  const [busy, setBusy] = useState(false)
  const look = () => {
    setWrong(null)
    send(wanted, null).then(setFound, (error: unknown) => setWrong(message(error)))
  }
  useEffect(look, [])
  const act = async () => {
    if (!found) return
    setBusy(true)
    try {
      const { whole: done } = await send(wanted, found.counts)
      toast(wanted.kind === 'delete' ? t.byFilter.deleted(done.count) : wanted.kind === 'clear' ? t.task.cleared(done.count) : t.task.markedDone(done.count))
      onDone()
      onClose()
    } catch (error) {
      setWrong(message(error))
      setBusy(false)
      send(wanted, null).then(setFound, () => undefined)
    }
  }
  const unit = wanted.kind === 'delete' ? t.byFilter.runs : t.dag.instances
  return (
    <Dialog
      title={wanted.title}
      wrong={wrong}
      onClose={onClose}
      onSubmit={() => void act()}
      footer={
        <>
          <Button onClick={onClose}>{t.cancel}</Button>
          <Button kind={wanted.kind === 'delete' ? 'bad' : 'first'} type="submit" disabled={!preview?.count || busy}>{wanted.title}{preview ? ` (${count(preview.count)})` : ''}</Button>
        </>
      }
    >
      {!preview && !wrong && <Skeleton rows={3} height={28} />}
      {preview && (
        <>
          <p><strong>{unit(preview.count)}</strong>{wanted.kind !== 'delete' && preview.count > 0 ? `, ${t.byFilter.inRuns(preview.runs)}` : ''}</p>
          {preview.count === 0 && <p class="soft">{t.task.nothing}</p>}
          <ul class="stack">
            {preview.changes.map((change) => (
              <li key={`${change.state}${change.becomes}`} class="row">
                <span class="num" style={{ minWidth: '56px', textAlign: 'right' }}>{count(change.count)}</span>
                <Mark state={change.state} />{label(change.state)}
                <Icon name="right" />
                {change.becomes === 'deleted' ? t.byFilter.gone : <><Mark state={change.becomes} />{label(change.becomes)}</>}
              </li>
            ))}
          </ul>
          {preview.dags.length > 0 && (
            <p class="small soft">{preview.dags.slice(0, 12).map((dag) => `${dag.dag_id} (${count(dag.count)})`).join(', ')}{preview.dags.length > 12 ? ` ${t.task.andMore(preview.dags.length - 12)}` : ''}</p>
          )}
          {(preview.errors ?? []).map((error) => <Note key={error} kind="warn">{error}</Note>)}
        </>
      )}
    </Dialog>
  )
}
